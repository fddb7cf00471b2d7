"""Encode and decode the CloudEvents 1.0 NATS binding, with attributes in headers (binary) or in the body (structured).

Pointsman writes binary mode with lower-case names, and reads names in any case. A message is read in structured mode in
two cases. First, `Content-Type` begins with `application/cloudevents`. Second, there is no CloudEvents header and the
body is a JSON object with the required attributes. Dapr publishes the second form.

Events have two trace contexts, as the specification requires. `traceparent` is the context of this hop, and
`ce-traceparent` is the context of the event's origin.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, cast
from urllib.parse import quote, unquote_to_bytes

from pydantic import JsonValue

from pointsman_schemas.claim_check import DATAREF_HEADER
from pointsman_schemas.errors import BodyLostError, UndecodableEventError
from pointsman_schemas.strict_json import compact_json, parse_json

__all__ = ["Envelope", "EventIdentity", "decode", "encode", "encode_structured", "read_identity"]

_SPEC_VERSION = "1.0"
_JSON_CONTENT_TYPE = "application/json"
_REQUIRED_ATTRIBUTES = ("specversion", "id", "source", "type")
_SAFE_BYTES = bytes({*range(0x21, 0x7F)} - set(b'"%'))  # printable ASCII except space, " and %
_EXTENSION_NAME = re.compile(
    r"[a-z0-9]{1,64}"
)  # CloudEvents allows lower-case letters and digits; all of them are valid in a header
_POINTSMAN_TYPE = re.compile(
    r"io\.pointsman\.([a-z-]+)\.(v\d+)"
)  # event types with a schema in schemas/json; the $id of the schema has this form
_KNOWN_ATTRIBUTES = frozenset(
    {
        "specversion",
        "id",
        "type",
        "source",
        "time",
        "subject",
        "datacontenttype",
        "dataschema",
        "correlationid",
        "causationid",
        "traceparent",
        "tracestate",
    }
)


class Envelope(NamedTuple):
    """The CloudEvents attributes of an event.

    Attributes:
        id: The id of the event, unique within its source.
        type: The event type.
        source: The source, such as `/pointsman/agent/billing`.
        time: The time of the event.
        subject: The workflow id.
        correlation_id: The caller's id, which every event of a workflow has.
        causation_id: The id of the event that caused this event.
        dataschema: The `$id` of the body's JSON Schema. If None, `encode` computes the `$id` for an event type of
            Pointsman.
        traceparent: The W3C trace context of this hop.
        tracestate: The W3C trace state of this hop.
        origin_traceparent: The W3C trace context of the event's origin.
        extensions: Attributes that Pointsman does not use.
    """

    id: str
    type: str
    source: str
    time: datetime
    subject: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    dataschema: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    origin_traceparent: str | None = None
    extensions: Mapping[str, str] = MappingProxyType({})


def encode(envelope: Envelope) -> dict[str, str]:
    """Encode an event in binary mode. Values are percent-encoded, so no value can contain a line break.

    Args:
        envelope: The attributes of the event.

    Returns:
        The headers.
    """
    headers = {
        "ce-specversion": _SPEC_VERSION,
        "ce-id": envelope.id,
        "ce-type": envelope.type,
        "ce-source": envelope.source,
        "ce-time": _format_time(envelope.time),
        "ce-datacontenttype": _JSON_CONTENT_TYPE,
    }
    if envelope.subject is not None:
        headers["ce-subject"] = envelope.subject
    if envelope.correlation_id is not None:
        headers["ce-correlationid"] = envelope.correlation_id
    if envelope.causation_id is not None:
        headers["ce-causationid"] = envelope.causation_id
    if (dataschema := envelope.dataschema or _dataschema(envelope.type)) is not None:
        headers["ce-dataschema"] = dataschema
    if envelope.origin_traceparent is not None:
        headers["ce-traceparent"] = envelope.origin_traceparent
    if envelope.traceparent is not None:
        headers["traceparent"] = envelope.traceparent
    for name, value in envelope.extensions.items():
        headers[f"ce-{name}"] = value
    every = "".join(headers.values())
    # Few events have a value that must be encoded. So one check of all values together saves time.
    if not every.isascii() or every.encode().translate(None, _SAFE_BYTES):
        headers = {name: _percent_encode(value) for name, value in headers.items()}
    if envelope.traceparent is not None and envelope.tracestate:
        headers["tracestate"] = _is_printable(envelope.tracestate)
    return headers


def encode_structured(envelope: Envelope, data: JsonValue) -> tuple[dict[str, str], bytes]:
    """Encode an event in structured mode, for systems that store only the body.

    Args:
        envelope: The attributes of the event.
        data: The data of the event.

    Returns:
        Headers and body.
    """
    event: dict[str, JsonValue] = {
        "specversion": _SPEC_VERSION,
        "id": envelope.id,
        "type": envelope.type,
        "source": envelope.source,
        "time": _format_time(envelope.time),
        "datacontenttype": _JSON_CONTENT_TYPE,
        "data": data,
    }
    optional = {
        "subject": envelope.subject,
        "correlationid": envelope.correlation_id,
        "causationid": envelope.causation_id,
        "dataschema": envelope.dataschema or _dataschema(envelope.type),
        "traceparent": envelope.origin_traceparent,
        **envelope.extensions,
    }
    event.update({name: value for name, value in optional.items() if value is not None})
    headers = {"Content-Type": "application/cloudevents+json"}
    if envelope.traceparent:
        headers["traceparent"] = _percent_encode(envelope.traceparent)
        if envelope.tracestate:
            headers["tracestate"] = _is_printable(envelope.tracestate)
    return headers, compact_json(event)


def decode(headers: Mapping[str, str] | None, body: bytes) -> tuple[Envelope | None, bytes]:
    """Decode a message in either mode.

    Args:
        headers: The headers of the message; None for a message without headers.
        body: The body of the message.

    Returns:
        The envelope and the data. The envelope is None if the message has no CloudEvents attribute.

    Raises:
        UndecodableEventError: Attributes are missing or malformed, or the content is not JSON.
        BodyLostError: The message has no body, and its body could not be read from the object store.
    """
    lower = dict(zip(_lower_case_names(tuple(headers)), headers.values(), strict=True)) if headers else {}
    if not body and (place := lower.get(DATAREF_HEADER)) is not None:
        raise BodyLostError(
            f"the body at {place[:200]!r} could not be read from the object store: it has expired, is damaged, too "
            "large or in another bucket; the log event body_lost of the reader has the cause; publish the event again"
        )
    content_type = lower.get("content-type", "").strip().lower()
    if content_type.startswith("application/cloudevents"):
        return _decode_structured(lower, content_type, body)
    if "ce-specversion" not in lower and "ce-id" not in lower and "ce-type" not in lower:
        if content_type and not _is_json(content_type):
            raise UndecodableEventError(f"Content-Type is {content_type[:80]!r}; expected {_JSON_CONTENT_TYPE}")
        if (event := _structured_event(body)) is not None:
            return _read_structured(event, lower)
        return None, body
    attributes = {name: lower[header] for header, name in _attributes(tuple(lower))}
    if "%" in (every := "".join(attributes.values())) or not every.isascii():
        attributes = {name: _percent_decode(value, f"ce-{name}") for name, value in attributes.items()}
    return _envelope(attributes, lower), body


@lru_cache(256)  # a cache saves time, because all events of one type have the same header names
def _lower_case_names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.lower() for name in names)


@lru_cache(256)
def _attributes(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the headers with CloudEvents attributes, each with the name of its attribute."""
    return tuple((name, name[3:]) for name in names if name.startswith("ce-"))


