"""A worker takes handoffs, runs agents, and answers each attempt exactly once: publish the result, then acknowledge.

| A handoff that | is |
|---|---|
| is being worked on here and comes again | not run twice; the newest delivery is the one that is settled |
| is of a task that is cancelled | stopped and answered where it runs; where it waits, answered and not started |
| is still running when the worker must leave | cancelled and handed back |
| is anything else | as `answering` says |
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

from pointsman.authoring.agent import Agent
from pointsman.authoring.interceptor import Interceptor
from pointsman.authoring.lifespan import Lifespan
from pointsman.clock import SystemClock
from pointsman.engine.process.broker_clock import BrokerClock
from pointsman.engine.process.handoff_codec import consumer_name
from pointsman.engine.process.heartbeat import announce_periodically, checked_card
from pointsman.engine.process.retrying import start_with_retry
from pointsman.engine.worker.agent_slots import AgentSlots, create_slots
from pointsman.engine.worker.attempt import CANCEL_GRACE_S
from pointsman.engine.worker.executors import ThreadExecutor
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
from pointsman_schemas.card import AgentCard
from pointsman_schemas.events import Cancellation
from pointsman_schemas.strict_json import parse
from pointsman_schemas.subjects import Subjects

__all__ = ["Worker"]

_FLUSH_DELAY_S = 0.05  # seconds in which what was handed back has left this process
_SHUTDOWN_TIMEOUT_S = (
    1.5 * CANCEL_GRACE_S
)  # seconds for all there is to do after the grace: one handler that does not stop, and the rest
_RETRY_DELAY_S = 1.0  # seconds before a handoff that met a bug of ours is delivered again: never a hot loop
_CLOCK_TOLERANCE = timedelta(
    seconds=1
)  # what clocks may differ by, and a read for each handoff of this second costs little
_MAX_CANCELLED = 10_000  # cancelled tasks whose handoffs may still wait in the queue: some 1 MB

_log = get_logger(__name__)


class Worker:
    """Runs `agents` on `bus`, which has been set up.

    With `own_loop` their code runs on an event loop in a thread of its own, where it may even block without losing its
    messages: what a process of its own should say. Without, it shares the caller's loop, as tests like it.

    `interceptors` see each attempt, tool call and model call, the first of them outermost. `lifespans` are open while
    the worker runs, and their values are dependencies of its agents.

    Raises:
        ConfigurationError: two agents have the same name, or there is none; or the registry would refuse a card.
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
            raise ConfigurationError("a worker without agents has nothing to do; name at least one agent")
        if len({card.name for card in cards}) < len(cards):
            raise ConfigurationError(f"the agents are called {', '.join(card.name for card in cards)}; rename one")
        self.instance = instance or uuid4().hex
        for card in cards:
            checked_card(card.model_copy(update={"instance": self.instance}))
        self._bus = bus
        self._settings = settings
        self._clock = BrokerClock(clock or SystemClock())
        self._own_loop = own_loop
        self._subjects = Subjects(settings.namespace)
        self._slots = [create_slots(agent, self.instance, self._subjects) for agent in agents]
        self._in_flight: dict[object, InFlightHandoff] = {}  # by `_handoff_key`
        self._cancelled: OrderedDict[tuple[str, str], None] = OrderedDict()  # by workflow and task, oldest first
        self._processor = HandoffProcessor(bus, self._subjects, settings, self._clock, self._cancelled)
        self._processor.interceptors = tuple(interceptors)
        self._lifespans = tuple(lifespans)
        self._stopping = False

    @property
    def ready(self) -> bool:
        """Whether every agent's consumer is served by the broker now."""
        return not self.waiting_for

    @property
    def waiting_for(self) -> list[str]:
        """The agents' consumers that the broker is not serving now."""
        return [
            consumer_name(slots.name) for slots in self._slots if slots.consumer is None or not slots.consumer.bound
        ]

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then drain: take nothing new, let running work finish within
        `settings.shutdown_grace`, hand back the rest, leave the registry.

        Raises:
            BusUnavailableError: the broker did not answer while starting.
            PermissionDeniedError: the broker refuses a subject that this worker cannot work without.
            ConfigurationError: a lifespan or an agent cannot be opened.
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
                pulls = [
                    group.create_task(self._pull(slots, slots.consumer, group))
                    for slots in self._slots
                    if slots.consumer is not None
                ]
                agents, namespace = [slots.name for slots in self._slots], self._settings.namespace
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
                for task in (leaving, keeping_alive, minding, pricing):
                    task.cancel()
            await self._close_agents(_seconds_until(gone))
            await resources.close(_seconds_until(gone))
            await self._processor.executor.close(_seconds_until(gone))
            _log.info("worker_stopped", instance=self.instance)

    async def _open(self, resources: WorkerResources) -> None:
        """Open the lifespans and then the agents, on the loop of the agents."""
        await resources.open()
        self._processor.deps = resources.values
        openings = [self._processor.executor.start(_open_agent(desk.agent)) for desk in self._slots]
        await asyncio.gather(*(opening.future for opening in openings))

    async def _start(self) -> AsyncExitStack:
        """Hear of cancellations, and have the broker serve every agent's consumer and service until the context that is
        returned ends. It may be called again where it was not done."""
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
        """Give back all there is in hand, as it is: this process ends now, and another one begins with it at once."""
        for in_flight in list(self._in_flight.values()):
            await in_flight.delivery.nak()
        await asyncio.sleep(_FLUSH_DELAY_S)

    # Taking

    async def _pull(self, slots: AgentSlots, consumer: Consumer, group: asyncio.TaskGroup) -> None:
        while not self._stopping:
            await slots.slot_free.wait()
            try:
                taken = await consumer.take(slots.free_slots)
            except BusUnavailableError as error:
                if not self._stopping:
                    _log.warning("pull_interrupted", agent=slots.name, error=str(error))
                    await self._clock.sleep(_RETRY_DELAY_S)
                continue
            for delivery in taken:
                slots.acquire()
                group.create_task(self._process_delivery(slots, delivery))

    async def _process_delivery(self, slots: AgentSlots, delivery: Delivery) -> None:
        """One delivery, from its arrival until it is settled. Nothing it does ends the worker."""
        if self._stopping:  # it came while the pull was being given up: nobody would see that it runs, and end it
            slots.release()
            await delivery.nak()
            return
        name = self._handoff_key(delivery.message)
        if (running := self._in_flight.get(name)) is not None:
            running.delivery = delivery  # from now on this one is kept alive, and settled in the end
            slots.release()
            _log.warning(
                "handoff_redelivered",
                subject=delivery.message.subject,
                delivered=delivery.delivered,
                hint="it is still worked on and is not run twice; this process was too busy to tell the broker in time",
            )
            return
        in_flight = InFlightHandoff(slots, delivery, asyncio.current_task())
        self._in_flight[name] = in_flight
        try:
            await self._processor.process(in_flight)
        except asyncio.CancelledError:
            await in_flight.delivery.nak()
            raise
        except PermissionDeniedError:  # no handoff can be completed: the process ends, and its reason is the exit code
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

    def _handoff_key(self, handoff: StoredMessage) -> object:
        """What is the same whenever this handoff is delivered, and of no other. A number alone is not: a broker whose
        stream has lost its end gives it again."""
        if self._bus.handoffs_unsynced:  # and is sent what it forgot again, with another number
            return handoff.subject, handoff.body
        return handoff.subject, handoff.sequence

    # Beside the work

    async def _extend_ack_deadlines(self) -> None:
        """Tell the broker about everything in hand, often enough that one lost message does no harm."""
        while True:
            await self._clock.sleep(self._settings.ack_wait / 3)
            for in_flight in list(self._in_flight.values()):
                await in_flight.delivery.in_progress()

    async def _watch_broker_restarts(self) -> None:
        """Where a broker that forgets was started anew, its consumers may stand at what was answered long ago."""
        while True:
            seen = self._bus.restarts
            if self._bus.handoffs_unsynced:
                self._processor.since = self._clock.now() + _CLOCK_TOLERANCE
            await self._bus.restarted(seen)

    async def _on_cancellation(self, message: StoredMessage) -> None:
        """Tasks were cancelled: what runs of them stops, what still waits in the queue will not start."""
        workflow = message.subject.split(".")[2]
        try:
            cancelled = {(workflow, task) for task in parse(Cancellation, message.body).tasks}
        except ContractError as error:
            _log.warning("cancellation_unreadable", subject=message.subject, error=str(error))
            return
        self._cancelled.update(dict.fromkeys(cancelled))  # for good: an abandoned task is never reopened
        while len(self._cancelled) > _MAX_CANCELLED:
            self._cancelled.popitem(last=False)
        for in_flight in list(self._in_flight.values()):
            if (attempt := in_flight.attempt) and (attempt.handoff.workflow_id, attempt.handoff.task_id) in cancelled:
                attempt.interrupt("cancelled")

    async def _check_name_conflicts(self) -> None:
        """Say who is there under the name of one of these agents and takes, or gives, something else: a task goes to
        whichever is free."""
        cards = await self._bus.registry.cards()
        for own in (slots.agent.card for slots in self._slots):
            others = [
                card
                for card in cards
                if card.name == own.name and card.input_output_schemas != own.input_output_schemas
            ]
            if others:
                _log.warning(
                    "agent_differs",
                    agent=own.name,
                    instance=self.instance,
                    version=own.version,
                    others=[f"{card.instance} {card.version}" for card in others],
                    hint="its input or output is another, and tasks go to either: call it by another name, or let the "
                    "old ones end",
                )

    async def _warn_about_prices(self) -> None:
        """Log each model whose price is not known: a cost limit refuses to use the model."""
        models: list[tuple[str, Model]] = [
            (desk.name, model) for desk in self._slots for model in getattr(desk.agent, "models", ())
        ]
        for agent, model in models:
            try:
                is_known = await has_price(model.provider, model.name)
            except Exception as error:  # a price table that cannot be loaded stops no worker
                _log.warning("price_check_failed", agent=agent, error=describe_error(error))
                return
            if not is_known:
                _log.warning(
                    "model_price_unknown",
                    agent=agent,
                    model=f"{model.provider}:{model.name}",
                    hint="tasks with a cost limit do not call the model; set PRICES, or limit tokens",
                )

    async def _shut_down(self) -> None:
        for slots in self._slots:
            with suppress(BusUnavailableError):
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
        """Stop what is still running. A handler that does not stop is left; what then is still here waits for the
        broker."""
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
        """All together, within one bound: where one handler blocks the loop, none of them can be closed."""
        closings = [self._processor.executor.start(_close_agent(slots.agent)) for slots in self._slots]
        await asyncio.wait([closing.future for closing in closings], timeout=within)
        for closing in closings:
            closing.cancel()

    def _cards(self) -> Sequence[AgentCard]:
        for slots in self._slots:
            told = {
                "instance": self.instance,
                "started_at": self._started_at,
                "orphaned_handlers": slots.orphaned_handlers(),
            }
            slots.card = slots.agent.card.model_copy(update=told)
        return [slots.card for slots in self._slots if slots.card is not None]


def _seconds_until(moment: float) -> float:
    """Seconds to `moment`, by the loop's clock; none when it has passed."""
    return max(0.0, moment - asyncio.get_running_loop().time())


async def _run_unless_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Run `work` to its end and return True; or cancel it and return False when `stop` is set before."""
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
    except ConfigurationError:
        raise
    except Exception as error:
        _log.warning(
            "agent_open_failed",
            agent=agent.card.name,
            error=describe_error(error),
            hint="the agent takes work all the same, and a task that needs what is missing fails",
        )


async def _close_agent(agent: Agent) -> None:
    try:
        await agent.close()
    except Exception as error:
        _log.warning("agent_close_failed", agent=agent.card.name, error=describe_error(error))
