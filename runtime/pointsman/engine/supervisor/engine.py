"""The shell around the core: load, decide, commit, emit, acknowledge.

One commit is one compare-and-set publish to the workflow's log. What must be sent follows from the state and is sent
after it, idempotently; only then are the inputs acknowledged. A crash anywhere leaves the inputs unacknowledged: any
replica picks them up, sees what was committed and sends what is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import uuid4

from pointsman.core.model.inputs import TimerFired
from pointsman.core.model.state import State
from pointsman.engine.log.reader import is_outcome
from pointsman.engine.log.requests import addressee
from pointsman.engine.log.workflow_log import DamagedLog, Head, ImportedLog, WorkflowLog
from pointsman.engine.process.broker_clock import SteadyClock
from pointsman.engine.process.fault_injection import passed
from pointsman.engine.process.handoff_codec import consumer_name
from pointsman.engine.process.heartbeat import keep_announced, team_card
from pointsman.engine.process.retrying import begin
from pointsman.engine.supervisor.acknowledger import Settler
from pointsman.engine.supervisor.admission import Room
from pointsman.engine.supervisor.agent_load import Loads
from pointsman.engine.supervisor.circuit_breaker import SharedCircuits
from pointsman.engine.supervisor.committer import Committer
from pointsman.engine.supervisor.decoder import Receiver, Unreadable
from pointsman.engine.supervisor.ended_cache import Ended
from pointsman.engine.supervisor.inbound import Arrival, are_new, begins, taken_id, too_early
from pointsman.engine.supervisor.outbox_publisher import Sender
from pointsman.engine.supervisor.ownership import Sharing
from pointsman.engine.supervisor.queue_metrics import show_queues
from pointsman.engine.supervisor.recovery import Mender
from pointsman.engine.supervisor.retention import Trimmer
from pointsman.engine.supervisor.spans import Spans, log_ids
from pointsman.engine.supervisor.startup_backlog import Backlog
from pointsman.engine.supervisor.stream_integrity import LogWatch, bounds, lost_log, lost_work
from pointsman.errors import BusUnavailable, ConfigurationError, InvariantError
from pointsman.ports.bus import Bus, Consumer, Delivery, Stored, StreamKind
from pointsman.ports.clock import Clock
from pointsman.settings import Settings
from pointsman.telemetry import bind, get_logger, metrics, tracing
from pointsman_schemas.card import AgentCard
from pointsman_schemas.log import Entry
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Team

__all__ = ["SupervisorEngine"]

_log = get_logger(__name__)

_BATCH = 256
"""Inputs taken from the broker at once: what one stream delivers in a few milliseconds."""
_GATHER = 0.005
"""Seconds in which inputs gather where supervisors share the work and several workflows are being dealt with: what is
done together is sent together, by everybody. Two on two CPUs do a fifth more so; 10 ms were no better."""
_PATIENCE = 5
"""Deliveries of an input that makes the engine itself fail, before it becomes a dead letter."""
_LONGEST_PAUSE = 60.0
"""Seconds between two deliveries of a timer that makes the engine itself fail."""
_LEAVE = 2.0
"""Seconds to take the card back in, when leaving: a broker that restarts is there again by then, and a card expires."""
_HEADS_KEPT = 2
"""Heads that are kept for each workflow that may be admitted: some are worked on here and admitted elsewhere."""


class SupervisorEngine:
    """Runs one team's workflows on a bus. Any number of processes may run the same team."""

    def __init__(self, bus: Bus, team: Team, settings: Settings, clock: Clock, *, instance: str | None = None) -> None:
        self.instance = instance or uuid4().hex
        self._bus = bus
        self._team = team
        self._settings = settings
        self._clock = clock = SteadyClock(clock)
        self._subjects = Subjects(settings.namespace)
        self._logs = WorkflowLog(bus, self._subjects, clock, team.name)
        self._sender = Sender(bus, self._subjects, clock, team.name)
        self._spans = Spans(bus, self._subjects, clock, team.name)
        self._watch = LogWatch(bus, self._subjects, clock, settings, team.name)
        self._circuits = SharedCircuits(
            bus, self._subjects, clock, failures=settings.circuit_failures, seconds=settings.circuit_open
        )
        loads, prepare = Loads(bus, clock), self._sender.prepare
        self._committer = Committer(bus, clock, self._logs, self._watch, self._circuits, loads, prepare)
        self._mender = Mender(bus, self._subjects, clock, self._logs, self._sender, team.name)
        self._trimmer = Trimmer(bus, self._subjects, clock, team.name, settings.retention_days)
        self._settler = Settler(bus, self._subjects, clock, self._logs, team.name)
        self._heads: OrderedDict[str, Head] = OrderedDict()
        self._ended = Ended(clock, timedelta(days=settings.retention_days))
        self._waiting: dict[str, list[Arrival]] = {}
        self._in_turn: dict[str, Sequence[Arrival]] = {}
        self._receiver = Receiver(bus, self._subjects, clock, team)
        self._room = Room(bus, self._subjects, clock, team.name, settings.max_running)
        self._sharing = Sharing(bus, clock, team.name, self.instance, settings.heartbeat)
        self._consumers: dict[str, Consumer] = {}
        self._backlog = Backlog(bus, clock, f"inbox-{team.name}", settings.ack_wait)

    @property
    def ready(self) -> bool:
        """Whether the broker is serving the team's consumers."""
        return not self.waiting_for

    @property
    def waiting_for(self) -> list[str]:
        """The consumers of the team that the broker is not serving now; and, until it has been dealt with, what lay in
        the inbox when this process began."""
        names = (f"request-{self._team.name}", f"inbox-{self._team.name}", consumer_name(self._team.name))
        unserved = [name for name in names if (open := self._consumers.get(name)) is None or not open.bound]
        return unserved or ([f"what lay in inbox-{self._team.name}"] if self._backlog else [])

    async def run(self, stop: asyncio.Event) -> None:
        """Supervise until `stop`; then take nothing new, finish what was taken, and return.

        Raises:
            BusUnavailable: the broker did not answer while starting.
            ConfigurationError: an agent has the team's name, or the namespace does not fit.
        """
        if (card := await begin(self._begin, self._bus, self._clock, stop)) is None:
            return
        name, (requests, inbox, handoffs) = self._team.name, self._consumers.values()
        ended = self._subjects.team_outcomes(name)
        async with (
            await self._bus.listen(ended, self._heard_outcome),
            asyncio.TaskGroup() as turns,
            await self._bus.receive(self.instance, lambda delivery: self._received(delivery, turns)),
        ):
            endless = [
                asyncio.create_task(self._pull_requests(requests, turns)),
                asyncio.create_task(self._pull(inbox, turns)),
                asyncio.create_task(self._pull(handoffs, turns)),
                asyncio.create_task(self._watch.run()),
                asyncio.create_task(self._circuits.run()),
                asyncio.create_task(self._mender.run()),
                asyncio.create_task(self._trimmer.run(lambda: self._sharing.rank == 0)),
                asyncio.create_task(keep_announced(self._bus, lambda: [card], self._settings.heartbeat, self._clock)),
                asyncio.create_task(self._keep_up()),
                asyncio.create_task(self._keep_alive()),
            ]
            if metrics.measuring():
                endless.append(asyncio.create_task(show_queues(self._bus, self._clock, name)))
            stopped = asyncio.create_task(stop.wait())
            try:
                done, _ = await asyncio.wait([*endless, stopped], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (*endless, stopped):
                    task.cancel()
                await asyncio.wait([*endless, stopped])
            failures = [error for task in done if task is not stopped and (error := task.exception()) is not None]
            with contextlib.suppress(BusUnavailable, TimeoutError):
                async with asyncio.timeout(_LEAVE):
                    await self._bus.registry.withdraw(card)
            await asyncio.gather(requests.close(), inbox.close(), handoffs.close())
        if failures:
            raise failures[0]
        _log.info("supervisor_stopped", team=name)

    async def _begin(self) -> AgentCard:
        """Open the team's consumers, and see what there is. It may be called again where it was not done."""
        await self._bus.set_up()
        await self._clock.set(self._bus)
        name, subjects = self._team.name, self._subjects
        inputs, tasks = subjects.team_inbox(name), consumer_name(name)
        await self._open(f"request-{name}", "work", subjects.request(name), ranked=True)
        await self._open(f"inbox-{name}", "work", inputs, ranked=True)
        await self._open(tasks, "handoffs", subjects.agent_handoffs(name))
        cards = await self._bus.registry.cards()
        if any(card.name == name and not card.team for card in cards):
            raise ConfigurationError(f"an agent called {name} is running; a team is an agent, too: rename one of them")
        await self._backlog.begin(inputs)
        await self._look_around()
        await self._look_for_losses()
        await self._circuits.load()
        _log.info("supervisor_started", team=name, namespace=self._settings.namespace)
        if absent := sorted(set(self._team.required_agents()) - {each.name for each in cards}):
            hint = "their tasks wait for them; `pointsman worker module:name` starts one"
            _log.info("agents_not_seen_yet", team=name, agents=absent, hint=hint)
        return team_card(self._team, self._clock.now(), self.instance)

    async def _open(self, name: str, stream: StreamKind, subject: str, *, ranked: bool = False) -> None:
        if name not in self._consumers:
            wait = self._settings.ack_wait
            self._consumers[name] = await self._bus.consumer(name, stream, subject, ack_wait=wait, ranked=ranked)

    async def _look_for_losses(self) -> None:
        """Streams that have lost their end, or will lose their beginning, are reported; what the log still knows of is
        sent again."""
        for bound in await bounds(self._bus):
            hint = "what was acknowledged is dropped, or work waits; take the bound off, with `nats stream edit`"
            _log.warning("stream_lacks_room", reason=bound, hint=hint)
        for loss in await lost_log(self._bus, self._subjects, self._clock, self._settings.retention_days):
            _log.error("log_went_backwards", reason=loss, hint="docs/durability.md says what to do")
        kept = self._settings.retention_days
        lost = await lost_work(self._bus, self._subjects, self._team.name, self._clock, kept)
        for loss in lost:
            _log.error("work_went_backwards", reason=loss, hint="what the log knows of is sent again")
        if lost and not self._bus.forgets:  # a bus that forgets begins with that
            await self._mender.mend()

    async def _keep_up(self) -> None:
        """What is done at each heartbeat. Schedules fire by the broker's clock: should it be set, what waits there is
        scheduled anew, to come when it was to come."""
        while True:
            await self._clock.sleep(self._settings.heartbeat)
            self._ended.forget_old()
            self._sharing.measure()
            with contextlib.suppress(BusUnavailable):
                await self._look_around()
                if await self._sender.broker_was_set():
                    for head in list(self._heads.values()):
                        if head.state is not None and not head.state.ended:
                            await self._sender.reschedule(head.state)

    async def _keep_alive(self) -> None:
        """Tell the broker about what has been in hand for a while: what is committed at once may take long to send. If
        it came again meanwhile, all would be sent again on its account, which takes as long. And see what is left of
        the backlog."""
        earlier = set[tuple[str, int, int]]()
        while True:
            await self._clock.sleep(min(self._settings.ack_wait / 3, self._settings.heartbeat))
            in_hand = [
                each.delivery for some in (self._waiting, self._in_turn) for all in some.values() for each in all
            ]
            for delivery in in_hand:
                if _identity(delivery) in earlier:
                    await delivery.in_progress()
            earlier = {_identity(delivery) for delivery in in_hand}
            with contextlib.suppress(BusUnavailable):
                await self._backlog.look(delivery.message.sequence for delivery in in_hand)
            in_hand.clear()  # or they would be held until the next time

    # Taking

    async def _pull_requests(self, consumer: Consumer, turns: asyncio.TaskGroup) -> None:
        """Admission: no more requests are taken than there may be workflows running."""
        while True:
            if self._room.left <= 0:
                await self._room.wait()
                for outcome in await self._room.ended():
                    await self._heard_outcome(outcome)
                continue
            await self._deal_out(await consumer.take(min(self._room.left, _BATCH)), turns)

    async def _pull(self, consumer: Consumer, turns: asyncio.TaskGroup) -> None:
        """The inbox; and what other teams hand to this one, whatever room there is: the workflows that wait for it have
        theirs."""
        while True:
            await self._deal_out(await consumer.take(_BATCH), turns)
            if self._sharing.spread and len(self._waiting) > 1:
                await self._clock.sleep(_GATHER)

    async def _deal_out(self, deliveries: Sequence[Delivery], turns: asyncio.TaskGroup) -> None:
        """What is of a workflow that another supervisor has in hand goes there, where its state is known."""
        await self._look_around()
        hands_on = self._sharing.hands_on
        for delivery in deliveries:
            workflow = addressee(delivery.message, self._team.name, self._subjects) if hands_on else None
            if workflow is None or workflow in self._ended or not await self._sharing.hand_on(workflow, delivery):
                self._take(delivery, turns)

    async def _look_around(self) -> None:
        """See which other supervisors are there, and be delivered what is left by those that come before this one."""
        await self._sharing.look()
        for consumer in self._consumers.values():
            consumer.set_rank(self._sharing.rank)

    def _received(self, delivery: Delivery, turns: asyncio.TaskGroup) -> None:
        self._sharing.received()
        self._take(delivery, turns)

    def _take(self, delivery: Delivery, turns: asyncio.TaskGroup) -> None:
        try:
            received = self._receiver.read(delivery)
        except Exception as error:  # it must not end the process, which would find it again
            _log.exception("input_not_read", subject=delivery.message.subject)
            turns.create_task(self._put_off(delivery, None, error))
            return
        if isinstance(received, Unreadable):
            kind, why = received.error.kind, str(received.error)
            turns.create_task(self._settler.bury(delivery, received.workflow, kind, why))
            return
        workflow, arrival = received
        # It may have been cancelled while it waited. What another team hands over needs no room.
        if delivery.message.subject.split(".", 2)[1] == "request" and workflow not in self._ended:
            self._room.take(workflow)
        self._arrived(workflow, arrival, turns)

    async def _heard_outcome(self, stored: Stored) -> None:
        if is_outcome(stored):
            self._remember_end(stored.subject.rpartition(".")[2], stored.at)

    def _arrived(self, workflow: str, arrival: Arrival, turns: asyncio.TaskGroup) -> None:
        """Inputs of one workflow are dealt with one after the other, and together when several are there."""
        if workflow in self._waiting:
            self._waiting[workflow].append(arrival)
            return
        self._waiting[workflow] = [arrival]
        turns.create_task(self._work_off(workflow))

    # Dealing with it

    async def _work_off(self, workflow: str) -> None:
        with bind(workflow_id=workflow, team=self._team.name):
            while arrivals := self._waiting[workflow]:
                self._waiting[workflow], self._in_turn[workflow] = [], arrivals
                await self._turn_or_hand_back(workflow, arrivals)
            del self._waiting[workflow], self._in_turn[workflow]

    async def _turn_or_hand_back(self, workflow: str, arrivals: Sequence[Arrival]) -> None:
        try:
            await self._turn(workflow, arrivals)
        except BusUnavailable as error:
            self._forget(workflow, arrivals)
            hint = "nothing is lost, they come again; `pointsman doctor` looks at the broker and its streams"
            _log.warning("inputs_handed_back", reason=str(error), inputs=len(arrivals), hint=hint)
            for arrival in arrivals:
                await arrival.delivery.nak(1.0)
        except DamagedLog as error:
            self._forget(workflow, arrivals)
            await self._settler.close_damaged(workflow, arrivals, error)
        except ImportedLog as error:
            self._forget(workflow, arrivals)
            for arrival in arrivals:
                await self._settler.bury(arrival.delivery, workflow, error.kind, str(error))
        except Exception as error:
            self._forget(workflow, arrivals)
            _log.exception("inputs_failed", inputs=len(arrivals))
            for arrival in arrivals:
                # A timer holds nothing, and its workflow waits for it alone: it comes again until somebody can take it.
                patient = isinstance(arrival.input, TimerFired)
                await self._put_off(arrival.delivery, workflow, error, for_ever=patient)

    async def _put_off(
        self, delivery: Delivery, workflow: str | None, error: Exception, *, for_ever: bool = False
    ) -> None:
        """The engine itself has failed at it: another one may not, a few times or `for_ever`."""
        if delivery.delivered < _PATIENCE or for_ever:
            await delivery.nak(min(float(delivery.delivered), _LONGEST_PAUSE))
        else:
            await self._settler.bury(delivery, workflow, "bug", f"{type(error).__name__}: {error}")

    def _forget(self, workflow: str, arrivals: Iterable[Arrival]) -> None:
        """What is known of the workflow may be stale. A request of it is admitted by whoever takes it next: if it kept
        its room here, and there is no other room and no other supervisor, nobody would."""
        self._heads.pop(workflow, None)
        if any(begins(arrival.input) for arrival in arrivals):
            self._room.give_back(workflow)

    async def _turn(self, workflow: str, arrivals: Sequence[Arrival]) -> None:
        """Load, decide, commit, emit, acknowledge."""
        passed("supervisor.received")
        started = self._clock.now() if tracing() else None
        again = any(arrival.delivery.delivered > 1 for arrival in arrivals)
        # A request may be another than the one that began it, which the log tells; or the log is gone.
        if workflow in self._ended and not again and not any(begins(arrival.input) for arrival in arrivals):
            self._room.give_back(workflow)
            return await self._settler.settle(workflow, arrivals)
        head = self._heads.get(workflow)
        left_behind = head is None and again
        if head is None:
            new = not again and workflow not in self._ended
            fresh = new and all(begins(arrival.input) for arrival in arrivals)
            # A request that comes for the first time has no log yet: the commit, which expects none, shows if it has.
            head = Head() if fresh else replace(await self._logs.load(workflow), others=True)
        unknown = head.state is None and not any(begins(arrival.input) for arrival in arrivals)
        if unknown and not await self._receiver.cancelled_in_the_queue(workflow, arrivals):
            # Another supervisor may have admitted it since the log was read here, and have settled its request.
            head = replace(await self._logs.load(workflow), others=True)
            if head.state is None:
                return await self._settler.bury_strangers(workflow, arrivals)
        if head.state is None:
            await self._receiver.look_for_cancellation(workflow, arrivals)
        if head.state is not None and too_early(head.state, arrivals, self._clock.now):
            await self._sender.broker_was_set()
        head, entries, owed, raced = await self._committer.commit(workflow, head, arrivals)
        if head.state is None:
            raise InvariantError(f"the inputs of {workflow} led to no state")
        if workflow in self._ended and not head.state.ended:  # its log had aged out, and it has begun anew
            self._ended.discard(workflow)
            self._room.take(workflow)
        # What others have committed they send themselves, and if they die before, the input they did it for comes
        # again, to be recovered from. But nothing may be missing once the outcome, which goes last, is there.
        others = head.others or raced
        if again or (others and (head.state.ended or not are_new(arrivals, entries))):
            await self._sender.send_all(head.state, entries)
            others = False
        else:
            await self._sender.send_new(head.state, entries, owed)
        self._remember(workflow, head if head.others is others else replace(head, others=others))
        passed("supervisor.emitted")
        await self._spans.ended(head.state, entries)
        if left_behind and tracing():
            await self._spans.left_behind(workflow, {arrival.event_id for arrival in arrivals})
        if started is not None:
            self._spans.processed(head.state, [arrival.delivery for arrival in arrivals], started)
        for arrival in arrivals:
            arrival.refusal = arrival.refusal or taken_id(head.state, arrival.input)
        await self._settler.settle(workflow, arrivals, head.state)
        passed("supervisor.acked")
        self._note(head.state, entries)
        return None

    # Noting

    def _note(self, state: State, entries: Sequence[Entry]) -> None:
        """Log lines of what was committed, and forgetting of what has ended."""
        if _log.is_enabled_for(logging.DEBUG):
            for entry in entries:
                _log.debug(entry.kind, **_ids(entry), **log_ids(state))
        if state.ended:
            self._remember_end(state.workflow_id, state.outcome.ended_at if state.outcome else self._clock.now())
            if any(entry.kind == "workflow_ended" for entry in entries):
                elapsed = state.outcome.elapsed if state.outcome else 0.0
                _log.info("workflow_ended", status=state.phase.value, elapsed=round(elapsed, 3), **log_ids(state))

    def _remember(self, workflow: str, head: Head) -> None:
        self._heads[workflow] = head
        self._heads.move_to_end(workflow)
        while len(self._heads) > _HEADS_KEPT * self._settings.max_running:
            self._heads.popitem(last=False)

    def _remember_end(self, workflow: str, at: datetime) -> None:
        self._heads.pop(workflow, None)
        self._room.give_back(workflow)
        self._ended.add(workflow, at)


def _ids(entry: Entry) -> dict[str, object]:
    return {
        name: value for name in ("task_id", "attempt", "agent") if (value := getattr(entry, name, None)) is not None
    }


def _identity(delivery: Delivery) -> tuple[str, int, int]:
    """Return what tells one delivery from every other. `id()` does not: a later delivery may get the same address."""
    return delivery.message.subject, delivery.message.sequence, delivery.delivered