@lru_cache(64)  # room for all types, because there are only a few dozen
def _dataschema(event_type: str) -> str | None:
    ours = _POINTSMAN_TYPE.fullmatch(event_type)
    return f"urn:pointsman:schema:{ours[1]}:{ours[2]}" if ours else None


def _decode_structured(lower: Mapping[str, str], content_type: str, body: bytes) -> tuple[Envelope, bytes]:
    if content_type.startswith("application/cloudevents-batch") or "json" not in content_type:
        raise UndecodableEventError(
            f"Content-Type is {content_type[:80]!r}; expected application/cloudevents+json with one event"
        )
    event = parse_json(body)
    if not isinstance(event, dict):
        raise UndecodableEventError(f"the structured CloudEvent is a {type(event).__name__}; expected a JSON object")
    return _read_structured(event, lower)


def _structured_event(body: bytes) -> dict[str, JsonValue] | None:
    """Return the event of a body in structured mode without a `Content-Type`; None for any other body."""
    if b'"specversion"' not in body:
        return None
    try:
        event = parse_json(body)
    except UndecodableEventError:
        return None
    has_attributes = isinstance(event, dict) and all(isinstance(event.get(name), str) for name in _REQUIRED_ATTRIBUTES)
    return cast(dict[str, JsonValue], event) if has_attributes else None


def _read_structured(event: dict[str, JsonValue], lower: Mapping[str, str]) -> tuple[Envelope, bytes]:
    data, encoded = event.pop("data", None), event.pop("data_base64", None)
    if encoded is None:
        body = compact_json(data)
    elif data is not None:
        raise UndecodableEventError("the event has both data and data_base64; send only data or only data_base64")
    else:
        body = _decode_base64(encoded)
    attributes = {name.lower(): _text(name, value) for name, value in event.items() if value is not None}
    return _envelope(attributes, lower), body


def _decode_base64(encoded: JsonValue) -> bytes:
    try:
        return b64decode(encoded, validate=True) if isinstance(encoded, str) else b""
    except ValueError:
        raise UndecodableEventError("data_base64 is not base64; expected the base64 form of a JSON value") from None


