"""Durations, money and tokens as a person reads them, the same wherever they are told."""

from __future__ import annotations

from pointsman_schemas.events import Usage

__all__ = ["dollars", "seconds", "used"]


def seconds(value: float) -> str:
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


def dollars(cost: float) -> str:
    """US dollars; four places, because one call costs less than a cent."""
    return f"${cost:.4f}"


def used(usage: Usage) -> str:
    """Tokens, and what they cost where that is known; empty when there are none."""
    if not usage.tokens:
        return ""
    return f"{usage.tokens:,} tokens" + (f", {dollars(usage.cost)}" if usage.cost else "")
