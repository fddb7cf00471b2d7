"""Ended spans as the bytes of one OTLP request: what the SDK's encoder gives, without building its messages first.

The format is protobuf, and OTLP's is stable: a field is a tag (number and kind), then its value, or its length and its
bytes. Numbers and order of fields are those of `opentelemetry/proto/trace/v1/trace.proto`; a message is equal to the
one the SDK would have sent (docs/decisions has why). A value that is none of the kinds OTLP has, or an integer of more
than 64 bits, raises. Of a lone surrogate, which no UTF-8 can hold, the code is sent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, Status

__all__ = ["encode"]

_KEYS: Final = 512  # that are kept encoded: the conventions' and ours are some 60
_INTEGERS: Final = 1 << 63  # below this, and not below its negative
_UTF8: Final = ("utf-8", "backslashreplace")

_times: Final = struct.Struct("<BQBQ").pack
_time: Final = struct.Struct("<BQ").pack
_double: Final = struct.Struct("<Bd").pack
_flags: Final = {remote: struct.pack("<HI", 0x185, 0x300 if remote else 0x100) for remote in (False, True)}
_link_flags: Final = {remote: b"\x35" + packed[2:] for remote, packed in _flags.items()}


def encode(spans: Iterable[ReadableSpan]) -> bytes:
    """An `ExportTraceServiceRequest` with `spans`, those of one resource and one scope together."""
    grouped: dict[Resource, dict[InstrumentationScope | None, list[bytes]]] = {}
    resource: Resource | None = None
    scope: InstrumentationScope | None = None
    group: list[bytes] = []
    for span in spans:
        if span.resource is not resource or span.instrumentation_scope is not scope:
            resource, scope = span.resource, span.instrumentation_scope
            group = grouped.setdefault(resource, {}).setdefault(scope, [])
        group.append(_sized(_span(span)))
    return b"".join(
        _field(0x0A, _field(0x0A, _attributes(0x0A, about.attributes))
               + b"".join(_field(0x12, _scope(within, ended)) for within, ended in scopes.items())
               + _text(0x1A, about.schema_url))
        for about, scopes in grouped.items()
    )  # fmt: skip


def _scope(scope: InstrumentationScope | None, spans: list[bytes]) -> bytes:
    ended = b"\x12" + b"\x12".join(spans)
    if scope is None:
        return b"\x0a\x00" + ended
    about = _text(0x0A, scope.name) + _text(0x12, scope.version) + _attributes(0x1A, scope.attributes)
    return _field(0x0A, about) + ended + _text(0x1A, scope.schema_url)


def _span(span: ReadableSpan) -> bytes:
    context, parent = span.context, span.parent
    if context is None or span.start_time is None or span.end_time is None:
        raise ValueError(f"the span {span.name!r} is not one that has ended: it has no context, start or end")
    state = context.trace_state
    return b"".join((
        b"\x0a\x10", context.trace_id.to_bytes(16, "big"), b"\x12\x08", context.span_id.to_bytes(8, "big"),
        _text(0x1A, ",".join([f"{key}={value}" for key, value in state.items()])) if state else b"",
        b"\x22\x08" + parent.span_id.to_bytes(8, "big") if parent else b"",
        _text(0x2A, span.name),
        b"\x30", _varint(span.kind.value + 1),
        _times(0x39, span.start_time, 0x41, span.end_time),
        _attributes(0x4A, span.attributes),
        _number(0x50, span.dropped_attributes),
        *[_field(0x5A, _event(event)) for event in span.events],
        _number(0x60, span.dropped_events),
        *[_field(0x6A, _link(link)) for link in span.links],
        _number(0x70, span.dropped_links),
        _field(0x7A, _status(span.status)),
        _flags[_is_remote(parent)],
    ))  # fmt: skip


def _event(event: Event) -> bytes:
    about = _attributes(0x1A, event.attributes) + _number(0x20, event.dropped_attributes)
    return _time(0x09, event.timestamp) + _text(0x12, event.name) + about


def _link(link: Link) -> bytes:
    to = link.context
    return b"".join((
        b"\x0a\x10", to.trace_id.to_bytes(16, "big"), b"\x12\x08", to.span_id.to_bytes(8, "big"),
        _attributes(0x22, link.attributes), _number(0x28, link.dropped_attributes), _link_flags[_is_remote(to)],
    ))  # fmt: skip


def _status(status: Status) -> bytes:
    return _text(0x12, status.description) + _number(0x18, status.status_code.value)


def _is_remote(context: SpanContext | None) -> bool:
    return context is not None and context.is_remote


def _attributes(tag: int, attributes: Mapping[str, Any] | None) -> bytes:
    if not attributes:
        return b""
    # A copy is a plain dict, and as such read ten times as quickly as the SDK's own mapping.
    plain: dict[str, Any] = attributes.copy()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    pairs = [b""]
    for key, value in plain.items():
        head = _head(key)
        if type(value) is str:  # nearly all are, and most so short that each length is one byte
            text = value.encode() if value.isascii() else value.encode(*_UTF8)  # that takes three times as long
            length = len(text)
            if (whole := len(head) + length + 3) < 128:
                pairs.append(_ONE[whole] + head + _SHORT[length] + text)
                continue
        pairs.append(_sized(head + _sized(_value(value))))
    return bytes((tag,)).join(pairs)


@lru_cache(_KEYS)
def _head(key: str) -> bytes:
    """What a pair begins with, up to the length of its value."""
    return _field(0x0A, key.encode(*_UTF8)) + b"\x12"


def _value(value: Any) -> bytes:
    """Exactly one field, whatever its value: which one it is says what kind of value it is."""
    match value:
        case None:
            return b""
        case bool():
            return b"\x10\x01" if value else b"\x10\x00"
        case str():
            return _field(0x0A, value.encode(*_UTF8))
        case int():
            if not -_INTEGERS <= value < _INTEGERS:
                raise ValueError(f"an integer of {value.bit_length()} bits: OTLP has 64")
            return b"\x18" + _varint(value)
        case float():
            return _double(0x21, value)
        case bytes():
            return _field(0x3A, value)
        case Sequence():
            return _field(0x2A, b"".join([_field(0x0A, _value(each)) for each in value]))
        case Mapping():
            pairs = [_head(str(key)) + _sized(_value(each)) for key, each in value.items()]
            return _field(0x32, b"".join([_field(0x0A, pair) for pair in pairs]))
        case _:
            raise TypeError(f"a value of type {type(value).__name__}: OTLP has none of that kind")


def _field(tag: int, content: bytes) -> bytes:
    return bytes((tag,)) + _sized(content)


def _sized(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _text(tag: int, text: str | None) -> bytes:
    """A text that is empty is left out, as is a number that is 0: it is what a reader takes for one that is missing."""
    return _field(tag, text.encode(*_UTF8)) if text else b""


def _number(tag: int, number: int) -> bytes:
    return bytes((tag,)) + _varint(number) if number else b""


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; a negative one as 64 bits."""
    if 0 <= number < 128:
        return _ONE[number]
    number &= 0xFFFF_FFFF_FFFF_FFFF
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


_ONE: Final = [bytes((number,)) for number in range(128)]
_SHORT: Final = [bytes((length + 2, 0x0A, length)) for length in range(126)]  # what a short text begins with as a value
