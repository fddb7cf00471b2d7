"""Parse the trace events that servers send for a message with `Nats-Trace-Dest` (NATS ADR-41, server 2.11)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, Literal

from pydantic_core import from_json

from pointsman.ports.bus import TraceHop, TraceHopStep

__all__ = ["TRACE_DESTINATION_HEADER", "is_sampled", "parse_hop"]

TRACE_DESTINATION_HEADER: Final = "Nats-Trace-Dest"

_STEP_KINDS: Final[Mapping[str, Literal["received", "handed_on", "stored"]]] = {
    "in": "received",
    "eg": "handed_on",
    "js": "stored",
}
_SAMPLED_FLAG: Final = 0x01


def is_sampled(headers: Mapping[str, str]) -> bool:
    """Return True if the trace is sampled, that is, if the lowest bit of the flags in `traceparent` is set."""
    flags = headers.get("traceparent", "")[-2:]
    try:
        return bool(int(flags, 16) & _SAMPLED_FLAG)
    except ValueError:
        return False


def parse_hop(told: bytes) -> TraceHop | None:
    """Parse one server's trace event for one message. Return None if `told` is not a trace event with a known step."""
    try:
        account: dict[str, Any] = from_json(told)
        steps = tuple(_parse_steps(account["events"]))
        if not steps or steps[0].kind != "received":
            return None
        return TraceHop(
            subject=account["events"][0]["subj"],
            headers={name.lower(): values[0] for name, values in account["request"]["header"].items()},
            server=account["server"]["name"],
            steps=steps,
            error=next((event["error"] for event in account["events"] if event.get("error")), ""),
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _parse_steps(events: list[dict[str, Any]]) -> Iterator[TraceHopStep]:
    for event in events:
        if (kind := _STEP_KINDS.get(event["type"])) is not None:
            where = event.get("stream") or event.get("name") or ""
            refused = kind == "stored" and event.get("error")
            yield TraceHopStep("refused" if refused else kind, datetime.fromisoformat(event["ts"]), where)
