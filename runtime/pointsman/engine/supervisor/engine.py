"""The loop of a supervisor around the core: load, decide, commit, emit, acknowledge.

One commit is one compare-and-set publish to the workflow's log. The messages are computed from the state and published
after the commit, idempotently; then the inputs are acknowledged. If the process crashes before that, the inputs are
unacknowledged. So another replica receives the inputs again, reads the commit and publishes the missing messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from pointsman.core.model.inputs import ControlReceived, TimerFired
from pointsman.core.model.state import State
from pointsman.engine.log.reader import ImportedLogError, is_outcome, round_of_outcome
from pointsman.engine.log.requests import workflow_id_of
from pointsman.engine.log.workflow_log import CorruptLogError, LogHead, WorkflowLog
from pointsman.engine.process.agent_versions import team_definitions
from pointsman.engine.process.broker_clock import BrokerClock
from pointsman.engine.process.consumers import DurableConsumer, agent_consumer, input_consumers, request_consumer
from pointsman.engine.process.fault_injection import fault_point
from pointsman.engine.process.handoff_codec import is_cancellation
from pointsman.engine.process.heartbeat import announce_periodically, team_card
from pointsman.engine.process.retrying import start_with_retry
from pointsman.engine.supervisor.acknowledger import Acknowledger
from pointsman.engine.supervisor.admission import AdmissionControl
from pointsman.engine.supervisor.agent_load import AgentLoads
from pointsman.engine.supervisor.circuit_breaker import CircuitBreaker
from pointsman.engine.supervisor.committer import Committer
from pointsman.engine.supervisor.daily_usage import DailyUsage
from pointsman.engine.supervisor.decoder import InboundDecoder, UnreadableInput
from pointsman.engine.supervisor.ended_cache import EndedWorkflows
from pointsman.engine.supervisor.inbound import (
    InboundInput,
    all_committed,
    find_refusal,
    fired_early,
    is_late_timer,
    is_message,
    is_request,
)
from pointsman.engine.supervisor.outbox_publisher import OutboxPublisher
from pointsman.engine.supervisor.ownership import Ownership
from pointsman.engine.supervisor.queue_metrics import publish_queue_gauges
from pointsman.engine.supervisor.recovery import Recovery
from pointsman.engine.supervisor.retention import RetentionJob
from pointsman.engine.supervisor.scheduler import ScheduleBounds, Scheduler
from pointsman.engine.supervisor.spans import SupervisorSpans, log_context
from pointsman.engine.supervisor.startup_backlog import StartupBacklog
from pointsman.engine.supervisor.stream_integrity import LogWatch, find_lost_log, find_lost_work, stream_bounds
from pointsman.engine.supervisor.thread_gate import ThreadGate
from pointsman.errors import (
    BusUnavailableError,
    ConfigurationError,
    ContractError,
    InvariantError,
    PermissionDeniedError,
)
from pointsman.ports.bus import Bus, Consumer, Delivery, StoredMessage
from pointsman.ports.clock import Clock
from pointsman.settings import Settings
from pointsman.telemetry import bind, get_logger, metrics, tracing_enabled
from pointsman_schemas.card import AgentCard
from pointsman_schemas.log import Entry
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Team

__all__ = ["SupervisorEngine"]

_log = get_logger(__name__)

_BATCH_SIZE = 256
"""Maximum number of inputs of one batch. One stream delivers about this many inputs in a few milliseconds."""
_BATCH_DELAY_S = 0.005
"""Delay between two pulls while several supervisors share the workflows. The next pull receives the inputs that arrive
during the delay as one batch, whose messages are published together. With this delay, two supervisors on two CPUs
handle a fifth more inputs; a delay of 10 ms was not better."""
_MAX_DELIVERIES = 5
"""Number of deliveries of an input after which the engine dead-letters the input, if each delivery raises an error."""
_MAX_RETRY_PAUSE_S = 60.0
"""Maximum delay between two deliveries of a timer that raises an error in the engine."""
_SHUTDOWN_TIMEOUT_S = 1.0
"""Seconds at shutdown in which the team's card is withdrawn and, at the same time, open batches are processed. The
limit causes no loss: a card that is not withdrawn expires, and another supervisor receives the unprocessed inputs."""
_FIRST_TURN_PAUSE_S = 0.1
"""Delay before the first redelivery of a request that waits for the end of an earlier turn of its thread. The delay
grows with each redelivery."""
_MAX_TURN_PAUSE_S = 1.0
"""Maximum delay between two deliveries of a request that waits for an earlier turn. Each delivery costs a read of the
record of the thread, so the delay is not shorter."""
_MESSAGE_PAUSE_S = 0.5
"""Delay before the redelivery of a message to a workflow that has not begun. The delay grows with each delivery."""
_MAX_MESSAGE_PAUSE_S = 10.0
"""Maximum delay between two deliveries of a message to a workflow that has not begun."""
_HEADS_PER_WORKFLOW = 2
"""Number of cached log heads for each slot of admission: more than one, because this process also receives inputs of
workflows that other supervisors have admitted."""


class SupervisorEngine:
    """Runs one team's workflows on a bus. Any number of processes may run the same team.

    Args:
        bus: The bus.
        team: The team.
        settings: The settings.
        clock: The clock.
        instance: The id of this instance; random by default.
    """

    def __init__(self, bus: Bus, team: Team, settings: Settings, clock: Clock, *, instance: str | None = None) -> None:
        self.instance = instance or uuid4().hex
        self._bus = bus
        self._team = team
        self._settings = settings
        self._clock = clock = BrokerClock(clock)
        self._subjects = Subjects(settings.namespace)
        self._logs = WorkflowLog(bus, self._subjects, clock, team.name)
        self._outbox = OutboxPublisher(bus, self._subjects, clock, team.name)
        self._spans = SupervisorSpans(bus, self._subjects, clock, team.name)
        self._log_watch = LogWatch(bus, self._subjects, clock, settings, team.name)
        self._circuits = CircuitBreaker(
            bus, self._subjects, clock, failures=settings.circuit_failures, seconds=settings.circuit_open
        )
        loads, prepare = AgentLoads(bus, clock), self._outbox.encode_new
        kept = timedelta(days=settings.retention_days)
        self._committer = Committer(bus, clock, self._logs, self._log_watch, self._circuits, loads, prepare, kept)
        self._recovery = Recovery(bus, self._subjects, clock, self._logs, self._outbox, team.name)
        self._retention = RetentionJob(bus, self._subjects, clock, team.name, settings.retention_days, team.threads.ttl)
        self._usage = DailyUsage(bus, self._subjects, clock, team)
        self._threads = ThreadGate(bus, self._subjects, clock, team)
        bounds = ScheduleBounds(settings.max_schedules, settings.max_caller_schedules)
        self._scheduler = Scheduler(bus, self._subjects, clock, team, bounds)
        self._acknowledger = Acknowledger(bus, self._subjects, clock, self._logs, team.name)
        self._heads: OrderedDict[str, LogHead] = OrderedDict()
        self._ended = EndedWorkflows(clock, kept)
        self._queued: dict[str, list[InboundInput]] = {}
        self._in_progress: dict[str, Sequence[InboundInput]] = {}
        self._decoder = InboundDecoder(bus, self._subjects, clock, team)
        self._admission = AdmissionControl(bus, self._subjects, clock, team.name, settings.max_running)
        self._ownership = Ownership(bus, clock, team.name, self.instance, settings.heartbeat)
        self._consumers: dict[str, Consumer] = {}
        self._requests = request_consumer(self._subjects, team.name)
        self._inputs = input_consumers(self._subjects, team.name)
        self._handoffs = agent_consumer(self._subjects, team.name)
        self._backlogs = [StartupBacklog(bus, clock, inputs, settings.ack_wait) for inputs in self._inputs]

    @property
    def ready(self) -> bool:
        """Return True if the broker serves the team's consumers, and all inputs from before the start are processed."""
        return not self.waiting_for

    @property
    def waiting_for(self) -> list[str]:
        """Return the consumers that the broker does not serve.

        If it serves all, return the consumers with inputs from before the start that are not processed yet.
        """
        names = [each.name for each in (self._requests, *self._inputs, self._handoffs)]
        unserved = [name for name in names if (open := self._consumers.get(name)) is None or not open.bound]
        return unserved or [f"backlog of {backlog.name}" for backlog in self._backlogs if backlog]

    async def run(self, stop: asyncio.Event) -> None:
        """Supervise until `stop`. Then take no new inputs, finish the inputs in progress, and return.

        Args:
            stop: Set to stop.

        Raises:
            BusUnavailableError: the broker did not answer during the start.
            ConfigurationError: an agent has the team's name, or the namespace is not suitable.
            PermissionDeniedError: the broker refuses a subject that this supervisor needs.
        """
        if (card := await start_with_retry(self._start, self._bus, self._clock, stop)) is None:
            return
        name, requests = self._team.name, self._consumers[self._requests.name]
        others = [self._consumers[each.name] for each in (*self._inputs, self._handoffs)]
        ended = self._subjects.team_outcomes(name)
        async with (
            await self._bus.listen(ended, self._on_outcome),
            _Turns() as turns,
            await self._bus.receive_forwarded(self.instance, lambda delivery: self._on_forwarded(delivery, turns)),
        ):
            endless = [
                asyncio.create_task(self._pull_requests(requests, turns)),
                *(asyncio.create_task(self._pull(consumer, turns)) for consumer in others),
                asyncio.create_task(self._log_watch.run()),
                asyncio.create_task(self._circuits.run()),
                asyncio.create_task(self._recovery.run()),
                asyncio.create_task(self._scheduler.run()),
                asyncio.create_task(self._retention.run(lambda: self._ownership.priority == 0)),
                asyncio.create_task(
                    announce_periodically(self._bus, lambda: [card], self._settings.heartbeat, self._clock)
                ),
                asyncio.create_task(self._run_heartbeat()),
                asyncio.create_task(self._extend_ack_deadlines()),
            ]
            if metrics.metrics_enabled():
                endless.append(asyncio.create_task(publish_queue_gauges(self._bus, self._subjects, self._clock, name)))
            stopped = asyncio.create_task(stop.wait())
            try:
                done, _ = await asyncio.wait([*endless, stopped], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (*endless, stopped):
                    task.cancel()
                await asyncio.wait([*endless, stopped])
            failures = [error for task in done if task is not stopped and (error := task.exception()) is not None]
            await asyncio.gather(self._withdraw(card), turns.end(_SHUTDOWN_TIMEOUT_S))
            await asyncio.gather(*(consumer.close() for consumer in self._consumers.values()))
        if failures:
            raise failures[0]
        _log.info("supervisor_stopped", team=name)

    async def _withdraw(self, card: AgentCard) -> None:
        with contextlib.suppress(BusUnavailableError, TimeoutError):
            async with asyncio.timeout(_SHUTDOWN_TIMEOUT_S):
                await self._bus.registry.withdraw(card)

    async def _start(self) -> AgentCard:
        """Set up the streams and open the team's consumers. After a failure, the call can be repeated."""
        await self._bus.set_up()
        await self._clock.synchronize(self._bus)
        name = self._team.name
        for each in (self._requests, *self._inputs):
            await self._open_consumer(each, ranked=True)
        await self._open_consumer(self._handoffs)
        cards = await self._bus.registry.cards()
        if any(card.name == name and not card.team for card in cards):
            raise ConfigurationError(
                f"an agent called {name} runs; a team is an agent, too; rename the agent or the team"
            )
        for backlog in self._backlogs:
            await backlog.measure()
        await self._refresh_membership()
        await self._check_stream_integrity()
        await self._circuits.load()
        _log.info("supervisor_started", team=name, namespace=self._settings.namespace)
        own = team_card(self._team, self._clock.now(), self.instance)
        definitions = team_definitions([own, *(each for each in cards if each.name == name and each.team)])
        if len(definitions) > 1:
            hint = "a workflow uses the definition of the supervisor that admits it; start all with one definition"
            _log.warning("team_definitions_differ", team=name, own=own.version, live=definitions, hint=hint)
        if absent := sorted(set(self._team.required_agents()) - {each.name for each in cards}):
            hint = "tasks wait for these agents; start them with `pointsman worker module:name`"
            _log.info("agents_missing", team=name, agents=absent, hint=hint)
        return own

    async def _open_consumer(self, each: DurableConsumer, *, ranked: bool = False) -> None:
        if each.name not in self._consumers:
            self._consumers[each.name] = await self._bus.consumer(
                *each, ack_wait=self._settings.ack_wait, ranked=ranked
            )

    async def _check_stream_integrity(self) -> None:
        """Log each loss of messages, and each limit at which a stream drops or refuses messages.

        After a loss, republish the messages that the log requires.
        """
        for bound in await stream_bounds(self._bus):
            hint = "the broker drops acknowledged messages, or work waits; remove the bound with `nats stream edit`"
            _log.warning("stream_near_capacity", reason=bound, hint=hint)
        for loss in await find_lost_log(self._bus, self._subjects, self._clock, self._settings.retention_days):
            _log.error("log_rolled_back", reason=loss, hint="see docs/durability.md")
        kept = self._settings.retention_days
        lost = await find_lost_work(self._bus, self._subjects, self._team.name, self._clock, kept)
        for loss in lost:
            _log.error(
                "work_rolled_back",
                reason=loss,
                hint="the messages that the log requires are published again",
            )
        if lost and not self._bus.handoffs_unsynced:  # with unsynced handoffs, `Recovery.run` does this at its start
            await self._recovery.resend_running()

    async def _run_heartbeat(self) -> None:
        """Run the tasks of each heartbeat.

        Schedules fire by the broker's clock. So if a person sets the broker's clock, waiting schedules are published
        again, with the corrected times.
        """
        while True:
            await self._clock.sleep(self._settings.heartbeat)
            self._ended.evict()
            self._ownership.measure_load()
            with contextlib.suppress(BusUnavailableError):
                await self._refresh_membership()
                if await self._outbox.broker_clock_changed():
                    self._scheduler.check_soon()
                    for head in list(self._heads.values()):
                        if head.state is not None and not head.state.ended:
                            await self._outbox.republish_scheduled(head.state)

    async def _extend_ack_deadlines(self) -> None:
        """Extend the acknowledgement deadline of inputs in progress, and check the backlog from the start.

        The publish of all messages of a large commit may take long. If the broker redelivered the inputs of the commit
        during the publish, all messages would be published again, which would take as long.
        """
        earlier = set[tuple[str, int, int]]()
        while True:
            await self._clock.sleep(min(self._settings.ack_wait / 3, self._settings.heartbeat))
            in_hand = [
                each.delivery for some in (self._queued, self._in_progress) for all in some.values() for each in all
            ]
            for delivery in in_hand:
                if _identity(delivery) in earlier:
                    await delivery.in_progress()
            earlier = {_identity(delivery) for delivery in in_hand}
            with contextlib.suppress(BusUnavailableError):
                for backlog in self._backlogs:
                    await backlog.refresh(delivery.message for delivery in in_hand)
            in_hand.clear()  # otherwise the deliveries would stay in memory during the next sleep

    # Receiving

    async def _pull_requests(self, consumer: Consumer, turns: asyncio.TaskGroup) -> None:
        """Take requests while there are free slots."""
        while True:
            if self._admission.free_slots <= 0:
                await self._admission.wait_for_slot()
                for outcome in await self._admission.missed_outcomes():
                    await self._on_outcome(outcome)
                continue
            await self._route(await consumer.take(min(self._admission.free_slots, _BATCH_SIZE)), turns)

    async def _pull(self, consumer: Consumer, turns: asyncio.TaskGroup) -> None:
        """Take controls, results, timers, and handoffs of other teams. Only requests need a slot."""
        while True:
            await self._route(await consumer.take(_BATCH_SIZE), turns)
            if self._ownership.balanced and len(self._queued) > 1:
                await self._clock.sleep(_BATCH_DELAY_S)

    async def _route(self, deliveries: Sequence[Delivery], turns: asyncio.TaskGroup) -> None:
        """Forward each input to the owner of its workflow, which has the state in memory. Accept all other inputs."""
        await self._refresh_membership()
        hands_on = self._ownership.may_forward
        for delivery in deliveries:
            workflow = workflow_id_of(delivery.message, self._team.name, self._subjects) if hands_on else None
            if workflow is None or workflow in self._ended or not await self._ownership.forward(workflow, delivery):
                self._accept_delivery(delivery, turns)

    async def _refresh_membership(self) -> None:
        """Read the live supervisors, and set the rank of this supervisor at the consumers."""
        await self._ownership.refresh()
        for consumer in self._consumers.values():
            consumer.set_rank(self._ownership.priority)

    def _on_forwarded(self, delivery: Delivery, turns: asyncio.TaskGroup) -> None:
        self._ownership.record_forwarded()
        self._accept_delivery(delivery, turns)

    def _accept_delivery(self, delivery: Delivery, turns: asyncio.TaskGroup) -> None:
        if is_cancellation(delivery.message):  # no effect: the parent also sends a control, which ends the child
            turns.create_task(_acknowledge(delivery))
            return
        if self._scheduler.concerns(delivery.message):
            turns.create_task(self._process_schedule(delivery))
            return
        try:
            received = self._decoder.decode(delivery)
        except (
            Exception
        ) as error:  # an error must not end the process, because the restarted process would receive the input again
            _log.exception("input_body_unavailable", subject=delivery.message.subject)
            turns.create_task(self._retry_later(delivery, None, error))
            return
        if isinstance(received, UnreadableInput):
            kind, why = received.error.kind, str(received.error)
            turns.create_task(self._acknowledger.dead_letter(delivery, received.workflow, kind, why))
            return
        workflow, inbound_input = received
        # A request needs a slot, unless its workflow has already ended, because it was cancelled while the request
        # waited. A handoff of another team needs no slot.
        if delivery.message.subject.split(".", 2)[1] == "request" and workflow not in self._ended:
            self._admission.admit(workflow)
        self._enqueue(workflow, inbound_input, turns)

    async def _on_outcome(self, stored: StoredMessage) -> None:
        if is_outcome(stored):
            workflow = stored.subject.rpartition(".")[2]
            head = self._heads.get(workflow)
            if head is None or head.state is None or head.state.round <= round_of_outcome(stored):
                self._record_end(workflow, stored.at)

    def _enqueue(self, workflow: str, inbound_input: InboundInput, turns: asyncio.TaskGroup) -> None:
        """Queue an input. Inputs of one workflow are processed in order, and all waiting inputs form one batch."""
        if workflow in self._queued:
            self._queued[workflow].append(inbound_input)
            return
        self._queued[workflow] = [inbound_input]
        turns.create_task(self._drain(workflow))

    # Processing

    async def _process_schedule(self, delivery: Delivery) -> None:
        """Decide about a command or a timer of a schedule, and settle the delivery."""
        try:
            await self._scheduler.process(delivery)
        except ContractError as error:
            await self._acknowledger.dead_letter(delivery, None, error.kind, str(error))
        except BusUnavailableError:
            await delivery.nak(1.0)
        except PermissionDeniedError:
            await delivery.nak(1.0)
            raise
        except Exception as error:
            _log.exception("schedule_failed", subject=delivery.message.subject)
            is_timer = self._subjects.kind_of(delivery.message.subject) == "timer"
            await self._retry_later(delivery, None, error, for_ever=is_timer)
        else:
            await delivery.ack()
            fault_point("supervisor.acked")

    async def _drain(self, workflow: str) -> None:
        with bind(workflow_id=workflow, team=self._team.name):
            while inbound := self._queued[workflow]:
                self._queued[workflow], self._in_progress[workflow] = [], inbound
                await self._process_or_return(workflow, inbound)
            del self._queued[workflow], self._in_progress[workflow]

    async def _process_or_return(self, workflow: str, inbound: Sequence[InboundInput]) -> None:
        try:
            await self._process_batch(workflow, inbound)
        except BusUnavailableError as error:
            self._invalidate(workflow, inbound)
            hint = "the broker redelivers the inputs; `pointsman doctor` checks the broker and its streams"
            _log.warning("inputs_returned", reason=str(error), inputs=len(inbound), hint=hint)
            for inbound_input in inbound:
                await inbound_input.delivery.nak(1.0)
        except PermissionDeniedError:  # no workflow can continue, so the process ends with an error
            self._invalidate(workflow, inbound)
            for inbound_input in inbound:
                await inbound_input.delivery.nak(1.0)
            raise
        except CorruptLogError as error:
            self._invalidate(workflow, inbound)
            await self._acknowledger.close_corrupt(workflow, inbound, error)
        except ImportedLogError as error:
            self._invalidate(workflow, inbound)
            for inbound_input in inbound:
                await self._acknowledger.dead_letter(inbound_input.delivery, workflow, error.kind, str(error))
        except Exception as error:
            self._invalidate(workflow, inbound)
            _log.exception("inputs_failed", inputs=len(inbound))
            for inbound_input in inbound:
                # A timer is redelivered without a limit, because the workflow may wait only for this timer, and the
                # redelivery blocks no other input.
                patient = isinstance(inbound_input.input, TimerFired)
                await self._retry_later(inbound_input.delivery, workflow, error, for_ever=patient)

    async def _retry_later(
        self, delivery: Delivery, workflow: str | None, error: Exception, *, for_ever: bool = False
    ) -> None:
        """Let the broker redeliver an input that raised an error in the engine, because another supervisor may succeed.

        After `_MAX_DELIVERIES`, dead-letter the input. With `for_ever`, the number of deliveries has no limit.
        """
        if delivery.delivered < _MAX_DELIVERIES or for_ever:
            await delivery.nak(min(float(delivery.delivered), _MAX_RETRY_PAUSE_S))
        else:
            await self._acknowledger.dead_letter(delivery, workflow, "bug", f"{type(error).__name__}: {error}")

    def _invalidate(self, workflow: str, inbound: Iterable[InboundInput]) -> None:
        """Discard the cached head of a workflow, and free its slot if its request is returned.

        The next supervisor that takes the request needs a slot for the request. If the only supervisor has one slot,
        and the slot stayed occupied, no supervisor could take the request.
        """
        self._heads.pop(workflow, None)
        if any(is_request(inbound_input.input) for inbound_input in inbound):
            self._admission.release(workflow)

    async def _process_batch(self, workflow: str, inbound: Sequence[InboundInput]) -> None:
        """Load, decide, commit, emit, acknowledge."""
        fault_point("supervisor.received")
        started = self._clock.now() if tracing_enabled() else None
        again = any(inbound_input.delivery.delivered > 1 for inbound_input in inbound)
        # Only late timers are acknowledged without a read of the log. A request, for example, is compared with the log,
        # because the request may differ from the first request with its id, or the log may have been removed.
        if workflow in self._ended and not again and all(is_late_timer(each.input) for each in inbound):
            self._admission.release(workflow)
            return await self._acknowledger.acknowledge(workflow, inbound)
        head = self._heads.get(workflow)
        left_behind = head is None and again
        if head is None:
            new = not again and workflow not in self._ended
            fresh = new and all(is_request(inbound_input.input) for inbound_input in inbound)
            # The first delivery of a request needs no read: the commit expects no log, and fails if a log exists.
            head = LogHead() if fresh else replace(await self._logs.load(workflow), foreign_messages=True)
        unknown = head.state is None and not any(is_request(inbound_input.input) for inbound_input in inbound)
        if unknown and not await self._decoder.is_cancelled_while_queued(workflow, inbound):
            # Read again: another supervisor may have admitted the workflow and settled its request since the last read.
            head = replace(await self._logs.load(workflow), foreign_messages=True)
            if head.state is None:
                return await self._settle_unknown(workflow, inbound)
        if head.state is None:
            await self._usage.refuse(inbound)
            cancelled = any(isinstance(each.input, ControlReceived) and not is_message(each.input) for each in inbound)
            if not cancelled and not await self._threads.admit(inbound):
                return await self._wait_for_turn(workflow, inbound)
            await self._decoder.add_parent_cancellation(workflow, inbound)
        if head.state is not None and fired_early(head.state, inbound, self._clock.now):
            await self._outbox.broker_clock_changed()
        head, entries, owed, raced = await self._committer.commit(workflow, head, inbound)
        if head.state is None:
            raise InvariantError(f"the inputs of {workflow} led to no state")
        if workflow in self._ended and not head.state.ended:  # the workflow was resumed, or began again without a log
            self._ended.discard(workflow)
            self._admission.admit(workflow)
        # The messages of another supervisor's commits are usually left to that supervisor. If that supervisor crashes
        # before the publish, the broker redelivers its input, and the messages are published then. But all messages
        # must exist before an outcome is published. So at the end of a workflow, this process publishes all of them.
        others = head.foreign_messages or raced
        if again or (others and (head.state.ended or not all_committed(inbound, entries))):
            await self._outbox.republish_all(head.state, entries)
            others = False
        else:
            await self._outbox.publish_new(head.state, entries, owed)
        self._cache_head(workflow, head if head.foreign_messages is others else replace(head, foreign_messages=others))
        fault_point("supervisor.emitted")
        await self._threads.record(head.state, inbound)
        await self._scheduler.record(head.state)
        await self._spans.export_ended(head.state, entries)
        if left_behind and tracing_enabled():
            await self._spans.export_missed(workflow, {inbound_input.event_id for inbound_input in inbound})
        if started is not None:
            self._spans.export_processing(head.state, [inbound_input.delivery for inbound_input in inbound], started)
        for inbound_input in inbound:
            inbound_input.refusal = inbound_input.refusal or find_refusal(head.state, inbound_input.input)
        await self._acknowledger.acknowledge(workflow, inbound, head.state)
        fault_point("supervisor.acked")
        self._log_entries(head.state, entries)
        return None

    async def _settle_unknown(self, workflow: str, inbound: Sequence[InboundInput]) -> None:
        """Return messages for redelivery if their workflow may still begin. Dead-letter the other inputs."""
        early = [each for each in inbound if is_message(each.input)]
        if early and not await self._decoder.is_queued(workflow):
            # The workflow may be a child whose handoff is still in the queue, so its messages get some redeliveries.
            early = [each for each in early if each.delivery.delivered < _MAX_DELIVERIES]
        for each in early:
            await each.delivery.nak(min(_MESSAGE_PAUSE_S * each.delivery.delivered, _MAX_MESSAGE_PAUSE_S))
        if others := [each for each in inbound if all(each is not kept for kept in early)]:
            await self._acknowledger.dead_letter_unknown(workflow, others)

    async def _wait_for_turn(self, workflow: str, inbound: Sequence[InboundInput]) -> None:
        """Return the request of a turn that must wait. The broker delivers the request again, to any supervisor."""
        self._invalidate(workflow, inbound)
        for each in inbound:
            await each.delivery.nak(min(_FIRST_TURN_PAUSE_S * each.delivery.delivered, _MAX_TURN_PAUSE_S))

    # Recording

    def _log_entries(self, state: State, entries: Sequence[Entry]) -> None:
        """Log committed entries. If the workflow has ended, record its end."""
        if _log.is_enabled_for(logging.DEBUG):
            for entry in entries:
                _log.debug(entry.kind, **_entry_ids(entry), **log_context(state))
        if state.ended:
            self._record_end(state.workflow_id, state.outcome.ended_at if state.outcome else self._clock.now())
            if any(entry.kind == "workflow_ended" for entry in entries):
                elapsed = state.outcome.elapsed if state.outcome else 0.0
                _log.info("workflow_ended", status=state.phase.value, elapsed=round(elapsed, 3), **log_context(state))

    def _cache_head(self, workflow: str, head: LogHead) -> None:
        self._heads[workflow] = head
        self._heads.move_to_end(workflow)
        while len(self._heads) > _HEADS_PER_WORKFLOW * self._settings.max_running:
            self._heads.popitem(last=False)

    def _record_end(self, workflow: str, at: datetime) -> None:
        self._heads.pop(workflow, None)
        self._admission.release(workflow)
        self._ended.add(workflow, at)


def _entry_ids(entry: Entry) -> dict[str, object]:
    return {
        name: value for name in ("task_id", "attempt", "agent") if (value := getattr(entry, name, None)) is not None
    }


async def _acknowledge(delivery: Delivery) -> None:
    await delivery.ack()


def _identity(delivery: Delivery) -> tuple[str, int, int]:
    """Return a unique key of a delivery. `id()` is not unique, because a later delivery may get the same address."""
    return delivery.message.subject, delivery.message.sequence, delivery.delivered


class _Turns(asyncio.TaskGroup):
    """The asyncio tasks that process inputs. A shutdown can end the tasks."""

    def __init__(self) -> None:
        super().__init__()
        self._open: set[asyncio.Task[Any]] = set()

    def create_task(self, *args: Any, **kwargs: Any) -> asyncio.Task[Any]:
        task = super().create_task(*args, **kwargs)
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        return task

    async def end(self, within: float) -> None:
        """Wait for the open tasks for at most `within` seconds, then cancel the tasks that are still open."""
        if self._open:
            await asyncio.wait(self._open, timeout=within)
        for task in tuple(self._open):
            task.cancel()
