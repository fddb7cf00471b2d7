"""Envelopes are encoded and decoded unchanged in both CloudEvents modes. A malformed message affects no other one."""

from __future__ import annotations

import json
import string
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_schemas.asyncapi import EVENTS
from pointsman_schemas.envelope import Envelope, decode, encode, encode_structured
from pointsman_schemas.errors import ContractError, UndecodableEventError
from pointsman_schemas.events import Event

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ORIGIN = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
HEADERS = {"ce-specversion": "1.0", "ce-id": "1", "ce-type": "io.example.v1", "ce-source": "shop"}

texts = st.text(min_size=1, max_size=40)  # without surrogates, which have their own test
maybe = st.none() | texts
envelopes = st.builds(
    Envelope,
    id=texts,
    type=texts,
    source=texts,
    time=st.datetimes(timezones=st.just(UTC)),
    subject=maybe,
    correlation_id=maybe,
    causation_id=maybe,
    dataschema=maybe,
    traceparent=st.just(TRACE),
    tracestate=st.none() | st.just("vendor=1,other=a b"),
    origin_traceparent=st.just(ORIGIN),
    extensions=st.dictionaries(st.text("xyz0123456789", min_size=1, max_size=20), texts, max_size=3),
)


def full() -> Envelope:
    return Envelope(
        id="e 1",
        type="io.pointsman.request.v1",
        source="/shop",
        time=datetime(2026, 3, 29, 1, 30, 0, 123456, UTC),
        subject="wf_1",
        correlation_id='order "7" 100%',
        causation_id="e0",
        dataschema="urn:pointsman:schema:request:v1",
        traceparent=TRACE,
        tracestate="vendor=1",
        origin_traceparent=ORIGIN,
        extensions={"partitionkey": "é"},
    )


def test_binary_mode_puts_attributes_in_headers_and_trace_context_beside_them() -> None:
    assert encode(full()) == {
        "ce-specversion": "1.0",
        "ce-id": "e%201",
        "ce-type": "io.pointsman.request.v1",
        "ce-source": "/shop",
        "ce-time": "2026-03-29T01:30:00.123456Z",
        "ce-datacontenttype": "application/json",
        "ce-subject": "wf_1",
        "ce-correlationid": "order%20%227%22%20100%25",
        "ce-causationid": "e0",
        "ce-dataschema": "urn:pointsman:schema:request:v1",
        "ce-traceparent": ORIGIN,
        "traceparent": TRACE,
        "tracestate": "vendor=1",
        "ce-partitionkey": "%C3%A9",
    }


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_of_ours_names_its_schema(event: type[Event]) -> None:
    envelope = Envelope(id="e", type=event.event_type, source="/shop", time=full().time)

    schema = f"urn:pointsman:schema:{event.short_name()}:v1"
    assert encode(envelope)["ce-dataschema"] == schema
    assert json.loads(encode_structured(envelope, {})[1])["dataschema"] == schema


def test_a_foreign_event_names_no_schema() -> None:
    assert "ce-dataschema" not in encode(Envelope(id="e", type="shop.order.v1", source="/shop", time=full().time))


@given(envelopes)
def test_binary_mode_comes_back_the_same(envelope: Envelope) -> None:
    assert decode(encode(envelope), b"{}") == (envelope, b"{}")


@given(envelopes, st.dictionaries(texts, st.integers() | texts | st.none()))
def test_structured_mode_comes_back_the_same(envelope: Envelope, data: dict[str, Any]) -> None:
    headers, body = encode_structured(envelope, data)

    read, rest = decode(headers, body)

    assert read == envelope
    assert json.loads(rest) == data


@given(envelopes)
def test_every_header_is_one_line_of_printable_ascii(envelope: Envelope) -> None:
    allowed = set(string.printable) - set("\t\n\r\x0b\x0c")

    for headers in (encode(envelope), encode_structured(envelope, None)[0]):
        assert all(set(name + value) <= allowed for name, value in headers.items())


