"""Spans as the bytes of an OTLP request, written at once: a third of what building them as objects costs.

It writes what the official encoder writes, which the tests hold it to. Only the fields that spans have are known here.

| Field | Of | Number |
|---|---|---|
| resource_spans | request | 1 |
| resource, scope_spans, schema_url | ResourceSpans | 1, 2, 3 |
| scope, spans, schema_url | ScopeSpans | 1, 2, 3 |
| trace_id ... flags | Span | 1 to 16, as in `_span` |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import pack
from types import MappingProxyType
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext

__all__ = ["encode"]

_REMOTE_KNOWN, _REMOTE = 0x100, 0x200  # span flags: whether the parent is in another process is known, and is so
_LIMIT: Final = 4096
_MASK: Final = (1 << 64) - 1


def encode(spans: Sequence[ReadableSpan]) -> bytes:
    """The request of the trace service that holds `spans`.

    Raises:
        TypeError: an attribute is of a kind that OpenTelemetry does not have.
    """
    sorted_: dict[Resource, dict[InstrumentationScope | None, list[bytes]]] = {}
    met: dict[tuple[int, int], list[bytes]] = {}  # by identity: the SDK hashes a resource by writing it as JSON
    for span in spans:
        resource, scope = span.resource, span.instrumentation_scope
        place = met.get((id(resource), id(scope)))
        if place is None:
            place = met[id(resource), id(scope)] = sorted_.setdefault(resource, {}).setdefault(scope, [])
        place.append(_block(0x12, _span(span)))
    return b"".join(
        _block(0x0A, b"".join([
            _block(0x0A, _attributes(0x0A, resource.attributes)),
            *(_block(0x12, _scope(scope) + b"".join(written) + _text(0x1A, scope.schema_url if scope else ""))
              for scope, written in by_scope.items()),
            _text(0x1A, resource.schema_url),
        ]))
        for resource, by_scope in sorted_.items()
    )  # fmt: skip


def _scope(scope: InstrumentationScope | None) -> bytes:
    if scope is None:
        return _block(0x0A, b"")
    return _block(
        0x0A, _text(0x0A, scope.name) + _text(0x12, scope.version) + _attributes(0x1A, scope.attributes or {})
    )


def _span(span: ReadableSpan) -> bytes:
    context = span.get_span_context() or INVALID_SPAN_CONTEXT
    parts = [
        b"\x0a\x10", context.trace_id.to_bytes(16, "big"),
        b"\x12\x08", context.span_id.to_bytes(8, "big"),
        _text(0x1A, context.trace_state.to_header() if context.trace_state else ""),
    ]  # fmt: skip
    if span.parent is not None:
        parts += [b"\x22\x08", span.parent.span_id.to_bytes(8, "big")]
    parts += [
        _text(0x2A, span.name),
        b"\x30", _varint(span.kind.value + 1),
        b"\x39", pack("<Q", span.start_time or 0),
        b"\x41", pack("<Q", span.end_time or 0),
        _attributes(0x4A, span.attributes or {}),
        _count(0x50, span.dropped_attributes),
    ]  # fmt: skip
    for event in span.events:
        body = [b"\x09", pack("<Q", event.timestamp), _text(0x12, event.name),
                _attributes(0x1A, event.attributes or {}), _count(0x20, event.dropped_attributes)]  # fmt: skip
        parts.append(_block(0x5A, b"".join(body)))
    parts.append(_count(0x60, span.dropped_events))
    for link in span.links:
        to = link.context
        body = [b"\x0a\x10", to.trace_id.to_bytes(16, "big"), b"\x12\x08", to.span_id.to_bytes(8, "big"),
                _attributes(0x22, link.attributes or {}), _count(0x28, link.dropped_attributes), b"\x35",
                pack("<I", _flags(to))]  # fmt: skip
        parts.append(_block(0x6A, b"".join(body)))
    parts.append(_count(0x70, span.dropped_links))
    status = span.status
    parts.append(_block(0x7A, _text(0x12, status.description) + _count(0x18, status.status_code.value)))
    parts += [b"\x85\x01", pack("<I", _flags(span.parent))]
    return b"".join(parts)


def _flags(parent: SpanContext | None) -> int:
    return _REMOTE_KNOWN | _REMOTE if parent is not None and parent.is_remote else _REMOTE_KNOWN


def _attributes(tag: int, attributes: Mapping[str, Any]) -> bytes:
    if not attributes:
        return b""
    parts: list[bytes] = []
    plain = attributes.copy() if isinstance(attributes, MappingProxyType) else attributes  # the SDK's locks each look
    for key, value in plain.items():
        written = _keys.get(key) or _key(key)
        if type(value) is str:  # nearly all of them, and short
            text = value.encode()
            size = len(text)
            whole = len(written) + size + 4
            if whole < 0x80:
                parts += (bytes((tag, whole)), written, bytes((0x12, size + 2, 0x0A, size)), text)
                continue
        parts.append(_block(tag, written + _block(0x12, _value(value))))
    return b"".join(parts)


def _value(value: Any) -> bytes:
    match value:
        case str():
            return _block(0x0A, value.encode())
        case bool():
            return b"\x10\x01" if value else b"\x10\x00"
        case int():
            return b"\x18" + _varint(value & _MASK)
        case float():
            return b"\x21" + pack("<d", value)
        case bytes():
            return _block(0x3A, value)
        case list() | tuple():
            return _block(0x2A, b"".join([_block(0x0A, _value(each)) for each in value]))
        case None:
            return b""
        case _:
            raise TypeError(f"an attribute is of type {type(value).__name__}")


_keys: dict[str, bytes] = {}


def _key(key: str) -> bytes:
    written = _keys.get(key)
    if written is None:
        written = _block(0x0A, key.encode())
        if len(_keys) < _LIMIT:  # the conventions have few; what somebody makes up for each span is not kept
            _keys[key] = written
    return written


def _text(tag: int, text: str | None) -> bytes:
    return _block(tag, text.encode()) if text else b""


def _count(tag: int, count: int) -> bytes:
    return bytes((tag,)) + _varint(count) if count else b""


def _block(tag: int, body: bytes) -> bytes:
    size = len(body)
    if size < 0x80:
        return bytes((tag, size)) + body
    return bytes((tag,)) + _varint(size) + body


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
