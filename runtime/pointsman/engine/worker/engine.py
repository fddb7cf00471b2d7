"""A worker receives handoffs, runs agents, and stores one result per attempt. Then the worker acknowledges the handoff.

| State of the handoff | Action of the worker |
|---|---|
| The handoff runs here and is redelivered | The handler does not run twice; the newest delivery is settled |
| The task is cancelled while the handoff runs | The handler is stopped, and a `cancelled` result is stored |
| The task is cancelled while the handoff is queued | The handler is not started; a `cancelled` result is stored |
| The handoff runs at the end of the shutdown grace | The handler is cancelled; the handoff returns to the broker |
| Any other state | See the table of `handoff_processor` |
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

from pointsman.authoring.agent import Agent
from pointsman.authoring.interceptor import Interceptor
from pointsman.authoring.lifespan import Lifespan
from pointsman.authoring.team_agent import TeamAgent
from pointsman.clock import SystemClock
from pointsman.engine.process.agent_versions import mixed_queue
from pointsman.engine.process.broker_clock import BrokerClock
from pointsman.engine.process.consumers import consumer_name
from pointsman.engine.process.handoff_codec import is_cancellation
from pointsman.engine.process.heartbeat import announce_periodically, checked_card
from pointsman.engine.process.retrying import start_with_retry
from pointsman.engine.worker.agent_slots import AgentSlots, SlotPool, create_slots
from pointsman.engine.worker.attempt import CANCEL_GRACE_S
from pointsman.engine.worker.executors import ThreadExecutor
from pointsman.engine.worker.fair_puller import FairPuller
from pointsman.engine.worker.handoff_processor import HandoffProcessor, InFlightHandoff
from pointsman.engine.worker.rate_limiter import BusRateLimiter
from pointsman.engine.worker.resources import WorkerResources
from pointsman.errors import (
    BusUnavailableError,
    ConfigurationError,
    ContractError,
    PermissionDeniedError,
    describe_error,
)
from pointsman.llm.prices import has_price
from pointsman.ports.bus import Bus, Consumer, Delivery, StoredMessage
from pointsman.ports.clock import Clock
from pointsman.ports.model import Model
from pointsman.settings import Settings
from pointsman.telemetry import get_logger
from pointsman.util.environment import variable
from pointsman_schemas.card import AgentCard
from pointsman_schemas.events import Cancellation
from pointsman_schemas.strict_json import parse
from pointsman_schemas.subjects import HandoffAddress, Subjects

__all__ = ["Worker"]

_FLUSH_DELAY_S = 0.05  # seconds in which the connection sends negative acknowledgements before the process ends
_SHUTDOWN_TIMEOUT_S = (
    1.5 * CANCEL_GRACE_S
)  # seconds for all steps after the shutdown grace: the wait for handlers that do not stop, and the close of resources
_RETRY_DELAY_S = 1.0  # seconds before redelivery after an internal error, to avoid a hot loop
_CLOCK_TOLERANCE = timedelta(
    seconds=1
)  # assumed maximum difference between clocks; a value that is too large costs one more read for some handoffs
_MIXED_QUEUE_HINT = (
    "any version may receive a task; after an update, stop the old workers; if different agents have the same name, "
    "rename an agent, or run each agent for its team with --team"
)
_SHARED_QUEUE_HINT = (
    "the queue is first in, first out, so a team with many handoffs delays other teams; for fair shares, list the "
    "agent in own_agents of each team, and start the worker with --team for each team"
)
_NO_KEY_PROBLEM = "no API key is set for the worker, so the agent answers with the offline model"
_NO_KEY_HINT = (
    "set OPENAI_API_KEY or ANTHROPIC_API_KEY for the worker, or choose the offline model by POINTSMAN_MODEL=offline"
)
_MAX_CANCELLED = 10_000  # maximum number of cancelled tasks in memory, because their handoffs may be queued; some 1 MB

_log = get_logger(__name__)


class Worker:
    """Process that runs agents on a bus.

    Args:
        bus: Connection to a bus, after `set_up`.
        agents: Agents to run: at least one agent, with different names.
        settings: Settings of the worker.
        clock: Clock of the worker. Default: the system clock.
        own_loop: True to run the agents on an event loop in a separate thread, so that blocking code of an agent does
            not stop the connection to the broker. Use True in a process that only runs the worker. Default: False for
            the caller's loop, which suits tests.
        instance: Id of the worker. Default: a random id.
        interceptors: Interceptors of each attempt, tool call and model call, outermost first. Default: none.
        lifespans: Lifespans that are open while the worker runs; their values are dependencies of the agents.
            Default: none.

    Raises:
        ConfigurationError: No agent is given, two agents have the same name, or the registry would refuse a card.
    """

    def __init__(
        self,
        bus: Bus,
        agents: Sequence[Agent],
        settings: Settings,
        *,
        clock: Clock | None = None,
        own_loop: bool = False,
        instance: str | None = None,
        interceptors: Sequence[Interceptor] = (),
        lifespans: Sequence[Lifespan[Any]] = (),
    ) -> None:
        cards = [agent.card for agent in agents]
        if not cards:
            raise ConfigurationError("a worker needs an agent; name at least one agent")
        if len({card.name for card in cards}) < len(cards):
            raise ConfigurationError(
                f"the agents {', '.join(card.name for card in cards)} need different names; rename an agent"
            )
        self.instance = instance or uuid4().hex
        for card in cards:
            checked_card(card.model_copy(update={"instance": self.instance}))
        self._bus = bus
        self._settings = settings
        self._clock = BrokerClock(clock or SystemClock())
        self._own_loop = own_loop
        self._subjects = Subjects(settings.namespace)
        # If an agent works for several teams, each team has a copy of the agent. The copies share the slots.
        pools: dict[Agent, SlotPool] = {}
        for agent in agents:
            pools.setdefault(_shared_agent(agent), SlotPool(agent.card.concurrency))
        self._slots = [create_slots(each, self.instance, self._subjects, pools[_shared_agent(each)]) for each in agents]
        self._in_flight: dict[object, InFlightHandoff] = {}  # by `_handoff_key`
        # The number of the newest cancelled attempt, by workflow and task, in the order of the cancellations.
        self._cancelled: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._processor = HandoffProcessor(bus, self._subjects, settings, self._clock, self._cancelled)
        self._processor.interceptors = tuple(interceptors)
        self._lifespans = tuple(lifespans)
        self._stopping = False

    @property
    def _groups(self) -> Sequence[Sequence[AgentSlots]]:
        """The slots of the agents, grouped by their pool."""
        groups: dict[SlotPool, list[AgentSlots]] = {}
        for slots in self._slots:
            groups.setdefault(slots.pool, []).append(slots)
        return list(groups.values())

    @property
    def ready(self) -> bool:
        """True while the broker serves the consumer of every agent."""
        return not self.waiting_for

    @property
    def waiting_for(self) -> list[str]:
        """Names of the agents' consumers that the broker does not serve now."""
        return [
            consumer_name(slots.name) for slots in self._slots if slots.consumer is None or not slots.consumer.bound
        ]

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then drain.

        To drain, the worker receives no new handoffs, lets running attempts end within `settings.shutdown_grace`,
        returns the other handoffs to the broker, and withdraws its cards from the registry.

        Args:
            stop: Event that ends the worker.

        Raises:
            BusUnavailableError: The broker did not answer during the start.
            PermissionDeniedError: The broker refuses a subject that the worker needs.
            ConfigurationError: A lifespan or an agent cannot be opened.
        """
        async with AsyncExitStack() as stack:
            if self._settings.model_limits:
                rate_limiter = BusRateLimiter(self._bus, self._subjects, self._settings.model_limits, self._clock)
                stack.push_async_callback(rate_limiter.close)
                self._processor.rate_limiter = rate_limiter
            stack.callback(self._processor.timeouts.close)
            stack.callback(self._processor.start_reports.close)
            if self._own_loop:
                self._processor.executor = await stack.enter_async_context(
                    ThreadExecutor(self._settings.loop_block_threshold)
                )
            resources = WorkerResources(self._lifespans, self._processor.executor)
            stack.push_async_callback(resources.close, _SHUTDOWN_TIMEOUT_S)
            if not await _run_unless_stopped(self._open(resources), stop):
                return
            if (served := await start_with_retry(self._start, self._bus, self._clock, stop)) is None:
                return
            await stack.enter_async_context(served)
            async with asyncio.TaskGroup() as group:
                announcing = group.create_task(
                    announce_periodically(self._bus, self._cards, self._settings.heartbeat, self._clock)
                )
                keeping_alive = group.create_task(self._extend_ack_deadlines())
                minding = group.create_task(self._watch_broker_restarts())
                comparing = group.create_task(self._watch_versions())
                pulls = [
                    group.create_task(
                        self._pull(slots, slots.consumer, group)
                        if len(sharing) == 1 and slots.consumer is not None
                        else self._pull_in_turn(sharing, group)
                    )
                    for sharing in self._groups
                    for slots in sharing[:1]
                ]
                agents, namespace = [slots.name for slots in self._slots], self._settings.namespace
                self._report_missing_models()
                _log.info("worker_started", agents=agents, instance=self.instance, namespace=namespace)
                pricing = group.create_task(self._warn_about_prices())
                await stop.wait()
                self._stopping = True
                for task in pulls:
                    task.cancel()
                leaving = group.create_task(self._shut_down())
                announcing.cancel()
                await self._drain()
                gone = asyncio.get_running_loop().time() + _SHUTDOWN_TIMEOUT_S
                await self._return_in_flight()
                await asyncio.wait({leaving}, timeout=_seconds_until(gone))
                for task in (leaving, keeping_alive, minding, comparing, pricing):
                    task.cancel()
            await self._close_agents(_seconds_until(gone))
            await resources.close(_seconds_until(gone))
            await self._processor.executor.close(_seconds_until(gone))
            _log.info("worker_stopped", instance=self.instance)

    async def _open(self, resources: WorkerResources) -> None:
        """Open the lifespans and then the agents, on the agents' loop."""
        await resources.open()
        self._processor.deps = resources.values
        openings = [self._processor.executor.start(_open_agent(sharing[0].agent)) for sharing in self._groups]
        await asyncio.gather(*(opening.future for opening in openings))

    async def _start(self) -> AsyncExitStack:
        """Subscribe to cancellations and create the consumer and the service of every agent.

        The method may be called again after a failure.

        Returns:
            A context; its exit ends the subscription and the services.
        """
        await self._clock.synchronize(self._bus)
        self._started_at = self._clock.now()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(await self._bus.listen(self._subjects.cancellations, self._on_cancellation))
            for slots in self._slots:
                slots.consumer = slots.consumer or await self._bus.consumer(
                    consumer_name(slots.name),
                    "handoffs",
                    self._subjects.agent_handoffs(slots.name),
                    ack_wait=self._settings.ack_wait,
                    max_in_flight=slots.agent.card.max_in_flight,
                )
                await stack.enter_async_context(await self._bus.serve(slots.service))
            await self._check_name_conflicts()
            return stack.pop_all()

    async def hand_back(self) -> None:
        """Return all handoffs in flight to the broker at once. Other workers then run the handoffs."""
        waiting = [delivery for slots in self._slots for delivery in slots.waiting]
        for delivery in (*waiting, *(in_flight.delivery for in_flight in self._in_flight.values())):
            await delivery.nak()
        await asyncio.sleep(_FLUSH_DELAY_S)

    # Receiving handoffs

    async def _pull(self, slots: AgentSlots, consumer: Consumer, group: asyncio.TaskGroup) -> None:
        while not self._stopping:
            await slots.pool.slot_free.wait()
            try:
                taken = await consumer.take(slots.pool.free)
            except BusUnavailableError as error:
                if not self._stopping:
                    _log.warning("pull_interrupted", agent=slots.name, error=str(error))
                    await self._clock.sleep(_RETRY_DELAY_S)
                continue
            for delivery in taken:
                slots.acquire()
                group.create_task(self._process_delivery(slots, delivery))

    async def _pull_in_turn(self, sharing: Sequence[AgentSlots], group: asyncio.TaskGroup) -> None:
        def start(slots: AgentSlots, delivery: Delivery) -> None:
            slots.acquire()
            group.create_task(self._process_delivery(slots, delivery))

        puller = FairPuller(sharing)
        while not self._stopping:
            try:
                await puller.run(start)
            except BusUnavailableError as error:
                if not self._stopping:
                    _log.warning("pull_interrupted", agent=sharing[0].name, error=str(error))
                    await self._clock.sleep(_RETRY_DELAY_S)

    async def _process_delivery(self, slots: AgentSlots, delivery: Delivery) -> None:
        """Process one delivery until it is settled. The only error that ends the worker is a refused permission."""
        if self._stopping:  # the delivery came while the pull was cancelled; the shutdown does not wait for it
            slots.release()
            await delivery.nak()
            return
        if is_cancellation(delivery.message):  # the supervisor replaced the queued handoff by this message
            slots.release()
            with suppress(ContractError):
                address = self._subjects.parse(delivery.message.subject, HandoffAddress)
                self._cancel_tasks(delivery.message, address.workflow)
            await delivery.ack()
            return
        name = self._handoff_key(delivery.message)
        if (running := self._in_flight.get(name)) is not None:
            running.delivery = delivery  # from now on, this delivery is extended and settled, not the older delivery
            slots.release()
            _log.warning(
                "handoff_redelivered",
                subject=delivery.message.subject,
                delivered=delivery.delivered,
                hint="the attempt still runs and does not start twice; this process extended the ack deadline too late",
            )
            return
        self._warn_about_shared_queue(slots, delivery)
        in_flight = InFlightHandoff(slots, delivery, asyncio.current_task())
        self._in_flight[name] = in_flight
        try:
            await self._processor.process(in_flight)
        except asyncio.CancelledError:
            await in_flight.delivery.nak()
            raise
        except PermissionDeniedError:  # no handoff can complete, so the process ends; its exit code names the reason
            await in_flight.delivery.nak(_RETRY_DELAY_S)
            raise
        except Exception as error:
            _log.error(
                "handoff_processing_failed",
                subject=delivery.message.subject,
                exc_info=error,
                hint="this is a bug in pointsman; the handoff is delivered again",
            )
            await in_flight.delivery.nak(_RETRY_DELAY_S)
        finally:
            del self._in_flight[name]
            slots.release()

    def _warn_about_shared_queue(self, slots: AgentSlots, delivery: Delivery) -> None:
        """Log the teams whose handoffs delay each other, once for each team."""
        if slots.sharing is None or delivery.delivered > 1:  # the age of a redelivered handoff is not its wait
            return
        message = delivery.message
        with suppress(ContractError):  # another program published the message
            team = self._subjects.parse(message.subject, HandoffAddress).team
            waited = (self._clock.now() - message.at).total_seconds()
            if teams := slots.sharing.record(team, waited, self._clock.monotonic()):
                _log.warning(
                    "queue_shared_by_teams", agent=slots.name, teams=teams, waited=waited, hint=_SHARED_QUEUE_HINT
                )

    def _handoff_key(self, handoff: StoredMessage) -> object:
        """Return a key that is equal for all deliveries of this handoff, and different for every other handoff.

        A sequence number alone is not unique, because a broker whose stream has lost its end assigns the number again.

        Returns:
            Subject and body if the broker does not sync handoffs; otherwise subject and sequence number.
        """
        if self._bus.handoffs_unsynced:  # a lost handoff is published again and gets another number
            return handoff.subject, handoff.body
        return handoff.subject, handoff.sequence

    # Background tasks

    async def _extend_ack_deadlines(self) -> None:
        """Extend the ack deadline of every handoff in flight.

        A deadline is extended three times before it passes, because an extension may be lost on its way to the broker.
        """
        while True:
            await self._clock.sleep(self._settings.ack_wait / 3)
            waiting = [delivery for slots in self._slots for delivery in slots.waiting]
            for delivery in (*waiting, *(in_flight.delivery for in_flight in self._in_flight.values())):
                await delivery.in_progress()

    async def _watch_broker_restarts(self) -> None:
        """Set `since` of the processor after each restart of a broker that does not sync handoffs.

        Consumers of this broker may have lost their position, so the broker may deliver old handoffs again as first
        deliveries. For each handoff before `since`, the processor checks if a result exists.
        """
        while True:
            seen = self._bus.restarts
            if self._bus.handoffs_unsynced:
                self._processor.since = self._clock.now() + _CLOCK_TOLERANCE
            await self._bus.restarted(seen)

    async def _on_cancellation(self, message: StoredMessage) -> None:
        """Apply a broadcast cancellation of tasks."""
        self._cancel_tasks(message, message.subject.rpartition(".")[2])

    def _cancel_tasks(self, message: StoredMessage, workflow: str) -> None:
        """Stop the running attempts of cancelled tasks, and prevent the start of their queued handoffs."""
        try:
            cancelled = _newest_cancelled(workflow, parse(Cancellation, message.body))
        except ContractError as error:
            _log.warning("cancellation_unreadable", subject=message.subject, error=str(error))
            return
        self._cancelled.update(cancelled)  # stays valid if the workflow is resumed: resumed tasks have later attempts
        while len(self._cancelled) > _MAX_CANCELLED:
            self._cancelled.popitem(last=False)
        for in_flight in list(self._in_flight.values()):
            if (attempt := in_flight.attempt) is not None:
                of = (attempt.handoff.workflow_id, attempt.handoff.task_id)
                if attempt.handoff.attempt <= cancelled.get(of, 0):
                    attempt.interrupt("cancelled")

    async def _check_name_conflicts(self) -> None:
        """Log each live agent that has the name of an agent of this worker, but other schemas or another version.

        Any worker with a free slot receives the tasks for a name, so each of these agents receives some tasks.
        """
        cards = await self._bus.registry.cards()
        for own in (slots.agent.card for slots in self._slots):
            others = [card for card in cards if card.name == own.name and card.instance != self.instance]
            foreign = [card for card in others if card.input_output_schemas != own.input_output_schemas]
            if foreign:
                _log.warning(
                    "agent_differs",
                    agent=own.name,
                    instance=self.instance,
                    version=own.revision,
                    others=[f"{card.instance} {card.revision}" for card in foreign],
                    hint="agents with this name have different schemas for input or output, and any of the agents may "
                    "receive a task; rename this agent, run it for its team with --team, or stop the old workers",
                )
            elif newer := [f"{card.instance} {card.revision}" for card in others if card.revision != own.revision]:
                _log.info("agent_version_differs", agent=own.name, version=own.revision, others=newer)

    async def _watch_versions(self) -> None:
        """Log once if several versions of an agent share a queue for longer than a rolling update takes."""
        named: set[str] = set()
        while True:
            await self._clock.sleep(self._settings.heartbeat)
            with suppress(BusUnavailableError):
                grouped: dict[str, list[AgentCard]] = {slots.name: [] for slots in self._slots}
                for card in await self._bus.registry.cards():
                    if card.name in grouped:
                        grouped[card.name].append(card)
                for name, cards in grouped.items():
                    if name not in named and (mixed := mixed_queue(cards, self._clock.now())):
                        named.add(name)
                        _log.warning("agent_queue_mixed", agent=name, reason=mixed, hint=_MIXED_QUEUE_HINT)

    def _report_missing_models(self) -> None:
        """Report on the cards, and log, if an agent answers with the offline model because no API key is set."""
        if variable("POINTSMAN_MODEL"):
            return  # no warning, because the user chose the model
        offline: list[str] = []
        for slots in self._slots:
            models: Sequence[Model] = getattr(slots.agent, "models", ())
            by_default = getattr(slots.agent, "uses_default_model", False)
            if by_default and any(model.provider == "offline" for model in models):
                slots.problems = (_NO_KEY_PROBLEM,)
                offline.append(slots.name)
        if offline and self._own_loop:  # only in a worker process, because `eval` and tests choose the offline model
            _log.warning("model_key_missing", agents=offline, reason=_NO_KEY_PROBLEM, hint=_NO_KEY_HINT)

    async def _warn_about_prices(self) -> None:
        """Log each model without a known price, because a task with a cost limit does not call such a model."""
        models: list[tuple[str, Model]] = [
            (desk.name, model) for desk in self._slots for model in getattr(desk.agent, "models", ())
        ]
        for agent, model in models:
            try:
                is_known = await has_price(model.provider, model.name)
            except Exception as error:  # a price table that cannot be loaded must not stop the worker
                _log.warning("price_check_failed", agent=agent, error=describe_error(error))
                return
            if not is_known:
                _log.warning(
                    "model_price_unknown",
                    agent=agent,
                    model=f"{model.provider}:{model.name}",
                    hint="tasks with a cost limit do not call it; set pointsman.llm.prices.PRICES, or limit tokens",
                )

    async def _shut_down(self) -> None:
        for slots in self._slots:
            with suppress(BusUnavailableError):
                while slots.waiting:
                    await slots.waiting.popleft().nak()
                if slots.consumer is not None:
                    await slots.consumer.close()
                if slots.card is not None:
                    await self._bus.registry.withdraw(slots.card)

    async def _drain(self) -> None:
        if not (running := self._running_attempts()):
            return
        _log.info("draining", running=len(running), grace=self._settings.shutdown_grace)
        sleeper = asyncio.ensure_future(self._clock.sleep(self._settings.shutdown_grace))
        everything = asyncio.ensure_future(asyncio.wait(running))
        await asyncio.wait({sleeper, everything}, return_when=asyncio.FIRST_COMPLETED)
        sleeper.cancel()
        everything.cancel()

    async def _return_in_flight(self) -> None:
        """Interrupt the running attempts, after which their handoffs return to the broker.

        A handler that does not stop is abandoned. An asyncio task that still runs afterwards waits for the broker, so
        the asyncio task is cancelled.
        """
        if not (running := self._running_attempts()):
            return
        for in_flight in list(self._in_flight.values()):
            if in_flight.attempt is not None:
                in_flight.attempt.interrupt("shutdown")
        await asyncio.wait(running, timeout=1.25 * CANCEL_GRACE_S)
        for task in running:
            task.cancel()

    def _running_attempts(self) -> Sequence[asyncio.Task[Any]]:
        return [in_flight.task for in_flight in self._in_flight.values() if in_flight.task is not None]

    async def _close_agents(self, within: float) -> None:
        """Close all agents in parallel, within `within` seconds. If a handler blocks the loop, no agent is closed."""
        closings = [self._processor.executor.start(_close_agent(sharing[0].agent)) for sharing in self._groups]
        await asyncio.wait([closing.future for closing in closings], timeout=within)
        for closing in closings:
            closing.cancel()

    def _cards(self) -> Sequence[AgentCard]:
        for slots in self._slots:
            told = {
                "instance": self.instance,
                "started_at": self._started_at,
                "orphaned_handlers": slots.orphaned_handlers(),
                "problems": slots.problems,
            }
            slots.card = slots.agent.card.model_copy(update=told)
        return [slots.card for slots in self._slots if slots.card is not None]


