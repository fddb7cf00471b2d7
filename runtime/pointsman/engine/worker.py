"""A worker takes handoffs, runs agents, and answers each attempt exactly once: publish the result, then acknowledge.

| A handoff that | is |
|---|---|
| cannot be read, or disagrees with its subject | dead-lettered, and never delivered again |
| is being worked on here and comes again | not run twice; the newest delivery is the one that is settled |
| was delivered before and has its result | acknowledged |
| was delivered too often without one | answered with `worker_crashed` |
| has passed its deadline, or is of a cancelled task | answered, and not started |
| is still running at its deadline | cancelled and answered with `timeout` |
| is still running when the worker must leave | cancelled and handed back |
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

from pointsman.agent import Agent
from pointsman.bus.clock import SystemClock
from pointsman.engine.announcing import keep_announced
from pointsman.engine.attempt import ABANDON, Attempt
from pointsman.engine.burial import bury
from pointsman.engine.desks import Desk, desk_of
from pointsman.engine.fault_points import passed
from pointsman.engine.handlers import Handlers, InlineHandlers, ThreadHandlers
from pointsman.engine.handoffs import consumer_name, read_handoff
from pointsman.engine.insisting import insist, store_first
from pointsman.engine.journal import BusJournal
from pointsman.engine.meters import BusMeters
from pointsman.engine.reports import BusReporter
from pointsman.engine.steady import SteadyClock
from pointsman.errors import (
    BusUnavailable,
    ConfigurationError,
    ContractError,
    OversizeEvent,
    describe_error,
)
from pointsman.ports import Bus, Clock, Consumer, Delivery, Stored
from pointsman.settings import Settings
from pointsman.telemetry import Span, bind, get_logger, metrics, names, parse_traceparent, span
from pointsman_schemas.card import AgentCard
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import AttemptError, Cancellation, DeadLetter, ErrorKind, Handoff, Result
from pointsman_schemas.ids import derived_id, span_id_for
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.subjects import Subjects

__all__ = ["Worker", "consumer_name"]

T = TypeVar("T")

_SENT = 0.05  # seconds in which what was handed back has left this process
_LEAVE = 1.5 * ABANDON  # seconds for all there is to do after the grace: one handler that does not stop, and the rest
_AGAIN = 1.0  # seconds before a handoff that met a bug of ours is delivered again: never a hot loop
_REMEMBERED = 10_000  # cancelled tasks whose handoffs may still wait in the queue: some 1 MB
_MEASURED = (  # of its span
    "messaging.system",
    "messaging.operation.name",
    "messaging.destination.template",
    names.SERVER_ADDRESS,
    names.SERVER_PORT,
)

_log = get_logger(__name__)


class Worker:
    """Runs `agents` on `bus`, whose streams exist already.

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
        self._handlers: Handlers = InlineHandlers()
        self._meters: BusMeters | None = None
        self._jobs: dict[int, _Job] = {}  # by the sequence of the handoff
        self._cancelled: OrderedDict[tuple[str, str], None] = OrderedDict()  # by workflow and task, oldest first
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
        await self._clock.set(self._bus)
        async with AsyncExitStack() as stack:
            if self._settings.model_limits:
                self._meters = BusMeters(self._bus, self._subjects, self._settings.model_limits, self._clock)
                stack.push_async_callback(self._meters.close)
            if self._own_loop:
                self._handlers = await stack.enter_async_context(ThreadHandlers())
            await stack.enter_async_context(await self._bus.listen(self._subjects.cancellations, self._heard))
            for desk in self._desks:
                desk.consumer = await self._bus.consumer(
                    consumer_name(desk.name),
                    "work",
                    self._subjects.handoffs_of(desk.name),
                    ack_wait=self._settings.ack_wait,
                    max_in_flight=desk.agent.card.max_in_flight,
                )
                await stack.enter_async_context(await self._bus.serve(desk.service))
            async with asyncio.TaskGroup() as group:
                announcing = group.create_task(
                    keep_announced(self._bus, self._cards(), self._settings.heartbeat, self._clock)
                )
                keeping_alive = group.create_task(self._keep_alive())
                pulls = [
                    group.create_task(self._pull(desk, desk.consumer, group))
                    for desk in self._desks
                    if desk.consumer is not None
                ]
                _log.info("worker_started", agents=[desk.name for desk in self._desks], instance=self.instance)
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
                for task in (leaving, keeping_alive):
                    task.cancel()
            await self._close_agents(_until(gone))
            await self._handlers.close(_until(gone))
            _log.info("worker_stopped", instance=self.instance)

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
                if self._stopping:  # it came while the pull was being given up
                    await delivery.nak()
                else:
                    desk.occupy()
                    group.create_task(self._handle(desk, delivery))

    async def _handle(self, desk: Desk, delivery: Delivery) -> None:
        """One delivery, from its arrival until it is settled. Nothing it does ends the worker."""
        if (running := self._jobs.get(delivery.message.sequence)) is not None:
            running.delivery = delivery  # from now on this one is kept alive, and settled in the end
            desk.vacate()
            _log.warning(
                "handoff_came_again",
                subject=delivery.message.subject,
                delivered=delivery.delivered,
                hint="it is still worked on and is not run twice; this process was too busy to tell the broker in time",
            )
            return
        job = _Job(desk, delivery, asyncio.current_task())
        self._jobs[delivery.message.sequence] = job
        try:
            try:
                envelope, handoff = read_handoff(delivery.message, self._subjects)
            except ContractError as error:
                await self._bury(job, error)
                return
            await self._process(job, envelope, handoff)
        except asyncio.CancelledError:
            await delivery.nak()
            raise
        except Exception as error:
            _log.error(
                "handoff_not_processed",
                subject=delivery.message.subject,
                exc_info=error,
                hint="this is a bug in pointsman; the handoff is delivered again",
            )
            await delivery.nak(_AGAIN)
        finally:
            del self._jobs[delivery.message.sequence]
            desk.vacate()

    async def _bury(self, job: _Job, error: ContractError) -> None:
        message, agent = job.delivery.message, job.desk.name
        workflow: str | None = None
        task: str | None = None
        with suppress(ContractError):
            address = self._subjects.parse_handoff(message.subject)
            workflow, task = address.workflow, address.task
        cause = AttemptError(kind=error.kind, message=describe_error(error))

        async def store() -> DeadLetter:
            return await bury(
                self._bus,
                self._subjects,
                self._clock,
                message,
                origin=agent,
                cause=cause,
                attempts=job.delivery.delivered,
                workflow=workflow,
                task=task,
            )

        letter = await insist(store, self._clock)
        _log.warning(
            "handoff_dead_lettered",
            agent=agent,
            subject=message.subject,
            letter=letter.id,
            cause=str(error),
            hint=f"pointsman dead show {letter.id}",
        )
        job.desk.count(0.0, error.kind)
        await job.delivery.term(f"{error.kind}: {letter.id}")

    # Running

    async def _process(self, job: _Job, envelope: Envelope, handoff: Handoff) -> None:
        delivery, desk = job.delivery, job.desk
        title, attributes = names.process_handoff(
            self._subjects.namespace,
            desk.name,
            subject=delivery.message.subject,
            workflow_id=handoff.workflow_id,
            task_id=handoff.task_id,
            attempt=handoff.attempt,
            delivered=delivery.delivered,
            message_id=envelope.id,
            source=envelope.source,
            correlation_id=envelope.correlation_id,
            consumer=consumer_name(desk.name),
            role=handoff.role,
            server=self._bus.server,
        )
        parent = parse_traceparent(envelope.traceparent, envelope.tracestate)
        again = delivery.delivered > 1
        if not again:
            waited = (self._clock.now() - delivery.message.at).total_seconds()
            metrics.observe(names.QUEUE_DURATION, max(0.0, waited), {names.AGENT_NAME: desk.name})
        began = self._clock.monotonic()
        with (
            bind(workflow_id=handoff.workflow_id, task_id=handoff.task_id, attempt=handoff.attempt, agent=desk.name,
                 correlation_id=envelope.correlation_id),
            span(title, kind="consumer", parent=parent, attributes=attributes,
                 # An attempt has one span, whichever delivery of it comes to an end: what earlier ones did is below it.
                 span_id=span_id_for(handoff.workflow_id, handoff.task_id, handoff.attempt),
                 links=(parent,) if again and parent else ()) as spot,
            _left_when_unsettled(spot),
        ):  # fmt: skip
            if again:
                spot.note(names.REDELIVERED, {names.DELIVERED: delivery.delivered})
            reporter = BusReporter(
                self._bus,
                self._subjects,
                source=self._source(desk),
                correlation_id=envelope.correlation_id,
                causation_id=envelope.id,
                clock=self._clock,
            )
            journal = self._journal(job, handoff, envelope) if self._settings.journal else None
            job.attempt = attempt = Attempt(
                desk.agent, handoff, reporter, self._handlers, self._clock, journal, self._meters
            )
            if again and await self._has_result(handoff):
                spot.leave()
                await delivery.ack()
                return
            passed("worker.received")
            result = self._given_up(job, attempt) or await attempt.run()
            if result is None:
                spot.leave()
                _log.info("handoff_returned", hint="the worker is leaving; another one takes it")
                await delivery.nak()
                return
            passed("worker.ran")
            await reporter.flush()
            result = await self._answer(result, handoff, envelope, spot, desk)
            passed("worker.answered")
            await delivery.ack()
            passed("worker.acked")
            if result.error is not None:
                spot.fail(result.error.kind, result.error.message)
                _log.warning(
                    "attempt_failed",
                    status=result.status,
                    kind=result.error.kind,
                    error=result.error.message,
                    retryable=result.error.retryable,
                )
            else:
                _log.debug("attempt_succeeded")
        seconds = self._clock.monotonic() - began
        kind = result.error.kind if result.error else None
        desk.count(seconds, kind)
        metrics.observe(
            names.PROCESS_DURATION,
            seconds,
            {
                **{key: attributes.get(key) for key in _MEASURED},
                names.AGENT_NAME: desk.name,
                names.ERROR_TYPE: kind,
            },
        )

    def _journal(self, job: _Job, handoff: Handoff, envelope: Envelope) -> BusJournal:
        return BusJournal(
            self._bus,
            self._subjects,
            handoff,
            source=self._source(job.desk),
            correlation_id=envelope.correlation_id,
            causation_id=envelope.id,
            clock=self._clock,
            fresh=job.delivery.delivered == 1,
        )

    def _given_up(self, job: _Job, attempt: Attempt) -> Result | None:
        """The answer to a handoff that is not to be started."""
        deliveries, handoff = job.delivery.delivered, attempt.handoff
        if deliveries > self._settings.deliveries:
            return attempt.failed(
                ErrorKind.CRASHED,
                f"the handoff was delivered {deliveries} times and no worker of "
                f"{job.desk.name} lived to answer it; it was not started again",
            )
        if (handoff.workflow_id, handoff.task_id) in self._cancelled:
            return attempt.failed(ErrorKind.CANCELLED, "nobody waits for the task any more; it was not started")
        return None

    # Answering

    async def _answer(self, result: Result, handoff: Handoff, envelope: Envelope, spot: Span, desk: Desk) -> Result:
        """Store the result, or in its place the failure to store it. Returns when the broker has one."""
        here = spot.context
        traceparent = here.traceparent if here else None
        headers = encode(
            Envelope(
                id=derived_id("result", handoff.workflow_id, handoff.task_id, str(handoff.attempt), desk.name),
                type=Result.event_type,
                source=self._source(desk),
                time=result.ended_at,
                subject=handoff.workflow_id,
                correlation_id=envelope.correlation_id,
                causation_id=envelope.id,
                traceparent=traceparent,
                tracestate=here.tracestate if here else None,
                origin_traceparent=traceparent,
            )
        )
        body = dump(result)
        try:
            await store_first(self._bus, self._clock, handoff.return_to, body, headers)
        except OversizeEvent:
            result = result.model_copy(
                update={
                    "status": "failed",
                    "output": None,
                    "replan_hint": None,
                    "events": (),
                    "error": AttemptError(
                        kind=ErrorKind.OVERSIZE,
                        message=f"the result of {desk.name} is {len(body)} bytes with a limit of "
                        f"{self._bus.max_body} for headers and body; return less, or a reference to it",
                    ),
                }
            )
            await store_first(self._bus, self._clock, handoff.return_to, dump(result), headers)
        return result

    async def _has_result(self, handoff: Handoff) -> bool:
        async def look() -> bool:
            return await self._bus.last("work", handoff.return_to) is not None

        return await insist(look, self._clock)

    # Beside the work

    async def _keep_alive(self) -> None:
        """Tell the broker about everything in hand, often enough that one lost message does no harm."""
        while True:
            await self._clock.sleep(self._settings.ack_wait / 3)
            for job in list(self._jobs.values()):
                await job.delivery.in_progress()

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
        closings = [self._handlers.start(_closed(desk.agent)) for desk in self._desks]
        await asyncio.wait([closing.future for closing in closings], timeout=within)
        for closing in closings:
            closing.cancel()

    def _cards(self) -> Sequence[AgentCard]:
        told = {"instance": self.instance, "started_at": self._clock.now()}
        for desk in self._desks:
            desk.announced = desk.agent.card.model_copy(update=told)
        return [desk.announced for desk in self._desks if desk.announced is not None]

    def _source(self, desk: Desk) -> str:
        return self._subjects.source("agent", desk.name)


@dataclass(slots=True, eq=False)
class _Job:
    """A delivery in hand, with its attempt once it is read."""

    desk: Desk
    delivery: Delivery
    task: asyncio.Task[Any] | None
    attempt: Attempt | None = None


def _until(moment: float) -> float:
    """Seconds to `moment`, by the loop's clock; none when it has passed."""
    return max(0.0, moment - asyncio.get_running_loop().time())


@contextmanager
def _left_when_unsettled(spot: Span) -> Iterator[None]:
    """What an exception ends is delivered again, and its span is ended then."""
    try:
        yield
    except BaseException:
        spot.leave()
        raise


async def _closed(agent: Agent) -> None:
    try:
        await agent.close()
    except Exception as error:
        _log.warning("agent_not_closed", agent=agent.card.name, error=describe_error(error))
