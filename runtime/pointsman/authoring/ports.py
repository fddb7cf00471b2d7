"""What an attempt says while it works, to whom, and what it gathers on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import JsonValue

from pointsman.errors import MAX_ERROR_CHARS
from pointsman.ports.model import Model
from pointsman.telemetry import traces
from pointsman.telemetry.semconv import Attributes
from pointsman.util.process_groups import CompletedProcess
from pointsman_schemas.events import Delta, Progress, Step, Usage

__all__ = [
    "AttemptHandle",
    "AttemptUsage",
    "CallPermit",
    "RateLimiter",
    "RecordingReporter",
    "ReportedCall",
    "Reporter",
    "RunnableTool",
    "StepJournal",
]


class Reporter(Protocol):
    """Where a context's reports go."""

    def report(self, progress: Progress) -> None:
        """Tell whoever watches. Never waits and never raises: a report is worth less than the work it is about."""

    def stream_text(self, delta: Delta) -> None:
        """Tell whoever listens now a piece of text. Never waits and never raises."""

    async def emit(self, event: Progress, event_id: str) -> None:
        """Store a domain event, once for each `event_id`. Returns when it is stored."""


@dataclass(slots=True)
class RecordingReporter:
    """Keeps what it is told, for tests."""

    reports: list[Progress] = field(default_factory=list)
    events: list[Progress] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)

    def report(self, progress: Progress) -> None:
        self.reports.append(progress)

    def stream_text(self, delta: Delta) -> None:
        self.deltas.append(delta)

    async def emit(self, event: Progress, event_id: str) -> None:
        self.events.append(event)


@dataclass(slots=True)
class AttemptHandle:
    """Whether anybody waits for an attempt, and what runs for it. Shared by a context and those it hands to tools."""

    cancelled: bool = False
    processes: set[asyncio.Task[CompletedProcess]] = field(default_factory=set)


@dataclass(slots=True)
class AttemptUsage:
    """What is gathered to go with an attempt's result: of all of it, or of one call `parent` another ledger's."""

    usage: Usage = Usage()
    confidence: float | None = None
    replan_hint: str | None = None
    parent: AttemptUsage | None = None

    def add(self, usage: Usage) -> None:
        """Count `usage` here and for the attempt; each call counts its own, so that none is counted twice."""
        *_, attempt = self._chain()
        attempt.usage += usage
        if attempt is not self:
            self.usage += usage

    def set_outcome_hints(self, *, confidence: float | None = None, replan_hint: str | None = None) -> None:
        """What is given is the last that was said, here and in all that this is within."""
        for ledger in self._chain():
            ledger.confidence = ledger.confidence if confidence is None else confidence
            ledger.replan_hint = ledger.replan_hint if replan_hint is None else replan_hint

    def _chain(self) -> Iterator[AttemptUsage]:
        ledger: AttemptUsage | None = self
        while ledger is not None:
            yield ledger
            ledger = ledger.parent


class ReportedCall:
    """A tool or model call while it runs: what is said here goes on its span and into its report."""

    __slots__ = ("_span", "_usage", "error", "span_id", "usage")

    def __init__(self, span: traces.Span, span_id: str, ledger: AttemptUsage) -> None:
        self._span = span
        self._usage = ledger
        self.span_id = span_id
        self.error: str | None = None
        self.usage: Usage | None = None

    def fail(self, kind: str, message: str) -> None:
        """The call failed, without an exception leaving it. `kind` is a short name from a small set."""
        self.error = self.error or f"{kind}: {message}"[:MAX_ERROR_CHARS]
        self._span.set_failed(kind, message)

    def record_usage(self, usage: Usage) -> None:
        """Count `usage` for this call and for the attempt it is part of."""
        self.usage = usage if self.usage is None else self.usage + usage
        self._usage.add(usage)

    def set_attributes(self, attributes: Attributes) -> None:
        """Add attributes to the call's span. They are not in the report."""
        self._span.set_attributes(attributes)


@dataclass(frozen=True, slots=True)
class CallPermit:
    """A call that may be made now. `release` says that it is over: the tokens it used, and the seconds for which the
    provider wants no other call, if it said so. It never waits."""

    release: Callable[[int, float | None], None]


class RateLimiter(Protocol):
    """The limits that all processes keep together."""

    async def acquire(self, model: Model, tokens: int, patience: float) -> CallPermit | None:
        """Wait until a call of about `tokens` may be made; None when nothing limits `model`.

        Raises:
            ModelError: with kind `rate_limited`: that would take longer than `patience` seconds.
        """
        ...


class StepJournal(Protocol):
    """Where the steps of one attempt are kept."""

    async def load(self) -> Mapping[str, Step]:
        """What was kept by whoever worked on this attempt before, or on those that it continues, by name."""
        ...

    async def append(self, step: Step) -> Step:
        """Store `step` and return it; or what stands under its name already, which counts instead.

        Raises:
            OversizeEventError: it does not fit into a message.
        """
        ...


class RunnableTool(Protocol):
    """The part of a `Tool` that `Context.call` needs."""

    async def run(self, arguments: Mapping[str, object], context: Any) -> JsonValue:
        """Check `arguments`, run the tool and return its value as JSON."""
        ...
