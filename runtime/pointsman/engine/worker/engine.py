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
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

from pointsman.authoring.agent import Agent
from pointsman.clock import SystemClock
from pointsman.engine.process.broker_clock import SteadyClock
from pointsman.engine.process.handoff_codec import consumer_name
from pointsman.engine.process.heartbeat import keep_announced
from pointsman.engine.process.retrying import begin
from pointsman.engine.worker.agent_slots import Desk, desk_of
from pointsman.engine.worker.attempt import ABANDON
from pointsman.engine.worker.executors import ThreadHandlers
from pointsman.engine.worker.handoff_processor import Answerer, Job
from pointsman.engine.worker.rate_limiter import BusMeters
from pointsman.errors import BusUnavailable, ConfigurationError, ContractError, describe_error
from pointsman.ports.bus import Bus, Consumer, Delivery, Stored
from pointsman.ports.clock import Clock
from pointsman.settings import Settings
from pointsman.telemetry import get_logger
from pointsman_schemas.card import AgentCard
from pointsman_schemas.events import Cancellation
from pointsman_schemas.strict_json import parse
from pointsman_schemas.subjects import Subjects

__all__ = ["Worker"]

_SENT = 0.05  # seconds in which what was handed back has left this process
_LEAVE = 1.5 * ABANDON  # seconds for all there is to do after the grace: one handler that does not stop, and the rest
_AGAIN = 1.0  # seconds before a handoff that met a bug of ours is delivered again: never a hot loop
_AGO = timedelta(seconds=1)  # what clocks may differ by, and a read for each handoff of this second costs little
_REMEMBERED = 10_000  # cancelled tasks whose handoffs may still wait in the queue: some 1 MB

_log = get_logger(__name__)


