"""One trace per workflow. Ids are chosen before a span exists, spans are made when they end, and nothing here raises.

`TraceContext` is what travels between processes. `span` is for what begins and ends in this process; `reserve_context`
and `record` are for what begins in one process and ends in another.

With tracing off no SDK is loaded, spans cost next to nothing, and the context that came in is the context that goes on.
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
from pointsman.telemetry.scrubber import scrub, to_writable
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
"""What gives a span's name and attributes, as the functions of `names` do: it is called only where a span is made."""
Kind: TypeAlias = Literal["internal", "client", "producer", "consumer"]

_KINDS: Final = {
    "internal": otel.SpanKind.INTERNAL,
    "client": otel.SpanKind.CLIENT,
    "producer": otel.SpanKind.PRODUCER,
    "consumer": otel.SpanKind.CONSUMER,
}
_OTLP_KINDS: Final = {"internal": 1, "producer": 4, "client": 3, "consumer": 5}  # OTLP's
SCOPE: Final = "pointsman"
SCHEMA: Final = "https://opentelemetry.io/schemas/gen-ai/1.42.0"
_SAMPLED_FLAG: Final = 0x01
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

# What the instrumentations of model SDKs and of HTTP clients look for before they make a span: the OpenTelemetry one,
# which OpenInference shares, and that of OpenLLMetry.
_SUPPRESSION_KEYS: Final = (_SUPPRESS_INSTRUMENTATION_KEY, "suppress_language_model_instrumentation")


class SpanSink(Protocol):
    """Where ended spans go."""

    def is_open(self) -> bool:
        """Whether one that ended now would be taken."""
        ...

    def collector_down(self) -> bool:
        """Whether nobody is there for one that begins now."""
        ...

    def reject(self) -> None:
        """One was not made, because it would not have been taken: it counts as lost."""
        ...


_tracer: otel.Tracer | None = None
_sink: SpanSink | None = None
_recorder: SpanRecorder | None = None
_outer_contexts: WeakKeyDictionary[otel.Span, otel_context.Context] = WeakKeyDictionary()
"""Spans that ended while another that began within them was open, as those of interleaved generators do, and what was
around each."""


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened within a span: what OpenTelemetry calls a span event."""

    name: str
    at: datetime
    attributes: Attributes


def tracing_enabled() -> bool:
    """Whether spans are recorded at all, so that hot paths need not gather what to say about them."""
    return _tracer is not None


def current_context() -> TraceContext | None:
    """The context of the innermost open span here, whoever opened it."""
    return context_of_span(otel.get_current_span())


class span:
    """A span around the block, under `parent` or, without one, under the innermost open span.

    An exception that leaves the block is put on the span and passes on. Cancellation is an error of type `cancelled`.
    Where a function gives its name and attributes, it is asked only if a span is made. `span_id` is the id it must
    have, because another process knows it. `alone` says that it stands for all that the block does: instrumented
    libraries make no spans of their own within. While nobody is there to take spans none is made, and it counts as
    lost: what is below it hangs on what is above.
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
        tracer, way, recorder = _tracer, _sink, _recorder  # another thread may end them meanwhile
        before = within = otel_context.get_current()
        around = otel.get_current_span(before)
        above = parent if parent is not None or way is None else context_of_span(around)
        self._rejected_by = lost_to = way if way is not None and _would_be_dropped(way, above) else None
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
            # Not detach(token): a generator that is left early is closed in another context, where the token does not
            # fit and OpenTelemetry logs an error. There, what is current is not ours: there is nothing to restore.
            if self._within is not self._before:
                if otel_context.get_current() is self._within:
                    otel_context.attach(_still_open(self._before) if _outer_contexts else self._before)
                elif otel.get_current_span(self._before) is not self._inner:
                    # One that began within this one may be open still, and must not bring this one back.
                    _outer_contexts[self._inner] = self._before
            if not self._opened.discarded:
                if self._tracer is not None:
                    self._inner.end()
                elif self._rejected_by is not None:
                    self._rejected_by.reject()


def _still_open(context: otel_context.Context) -> otel_context.Context:
    """`context`, or what was around those spans of it that ended before spans within them did."""
    while (around := _outer_contexts.get(otel.get_current_span(context))) is not None:
        context = around
    return context


def reserve_context(parent: TraceContext | None = None) -> TraceContext:
    """The context of a span that will be recorded when it ends, maybe by another process: use it as a parent at once.

    With tracing off it is `parent` itself, so that nobody becomes the child of a span that will never exist; without a
    parent either, it is a new trace that is not sampled.
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
    """Export a finished span under the ids of `context`, with its true times; `error` is a type and a message.

    Nothing is exported when the trace is not sampled, nor when the context was reserved while tracing was off. Where a
    function gives its name and attributes, it is asked only if a span is made; so are generators for the rest.
    """
    tracer, way, recorder = _tracer, _sink, _recorder  # another thread may end them meanwhile
    if tracer is None or not context.sampled or context.span_id == parent_span_id:
        return
    if way is not None and not way.is_open():
        way.reject()
        return
    if not isinstance(name, str):
        name, attributes = name()
    if recorder is not None:
        said = dict(attributes) if attributes else {}
        more: dict[str, Any] = {"started": _nanoseconds(started), "ended": _nanoseconds(max(started, ended))}
        if error is not None:
            said[ERROR_TYPE] = error[0]
            more["status"] = (otel.StatusCode.ERROR.value, scrub(error[1]))
        if events := [(each.name, _nanoseconds(each.at), each.attributes) for each in happenings]:
            more["events"] = events
        recorder.record_span(name, _OTLP_KINDS[kind], context, parent_span_id, said, links=tuple(links), **more)
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
    finished.end(_nanoseconds(max(started, ended)))  # another machine's clock may have been behind


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
    """A span that the SDK begins, with the ids that are `chosen`, if any are."""
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
    way: SpanSink | None = None,
    recorder: SpanRecorder | None = None,
) -> None:
    """Record spans with `provider` from now on, or not at all with None. `setup` and tests call it.

    `way` is where its spans go, if that is known: it is asked before one is made. `recorder`, which needs a way, makes
    those of traces that are sampled.
    """
    global _tracer, _sink, _recorder
    _sink, _recorder = way, recorder
    if provider is None:
        _tracer = None
        return
    tracer = provider.get_tracer(SCOPE, version, SCHEMA)
    ids = getattr(tracer, "id_generator", None)
    if ids is not None and not isinstance(ids, ChosenIds):
        # Only our own tracer chooses ids: an application's provider keeps its generator for everybody else.
        tracer.id_generator = ChosenIds(ids)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    _tracer = tracer


class TracedCall(Generic[P, T]):
    """`function` for another process, as in `pool.submit(TracedCall(function), ...)`: its spans there are children of
    the span that is open here. It pickles when the function does; the other process sets up its own telemetry."""

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
            otel_context.attach(before)  # a pool's process is used again


def _would_be_dropped(way: SpanSink, above: TraceContext | None) -> bool:
    """Whether a span begun now is for nobody. Not for a root: whether it is sampled is found out by making it."""
    return above is not None and above.sampled and way.collector_down()


def _root_flags(tracer: otel.Tracer, trace_id: int) -> int:
    sampler = getattr(tracer, "sampler", None)
    if sampler is None:
        return _SAMPLED_FLAG
    return _SAMPLED_FLAG if sampler.should_sample(otel_context.Context(), trace_id, "").decision.is_sampled() else 0


def _nanoseconds(instant: datetime) -> int:
    return (instant - _EPOCH) // _MICROSECOND * 1000
