"""A handoff in hand is answered exactly once: publish the result, then acknowledge.

| A handoff that | is |
|---|---|
| cannot be read, or disagrees with its subject | dead-lettered, and never delivered again |
| was, or may have been, delivered or sent before, and has its result | acknowledged |
| was delivered too often without one | answered with `worker_crashed` |
| has passed its deadline, or is of a cancelled task | answered, and not started |
| is still running at its deadline | cancelled and answered with `timeout` |
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

from pointsman.engine.process.dead_lettering import bury
from pointsman.engine.process.fault_injection import passed
from pointsman.engine.process.handoff_codec import RESENT, consumer_name, read_handoff
from pointsman.engine.process.retrying import insist, store_first
from pointsman.engine.worker.agent_slots import Desk
from pointsman.engine.worker.attempt import Attempt
from pointsman.engine.worker.executors import Handlers, InlineHandlers
from pointsman.engine.worker.progress_publisher import BusReporter
from pointsman.engine.worker.rate_limiter import BusMeters
from pointsman.engine.worker.step_journal import BusJournal
from pointsman.engine.worker.timeout_scheduler import Deadlines
from pointsman.errors import ContractError, OversizeEventError, describe_error
from pointsman.ports.bus import Bus, Delivery, Server
from pointsman.ports.clock import Clock
from pointsman.settings import Settings
from pointsman.telemetry import (
    Span,
    bind,
    get_logger,
    metrics,
    parse_traceparent,
    semconv,
    span,
    tracing,
)
from pointsman_schemas.card import Role
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import AttemptError, DeadLetter, ErrorKind, Handoff, Result
from pointsman_schemas.ids import derive_id, span_id_for
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

__all__ = ["Answerer", "Job"]

_TELLING = 0.5  # seconds of an attempt before it is told that it has begun: a shorter one has its result then

_log = get_logger(__name__)


@dataclass(slots=True, eq=False)
class Job:
    """A delivery in hand, with its attempt once it is read."""

    desk: Desk
    delivery: Delivery
    task: asyncio.Task[Any] | None
    attempt: Attempt | None = None


class Answerer:
    """Answers the handoffs of a worker. `handlers` is where it runs agents, `meters` what bounds their calls of models;
    `cancelled` holds, by workflow and task, what nobody waits for any more."""

    def __init__(
        self, bus: Bus, subjects: Subjects, settings: Settings, clock: Clock, cancelled: Container[tuple[str, str]]
    ) -> None:
        self.handlers: Handlers = InlineHandlers()
        self.meters: BusMeters | None = None
        self.deadlines = Deadlines[Attempt](clock, lambda attempt: attempt.interrupt("timeout"))
        self.beginnings = Deadlines[Attempt](clock, Attempt.tell_begun)
        self.since: datetime | None = None
        """What was stored before that may have been answered, though it comes for the first time as far as the broker
        remembers."""
        self._bus = bus
        self._subjects = subjects
        self._settings = settings
        self._clock = clock
        self._cancelled = cancelled

    async def answer(self, job: Job) -> None:
        """Return once the handoff is settled."""
        try:
            envelope, handoff = read_handoff(job.delivery.message, self._subjects)
        except ContractError as error:
            await self._bury(job, error)
        else:
            await self._process(job, envelope, handoff)

    async def _bury(self, job: Job, error: ContractError) -> None:
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

    async def _process(self, job: Job, envelope: Envelope, handoff: Handoff) -> None:
        delivery, desk = job.delivery, job.desk
        if delivery.delivered == 1 and metrics.measuring():
            waited = (self._clock.now() - delivery.message.at).total_seconds()
            metrics.measure(semconv.QUEUE_DURATION, max(0.0, waited), metrics.of_agent(desk.name))
        began = self._clock.monotonic()
        with (
            bind(workflow_id=handoff.workflow_id, task_id=handoff.task_id, attempt=handoff.attempt, agent=desk.name,
                 correlation_id=envelope.correlation_id),
            self._span(job, envelope, handoff) as spot,
        ):  # fmt: skip
            try:
                result = await self._answer(job, envelope, handoff, spot)
            except BaseException:  # it is delivered again, and its span is ended then
                spot.leave()
                raise
            if result is None:
                spot.leave()
                return
            asks = result.approvals if handoff.role is Role.WORK else ()
            error = None if asks else result.error
            if error is not None:
                spot.fail(error.kind, error.message)
                _log.warning(
                    "attempt_failed",
                    status=result.status,
                    kind=error.kind,
                    error=error.message,
                    retryable=error.retryable,
                )
            elif asks:
                _log.info("attempt_waits_for_approval", tools=[call.tool for call in asks])
            else:
                _log.debug("attempt_succeeded")
        seconds = self._clock.monotonic() - began
        kind = error.kind if error else None
        desk.count(seconds, kind)
        if metrics.measuring():
            of = _series(self._subjects.namespace, desk.name, self._bus.server, kind)
            metrics.measure(semconv.PROCESS_DURATION, seconds, of)

    def _about(self, job: Job, envelope: Envelope, handoff: Handoff) -> tuple[str, semconv.Attributes]:
        return semconv.process_handoff(
            self._subjects.namespace,
            job.desk.name,
            subject=job.delivery.message.subject,
            workflow_id=handoff.workflow_id,
            task_id=handoff.task_id,
            attempt=handoff.attempt,
            delivered=job.delivery.delivered,
            message_id=envelope.id,
            source=envelope.source,
            correlation_id=envelope.correlation_id,
            consumer=consumer_name(job.desk.name),
            role=handoff.role,
            server=self._bus.server,
        )

    def _span(self, job: Job, envelope: Envelope, handoff: Handoff) -> AbstractContextManager[Span]:
        """An attempt has one span, whichever delivery of it comes to an end: what earlier ones did is below it."""
        parent = parse_traceparent(envelope.traceparent, envelope.tracestate)
        own = span_id_for(handoff.workflow_id, handoff.task_id, handoff.attempt) if tracing() else None
        links = (parent,) if parent and job.delivery.delivered > 1 else ()
        about = partial(self._about, job, envelope, handoff)
        return span(about, kind="consumer", parent=parent, span_id=own, links=links)

    async def _answer(self, job: Job, envelope: Envelope, handoff: Handoff, spot: Span) -> Result | None:
        """The result that was stored; None where nothing was run, or it was not run to its end."""
        delivery, desk = job.delivery, job.desk
        again = delivery.delivered > 1
        if again:
            spot.note(semconv.REDELIVERED, {semconv.DELIVERED: delivery.delivered})
        older = self.since is not None and delivery.message.at < self.since
        maybe_known = again or older or RESENT in delivery.message.headers
        reporter = BusReporter(
            self._bus,
            self._subjects,
            source=desk.source,
            correlation_id=envelope.correlation_id,
            causation_id=envelope.id,
            clock=self._clock,
        )
        journal = self._journal(job, handoff, envelope, fresh=not maybe_known) if self._settings.journal else None
        job.attempt = attempt = Attempt(
            desk.agent, handoff, reporter, self.handlers, self._clock, self.deadlines, journal, self.meters,
            delivery.delivered,
        )  # fmt: skip
        if maybe_known and await self._has_result(handoff):
            await job.delivery.ack()
            return None
        passed("worker.received")
        self.beginnings.watch(attempt, _TELLING)
        try:
            result = await self._given_up(job, attempt) or await attempt.run()
        finally:
            self.beginnings.forget(attempt)
        if attempt.left_running:
            desk.left.append(attempt)
        if result is None:
            _log.info("handoff_returned", hint="the worker is leaving; another one takes it")
            await job.delivery.nak()
            return None
        passed("worker.ran")
        await reporter.flush()
        result = await self._store(result, handoff, envelope, spot, desk)
        passed("worker.answered")
        await job.delivery.ack()
        passed("worker.acked")
        return result

    def _journal(self, job: Job, handoff: Handoff, envelope: Envelope, *, fresh: bool) -> BusJournal:
        return BusJournal(
            self._bus,
            self._subjects,
            handoff,
            source=job.desk.source,
            correlation_id=envelope.correlation_id,
            causation_id=envelope.id,
            clock=self._clock,
            fresh=fresh,
        )

    async def _given_up(self, job: Job, attempt: Attempt) -> Result | None:
        """The answer to a handoff that is not to be started."""
        handoff, most = attempt.handoff, self._settings.deliveries
        if job.delivery.delivered > most:
            return await attempt.not_started(
                ErrorKind.CRASHED,
                f"no worker of {job.desk.name} lived to answer it in {most} deliver{'y' if most == 1 else 'ies'}, as "
                "many as a handoff may have; it was not started again",
            )
        if (handoff.workflow_id, handoff.task_id) in self._cancelled:
            return attempt.failed(ErrorKind.CANCELLED, "nobody waits for the task any more; it was not started")
        return None

    async def _store(self, result: Result, handoff: Handoff, envelope: Envelope, spot: Span, desk: Desk) -> Result:
        """Store the result, or in its place the failure to store it. Returns when the broker has one."""
        here = spot.context
        traceparent = here.traceparent if here else None
        headers = encode(
            Envelope(
                id=derive_id("result", handoff.workflow_id, handoff.task_id, str(handoff.attempt), desk.name),
                type=Result.event_type,
                source=desk.source,
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
        except OversizeEventError:
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


@lru_cache(256)
def _series(namespace: str, agent: str, server: Server | None, error: str | None) -> metrics.Labels:
    return metrics.labels(semconv.processed_handoff(namespace, agent, server, error))
