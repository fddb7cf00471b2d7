"""Interfaces for reports, steps, limits and usage, between an attempt and the worker or test that runs the attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Protocol

from pydantic import JsonValue

from pointsman.errors import MAX_ERROR_CHARS
from pointsman.ports.model import Model
from pointsman.telemetry import traces
from pointsman.telemetry.error_content import content_text
from pointsman.telemetry.semconv import Attributes
from pointsman.util.process_groups import CompletedProcess
from pointsman_schemas.events import Delta, Progress, Step, Usage, UserMessage

__all__ = [
    "AttemptHandle",
    "AttemptUsage",
    "CallPermit",
    "MessageReader",
    "RateLimiter",
    "RecordingReporter",
    "ReportedCall",
    "Reporter",
    "RunnableTool",
    "StepJournal",
]


class Reporter(Protocol):
    """Receiver of an attempt's reports."""

    def report(self, progress: Progress) -> None:
        """Publish a report without waiting. Raise no error, because the work is more important than the report.

        Args:
            progress: Report of the attempt.
        """

    def stream_text(self, delta: Delta) -> None:
        """Broadcast a piece of text to the clients that watch now, without waiting. Raise no error.

        Args:
            delta: Piece of text.
        """

    async def emit(self, event: Progress, event_id: str) -> None:
        """Store a domain event, and return when the event is stored.

        Args:
            event: Domain event.
            event_id: Id of the event. If an event with this id is stored already, nothing is stored.
        """


@dataclass(slots=True)
class RecordingReporter:
    """Reporter for tests, which stores all reports, events and text.

    Attributes:
        reports: Reports of progress, tool calls and model calls.
        events: Domain events.
        deltas: Pieces of text.
    """

    reports: list[Progress] = field(default_factory=list)
    events: list[Progress] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)

    def report(self, progress: Progress) -> None:
        """Append a report to `reports`.

        Args:
            progress: Report.
        """
        self.reports.append(progress)

    def stream_text(self, delta: Delta) -> None:
        """Append a piece of text to `deltas`.

        Args:
            delta: Piece of text.
        """
        self.deltas.append(delta)

    async def emit(self, event: Progress, event_id: str) -> None:
        """Append a domain event to `events`.

        Args:
            event: Domain event.
            event_id: Id of the event. The id is not stored.
        """
        self.events.append(event)


@dataclass(slots=True)
class AttemptHandle:
    """Cancellation flag and child processes of an attempt, shared by the copies of its state.

    Attributes:
        cancelled: True when the result is not needed any more.
        processes: Commands that run for the attempt.
        text_id: Id of the text that is being written. Each model call writes its own text.
    """

    cancelled: bool = False
    text_id: str = field(default_factory=lambda: token_hex(4))
    processes: set[asyncio.Task[CompletedProcess]] = field(default_factory=set)


@dataclass(slots=True)
class AttemptUsage:
    """Usage and hints of an attempt, or of one recorded call in the attempt. The result of the attempt contains them.

    Attributes:
        usage: Calls, tokens and cost so far.
        confidence: Last reported confidence, from 0 to 1, or None.
        replan_hint: Last reported reason to plan again, or None.
        parent: The `AttemptUsage` of the surrounding call or attempt; None if this is the usage of the attempt.
    """

    usage: Usage = Usage()
    confidence: float | None = None
    replan_hint: str | None = None
    parent: AttemptUsage | None = None

    def add(self, usage: Usage) -> None:
        """Count `usage` for this call and for the attempt, but not for calls that surround this call.

        When an attempt is restored, its usage is the sum of the usage in all its steps. If the step of a surrounding
        call contained the usage of an inner call, this usage would be counted twice.

        Args:
            usage: Usage of a model call.
        """
        *_, attempt = self._chain()
        attempt.usage += usage
        if attempt is not self:
            self.usage += usage

    def set_outcome_hints(self, *, confidence: float | None = None, replan_hint: str | None = None) -> None:
        """Set the given hints for this call, for all calls that surround this call, and for the attempt.

        Args:
            confidence: Confidence from 0 to 1; None keeps the current value.
            replan_hint: Reason to plan again; None keeps the current value.
        """
        for usage in self._chain():
            usage.confidence = usage.confidence if confidence is None else confidence
            usage.replan_hint = usage.replan_hint if replan_hint is None else replan_hint

    def _chain(self) -> Iterator[AttemptUsage]:
        usage: AttemptUsage | None = self
        while usage is not None:
            yield usage
            usage = usage.parent


