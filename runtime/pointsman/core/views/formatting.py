"""Format durations, money and tokens for people, in the same way in all views."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pydantic import JsonValue

from pointsman_schemas.events import ErrorKind, Progress, Result, Usage
from pointsman_schemas.strict_json import compact_json

__all__ = ["format_dollars", "format_seconds", "format_usage", "pickup_delay", "request_text", "start_delay"]

_SLOW_PICKUP_S = 5.0
"""Shortest time from handoff to start that is reported as a delay, in seconds. A free worker starts within
milliseconds, so a longer time means that no worker was free.
"""

_UNREADABLE_REQUEST = "(the request could not be read)"


def format_seconds(value: float) -> str:
    """Return a duration as a short text: `0.4 ms`, `83 ms`, `1.2 s`, `3m 05s`, `2h 01m`."""
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
    """Return an amount of US dollars with four decimal places, because one model call often costs less than a cent."""
    return f"${cost:.4f}"


def request_text(value: JsonValue) -> str:
    """Return a request as one line of a list.

    A text is unchanged. An object with a single text becomes that text. The request of a handoff to a team becomes the
    intent. Other objects become JSON. The log of an unreadable request has no text, so a fixed text is returned.
    """
    if isinstance(value, dict):
        only = next(iter(value.values())) if len(value) == 1 else value.get("intent")
        value = only if isinstance(only, str) and only else value
    return (value or _UNREADABLE_REQUEST) if isinstance(value, str) else compact_json(value).decode()


def format_usage(usage: Usage) -> str:
    """Return the tokens, and the cost of the tokens if the cost is known; an empty text without tokens."""
    if not usage.tokens:
        return ""
    return f"{usage.tokens:,} tokens" + (f", {format_dollars(usage.cost)}" if usage.cost else "")


def pickup_delay(result: Result, handed: datetime, reports: Iterable[Progress]) -> str:
    """Return a remark about the late start of an attempt that has a result; an empty text if there was no delay.

    If a worker is lost, another worker runs the same attempt again. The result is from the run that finished. If there
    are reports from an earlier run, the loss of that worker is the reason for the late start.
    """
    if result.error is not None and result.error.kind == ErrorKind.CRASHED:  # no run of the attempt has finished
        return ""
    return start_delay(handed, result.started_at, reports)


def start_delay(handed: datetime, began: datetime, reports: Iterable[Progress]) -> str:
    """Return a remark about the delay before the run that began at `began`; an empty text for a short delay."""
    before = [report.ended_at or report.started_at for report in reports if report.started_at < began]
    if before:
        silent = max(0.0, (began - max(before)).total_seconds())
        return f"its worker stopped; started again after {format_seconds(silent)}"
    queued = (began - handed).total_seconds()
    return f"started {format_seconds(queued)} after the handoff" if queued >= _SLOW_PICKUP_S else ""
