"""Write attributes, events and errors to an open span. Secrets in the texts of errors are hidden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from opentelemetry import trace as otel

from pointsman.errors import PointsmanError
from pointsman.telemetry.error_content import message_of, stack_of
from pointsman.telemetry.fast.lean_spans import LeanSpan
from pointsman.telemetry.semconv import ERROR_TYPE, Attributes, Value
from pointsman.telemetry.trace_context import TraceContext, from_otel
from pointsman.util.scrubber import scrub, to_writable

__all__ = ["NonRecordingSpan", "Span", "context_of_span", "record_exception", "set_error", "writable_attributes"]

_MAX_STACK_CHARS: Final = 8_000  # largest number of characters of a traceback on a span; enough for some 100 frames


class Span:
    """An open span, or a placeholder while tracing is off. Use it only inside the block of `span`."""

    __slots__ = ("_failed", "_span", "context", "discarded")

    def __init__(self, span: otel.Span) -> None:
        self._span = span
        self._failed = False
        self.discarded = False
        """True after a call of `discard`."""
        self.context: TraceContext | None = context_of_span(span)
        """The parent context for spans of other processes: the context of this span or, while tracing is off, of the
        surrounding span."""

    @property
    def recording(self) -> bool:
        """True if attributes are recorded; False for a trace that is not sampled."""
        return self._span.is_recording()

    def set_attributes(self, attributes: Attributes | None = None, /, **more: Value | None) -> None:
        """Add attributes. An attribute that is None is left out."""
        if self._span.is_recording():
            self._span.set_attributes(writable_attributes({**(attributes or {}), **more}))

    def add_event(self, name: str, attributes: Attributes | None = None) -> None:
        """Add a span event with the current time."""
        if self._span.is_recording():
            self._span.add_event(to_writable(name), writable_attributes(attributes))

    def discard(self) -> None:
        """Do not export the span, because another process will end the span under the same id."""
        self.discarded = True

    def set_failed(self, error_type: str, message: str = "") -> None:
        """Mark the span as failed. Only the first call counts. `error_type` is a short name from a small set."""
        if not self._failed:
            self._failed = True
            if self._span.is_recording():
                set_error(self._span, error_type, message)


class NonRecordingSpan(Span):
    """Placeholder while tracing is off, with the context of the surrounding span. It does not change this span."""

    __slots__ = ()

    @property
    def recording(self) -> bool:
        return False

    def set_attributes(self, attributes: Attributes | None = None, /, **more: Value | None) -> None: ...
    def add_event(self, name: str, attributes: Attributes | None = None) -> None: ...
    def set_failed(self, error_type: str, message: str = "") -> None: ...


def context_of_span(span: otel.Span) -> TraceContext | None:
    """Return the context of a span of Pointsman or of the SDK; None if the span has no valid context."""
    return span.context if isinstance(span, LeanSpan) else from_otel(span.get_span_context())


def record_exception(opened: Span, inner: otel.Span, error: Exception) -> None:
    """Add `error` and its traceback to the span `inner` as an event, and mark `opened`, its wrapper, as failed."""
    kind = type(error)
    qualified = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if opened.recording:
        inner.add_event(
            "exception",
            {
                "exception.type": to_writable(qualified),
                "exception.message": message_of(error),
                "exception.stacktrace": stack_of(error)[-_MAX_STACK_CHARS:],
            },
        )
    opened.set_failed(error.kind if isinstance(error, PointsmanError) else qualified, message_of(error))


def set_error(inner: otel.Span, error_type: str, message: str) -> None:
    """Mark a span as failed, with `message` scrubbed."""
    inner.set_attribute(ERROR_TYPE, to_writable(error_type))
    inner.set_status(otel.Status(otel.StatusCode.ERROR, scrub(message)))


def writable_attributes(attributes: Attributes | None) -> Mapping[str, Value]:
    """Return `attributes` for the SDK. Leave out values of None, and escape characters that UTF-8 cannot encode."""
    if not attributes:
        return {}
    return {to_writable(key): _writable(value) for key, value in attributes.items() if value is not None}


def _writable(value: Value) -> Value:
    if isinstance(value, str):
        return to_writable(value)
    if isinstance(value, Sequence):
        return cast(Value, [to_writable(each) if isinstance(each, str) else each for each in value])
    return value
