"""Convert trace contexts between W3C headers, `TraceContext` and OpenTelemetry's types."""

from __future__ import annotations

import os
import re
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.trace.span import NonRecordingSpan, SpanContext, TraceFlags, TraceState

if TYPE_CHECKING:
    from pointsman_schemas.log import TraceOrigin

__all__ = [
    "ChosenIds",
    "TraceContext",
    "chosen_ids",
    "from_otel",
    "new_id",
    "otel_context_below",
    "otel_context_from_ids",
    "parse_traceparent",
    "to_otel",
    "trace_context",
    "traceparent_of",
]

_SAMPLED_FLAG: Final = 0x01
_KNOWN_FLAGS: Final = 0x03  # sampled and random trace id; other flags are cleared, because they must not be propagated
_TRACEPARENT_PATTERN: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MAX_TRACESTATE_CHARS: Final = 512  # longer ones are dropped; the specification allows no lower limit


class TraceContext(NamedTuple):
    """A W3C trace context: ids of 32 and 16 lower-case hexadecimal digits, and flags from 0 to 255."""

    trace_id: str
    span_id: str
    flags: int
    tracestate: str = ""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    @property
    def sampled(self) -> bool:
        return bool(self.flags & _SAMPLED_FLAG)


def parse_traceparent(traceparent: str | None, tracestate: str | None = None) -> TraceContext | None:
    """Parse the two W3C headers of a trace context. No error is raised.

    A version after 00 is read as version 00 with more fields, as the specification requires.

    Args:
        traceparent: The header `traceparent`.
        tracestate: The header `tracestate`. Default: none. The header is dropped if it is not printable or has more
            than 512 characters.

    Returns:
        The context; None if `traceparent` is missing or not valid.
    """
    if not traceparent:
        return None
    match = _TRACEPARENT_PATTERN.fullmatch(traceparent.strip(" \t"))
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or not trace_id.strip("0") or not span_id.strip("0"):
        return None
    state = (tracestate or "").strip(" \t")
    if len(state) > _MAX_TRACESTATE_CHARS or not state.isascii() or not state.isprintable():
        state = ""
    return TraceContext(trace_id, span_id, int(flags, 16) & _KNOWN_FLAGS, state)


def to_otel(context: TraceContext, *, remote: bool = True) -> SpanContext:
    """Convert a context to OpenTelemetry's type."""
    return SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=remote,
        trace_flags=TraceFlags(context.flags),
        trace_state=TraceState.from_header([context.tracestate]) if context.tracestate else None,
    )


def from_otel(context: SpanContext) -> TraceContext | None:
    """Convert a context of OpenTelemetry to a `TraceContext`; None if the context is not valid."""
    if not context.is_valid:
        return None
    return TraceContext(
        f"{context.trace_id:032x}",
        f"{context.span_id:016x}",
        int(context.trace_flags),
        context.trace_state.to_header() if context.trace_state else "",
    )


def otel_context_below(parent: TraceContext) -> Context:
    """Return an OpenTelemetry `Context` with `parent` as the innermost open span."""
    return otel.set_span_in_context(NonRecordingSpan(to_otel(parent)))


def otel_context_from_ids(trace_id: str, span_id: str) -> Context | None:
    """Return an OpenTelemetry `Context` with the span of these ids; None if the ids have a wrong length."""
    if len(trace_id) != 32 or len(span_id) != 16:
        return None
    return otel_context_below(TraceContext(trace_id, span_id, _SAMPLED_FLAG))


def new_id(size: int) -> str:
    """Return a random id of `size` bytes in lower-case hexadecimal digits, never all zeros."""
    while not (drawn := os.urandom(size).hex()).strip("0"):
        pass
    return drawn


chosen_ids: ContextVar[tuple[int | None, int] | None] = ContextVar("pointsman_chosen_ids", default=None)
"""The trace id and the span id for the next span of the SDK. The trace id is None if the span has a parent."""


class ChosenIds:
    """An SDK id generator that returns `chosen_ids` if they are set, and the ids of the generator `ids` otherwise.

    Pointsman chooses the ids of a span before the SDK makes the span, and the SDK takes ids only from a generator.
    """

    def __init__(self, ids: Any) -> None:
        self._ids = ids

    def generate_trace_id(self) -> int:
        chosen = chosen_ids.get()
        trace_id = chosen[0] if chosen else None
        return int(self._ids.generate_trace_id()) if trace_id is None else trace_id

    def generate_span_id(self) -> int:
        chosen = chosen_ids.get()
        return int(self._ids.generate_span_id()) if chosen is None else chosen[1]

    def is_trace_id_random(self) -> bool:
        return bool(getattr(self._ids, "is_trace_id_random", bool)())


def trace_context(trace: TraceOrigin, span_id: str | None = None) -> TraceContext:
    """Return the context of the workflow's own span, or of the span `span_id` of the same trace."""
    return TraceContext(trace.trace_id, span_id or trace.span_id, trace.flags, trace.tracestate)


def traceparent_of(trace: TraceOrigin, span_id: str | None = None) -> str:
    """Return the header `traceparent` for the workflow's own span, or for the span `span_id` of the same trace."""
    return f"00-{trace.trace_id}-{span_id or trace.span_id}-{trace.flags:02x}"