class ReportedCall:
    """Running tool call or model call. The methods write to the span and the report of the call.

    Args:
        span: Open span of the call.
        span_id: Id of the call in reports, 16 hexadecimal digits.
        usage: Usage to which the usage of the call is added.
    """

    __slots__ = ("_span", "_usage", "error", "span_id", "usage")

    def __init__(self, span: traces.Span, span_id: str, usage: AttemptUsage) -> None:
        self._span = span
        self._usage = usage
        self.span_id = span_id
        self.error: str | None = None
        self.usage: Usage | None = None

    def fail(self, kind: str, message: str) -> None:
        """Report the call as failed, without an exception.

        Args:
            kind: Short name from a small set, such as `refused_call`.
            message: Reason, for operators.
        """
        self.error = self.error or f"{kind}: {message}"[:MAX_ERROR_CHARS]
        self._span.set_failed(kind, content_text(message) or kind)

    def record_usage(self, usage: Usage) -> None:
        """Count `usage` for this call and for the attempt.

        Args:
            usage: Calls, tokens and cost.
        """
        self.usage = usage if self.usage is None else self.usage + usage
        self._usage.add(usage)

    def set_attributes(self, attributes: Attributes) -> None:
        """Add attributes to the call's span. The report does not have them.

        Args:
            attributes: Attributes by name.
        """
        self._span.set_attributes(attributes)


@dataclass(frozen=True, slots=True)
class CallPermit:
    """Permission to make one model call now.

    Attributes:
        release: Function to call at the end of the model call. It never waits. The first argument is the number of used
            tokens. The second argument is the number of seconds for which the provider refuses further calls, or None.
    """

    release: Callable[[int, float | None], None]


class RateLimiter(Protocol):
    """Rate limits of model providers. All workers of a namespace share the limits."""

    async def acquire(self, model: Model, tokens: int, patience: float) -> CallPermit | None:
        """Wait until a call may be made.

        Args:
            model: Model to be called.
            tokens: Estimated tokens of the call.
            patience: Longest wait, in seconds.

        Returns:
            A permit, or None if the model has no rate limit.

        Raises:
            ModelError: The wait would be longer than `patience`; kind `rate_limited`.
        """
        ...


class MessageReader(Protocol):
    """Reader of the messages to an attempt's workflow."""

    async def read(self) -> tuple[UserMessage, ...]:
        """Return all messages that the workflow has recorded, in order; empty if the messages cannot be read now."""
        ...


class StepJournal(Protocol):
    """Store of the steps of one attempt."""

    async def load(self) -> Mapping[str, Step]:
        """Return the stored steps of this attempt and of the attempts that it continues, by name."""
        ...

    async def append(self, step: Step) -> Step:
        """Store a step if no step has this name yet.

        Args:
            step: Step to store.

        Returns:
            The valid step: `step`, or the earlier step if a step with this name was stored earlier.

        Raises:
            OversizeEventError: The step does not fit into a message.
        """
        ...


class RunnableTool(Protocol):
    """Part of a `Tool` that `Context.call` needs."""

    async def run(self, arguments: Mapping[str, object], context: Any) -> JsonValue:
        """Check the arguments, run the tool and return its value as JSON.

        Args:
            arguments: Arguments by name.
            context: Context of the caller.

        Returns:
            The value of the tool.
        """
        ...
