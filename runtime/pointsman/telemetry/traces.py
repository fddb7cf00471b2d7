"""Record the spans of workflows, one trace per workflow. No function of this module raises an error.

A `TraceContext` is sent between processes. Use `span` for work that begins and ends in this process. Use
`reserve_context` and `record` for work that begins in one process and ends in another: `reserve_context` chooses the
ids at the start, and `record` makes the span at the end.

While tracing is off, the SDK is not loaded, spans cost next to nothing, and incoming contexts are propagated unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY

from pointsman.telemetry.active_span import (
    NonRecordingSpan,
    Span,
    context_of_span,
    record_exception,
    set_error,
    writable_attributes,
)
from pointsman.telemetry.fast.lean_spans import SpanRecorder
from pointsman.telemetry.semconv import ERROR_TYPE, Attributes
from pointsman.telemetry.trace_context import (
    ChosenIds,
    TraceContext,
    chosen_ids,
    new_id,
    otel_context_below,
    parse_traceparent,
    to_otel,
)
from pointsman.util.scrubber import scrub, to_writable

__all__ = [
    "Kind",
    "Span",
    "SpanEvent",
    "TraceContext",
    "TracedCall",
    "configure",
    "current_context",
    "parse_traceparent",
    "record",
    "reserve_context",
    "span",
    "tracing_enabled",
]

P = ParamSpec("P")
T = TypeVar("T")

SpanDetails: TypeAlias = Callable[[], tuple[str, Attributes]]
"""Function that returns a span's name and attributes, as in `semconv`. The function is called only if a span is
made."""
Kind: TypeAlias = Literal["internal", "client", "producer", "consumer"]

_KINDS: Final = {
    "internal": otel.SpanKind.INTERNAL,
    "client": otel.SpanKind.CLIENT,
    "producer": otel.SpanKind.PRODUCER,
    "consumer": otel.SpanKind.CONSUMER,
}
_OTLP_KINDS: Final = {"internal": 1, "producer": 4, "client": 3, "consumer": 5}  # the numbers that OTLP defines
SCOPE: Final = "pointsman"
SCHEMA: Final = "https://opentelemetry.io/schemas/gen-ai/1.42.0"
_SAMPLED_FLAG: Final = 0x01
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

# Keys that suppress the spans of instrumented model SDKs and HTTP clients. The first key is OpenTelemetry's, which
# OpenInference also reads. The second key is needed, because OpenLLMetry reads only its own key.
_SUPPRESSION_KEYS: Final = (_SUPPRESS_INSTRUMENTATION_KEY, "suppress_language_model_instrumentation")


class SpanSink(Protocol):
    """Destination of ended spans."""

    def is_open(self) -> bool:
        """Return True if a span that ends now would be accepted."""
        ...

    def collector_down(self) -> bool:
        """Return True if a span that begins now would probably be lost."""
        ...

    def reject(self) -> None:
        """Count a span as lost. The span was not made, because its destination is closed."""
        ...


_tracer: otel.Tracer | None = None
_sink: SpanSink | None = None
_recorder: SpanRecorder | None = None
_outer_contexts: WeakKeyDictionary[otel.Span, otel_context.Context] = WeakKeyDictionary()
"""Interleaved generators can end a span before a span inside it. This map has the outer context of each such span. When
the inner span ends, the nearest outer span that is still open becomes current."""


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """A span event of OpenTelemetry: an event with a time within a span."""

    name: str
    at: datetime
    attributes: Attributes


def tracing_enabled() -> bool:
    """Return True if spans are recorded. On hot paths, call this before you collect attributes."""
    return _tracer is not None


def current_context() -> TraceContext | None:
    """Return the context of the innermost open span, which may be a span of another library."""
    return context_of_span(otel.get_current_span())


class span:
    """Record a span around the block.

    An exception that leaves the block is recorded on the span and raised again. A cancellation is recorded as an
    error of the type `cancelled`. While the collector is down, only spans without a parent are made. Any other span is
    counted as lost, and the spans within its block become children of the surrounding span.

    Args:
        name: The name, or a function that returns the name and the attributes. The function is called only if a span
            is made.
        kind: The kind of the span. Default: `internal`.
        parent: The parent. Default: the innermost open span.
        span_id: The id of the span, if other processes refer to the span by this id. Default: a random id.
        attributes: The attributes, if `name` is a text.
        links: Contexts of spans to link to.
        alone: Suppress the spans of instrumented libraries in the block. Default: no.
    """

    __slots__ = ("_arguments", "_before", "_inner", "_opened", "_rejected_by", "_tracer", "_within")

    def __init__(
        self,
        name: str | SpanDetails,
        *,
        kind: Kind = "internal",
        parent: TraceContext | None = None,
        span_id: str | None = None,
        attributes: Attributes | None = None,
        links: Sequence[TraceContext] = (),
        alone: bool = False,
    ) -> None:
        self._arguments = (name, kind, parent, span_id, attributes, links, alone)

    def __enter__(self) -> Span:
        name, kind, parent, span_id, attributes, links, alone = self._arguments
        tracer, sink, recorder = _tracer, _sink, _recorder  # read once, because another thread may reset them
        before = within = otel_context.get_current()
        around = otel.get_current_span(before)
        above = parent if parent is not None or sink is None else context_of_span(around)
        self._rejected_by = lost_to = sink if sink is not None and _would_be_dropped(sink, above) else None
        self._tracer = tracer = tracer if lost_to is None else None
        if isinstance(name, str):
            title = name
        else:
            title, attributes = name() if tracer is not None else ("", None)
        if tracer is not None and recorder is not None and above is not None and above.sampled:
            inner: otel.Span = recorder.start_span(
                title,
                _OTLP_KINDS[kind],
                above,
                remote=parent is not None or around.get_span_context().is_remote,
                span_id=span_id,
                attributes=attributes,
                links=links,
            )
            within = otel.set_span_in_context(inner, before)
        elif tracer is not None:
            within = otel_context_below(parent) if parent is not None else before
            chosen = None if span_id is None else (None, int(span_id, 16))
            inner = _start_sdk_span(
                tracer, chosen, title, within, kind, attributes, links,
                record_exception=False, set_status_on_exception=False,
            )  # fmt: skip
            within = otel.set_span_in_context(inner, within)
        else:
            within = otel_context_below(parent) if parent is not None else before
            inner = otel.get_current_span(within)
        if alone and _tracer is not None:
            for key in _SUPPRESSION_KEYS:
                within = otel_context.set_value(key, True, within)
        self._inner, self._before, self._within = inner, before, within
        self._opened = Span(inner) if tracer is not None else NonRecordingSpan(inner)
        if within is not before:
            otel_context.attach(within)
        return self._opened

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, Exception):
                record_exception(self._opened, self._inner, error)
            elif isinstance(error, asyncio.CancelledError):
                self._opened.set_failed("cancelled", "the work was cancelled")
        finally:
            # detach(token) is not used: if a generator is closed early, this code runs in another context. The token is
            # not valid there, and OpenTelemetry would log an error. This span is not current there, so nothing is
            # restored.
            if self._within is not self._before:
                if otel_context.get_current() is self._within:
                    otel_context.attach(_still_open(self._before) if _outer_contexts else self._before)
                elif otel.get_current_span(self._before) is not self._inner:
                    # An inner span may still be open. Remember the outer context, so that the end of the inner span
                    # does not make this ended span current.
                    _outer_contexts[self._inner] = self._before
            if not self._opened.discarded:
                if self._tracer is not None:
                    self._inner.end()
                elif self._rejected_by is not None:
                    self._rejected_by.reject()


def _still_open(context: otel_context.Context) -> otel_context.Context:
    """Return `context`, or the nearest outer context with a span that has not ended."""
    while (around := _outer_contexts.get(otel.get_current_span(context))) is not None:
        context = around
    return context


def reserve_context(parent: TraceContext | None = None) -> TraceContext:
    """Return the context of a span that `record` exports later, maybe in another process.

    Other spans can have this context as their parent at once, before the span is exported.

    Args:
        parent: The parent of the span. Default: the span is the root of a new trace.

    Returns:
        The context. While tracing is off, `record` exports no span. Then the result is `parent`, so the children belong
        to `parent`; without a parent, the result is the context of a new trace that is not sampled.
    """
    tracer = _tracer
    if parent is not None:
        return parent if tracer is None else TraceContext(parent.trace_id, new_id(8), parent.flags, parent.tracestate)
    trace_id = new_id(16)
    return TraceContext(trace_id, new_id(8), 0 if tracer is None else _root_flags(tracer, int(trace_id, 16)))


def record(
    name: str | SpanDetails,
    *,
    context: TraceContext,
    parent_span_id: str | None,
    kind: Kind = "internal",
    started: datetime,
    ended: datetime,
    attributes: Attributes | None = None,
    error: tuple[str, str] | None = None,
    happenings: Iterable[SpanEvent] = (),
    links: Iterable[TraceContext] = (),
) -> None:
    """Export a finished span with the ids of `context` and the given times. `error` is a type and a message.

    Nothing is exported if the trace is not sampled, or if the context was reserved while tracing was off. If no span is
    made, `name` is not called, and `happenings` and `links` are not iterated.
    """
    tracer, sink, recorder = _tracer, _sink, _recorder  # read once, because another thread may reset them
    if tracer is None or not context.sampled or context.span_id == parent_span_id:
        return
    if sink is not None and not sink.is_open():
        sink.reject()
        return
    if not isinstance(name, str):
        name, attributes = name()
    if recorder is not None:
        found = dict(attributes) if attributes else {}
        more: dict[str, Any] = {"started": _nanoseconds(started), "ended": _nanoseconds(max(started, ended))}
        if error is not None:
            found[ERROR_TYPE] = error[0]
            more["status"] = (otel.StatusCode.ERROR.value, scrub(error[1]))
        if events := [(each.name, _nanoseconds(each.at), each.attributes) for each in happenings]:
            more["events"] = events
        recorder.record_span(name, _OTLP_KINDS[kind], context, parent_span_id, found, links=tuple(links), **more)
        return
    if parent_span_id is not None:
        within = otel_context_below(TraceContext(context.trace_id, parent_span_id, context.flags, context.tracestate))
    else:
        within = otel_context.Context()
    chosen = int(context.trace_id, 16), int(context.span_id, 16)
    began = _nanoseconds(started)
    finished = _start_sdk_span(tracer, chosen, name, within, kind, attributes, links, start_time=began)
    for happening in happenings:
        finished.add_event(
            to_writable(happening.name), writable_attributes(happening.attributes), _nanoseconds(happening.at)
        )
    if error is not None:
        set_error(finished, *error)
    # The clock of the machine that measured `ended` may be behind, so a span never ends before its start.
    finished.end(_nanoseconds(max(started, ended)))


def _start_sdk_span(
    tracer: otel.Tracer,
    chosen: tuple[int | None, int] | None,
    name: str,
    within: otel_context.Context,
    kind: Kind,
    attributes: Attributes | None,
    links: Iterable[TraceContext],
    **more: Any,
) -> otel.Span:
    """Start a span of the SDK, with the `chosen` ids if they are not None."""
    token = chosen_ids.set(chosen)
    try:
        return tracer.start_span(
            to_writable(name),
            within,
            _KINDS[kind],
            writable_attributes(attributes),
            [otel.Link(to_otel(link)) for link in links],
            **more,
        )
    finally:
        chosen_ids.reset(token)


def configure(
    provider: otel.TracerProvider | None,
    version: str = "",
    sink: SpanSink | None = None,
    recorder: SpanRecorder | None = None,
) -> None:
    """Record spans with `provider` from now on; None turns tracing off. For `setup` and tests.

    Args:
        provider: The provider of the SDK.
        version: Version of this package. Default: none.
        sink: Destination of the spans, which can refuse a span before it is made. Default: no span is refused.
        recorder: Maker of the spans of sampled traces; requires `sink`. Default: the SDK makes all spans.
    """
    global _tracer, _sink, _recorder
    _sink, _recorder = sink, recorder
    if provider is None:
        _tracer = None
        return
    tracer = provider.get_tracer(SCOPE, version, SCHEMA)
    ids = getattr(tracer, "id_generator", None)
    if ids is not None and not isinstance(ids, ChosenIds):
        # Set on Pointsman's tracer, not on the provider, because the application's other tracers need their generator.
        tracer.id_generator = ChosenIds(ids)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    _tracer = tracer


class TracedCall(Generic[P, T]):
    """A function for another process. The span that is current now becomes the parent of the function's spans.

    The object can be pickled if the function can. The other process sets up its own telemetry.

    Example:
        `pool.submit(TracedCall(function), argument)`
    """

    def __init__(self, function: Callable[P, T]) -> None:
        self._function = function
        self._parent = current_context()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        before = otel_context.get_current()
        if self._parent is not None:
            otel_context.attach(otel_context_below(self._parent))
        try:
            return self._function(*args, **kwargs)
        finally:
            otel_context.attach(before)  # restored, because a pool may run other calls in this process


def _would_be_dropped(sink: SpanSink, above: TraceContext | None) -> bool:
    """Return True if a span below `above` that begins now would probably be lost. A root is always made."""
    return above is not None and above.sampled and sink.collector_down()


def _root_flags(tracer: otel.Tracer, trace_id: int) -> int:
    sampler = getattr(tracer, "sampler", None)
    if sampler is None:
        return _SAMPLED_FLAG
    return _SAMPLED_FLAG if sampler.should_sample(otel_context.Context(), trace_id, "").decision.is_sampled() else 0


def _nanoseconds(instant: datetime) -> int:
    return (instant - _EPOCH) // _MICROSECOND * 1000
