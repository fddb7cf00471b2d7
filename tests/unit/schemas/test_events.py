"""Events are unchanged after a round trip over the bus. Readers accept newer events."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError
from support.examples import EVENTS

from pointsman_schemas import events, log, schedules, threads
from pointsman_schemas.asyncapi import EVENTS as CLASSES
from pointsman_schemas.errors import UndecodableEventError
from pointsman_schemas.events import Event, Request
from pointsman_schemas.strict_json import dump, parse

by_name = pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)


def test_there_is_an_example_of_every_event_class() -> None:
    declared = {
        value
        for module in (events, log, schedules, threads)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Event) and value is not Event
    }

    assert declared == set(CLASSES)
    assert {type(event) for event in EVENTS.values()} == set(CLASSES)


def test_every_event_type_is_its_own_and_carries_its_version() -> None:
    types = [event.event_type for event in CLASSES]

    assert len(set(types)) == len(types)
    assert all(name.startswith("io.pointsman.") and name.endswith(".v1") for name in types)


@by_name
def test_an_event_comes_back_as_it_was_sent(event: Event) -> None:
    assert parse(type(event), dump(event)) == event


@by_name
def test_fields_of_a_newer_release_are_ignored(event: Event) -> None:
    body = json.loads(dump(event)) | {"from_the_future": {"deep": [1, 2]}}

    assert parse(type(event), json.dumps(body).encode()) == event


@by_name
def test_every_required_field_is_missed_by_its_name(event: Event) -> None:
    required = [name for name, field in type(event).model_fields.items() if field.is_required()]

    for name in required:
        body = json.loads(dump(event))
        del body[name]
        with pytest.raises(UndecodableEventError, match=f"not a valid {type(event).__name__}: .*{name}"):
            parse(type(event), json.dumps(body).encode())


@by_name
def test_an_event_does_not_change_once_made(event: Event) -> None:
    name = next(iter(type(event).model_fields))

    with pytest.raises(ValidationError, match="frozen"):
        setattr(event, name, None)


@by_name
def test_a_body_that_is_no_object_is_refused(event: Event) -> None:
    for body in (b"null", b"[]", b'"text"', b"1"):
        with pytest.raises(UndecodableEventError):
            parse(type(event), body)


def test_one_line_of_json_is_a_request() -> None:
    assert parse(Request, b'{"input": "Why was I charged twice?"}') == Request(input="Why was I charged twice?")


@pytest.mark.parametrize(
    "change",
    [
        {"input": ""},
        {"input": 7},
        {"input": None},
        {"deadline": 0},
        {"deadline": -1},
        {"correlation_id": ""},
        {"reply_to": "answers.*"},
        {"reply_to": "answers.>"},
        {"reply_to": "a b"},
        {"reply_to": "a\r\nPUB x 0"},
        {"reply_to": ""},
    ],
    ids=str,
)
def test_a_request_that_makes_no_sense_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(UndecodableEventError):
        parse(Request, json.dumps({"input": "x"} | change).encode())


def test_a_time_without_a_zone_is_refused() -> None:
    body = json.loads(dump(EVENTS["timer"])) | {"due": "2026-03-29T01:30:00"}

    with pytest.raises(UndecodableEventError, match="due"):
        parse(type(EVENTS["timer"]), json.dumps(body).encode())


def test_null_in_data_is_kept_and_a_none_field_is_omitted() -> None:
    sent = json.loads(dump(EVENTS["result"]))

    assert sent["output"]["note"] is None
    assert "error" not in sent


@pytest.mark.parametrize("body", [b'{"input": 5}', b'{"input": ""}', b'{"input": null}'])
def test_request_of_a_wrong_type_is_reported_once(body: bytes) -> None:
    with pytest.raises(UndecodableEventError) as caught:
        parse(Request, body)

    assert str(caught.value) == "not a valid Request: input: text that is not empty, or an object, is expected"