class Worker:
    """Runs `agents` on `bus`, which has been set up.

    With `own_loop` their code runs on an event loop in a thread of its own, where it may even block without losing its
    messages: what a process of its own should say. Without, it shares the caller's loop, as tests like it.

    Raises:
        ConfigurationError: two agents have the same name, or there is none.
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
    ) -> None:
        cards = [agent.card for agent in agents]
        if not cards:
            raise ConfigurationError("a worker without agents has nothing to do; name at least one agent")
        if len({card.name for card in cards}) < len(cards):
            raise ConfigurationError(f"the agents are called {', '.join(card.name for card in cards)}; rename one")
        self.instance = instance or uuid4().hex
        self._bus = bus
        self._settings = settings
        self._clock = SteadyClock(clock or SystemClock())
        self._own_loop = own_loop
        self._subjects = Subjects(settings.namespace)
        self._desks = [desk_of(agent, self.instance, self._subjects) for agent in agents]
        self._jobs: dict[object, Job] = {}  # by `_identity`
        self._cancelled: OrderedDict[tuple[str, str], None] = OrderedDict()  # by workflow and task, oldest first
        self._answerer = Answerer(bus, self._subjects, settings, self._clock, self._cancelled)
        self._stopping = False

    @property
    def ready(self) -> bool:
        """Whether every agent's consumer is served by the broker now."""
        return not self.waiting_for

    @property
    def waiting_for(self) -> list[str]:
        """The agents' consumers that the broker is not serving now."""
        return [consumer_name(desk.name) for desk in self._desks if desk.consumer is None or not desk.consumer.bound]

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then drain: take nothing new, let running work finish within `settings.grace`, hand
        back the rest, leave the registry.

        Raises:
            BusUnavailable: the broker did not answer while starting.
        """
        async with AsyncExitStack() as stack:
            if self._settings.model_limits:
                meters = BusMeters(self._bus, self._subjects, self._settings.model_limits, self._clock)
                stack.push_async_callback(meters.close)
                self._answerer.meters = meters
            stack.callback(self._answerer.deadlines.close)
            stack.callback(self._answerer.beginnings.close)
            if self._own_loop:
                self._answerer.handlers = await stack.enter_async_context(ThreadHandlers())
            if (served := await begin(self._begin, self._bus, self._clock, stop)) is None:
                return
            await stack.enter_async_context(served)
            async with asyncio.TaskGroup() as group:
                announcing = group.create_task(
                    keep_announced(self._bus, self._cards, self._settings.heartbeat, self._clock)
                )
                keeping_alive = group.create_task(self._keep_alive())
                minding = group.create_task(self._mind_the_broker())
                pulls = [
                    group.create_task(self._pull(desk, desk.consumer, group))
                    for desk in self._desks
                    if desk.consumer is not None
                ]
                agents, namespace = [desk.name for desk in self._desks], self._settings.namespace
                _log.info("worker_started", agents=agents, instance=self.instance, namespace=namespace)
                await stop.wait()
                self._stopping = True
                for task in pulls:
                    task.cancel()
                leaving = group.create_task(self._leave())
                announcing.cancel()
                await self._finish_in_grace()
                gone = asyncio.get_running_loop().time() + _LEAVE
                await self._hand_back()
                await asyncio.wait({leaving}, timeout=_until(gone))
                for task in (leaving, keeping_alive, minding):
                    task.cancel()
            await self._close_agents(_until(gone))
            await self._answerer.handlers.close(_until(gone))
            _log.info("worker_stopped", instance=self.instance)

    async def _begin(self) -> AsyncExitStack:
        """Hear of cancellations, and have the broker serve every agent's consumer and service until the context that is
        returned ends. It may be called again where it was not done."""
        await self._clock.set(self._bus)
        self._began = self._clock.now()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(await self._bus.listen(self._subjects.cancellations, self._heard))
            for desk in self._desks:
                desk.consumer = desk.consumer or await self._bus.consumer(
                    consumer_name(desk.name),
                    "handoffs",
                    self._subjects.agent_handoffs(desk.name),
                    ack_wait=self._settings.ack_wait,
                    max_in_flight=desk.agent.card.max_in_flight,
                )
                await stack.enter_async_context(await self._bus.serve(desk.service))
            await self._look_for_others()
            return stack.pop_all()

    async def hand_back(self) -> None:
        """Give back all there is in hand, as it is: this process ends now, and another one begins with it at once."""
        for job in list(self._jobs.values()):
            await job.delivery.nak()
        await asyncio.sleep(_SENT)

    # Taking

    async def _pull(self, desk: Desk, consumer: Consumer, group: asyncio.TaskGroup) -> None:
        while not self._stopping:
            await desk.free.wait()
            try:
                taken = await consumer.take(desk.room)
            except BusUnavailable as error:
                if not self._stopping:
                    _log.warning("pull_interrupted", agent=desk.name, error=str(error))
                    await self._clock.sleep(_AGAIN)
                continue
            for delivery in taken:
                desk.occupy()
                group.create_task(self._handle(desk, delivery))

    async def _handle(self, desk: Desk, delivery: Delivery) -> None:
        """One delivery, from its arrival until it is settled. Nothing it does ends the worker."""
        if self._stopping:  # it came while the pull was being given up: nobody would see that it runs, and end it
            desk.vacate()
            await delivery.nak()
            return
        name = self._identity(delivery.message)
        if (running := self._jobs.get(name)) is not None:
            running.delivery = delivery  # from now on this one is kept alive, and settled in the end
            desk.vacate()
            _log.warning(
                "handoff_came_again",
                subject=delivery.message.subject,
                delivered=delivery.delivered,
                hint="it is still worked on and is not run twice; this process was too busy to tell the broker in time",
            )
            return
        job = Job(desk, delivery, asyncio.current_task())
        self._jobs[name] = job
        try:
            await self._answerer.answer(job)
        except asyncio.CancelledError:
            await job.delivery.nak()
            raise
        except Exception as error:
            _log.error(
                "handoff_not_processed",
                subject=delivery.message.subject,
                exc_info=error,
                hint="this is a bug in pointsman; the handoff is delivered again",
            )
            await job.delivery.nak(_AGAIN)
        finally:
            del self._jobs[name]
            desk.vacate()

    def _identity(self, handoff: Stored) -> object:
        """What is the same whenever this handoff is delivered, and of no other. A number alone is not: a broker whose
        stream has lost its end gives it again."""
        if self._bus.forgets:  # and is sent what it forgot again, with another number
            return handoff.subject, handoff.body
        return handoff.subject, handoff.sequence

    # Beside the work

    async def _keep_alive(self) -> None:
        """Tell the broker about everything in hand, often enough that one lost message does no harm."""
        while True:
            await self._clock.sleep(self._settings.ack_wait / 3)
            for job in list(self._jobs.values()):
                await job.delivery.in_progress()

    async def _mind_the_broker(self) -> None:
        """Where a broker that forgets was started anew, its consumers may stand at what was answered long ago."""
        while True:
            seen = self._bus.restarts
            if self._bus.forgets:
                self._answerer.since = self._clock.now() + _AGO
            await self._bus.restarted(seen)

    async def _heard(self, message: Stored) -> None:
        """Tasks were cancelled: what runs of them stops, what still waits in the queue will not start."""
        workflow = message.subject.split(".")[2]
        try:
            cancelled = {(workflow, task) for task in parse(Cancellation, message.body).tasks}
        except ContractError as error:
            _log.warning("cancellation_unreadable", subject=message.subject, error=str(error))
            return
        self._cancelled.update(dict.fromkeys(cancelled))  # for good: an abandoned task is never reopened
        while len(self._cancelled) > _REMEMBERED:
            self._cancelled.popitem(last=False)
        for job in list(self._jobs.values()):
            if (attempt := job.attempt) and (attempt.handoff.workflow_id, attempt.handoff.task_id) in cancelled:
                attempt.interrupt("cancelled")

    async def _look_for_others(self) -> None:
        """Say who is there under the name of one of these agents and takes, or gives, something else: a task goes to
        whichever is free."""
        cards = await self._bus.registry.cards()
        for own in (desk.agent.card for desk in self._desks):
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

    async def _leave(self) -> None:
        for desk in self._desks:
            with suppress(BusUnavailable):
                if desk.consumer is not None:
                    await desk.consumer.close()
                if desk.announced is not None:
                    await self._bus.registry.withdraw(desk.announced)

    async def _finish_in_grace(self) -> None:
        if not (running := self._running()):
            return
        _log.info("draining", running=len(running), grace=self._settings.grace)
        sleeper = asyncio.ensure_future(self._clock.sleep(self._settings.grace))
        everything = asyncio.ensure_future(asyncio.wait(running))
        await asyncio.wait({sleeper, everything}, return_when=asyncio.FIRST_COMPLETED)
        sleeper.cancel()
        everything.cancel()

    async def _hand_back(self) -> None:
        """Stop what is still running. A handler that does not stop is left; what then is still here waits for the
        broker."""
        if not (running := self._running()):
            return
        for job in list(self._jobs.values()):
            if job.attempt is not None:
                job.attempt.interrupt("shutdown")
        await asyncio.wait(running, timeout=1.25 * ABANDON)
        for task in running:
            task.cancel()

    def _running(self) -> Sequence[asyncio.Task[Any]]:
        return [job.task for job in self._jobs.values() if job.task is not None]

    async def _close_agents(self, within: float) -> None:
        """All together, within one bound: where one handler blocks the loop, none of them can be closed."""
        closings = [self._answerer.handlers.start(_closed(desk.agent)) for desk in self._desks]
        await asyncio.wait([closing.future for closing in closings], timeout=within)
        for closing in closings:
            closing.cancel()

    def _cards(self) -> Sequence[AgentCard]:
        for desk in self._desks:
            told = {"instance": self.instance, "started_at": self._began, "orphaned_handlers": desk.left_running()}
            desk.announced = desk.agent.card.model_copy(update=told)
        return [desk.announced for desk in self._desks if desk.announced is not None]


def _until(moment: float) -> float:
    """Seconds to `moment`, by the loop's clock; none when it has passed."""
    return max(0.0, moment - asyncio.get_running_loop().time())


async def _closed(agent: Agent) -> None:
    try:
        await agent.close()
    except Exception as error:
        _log.warning("agent_not_closed", agent=agent.card.name, error=describe_error(error))
