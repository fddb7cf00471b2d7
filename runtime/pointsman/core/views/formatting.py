"""Durations, money and tokens as a person reads them, the same wherever they are told."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pydantic import JsonValue

from pointsman_schemas.events import ErrorKind, Progress, Result, Usage
from pointsman_schemas.strict_json import compact_json

__all__ = ["format_dollars", "format_seconds", "format_usage", "pickup_delay", "request_text", "start_delay"]

_SLOW_PICKUP_S = (
    5.0  # seconds from handoff to start that are worth a word: a worker that is free takes it in milliseconds
)

_UNREADABLE_REQUEST = "(the request could not be read)"


def format_seconds(value: float) -> str:
    """A duration at a glance: `0.4 ms`, `83 ms`, `1.2 s`, `3m 05s`, `2h 01m`."""
    if value < 0.01:
        return f"{value * 1000:.1f} ms"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    return f"{minutes // 60}h {minutes % 60:02d}m"


def format_dollars(cost: float) -> str:
    """US dollars; four places, because one call costs less than a cent."""
    return f"${cost:.4f}"


def request_text(value: JsonValue) -> str:
    """A request in a list: a text as it is, an object with one text as that text, what a team was handed by its intent,
    anything else as JSON. One that could not be read has no text in its log, and says so."""
    if isinstance(value, dict):
        only = next(iter(value.values())) if len(value) == 1 else value.get("intent")
        value = only if isinstance(only, str) and only else value
    return (value or _UNREADABLE_REQUEST) if isinstance(value, str) else compact_json(value).decode()


def format_usage(usage: Usage) -> str:
    """Tokens, and what they cost where that is known; empty when there are none."""
    if not usage.tokens:
        return ""
    return f"{usage.tokens:,} tokens" + (f", {format_dollars(usage.cost)}" if usage.cost else "")


def pickup_delay(result: Result, handed: datetime, reports: Iterable[Progress]) -> str:
    """Why nothing happened for a while, where `result` and the attempt's `reports` show it; else empty.

    A result tells of the run that came to an end. What was reported before that began is of a worker that was lost.
    """
    if result.error is not None and result.error.kind == ErrorKind.CRASHED:  # there was no run that came to an end
        return ""
    return start_delay(handed, result.started_at, reports)


def start_delay(handed: datetime, began: datetime, reports: Iterable[Progress]) -> str:
    """Why nothing happened for a while before the run that `began` then, where it is worth a word; else empty."""
    before = [report.ended_at or report.started_at for report in reports if report.started_at < began]
    if before:
        silent = max(0.0, (began - max(before)).total_seconds())
        return f"left by its worker, taken up again after {format_seconds(silent)}"
    queued = (began - handed).total_seconds()
    return f"taken {format_seconds(queued)} after it was handed over" if queued >= _SLOW_PICKUP_S else ""
