"""What an attempt says while it works, to whom, and what it gathers on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import JsonValue

from pointsman.errors import ERROR_LENGTH
from pointsman.ports.model import Model
from pointsman.telemetry import traces
from pointsman.telemetry.semconv import Attributes
from pointsman.util.process_groups import Completed
from pointsman_schemas.events import Delta, Progress, Step, Usage

__all__ = [
    "Admission",
    "Call",
    "Journal",
    "Ledger",
    "Meters",
    "RecordingReporter",
    "Reporter",
    "RunnableTool",
    "Running",
]


class Reporter(Protocol):
    """Where a context's reports go."""

    def report(self, progress: Progress) -> None:
        """Tell whoever watches. Never waits and never raises: a report is worth less than the work it is about."""

    def say(self, delta: Delta) -> None:
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

    def say(self, delta: Delta) -> None:
        self.deltas.append(delta)

    async def emit(self, event: Progress, event_id: str) -> None:
        self.events.append(event)


@dataclass(slots=True)
class Running:
    """Whether anybody waits for an attempt, and what runs for it. Shared by a context and those it hands to tools."""

    cancelled: bool = False
    processes: set[asyncio.Task[Completed]] = field(default_factory=set)


@dataclass(slots=True)
class Ledger:
    """What is gathered to go with an attempt's result: of all of it, or of one call `within` another ledger's."""

    usage: Usage = Usage()
    confidence: float | None = None
    replan_hint: str | None = None
    within: Ledger | None = None

    def use(self, usage: Usage) -> None:
        """Count `usage` here and for the attempt; each call counts its own, so that none is counted twice."""
        *_, attempt = self._outwards()
        attempt.usage += usage
        if attempt is not self:
            self.usage += usage

    def say(self, *, confidence: float | None = None, replan_hint: str | None = None) -> None:
        """What is given is the last that was said, here and in all that this is within."""
        for ledger in self._outwards():
            ledger.confidence = ledger.confidence if confidence is None else confidence
            ledger.replan_hint = ledger.replan_hint if replan_hint is None else replan_hint

    def _outwards(self) -> Iterator[Ledger]:
        ledger: Ledger | None = self
        while ledger is not None:
            yield ledger
            ledger = ledger.within


class Call:
    """A tool or model call while it runs: what is said here goes on its span and into its report."""

    __slots__ = ("_ledger", "_span", "error", "span_id", "usage")

    def __init__(self, span: traces.Span, span_id: str, ledger: Ledger) -> None:
        self._span = span
        self._ledger = ledger
        self.span_id = span_id
        self.error: str | None = None
        self.usage: Usage | None = None

    def fail(self, kind: str, message: str) -> None:
        """The call failed, without an exception leaving it. `kind` is a short name from a small set."""
        self.error = self.error or f"{kind}: {message}"[:ERROR_LENGTH]
        self._span.fail(kind, message)

    def record_usage(self, usage: Usage) -> None:
        """Count `usage` for this call and for the attempt it is part of."""
        self.usage = usage if self.usage is None else self.usage + usage
        self._ledger.use(usage)

    def set_attributes(self, attributes: Attributes) -> None:
        """Add attributes to the call's span. They are not in the report."""
        self._span.set(attributes)


@dataclass(frozen=True, slots=True)
class Admission:
    """A call that may be made now. `done` says that it is over: the tokens it used, and the seconds for which the
    provider wants no other call, if it said so. It never waits."""

    done: Callable[[int, float | None], None]


class Meters(Protocol):
    """The limits that all processes keep together."""

    async def admit(self, model: Model, tokens: int, patience: float) -> Admission | None:
        """Wait until a call of about `tokens` may be made; None when nothing limits `model`.

        Raises:
            ModelError: with kind `rate_limited`: that would take longer than `patience` seconds.
        """
        ...


class Journal(Protocol):
    """Where the steps of one attempt are kept."""

    async def recall(self) -> Mapping[str, Step]:
        """What was kept by whoever worked on this attempt before, or on those that it continues, by name."""
        ...

    async def keep(self, step: Step) -> Step:
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