class EventIdentity(NamedTuple):
    """The attributes that identify an event. An attribute that cannot be read is empty.

    Attributes:
        id: The id; empty if it cannot be read.
        source: The source; empty if it cannot be read.
        correlation_id: The caller's id; empty if it cannot be read.
    """

    id: str = ""
    source: str = ""
    correlation_id: str = ""


def read_identity(headers: Mapping[str, str] | None, body: bytes) -> EventIdentity:
    """Read the identity of an event that `decode` refuses, so that the refusal reaches the event's workflow.

    Args:
        headers: The headers of the message.
        body: The body of the message.

    Returns:
        The attributes that can be read.
    """
    lower = {name.lower(): value for name, value in (headers or {}).items()}
    event = _event_attributes(lower, body)
    return EventIdentity(*(_identity_text(event.get(name)) for name in ("id", "source", "correlationid")))


def _event_attributes(lower: Mapping[str, str], body: bytes) -> Mapping[str, object]:
    found = {name[3:]: _percent_decode_or_keep(value) for name, value in lower.items() if name.startswith("ce-")}
    if found:
        return found
    structured = lower.get("content-type", "").strip().lower().startswith("application/cloudevents")
    if not structured:
        return _structured_event(body) or {}
    try:
        event = parse_json(body)
    except UndecodableEventError:
        return {}
    return {name.lower(): value for name, value in event.items()} if isinstance(event, dict) else {}


def _percent_decode_or_keep(value: str) -> str:
    try:
        return unquote_to_bytes(value).decode("utf-8")
    except UnicodeError:
        return value


def _identity_text(value: object) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _envelope(attributes: Mapping[str, str], lower: Mapping[str, str]) -> Envelope:
    if (version := attributes.get("specversion")) != _SPEC_VERSION:
        version = version and version[:80]
        raise UndecodableEventError(f"CloudEvents specversion is {version!r}; expected {_SPEC_VERSION!r}")
    for name in ("id", "type", "source"):
        if not attributes.get(name):
            raise UndecodableEventError(f"the CloudEvents attribute {name!r} is missing or empty; every event needs it")
    if not _is_json(attributes.get("datacontenttype", _JSON_CONTENT_TYPE)):
        raise UndecodableEventError(
            f"datacontenttype is {attributes['datacontenttype'][:80]!r}; expected {_JSON_CONTENT_TYPE}"
        )
    return Envelope(
        id=attributes["id"],
        type=attributes["type"],
        source=attributes["source"],
        time=_parse_time(attributes.get("time")),
        subject=attributes.get("subject"),
        correlation_id=attributes.get("correlationid"),
        causation_id=attributes.get("causationid"),
        dataschema=attributes.get("dataschema"),
        traceparent=_is_printable(lower.get("traceparent") or attributes.get("traceparent") or "") or None,
        tracestate=_is_printable(lower.get("tracestate") or attributes.get("tracestate") or "") or None,
        origin_traceparent=attributes.get("traceparent"),
        extensions={
            name: value
            for name, value in (attributes.items() if attributes.keys() - _KNOWN_ATTRIBUTES else ())
            if name not in _KNOWN_ATTRIBUTES and _EXTENSION_NAME.fullmatch(name)
        },
    )


def _is_json(content_type: str) -> bool:
    if content_type == _JSON_CONTENT_TYPE:
        return True
    media = content_type.split(";")[0].strip().lower()
    return media == _JSON_CONTENT_TYPE or media.endswith("+json")


def _parse_time(text: str | None) -> datetime:
    if text is None:
        return datetime.fromtimestamp(0, UTC)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise UndecodableEventError(
            f"the attribute time is {text[:40]!r}; expected RFC 3339, as 2026-01-31T12:00:00Z"
        ) from None
    if instant.tzinfo is None:
        raise UndecodableEventError(
            f"the attribute time is {text[:40]!r} without a zone; expected RFC 3339 with Z or an offset"
        )
    if instant.tzinfo is UTC:
        return instant
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise UndecodableEventError(
            f"the attribute time is {text[:40]!r}, outside the years 1 to 9999 in UTC"
        ) from None


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int):
        return str(value)
    raise UndecodableEventError(
        f"the attribute {name[:40]!r} is a {type(value).__name__}; expected text, a number or a boolean"
    )


def _format_time(instant: datetime) -> str:
    return (instant if instant.tzinfo is UTC else instant.astimezone(UTC)).isoformat()[:-6] + "Z"


def _percent_encode(value: str) -> str:
    return quote(value, safe=_SAFE_BYTES, errors="replace")


def _is_printable(value: str) -> str:
    if value.isascii() and value.isprintable():
        return value
    return "".join(char for char in value if 0x20 <= ord(char) <= 0x7E)


def _percent_decode(value: str, name: str) -> str:
    try:
        return unquote_to_bytes(value).decode("utf-8")
    except UnicodeError:  # not UTF-8, before or after the decoding
        raise UndecodableEventError(f"the header {name} is not percent-encoded UTF-8") from None
