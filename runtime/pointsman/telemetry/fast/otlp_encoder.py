"""Encode ended spans as the bytes of an OTLP request. The result equals the result of the SDK's encoder.

The format is protobuf. This module contains the numbers of fields, because OTLP never changes them. A field begins
with a tag (its number and kind). A number follows, or a length and so many bytes. The numbers and the
order of the fields are from `opentelemetry/proto/trace/v1/trace.proto`. Values of types that OTLP does not have, and
integers of more than 64 bits, are left out. Lone surrogates, which UTF-8 cannot encode, are escaped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

__all__ = ["encode_request", "encode_span"]

_PAIR_CACHE_SIZE: Final = 1024  # number of encoded attributes in the cache; nearly every span repeats them
# Longest value in the cache, in characters. Longer values are not cached, because they are usually ids.
_MAX_CACHED_CHARS: Final = 24
# Number of cached heads of attributes with longer texts. A head is the bytes before the text, with the key and the
# length of the text, so many attributes have the same head.
_HEAD_CACHE_SIZE: Final = 4096
_SIZE_CACHE_SIZE: Final = 4096  # number of encoded sizes in the cache; spans of one kind have similar sizes
_INT64_BOUND: Final = 1 << 63  # OTLP allows integers from the negative bound up to the bound minus 1
_UTF8: Final = ("utf-8", "backslashreplace")

_pack_times: Final = struct.Struct("<BQBQ").pack
_pack_time: Final = struct.Struct("<BQ").pack
_pack_double: Final = struct.Struct("<Bd").pack
_SPAN_FLAGS: Final = {remote: struct.pack("<HI", 0x185, 0x300 if remote else 0x100) for remote in (False, True)}
_LINK_FLAGS: Final = {remote: struct.pack("<BI", 0x35, 0x300 if remote else 0x100) for remote in (False, True)}


def encode_request(
    resource: Mapping[str, Any], schema: str, scope: tuple[str, str, str], spans: Iterable[bytes]
) -> bytes:
    """Return an `ExportTraceServiceRequest` with `spans`. `scope` is a name, a version and a schema."""
    name, version, scope_schema = scope
    within = (
        _encode_field(0x0A, _encode_text(0x0A, name) + _encode_text(0x12, version))
        + b"".join(spans)
        + _encode_text(0x1A, scope_schema)
    )
    return _encode_field(
        0x0A,
        _encode_field(0x0A, _encode_attributes(0x0A, resource))
        + _encode_field(0x12, within)
        + _encode_text(0x1A, schema),
    )


def encode_span(
    name: str,
    kind: int,
    trace_id: str,
    span_id: str,
    parent_id: str | None,
    attributes: Mapping[str, Any],
    *,
    started: int,
    ended: int,
    remote: bool = True,
    tracestate: str = "",
    events: Iterable[tuple[str, int, Mapping[str, Any]]] = (),
    links: Iterable[tuple[str, str, bool, Mapping[str, Any]]] = (),
    status: tuple[int, str] = (0, ""),
    dropped: tuple[int, int, int] = (0, 0, 0),
) -> bytes:
    """Encode one span as a field of its scope.

    Args:
        name: The name.
        kind: The number of the kind in OTLP.
        trace_id: The trace id, hexadecimal.
        span_id: The span id, hexadecimal.
        parent_id: The id of the parent, hexadecimal; None for a root.
        attributes: The attributes.
        started: Start in nanoseconds since 1970.
        ended: End in nanoseconds since 1970.
        remote: True if the parent is in another process. Default: yes.
        tracestate: The W3C trace state. Default: none.
        events: For each event: the name, the time in nanoseconds since 1970, and the attributes.
        links: For each link: the trace id, the span id, True if that span is in another process, and the attributes.
        status: The number of the status in OTLP and a message. Default: unset.
        dropped: The numbers of attributes, events and links that exceeded the limits. Default: none.

    Returns:
        The bytes.
    """
    parents = f"2208{parent_id}" if parent_id else ""
    if tracestate:
        parts = [bytes.fromhex(f"0a10{trace_id}1208{span_id}"), _encode_text(0x1A, tracestate), bytes.fromhex(parents)]
    else:
        parts = [bytes.fromhex(f"0a10{trace_id}1208{span_id}{parents}")]
    parts += (_encode_name(name, kind), _pack_times(0x39, started, 0x41, ended))
    _append_attributes(parts, 0x4A, attributes)
    if dropped[0]:
        parts.append(_encode_number(0x50, dropped[0]))
    for what, at, about in events:
        parts.append(
            _encode_field(0x5A, _pack_time(0x09, at) + _encode_text(0x12, what) + _encode_attributes(0x1A, about))
        )
    if dropped[1]:
        parts.append(_encode_number(0x60, dropped[1]))
    for trace, to, elsewhere, about in links:
        place = bytes.fromhex(f"0a10{trace}1208{to}")
        parts.append(_encode_field(0x6A, place + _encode_attributes(0x22, about) + _LINK_FLAGS[elsewhere]))
    if dropped[2]:
        parts.append(_encode_number(0x70, dropped[2]))
    code, message = status
    parts.append(
        _encode_field(0x7A, _encode_text(0x12, message) + _encode_number(0x18, code)) if message or code else b"\x7a\0"
    )
    parts.append(_SPAN_FLAGS[remote and parent_id is not None])
    return _encode_field(0x12, b"".join(parts))


@lru_cache(_PAIR_CACHE_SIZE)
def _encode_name(name: str, kind: int) -> bytes:
    return _encode_text(0x2A, name) + b"\x30" + _ONE_BYTE_VARINTS[kind]


def _encode_attributes(tag: int, attributes: Mapping[str, Any]) -> bytes:
    parts: list[bytes] = []
    _append_attributes(parts, tag, attributes)
    return b"".join(parts)


def _append_attributes(parts: list[bytes], tag: int, attributes: Mapping[str, Any]) -> None:
    for key, value in attributes.items():
        kind = type(value)
        if kind is str and len(value) > _MAX_CACHED_CHARS:
            text = value.encode() if value.isascii() else value.encode(*_UTF8)
            parts += (_encode_head(tag, key, len(text)), text)
        elif kind is str or kind is int:
            parts.append(_cached_pair(tag, key, value))
        elif value is not None:
            parts.append(_encode_pair(tag, key, value))


def _encode_pair(tag: int, key: str, value: Any) -> bytes:
    """Encode a key and its value as a field; return no bytes if OTLP does not have the type of the value."""
    try:
        return _encode_field(tag, _encode_field(0x0A, key.encode(*_UTF8)) + _encode_field(0x12, _encode_value(value)))
    except (TypeError, ValueError):
        return b""


# Called only for texts and integers, because other equal values, such as 1 and True, have different encodings.
_cached_pair: Final = lru_cache(_PAIR_CACHE_SIZE)(_encode_pair)


@lru_cache(_HEAD_CACHE_SIZE)
def _encode_head(tag: int, key: str, size: int) -> bytes:
    """Encode a pair of `key` and a text of `size` bytes, without the text itself."""
    value = b"\x0a" + _encode_varint(size)
    pair = _encode_field(0x0A, key.encode(*_UTF8)) + b"\x12" + _encode_varint(len(value) + size) + value
    return _ONE_BYTE_VARINTS[tag] + _encode_varint(len(pair) + size) + pair


def _encode_value(value: Any) -> bytes:
    """Encode a value as exactly one field, even if the value is zero or empty, because the field number is the type."""
    match value:
        case None:
            return b""
        case bool():
            return b"\x10\x01" if value else b"\x10\x00"
        case str():
            return _encode_field(0x0A, value.encode(*_UTF8))
        case int():
            if not -_INT64_BOUND <= value < _INT64_BOUND:
                raise ValueError(f"an integer has {value.bit_length()} bits; OTLP allows 64")
            return b"\x18" + _encode_varint(value)
        case float():
            return _pack_double(0x21, value)
        case bytes():
            return _encode_field(0x3A, value)
        case Sequence():
            return _encode_field(0x2A, b"".join([_encode_field(0x0A, _encode_value(each)) for each in value]))
        case Mapping():
            return _encode_field(0x32, b"".join([
                _encode_field(
                    0x0A, _encode_field(0x0A, str(key).encode(*_UTF8)) + _encode_field(0x12, _encode_value(each))
                )
                for key, each in value.items()
            ]))  # fmt: skip
        case _:
            raise TypeError(f"a value has the type {type(value).__name__}, which OTLP does not have")


def _encode_field(tag: int, content: bytes) -> bytes:
    return _ONE_BYTE_VARINTS[tag] + _with_size(content)


def _with_size(content: bytes) -> bytes:
    return _encode_varint(len(content)) + content


def _encode_text(tag: int, text: str | None) -> bytes:
    """Encode a text. An empty text is left out, because protobuf reads a missing text as empty."""
    return _encode_field(tag, text.encode(*_UTF8)) if text else b""


def _encode_number(tag: int, number: int) -> bytes:
    return _ONE_BYTE_VARINTS[tag] + _encode_varint(number) if number else b""


@lru_cache(_SIZE_CACHE_SIZE)
def _encode_varint(number: int) -> bytes:
    """Encode a number with seven bits in each byte, lowest bits first; a negative one as 64-bit two's complement."""
    if 0 <= number < 128:
        return _ONE_BYTE_VARINTS[number]
    number &= 0xFFFF_FFFF_FFFF_FFFF
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


_ONE_BYTE_VARINTS: Final = [bytes((number,)) for number in range(128)]
