"""State of a running attempt. The runtime uses the state; agents and tools use a part of it through a `Context`."""

from __future__ import annotations

import asyncio
import copy
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from pointsman.authoring.attempt_record import AttemptRecord
from pointsman.authoring.files import ContextFile, Files, FileTransfer
from pointsman.authoring.ports import (
    AttemptHandle,
    AttemptUsage,
    MessageReader,
    RateLimiter,
    ReportedCall,
    Reporter,
    StepJournal,
)
from pointsman.authoring.user_messages import ReceivedMessages
from pointsman.errors import describe_error
from pointsman.telemetry import metrics, semconv, traces
from pointsman.telemetry.semconv import Attributes
from pointsman_schemas.events import Handoff, Progress
from pointsman_schemas.ids import derive_id
from pointsman_schemas.strict_json import as_json_value

__all__ = ["AttemptState", "without_surrogates"]

_enclosing_call: ContextVar[str] = ContextVar("pointsman_enclosing_call", default="")
"""Span id of the running call; empty outside of calls. A call within the running call reports this id as its parent."""


class AttemptState:
    """State of one attempt, of one call in the attempt, or of one try of a call.

    Copies for calls and tries share reports, usage, the record and cancellation with the attempt.

    Attributes:
        handoff: Handoff that the attempt works on.
        reporter: Receiver of reports, text and domain events.
        agent: Name of the agent.
        journal: Store of the steps of a tool loop, or None.
        rate_limiter: Rate limits of the models, which all workers of a namespace share, or None.
        deliveries: Number of deliveries of the handoff, this delivery included. If the number is above 1, an earlier
            worker stopped or crashed.
        now: Clock that deadlines and reports use: the broker's time, not the clock of this machine.
        idempotency_key: Key of the task; within a tool, key of the tool call. Every attempt has the same key.
        interceptors: The worker's interceptors, outermost first. The type is `Any`, because an import of `Interceptor`
            here would be circular.
        deps: Dependencies of a test, then of the agent. `all_deps` also has the values of the worker's lifespans.
        attempt_usage: Usage and hints (confidence, reason to plan again) that the result will contain.
        usage: Usage and hints of this call; outside of a call, the object `attempt_usage`.
        handle: Cancellation flag and child processes.
        files: Files that the attempt may read, and files that the attempt returns.
        record: Emitted events and approved calls.
        messages: Messages to the workflow that the attempt has read.
        loop: Event loop that the state was made on, or None.
    """

    def __init__(
        self,
        handoff: Handoff,
        reporter: Reporter,
        *,
        agent: str | None = None,
        journal: StepJournal | None = None,
        rate_limiter: RateLimiter | None = None,
        deliveries: int = 1,
        now: Callable[[], datetime] | None = None,
        deps: Iterable[object] = (),
        interceptors: Iterable[Any] = (),
        transfer: FileTransfer | None = None,
        message_reader: MessageReader | None = None,
    ) -> None:
        self.handoff = handoff
        self.reporter = reporter
        self.agent = agent or handoff.to_agent
        self.journal = journal
        self.rate_limiter = rate_limiter
        self.deliveries = deliveries
        self.now = now or _utc_now
        self.idempotency_key = handoff.idempotency_key
        self.interceptors: Sequence[Any] = tuple(interceptors)
        self.deps: tuple[object, ...] = ()
        self.files = Files(_files_of(handoff, transfer), transfer)
        self.usage = self.attempt_usage = AttemptUsage()
        self.handle = AttemptHandle()
        self.record = AttemptRecord(handoff, self.agent, journal, self.now, self.attempt_usage)
        self.messages = ReceivedMessages(handoff, message_reader, self.record)
        self._worker_deps = tuple(deps)
        self._key_counts: dict[str, int] = {}
        try:
            self.loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self.loop = None

    @property
    def all_deps(self) -> tuple[object, ...]:
        """All dependencies in the order of the search: first of a test, then of the agent, then of the worker."""
        return (*self.deps, *self._worker_deps)

    @property
    def in_tool(self) -> bool:
        """True within a tool call. The idempotency key of a tool call differs from the key of the task."""
        return self.idempotency_key != self.handoff.idempotency_key

    @property
    def call_fields(self) -> Mapping[str, object]:
        """Fields of the step that records this call: its usage and its hints for the result."""
        usage = self.usage
        return {"usage": usage.usage, "confidence": usage.confidence, "replan_hint": usage.replan_hint}

    def next_key(self, kind: str, *parts: str) -> str:
        """Return a key for the next item of `kind` with these `parts`.

        The n-th item of a kind with equal parts gets the same key in every attempt and in every process.

        Args:
            kind: Kind of the item, such as `tool`.
            *parts: Texts that identify the item.

        Returns:
            The key.
        """
        base = derive_id(kind, self.idempotency_key, *parts)
        count = self._key_counts[base] = self._key_counts.get(base, 0) + 1
        return derive_id(base, str(count))

    def for_try(self, idempotency_key: str) -> AttemptState:
        """Return a copy for one try of a tool call.

        The copy counts equal items from zero, so each try derives the same keys.

        Args:
            idempotency_key: Key of the tool call.

        Returns:
            The copy.
        """
        other = copy.copy(self)
        other.idempotency_key = idempotency_key
        other._key_counts = {}
        return other

    def for_call(self) -> AttemptState:
        """Return a copy for one recorded call. Usage and hints are counted for this call and also for the attempt."""
        other = copy.copy(self)
        other.usage = AttemptUsage(parent=self.usage)
        return other

    def with_deps(self, deps: Iterable[object]) -> AttemptState:
        """Return a copy with the dependencies of an agent. A test's come first, then these, then the worker's.

        Args:
            deps: Dependencies of the agent.

        Returns:
            The copy.
        """
        other = copy.copy(self)
        other.deps = (*self.deps, *deps)
        return other

    def cancel(self) -> None:
        """Mark the attempt as cancelled and end its processes. Any thread may call `cancel`."""
        self.handle.cancelled = True
        for process in tuple(self.handle.processes):
            process.get_loop().call_soon_threadsafe(process.cancel)

    # Reports

    def report_progress(self, message: str, data: Mapping[str, object]) -> None:
        """Report the present activity.

        Args:
            message: Text for people.
            data: Values that strict JSON can represent.

        Raises:
            NotJsonError: JSON cannot represent a value of `data`.
        """
        self.reporter.report(
            self.new_report("progress", message=without_surrogates(message), at=self.now(), data=dict(data) or None)
        )

    def report_tool(
        self, name: str, *, call_id: str = "", description: str = ""
    ) -> AbstractAsyncContextManager[ReportedCall]:
        """Report the body of an `async with` block as one run of the tool `name`, even if the body raises an error.

        The run gets a span and a stored report.

        Returns:
            A context manager of the call, for errors, usage and span attributes.
        """
        title, attributes = semconv.execute_tool(name, call_id=call_id, agent=self.agent, description=description)
        return self._report_call("tool", name, title, attributes, "internal")

    def report_chat(
        self,
        provider: str,
        model: str,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        structured: bool = False,
        attempt: int | None = None,
    ) -> AbstractAsyncContextManager[ReportedCall]:
        """Report the body of an `async with` block as one model call, even if the body raises an error.

        The model call gets a span and a stored report.

        Returns:
            A context manager of the call, for errors, usage and span attributes.
        """
        title, attributes = semconv.chat(
            provider,
            model,
            agent=self.agent,
            max_tokens=max_tokens,
            temperature=temperature,
            structured=structured,
            attempt=attempt,
        )
        return self._report_call("chat", model, title, attributes, "client")

    def new_report(self, kind: str, *, at: datetime, data: object = None, **fields: Any) -> Progress:
        """Return a report of this attempt.

        Args:
            kind: Kind of the report: `progress`, `tool`, `chat`, or the name of a domain event.
            at: Time at which the reported work started.
            data: Value that strict JSON can represent.
            **fields: Other fields of the report.

        Returns:
            The report.

        Raises:
            NotJsonError: JSON cannot represent `data`.
        """
        return Progress(
            workflow_id=self.handoff.workflow_id,
            task_id=self.handoff.task_id,
            attempt=self.handoff.attempt,
            agent=self.agent,
            kind=kind,
            started_at=at,
            data=as_json_value(data, "data", repair_text=True),
            **fields,
        )

    @asynccontextmanager
    async def _report_call(
        self, kind: str, name: str, title: str, attributes: Attributes, span_kind: traces.Kind
    ) -> AsyncIterator[ReportedCall]:
        started = self.now()
        outer = _enclosing_call.get()
        if not outer and (surrounding := traces.current_context()) is not None:
            outer = surrounding.span_id
        with traces.span(title, kind=span_kind, attributes=attributes, alone=kind == "chat") as span:
            # If tracing is off, `span.context` has the id of the surrounding span, so the report gets a new id.
            recorded = span.context if traces.tracing_enabled() else None
            call = ReportedCall(span, recorded.span_id if recorded else secrets.token_hex(8), self.usage)
            _enclosing_call.set(call.span_id)
            try:
                yield call
            except asyncio.CancelledError:
                call.error = call.error or "cancelled"
                raise
            except BaseException as error:
                call.error = call.error or describe_error(error)
                raise
            finally:
                _enclosing_call.set(outer)
                ended = self.now()
                if kind == "tool":
                    about: Attributes = {
                        semconv.TOOL_NAME: name,
                        semconv.AGENT_NAME: self.agent,
                        # OpenTelemetry's conventions define `_OTHER` for an error without a known short name.
                        semconv.ERROR_TYPE: "_OTHER" if call.error else None,
                    }
                    metrics.observe(semconv.TOOL_DURATION, (ended - started).total_seconds(), about)
                self.reporter.report(
                    self.new_report(
                        kind,
                        name=name,
                        at=started,
                        ended_at=ended,
                        error=call.error,
                        usage=call.usage,
                        span_id=call.span_id,
                        parent_span_id=outer,
                    )
                )


def without_surrogates(text: str) -> str:
    """Return `text` with a question mark for each half of a surrogate pair, because UTF-8 cannot encode a half."""
    return text.encode("utf-8", "replace").decode()


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _files_of(handoff: Handoff, transfer: FileTransfer | None) -> list[ContextFile]:
    found = [ContextFile(file, transfer, "request") for file in handoff.files]
    return found + [ContextFile(file, transfer, each.task_id) for each in handoff.context for file in each.files]