def _shared_agent(agent: Agent) -> Agent:
    """Return the agent of which `agent` is a copy for a team. Return `agent` if `agent` is not a copy."""
    return agent.shared if isinstance(agent, TeamAgent) else agent


def _seconds_until(moment: float) -> float:
    """Return the seconds until the time `moment` of the loop's clock, or 0 if this time has passed."""
    return max(0.0, moment - asyncio.get_running_loop().time())


async def _run_unless_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Run `work` to its end and return True. If `stop` is set first, cancel `work` and return False."""
    running, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
            return True
        return False
    finally:
        for task in (running, stopped):
            task.cancel()
        await asyncio.wait({running, stopped})


async def _open_agent(agent: Agent) -> None:
    try:
        await agent.open()
    except (ConfigurationError, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # including `exit()` in the code of an author, which must not end the worker
        _log.warning(
            "agent_open_failed",
            agent=agent.card.name,
            error=error,
            hint="the agent still receives tasks, but a task that needs the missing resource fails",
        )


async def _close_agent(agent: Agent) -> None:
    try:
        await agent.close()
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        _log.warning("agent_close_failed", agent=agent.card.name, error=error)


def _newest_cancelled(workflow: str, cancellation: Cancellation) -> dict[tuple[str, str], int]:
    """Return the newest cancelled attempt of each task. For a task without a number, every attempt is cancelled."""
    attempts = cancellation.attempts or (sys.maxsize,) * len(cancellation.tasks)
    return {(workflow, task): attempt for task, attempt in zip(cancellation.tasks, attempts, strict=False)}
