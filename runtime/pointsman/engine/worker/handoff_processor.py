"""Process a handoff and store exactly one result. Publish the result, then acknowledge the handoff.

| State of the handoff | Action |
|---|---|
| The handoff cannot be read, or contradicts its subject | Dead-letter the handoff, and prevent a redelivery |
| The handoff may be a second copy, and a result exists | Acknowledge the handoff |
| The handoff was delivered too often without a result | Store a `worker_crashed` result |
| The deadline has passed, or the task is cancelled | Store a failed result; do not start the agent |
| The handler still runs at the deadline | Cancel the handler; store a `timeout` result |
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

from pointsman.authoring.interceptor import Interceptor
from pointsman.bus.file_store import FileStore
from pointsman.engine.process.consumers import consumer_name
from pointsman.engine.process.dead_lettering import dead_letter
from pointsman.engine.process.fault_injection import fault_point
from pointsman.engine.process.handoff_codec import RESENT_HEADER, decode_handoff
from pointsman.engine.process.retrying import publish_once, retry_while_unavailable
from pointsman.engine.worker.agent_slots import AgentSlots
from pointsman.engine.worker.attempt import Attempt
from pointsman.engine.worker.executors import Executor, InlineExecutor
from pointsman.engine.worker.file_transfer import WorkerFiles
from pointsman.engine.worker.message_reader import BusMessageReader
from pointsman.engine.worker.progress_publisher import BusProgressPublisher
from pointsman.engine.worker.rate_limiter import BusRateLimiter
from pointsman.engine.worker.step_journal import BusStepJournal
from pointsman.engine.worker.timeout_scheduler import TimeoutScheduler
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
    tracing_enabled,
)
from pointsman.telemetry.error_content import content_text
from pointsman_schemas.card import Role
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import AttemptError, DeadLetter, ErrorKind, Handoff, Result
from pointsman_schemas.ids import derive_id, span_id_for
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import HandoffAddress, Subjects

__all__ = ["HandoffProcessor", "InFlightHandoff"]

_STARTED_REPORT_DELAY_S = (
    0.5  # seconds from the start of an attempt to the report of the start; a shorter attempt needs no such report
)

_log = get_logger(__name__)


@dataclass(slots=True, eq=False)
class InFlightHandoff:
    """Delivery that is being processed. The attempt is set when the handoff is decoded."""

    slots: AgentSlots
    delivery: Delivery
    task: asyncio.Task[Any] | None
    attempt: Attempt | None = None


class HandoffProcessor:
    """Processes the handoffs of a worker.

    Args:
        bus: Connection to the bus.
        subjects: Subjects of the namespace.
        settings: Settings of the worker.
        clock: Clock of the worker.
        cancelled: The newest cancelled attempt, by workflow and task. The worker adds tasks while the processor runs.

    Attributes:
        executor: Executor of the agents.
        rate_limiter: Limiter of the agents' model calls, or None for no limits.
        interceptors: Interceptors of each attempt, outermost first.
        deps: Dependencies of the agents.
        timeouts: Scheduler of the time limits of attempts.
        start_reports: Scheduler of the reports that an attempt has started.
    """

    def __init__(
        self, bus: Bus, subjects: Subjects, settings: Settings, clock: Clock, cancelled: Mapping[tuple[str, str], int]
    ) -> None:
        self.executor: Executor = InlineExecutor()
        self.rate_limiter: BusRateLimiter | None = None
        self.interceptors: Sequence[Interceptor] = ()
        self.deps: Sequence[object] = ()
        self.timeouts = TimeoutScheduler[Attempt](clock, lambda attempt: attempt.interrupt("timeout"))
        self.start_reports = TimeoutScheduler[Attempt](clock, Attempt.report_started)
        self.since: datetime | None = None
        """Handoffs that were stored before this time may have a result, even if the broker counts a first delivery."""
        self._bus = bus
        self._subjects = subjects
        self._settings = settings
        self._clock = clock
        self._cancelled = cancelled

    async def process(self, in_flight: InFlightHandoff) -> None:
        """Process the handoff until it is settled."""
        try:
            envelope, handoff = decode_handoff(in_flight.delivery.message, self._subjects)
        except ContractError as error:
            await self._dead_letter(in_flight, error)
        else:
            await self._run_handoff(in_flight, envelope, handoff)

    async def _dead_letter(self, in_flight: InFlightHandoff, error: ContractError) -> None:
        message, agent = in_flight.delivery.message, in_flight.slots.name
        workflow: str | None = None
        task: str | None = None
        with suppress(ContractError):
            address = self._subjects.parse(message.subject, HandoffAddress)
            workflow, task = address.workflow, address.task
        cause = AttemptError(kind=error.kind, message=describe_error(error))

        async def store() -> DeadLetter:
            return await dead_letter(
                self._bus,
                self._subjects,
                self._clock,
                message,
                origin=agent,
                cause=cause,
                attempts=in_flight.delivery.delivered,
                workflow=workflow,
                task=task,
            )

        letter = await retry_while_unavailable(store, self._clock)
        _log.warning(
            "handoff_dead_lettered",
            agent=agent,
            subject=message.subject,
            letter=letter.id,
            cause=error,
            hint=f"pointsman dead show {letter.id}",
        )
        in_flight.slots.record_request(0.0, error.kind)
        await in_flight.delivery.term(f"{error.kind}: {letter.id}")

    async def _run_handoff(self, in_flight: InFlightHandoff, envelope: Envelope, handoff: Handoff) -> None:
        delivery, slots = in_flight.delivery, in_flight.slots
        if delivery.delivered == 1 and metrics.metrics_enabled():
            waited = (self._clock.now() - delivery.message.at).total_seconds()
            metrics.observe_series(semconv.QUEUE_DURATION, max(0.0, waited), metrics.agent_series(slots.name))
        began = self._clock.monotonic()
        with (
            bind(workflow_id=handoff.workflow_id, task_id=handoff.task_id, attempt=handoff.attempt, agent=slots.name,
                 correlation_id=envelope.correlation_id),
            self._span(in_flight, envelope, handoff) as spot,
        ):  # fmt: skip
            try:
                result = await self._run_attempt(in_flight, envelope, handoff, spot)
            except BaseException:  # the handoff is redelivered, and the next delivery ends the span
                spot.discard()
                raise
            if result is None:
                spot.discard()
                return
            asks = result.questions if handoff.role in (Role.WORK, Role.PLAN) else ()
            error = None if asks else result.error
            if error is not None:
                spot.set_failed(error.kind, content_text(error.for_operators) or error.kind)
                _log.warning(
                    "attempt_failed",
                    status=result.status,
                    kind=error.kind,
                    error=content_text(error.for_operators),
                    retryable=error.retryable,
                )
            elif asks:
                _log.info(
                    "attempt_awaiting_answer", tools=[each.tool for each in asks if each.tool], questions=len(asks)
                )
            else:
                _log.debug("attempt_succeeded")
        seconds = self._clock.monotonic() - began
        kind = error.kind if error else None
        slots.record_request(seconds, kind)
        if metrics.metrics_enabled():
            of = _duration_attributes(self._subjects.namespace, slots.name, self._bus.server, kind)
            metrics.observe_series(semconv.PROCESS_DURATION, seconds, of)

    def _log_context(
        self, in_flight: InFlightHandoff, envelope: Envelope, handoff: Handoff
    ) -> tuple[str, semconv.Attributes]:
        return semconv.process_handoff(
            self._subjects.namespace,
            in_flight.slots.name,
            subject=in_flight.delivery.message.subject,
            workflow_id=handoff.workflow_id,
            task_id=handoff.task_id,
            attempt=handoff.attempt,
            delivered=in_flight.delivery.delivered,
            message_id=envelope.id,
            source=envelope.source,
            correlation_id=envelope.correlation_id,
            consumer=consumer_name(in_flight.slots.name),
            role=handoff.role,
            server=self._bus.server,
        )

    def _span(self, in_flight: InFlightHandoff, envelope: Envelope, handoff: Handoff) -> AbstractContextManager[Span]:
        """Return the attempt's span. All deliveries use one span id, so their child spans belong to one span."""
        parent = parse_traceparent(envelope.traceparent, envelope.tracestate)
        own = span_id_for(handoff.workflow_id, handoff.task_id, handoff.attempt) if tracing_enabled() else None
        links = (parent,) if parent and in_flight.delivery.delivered > 1 else ()
        about = partial(self._log_context, in_flight, envelope, handoff)
        return span(about, kind="consumer", parent=parent, span_id=own, links=links)

    async def _run_attempt(
        self, in_flight: InFlightHandoff, envelope: Envelope, handoff: Handoff, spot: Span
    ) -> Result | None:
        """Store a result and return it. Return None if a result was stored before, or if the worker stops first."""
        delivery, slots = in_flight.delivery, in_flight.slots
        again = delivery.delivered > 1
        if again:
            spot.add_event(semconv.HANDOFF_REDELIVERED, {semconv.DELIVERED: delivery.delivered})
        older = self.since is not None and delivery.message.at < self.since
        maybe_known = again or older or RESENT_HEADER in delivery.message.headers
        reporter = BusProgressPublisher(
            self._bus,
            self._subjects,
            team=handoff.from_agent,
            source=slots.source,
            correlation_id=envelope.correlation_id,
            causation_id=envelope.id,
            clock=self._clock,
        )
        journal = (
            self._open_journal(in_flight, handoff, envelope, fresh=not maybe_known) if self._settings.journal else None
        )
        in_flight.attempt = attempt = Attempt(
            slots.agent, handoff, reporter, self.executor, self._clock, self.timeouts, journal, self.rate_limiter,
            delivery.delivered, self.interceptors, self.deps, self._files(handoff),
            BusMessageReader(self._bus, self._subjects, handoff),
        )  # fmt: skip
        if maybe_known and await self._has_result(handoff):
            await in_flight.delivery.ack()
            return None
        fault_point("worker.received")
        self.start_reports.watch(attempt, _STARTED_REPORT_DELAY_S)
        try:
            result = await self._rejection(in_flight, attempt) or await attempt.run()
        finally:
            self.start_reports.cancel(attempt)
            reporter.stop()
        if attempt.orphaned_handlers:
            slots.unfinished.append(attempt)
        if result is None:
            _log.info("handoff_returned", hint="the worker stops; the broker delivers the handoff to another worker")
            await in_flight.delivery.nak()
            return None
        fault_point("worker.ran")
        await reporter.flush()
        result = await self._store_result(result, handoff, envelope, spot, slots)
        fault_point("worker.answered")
        await in_flight.delivery.ack()
        fault_point("worker.acked")
        return result

    def _files(self, handoff: Handoff) -> WorkerFiles:
        bucket, bound = self._subjects.artifacts_bucket, self._settings.max_file_bytes
        return WorkerFiles(FileStore(self._bus, bucket, self._clock, bound), handoff.workflow_id)

    def _open_journal(
        self, in_flight: InFlightHandoff, handoff: Handoff, envelope: Envelope, *, fresh: bool
    ) -> BusStepJournal:
        return BusStepJournal(
            self._bus,
            self._subjects,
            handoff,
            source=in_flight.slots.source,
            correlation_id=envelope.correlation_id,
            causation_id=envelope.id,
            clock=self._clock,
            fresh=fresh,
        )

    async def _rejection(self, in_flight: InFlightHandoff, attempt: Attempt) -> Result | None:
        """Return the failed result of an attempt that must not start, or None if the attempt may start."""
        handoff, most = attempt.handoff, self._settings.max_deliveries
        if in_flight.delivery.delivered > most:
            return await attempt.not_started_result(
                ErrorKind.CRASHED,
                f"no worker of {in_flight.slots.name} answered the handoff in {most}"
                f" deliver{'y' if most == 1 else 'ies'}, "
                "the maximum of a handoff; the attempt was not started again",
            )
        if handoff.attempt <= self._cancelled.get((handoff.workflow_id, handoff.task_id), 0):
            return attempt.failed_result(ErrorKind.CANCELLED, "the task is cancelled; the attempt was not started")
        return None

    async def _store_result(
        self, result: Result, handoff: Handoff, envelope: Envelope, spot: Span, slots: AgentSlots
    ) -> Result:
        """Store the result, or a failed result if the result is too large. Return the stored result."""
        here = spot.context
        traceparent = here.traceparent if here else None
        headers = encode(
            Envelope(
                id=derive_id("result", handoff.workflow_id, handoff.task_id, str(handoff.attempt), slots.name),
                type=Result.event_type,
                source=slots.source,
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
            await publish_once(self._bus, self._clock, handoff.return_to, body, headers)
        except OversizeEventError:
            result = result.model_copy(
                update={
                    "status": "failed",
                    "output": None,
                    "replan_hint": None,
                    "events": (),
                    "error": AttemptError(
                        kind=ErrorKind.OVERSIZE,
                        message=f"the result of {slots.name} has {len(body)} bytes; the limit is {self._bus.max_body} "
                        "bytes for headers and body together; return less, or a reference to the data",
                    ),
                }
            )
            await publish_once(self._bus, self._clock, handoff.return_to, dump(result), headers)
        return result

    async def _has_result(self, handoff: Handoff) -> bool:
        async def look() -> bool:
            return await self._bus.last("results", handoff.return_to) is not None

        return await retry_while_unavailable(look, self._clock)


@lru_cache(256)
def _duration_attributes(namespace: str, agent: str, server: Server | None, error: str | None) -> metrics.Labels:
    return metrics.labels(semconv.handoff_duration_attributes(namespace, agent, server, error))
