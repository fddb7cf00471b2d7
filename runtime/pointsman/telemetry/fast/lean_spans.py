"""Record Pointsman's own spans with less work than the SDK. The SDK makes the spans of all other libraries.

A span of the SDK costs 60 to 80 µs to make and end, and 100 µs to encode. A span of this module costs a quarter of this
time in total (docs/performance.md). The spans are encoded in batches, because warm caches halve the cost. They wait in
the queue as bytes, because bytes need at most half of the memory of objects. The queue and the exporter are the SDK's,
so one request contains these spans and spans of the SDK. This module makes only spans of traces that the SDK's sampler
has sampled already.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import time_ns
from typing import Any, ClassVar, Final, TypeAlias

from opentelemetry import trace as otel
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.trace.span import SpanContext

from pointsman.telemetry.fast import otlp_encoder
from pointsman.telemetry.logs import get_logger
from pointsman.telemetry.semconv import Attributes
from pointsman.telemetry.trace_context import TraceContext, new_id, to_otel

__all__ = ["EncodedSpan", "LeanSpan", "SpanRecorder"]

# Number of spans that are encoded in a row: all but the first use warm CPU caches. 32 spans take half a millisecond.
_ENCODE_BATCH: Final = 32
_MAX_ATTRIBUTES: Final = 128  # largest number of attributes, events or links of a span; OpenTelemetry's default
_ENCODE_HINT: Final = "check the name, events and times that a tool or a library sets on its surrounding span"
_UNSET_STATUS: Final = (otel.StatusCode.UNSET.value, "")
_SpanData: TypeAlias = tuple[str, int, TraceContext, str | None, Mapping[str, Any], dict[str, Any]]
_Link: TypeAlias = tuple[str, str, bool, Mapping[str, Any]]
_PLAIN_TYPES: Final = frozenset({str, int, bool, float})
_log = get_logger(__name__)


class _SampledFlag:
    """The flags of every encoded span. A queue of the SDK reads only `sampled`."""

    __slots__ = ()
    sampled = True


class _Context:
    __slots__ = ()
    trace_flags = _SampledFlag()


class EncodedSpan:
    """An ended span in the form that a queue of the SDK accepts."""

    __slots__ = ("_data", "_encoded")
    context: ClassVar = _Context()

    def __init__(self, data: _SpanData) -> None:
        self._data: _SpanData | None = data
        self._encoded = b""

    def encoded(self) -> bytes:
        """Encode the span as a field of its scope, and store only the bytes.

        Returns:
            The bytes. If a tool has set values of wrong types, the bytes are empty and a warning is logged, because an
            error would lose the other spans of the batch.
        """
        data = self._data  # read once, because another thread may encode the span now and reset `_data`
        if data is not None:
            name, kind, place, parent_id, attributes, more = data
            try:
                self._encoded = otlp_encoder.encode_span(
                    name, kind, place.trace_id, place.span_id, parent_id, attributes, **more
                )
            except Exception as error:
                _log.warning(
                    "span_encode_failed", span=str(name), error=f"{type(error).__name__}: {error}", hint=_ENCODE_HINT
                )
            self._data = None
        return self._encoded


class SpanRecorder:
    """Maker of spans. Each ended span is passed to `take`, which returns True if the span was queued."""

    def __init__(self, take: Callable[[EncodedSpan], bool]) -> None:
        self._sink = take
        self._pending: list[EncodedSpan] = []  # spans in the queue that are not encoded yet

    def start_span(
        self,
        name: str,
        kind: int,
        parent: TraceContext,
        *,
        remote: bool,
        span_id: str | None = None,
        attributes: Attributes | None = None,
        links: Sequence[TraceContext] = (),
    ) -> LeanSpan:
        """Start a span below `parent`, which must be sampled. `remote` is True if the parent is in another process."""
        place = TraceContext(parent.trace_id, span_id or new_id(8), parent.flags, parent.tracestate)
        found = {key: value for key, value in attributes.items() if value is not None} if attributes else {}
        return LeanSpan(self, name, kind, place, parent.span_id, remote, found, links)

    def record_span(
        self,
        name: str,
        kind: int,
        place: TraceContext,
        parent_id: str | None,
        attributes: Mapping[str, Any],
        *,
        links: Sequence[TraceContext] = (),
        **more: Any,
    ) -> None:
        """Record a span that has ended. `more` are keyword arguments of `otlp_encoder.encode_span`."""
        if links:
            more["links"] = _clean_links(links)
            more["dropped"] = (0, 0, len(links) - len(more["links"]))
        self.record_span_with_links(name, kind, place, parent_id, attributes, more)

    def record_span_with_links(
        self,
        name: str,
        kind: int,
        place: TraceContext,
        parent_id: str | None,
        attributes: Mapping[str, Any],
        more: dict[str, Any],
    ) -> None:
        """Record a span that has ended, with the links in `more` in the form of `otlp_encoder.encode_span`."""
        if place.tracestate:
            state = to_otel(place).trace_state
            more["tracestate"] = ",".join([f"{key}={value}" for key, value in state.items()])
        span = EncodedSpan((name, kind, place, parent_id, attributes, more))
        if self._sink(span):
            self._pending.append(span)
            if len(self._pending) >= _ENCODE_BATCH:
                taken, self._pending = self._pending, []
                for one in taken:
                    one.encoded()


class LeanSpan(otel.Span):
    """A span of OpenTelemetry's API. The attributes at the start are not checked, because Pointsman sets them."""

    __slots__ = ("_attributes", "_context", "_dropped", "_ended", "_events", "_events_dropped", "_kind", "_links",
                 "_links_dropped", "_name", "_parent_id", "_recorder", "_remote", "_started", "_status",
                 "context")  # fmt: skip

    def __init__(
        self,
        recorder: SpanRecorder,
        name: str,
        kind: int,
        place: TraceContext,
        parent_id: str,
        remote: bool,
        attributes: dict[str, Any],
        links: Sequence[TraceContext],
    ) -> None:
        self.context = place
        """The trace context of the span."""
        self._recorder = recorder
        self._name = name
        self._kind = kind
        self._parent_id = parent_id
        self._remote = remote
        self._attributes = attributes
        self._links = _clean_links(links) if links else None
        self._links_dropped = len(links) - len(self._links or ())
        # Made at the first event, because few spans have events, and a deque is large.
        self._events: deque[tuple[str, int, Mapping[str, Any]]] | None = None
        self._status = _UNSET_STATUS
        self._dropped = 0
        self._events_dropped = 0
        self._context: SpanContext | None = None
        self._ended = False
        self._started = time_ns()

    @property
    def name(self) -> str:
        return self._name

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self._attributes

    def get_span_context(self) -> SpanContext:
        if self._context is None:
            self._context = to_otel(self.context, remote=False)
        return self._context

    def is_recording(self) -> bool:
        return not self._ended

    def set_attribute(self, key: str, value: Any) -> None:
        if self._ended:
            return
        if type(value) not in _PLAIN_TYPES or type(key) is not str or not key:
            found = _clean_attributes({key: value})
            if key not in found:
                self._dropped += 1
                return
            value = found[key]
        if key not in self._attributes and len(self._attributes) >= _MAX_ATTRIBUTES:
            self._attributes.pop(next(iter(self._attributes)))  # drop the oldest attribute, as the SDK does
            self._dropped += 1
        self._attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set several attributes. As in the SDK, only this method converts keys that are not text."""
        if not all(type(key) is str for key in attributes):
            known, attributes = len(attributes), _clean_attributes(attributes)
            self._dropped += known - len(attributes)
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def add_event(self, name: str, attributes: Mapping[str, Any] | None = None, timestamp: int | None = None) -> None:
        if self._ended:
            return
        if self._events is None:
            self._events = deque(maxlen=_MAX_ATTRIBUTES)
        self._events_dropped += len(self._events) == _MAX_ATTRIBUTES
        self._events.append((name, time_ns() if timestamp is None else timestamp, _clean_attributes(attributes)))

    def add_link(self, context: SpanContext, attributes: Mapping[str, Any] | None = None) -> None:
        if self._ended or not (context.is_valid or attributes or context.trace_state):
            return
        if self._links is None:
            self._links = _clean_links(())
        self._links_dropped += len(self._links) == _MAX_ATTRIBUTES
        ids = f"{context.trace_id:032x}", f"{context.span_id:016x}"
        self._links.append((*ids, context.is_remote, _clean_attributes(attributes)))

    def update_name(self, name: str) -> None:
        if not self._ended:
            self._name = name

    def set_status(self, status: otel.Status | otel.StatusCode, description: str | None = None) -> None:
        new = status if isinstance(status, otel.Status) else otel.Status(status, description)  # checks the types
        settled = self._status[0] == otel.StatusCode.OK.value
        if not self._ended and not settled and not new.is_unset:
            self._status = (new.status_code.value, new.description or "")

    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        kind = type(exception)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        found = {
            "exception.type": f"{module}{kind.__qualname__}",
            "exception.message": str(exception),
            "exception.stacktrace": "".join(traceback.format_exception(exception)),
            "exception.escaped": str(escaped),
        }
        self.add_event("exception", {**found, **(attributes or {})}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        if self._ended:
            return
        self._ended = True
        more: dict[str, Any] = {
            "started": self._started,
            "ended": time_ns() if end_time is None else end_time,
            "remote": self._remote,
        }
        if self._events:
            more["events"] = self._events
        if self._status is not _UNSET_STATUS:
            more["status"] = self._status
        if self._links:
            more["links"] = self._links
        if self._dropped or self._events_dropped or self._links_dropped:
            more["dropped"] = (self._dropped, self._events_dropped, self._links_dropped)
        self._recorder.record_span_with_links(
            self._name, self._kind, self.context, self._parent_id, self._attributes, more
        )


def _clean_links(links: Sequence[TraceContext]) -> deque[_Link]:
    """Return links in the form of the encoder. If there are too many links, return only the newest."""
    return deque(((link.trace_id, link.span_id, True, {}) for link in links), maxlen=_MAX_ATTRIBUTES)


def _clean_attributes(attributes: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Clean attributes with the SDK, which drops values of types that OTLP does not have, and logs a warning."""
    return dict(BoundedAttributes(_MAX_ATTRIBUTES, dict(attributes), immutable=False)) if attributes else {}
