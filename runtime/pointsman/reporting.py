"""What an attempt says while it works, to whom, and what it gathers on the way."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from pointsman.errors import ERROR_LENGTH
from pointsman.subprocesses import Completed
from pointsman.telemetry import traces
from pointsman.telemetry.names import Attributes
from pointsman_schemas.events import Delta, Progress, Usage

__all__ = ["Call", "Ledger", "RecordingReporter", "Reporter"]


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
class Ledger:
    """What an attempt gathers on the way. Shared by a context and those it hands to tools."""

    usage: Usage = Usage()
    confidence: float | None = None
    replan_hint: str | None = None
    cancelled: bool = False
    processes: set[asyncio.Task[Completed]] = field(default_factory=set)


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
        self._ledger.usage += usage

    def set_attributes(self, attributes: Attributes) -> None:
        """Add attributes to the call's span. They are not in the report."""
        self._span.set(attributes)