@given(envelopes, st.randoms(use_true_random=False))
def test_header_names_are_read_in_any_case(envelope: Envelope, random: Any) -> None:
    shouted = {
        "".join(random.choice((char.upper(), char)) for char in name): value for name, value in encode(envelope).items()
    }

    assert decode(shouted, b"{}") == (envelope, b"{}")


@pytest.mark.parametrize("headers", [None, {}, {"Nats-Msg-Id": "7"}, {"Content-Type": "application/json"}])
def test_a_message_without_attributes_is_bare(headers: dict[str, str] | None) -> None:
    assert decode(headers, b'{"input": "hi"}') == (None, b'{"input": "hi"}')


def test_the_time_is_carried_over_to_utc() -> None:
    read, _ = decode({**HEADERS, "ce-time": "2026-10-25T02:30:00+02:00"}, b"{}")

    assert read is not None
    assert read.time == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    "change",
    [
        {"ce-specversion": "0.3"},
        {"ce-id": ""},
        {"ce-type": ""},
        {"ce-source": ""},
        {"ce-time": "yesterday"},
        {"ce-time": "2026-01-31T12:00:00"},
        {"ce-time": "2026-06-30T23:59:60Z"},
        {"ce-time": "0001-01-01T00:00:00+14:00"},
        {"ce-datacontenttype": "application/x-python-pickle"},
        {"ce-id": "%FF%FE"},
        {"ce-id": "\udcff"},
        {"ce-correlationid": "%20\udcff"},
        {"Content-Type": "application/cloudevents-batch+json"},
        {"Content-Type": "application/cloudevents+avro"},
    ],
    ids=str,
)
def test_broken_attributes_are_a_typed_error(change: dict[str, str]) -> None:
    with pytest.raises(UndecodableEventError):
        decode({**HEADERS, **change}, b"{}")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[]",
        b"null",
        b"{}",
        b'{"specversion": "1.0"}',
        b'{"specversion": "1.0", "id": 1.5, "type": "t", "source": "s"}',
        b'{"specversion": "1.0", "id": {}, "type": "t", "source": "s"}',
        b'{"specversion": "1.0", "id": "1", "type": "t", "source": "s", "data_base64": "A"}',
        b'{"specversion": "1.0", "id": "1", "type": "t", "source": "s", "data": NaN}',
        b'{"specversion": "1.0", "id": "1", "type": "t", "source": "s", "data": 1e400}',
        b'{"specversion": "1.0", "id": "\\ud800", "type": "t", "source": "s"}',
        b"\xff\xfe",
    ],
)
def test_a_broken_structured_event_is_a_typed_error(body: bytes) -> None:
    with pytest.raises(UndecodableEventError):
        decode({"content-type": "Application/CloudEvents+JSON; charset=utf-8"}, body)


def test_an_attribute_name_that_could_not_be_a_header_is_left_out() -> None:
    event = {"specversion": "1.0", "id": "1", "type": "t", "source": "s", "a\r\nb": "x", "Good": "y", "my_ext": "z"}

    read, _ = decode({"Content-Type": "application/cloudevents+json"}, json.dumps(event).encode())

    assert read is not None
    assert read.extensions == {"good": "y"}


def test_a_broken_trace_context_fails_no_event() -> None:
    read, _ = decode({**HEADERS, "traceparent": "\udcff nonsense", "tracestate": "\r\nx"}, b"{}")

    assert read is not None
    assert read.traceparent == " nonsense"
    assert read.tracestate == "x"


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=40), max_size=6), st.binary(max_size=60))
def test_any_message_is_read_or_refused_with_a_typed_error(headers: dict[str, str], body: bytes) -> None:
    try:
        read, _ = decode({**HEADERS, **headers}, body)
    except ContractError:
        return

    if read is not None:
        assert encode(read)
