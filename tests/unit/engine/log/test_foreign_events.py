"""Events in formats of other programs: from Dapr, with `data_base64`, with half a character, and partly unreadable.

Class of fault: an event that is readable, or whose identity is readable, is refused with the identity of another event.
So the sender waits for ever.
"""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import pytest

from pointsman.core.model.inputs import RequestReceived, RequestRefused, ResultReceived
from pointsman.engine.log.requests import (
    correlation_id_of_request,
    read_input,
    read_request,
    workflow_of_request,
)
from pointsman.ports.bus import StoredMessage
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Request, Result
from pointsman_schemas.ids import workflow_id_for
from pointsman_schemas.strict_json import dump, parse_json, replace_surrogate_escapes
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import PlanAndExecute, Team

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TEAM = Team(name="team", strategy=PlanAndExecute())
SUBJECTS = Subjects()
SUBJECT = SUBJECTS.request("team", "ada")
STRUCTURED = {"Content-Type": "application/cloudevents+json"}
EVENT: dict[str, Any] = {
    "specversion": "1.0", "id": "order 1", "source": "/shop", "type": Request.event_type, "correlationid": "c-1",
    "time": "2026-01-02T03:04:05Z", "datacontenttype": "application/json", "data": {"input": "x"},
}  # fmt: skip
DAPR = EVENT | {
    "topic": SUBJECT, "pubsubname": "pubsub", "traceid": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "",
}  # fmt: skip


def message(event: dict[str, Any], headers: dict[str, str]) -> StoredMessage:
    return StoredMessage(SUBJECT, json.dumps(event).encode(), headers, 7, NOW)


@pytest.mark.parametrize(
    "headers", [{}, {"Content-Type": "application/json"}, {"Nats-Msg-Id": "7"}, STRUCTURED], ids=str
)
def test_a_structured_event_is_read_with_and_without_its_content_type(headers: dict[str, str]) -> None:
    stored = message(DAPR, headers)

    received = read_request(stored, TEAM)

    assert isinstance(received, RequestReceived)
    assert received.request.input == "x"
    assert received.ignored_fields == ()
    assert (received.admission.request_id, received.admission.correlation_id) == ("order 1", "c-1")
    assert received.admission.trace.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert received.admission.workflow_id == workflow_of_request(stored) == workflow_id_for(SUBJECT, "order 1", "/shop")


def test_a_bare_request_about_an_event_stays_a_bare_request() -> None:
    stored = message({"input": {"specversion": "1.0", "id": "1"}, "metadata": {"specversion": "1.0"}}, {})

    received = read_request(stored, TEAM)

    assert isinstance(received, RequestReceived)
    assert received.request.input == {"specversion": "1.0", "id": "1"}


@pytest.mark.parametrize("headers", [STRUCTURED, {}], ids=str)
def test_data_in_base64_is_read_as_json(headers: dict[str, str]) -> None:
    event = EVENT | {"data": None, "data_base64": b64encode('{"input": "é"}'.encode()).decode()}

    received = read_request(message(event, headers), TEAM)

    assert isinstance(received, RequestReceived)
    assert received.request.input == "é"


UNREADABLE: dict[str, dict[str, Any]] = {
    "data_base64 that is not base64": {"data": None, "data_base64": "***"},
    "data_base64 that is not text": {"data": None, "data_base64": 7},
    "data_base64 of no JSON": {"data": None, "data_base64": "AA=="},
    "both data and data_base64": {"data_base64": "e30="},
    "no data": {"data": None},
    "data of another form": {"data": {"input": 7}},
    "data as text": {"data": "x"},
    "another content type": {"datacontenttype": "text/plain"},
    "a time that is none": {"time": "yesterday"},
    "an attribute that is an object": {"extra": {}},
    "another version": {"specversion": "0.3"},
    "another type": {"type": "com.dapr.event.sent"},
}


@pytest.mark.parametrize("change", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("headers", [STRUCTURED, {}], ids=str)
def test_a_refused_event_keeps_the_identity_that_can_be_read(change: dict[str, Any], headers: dict[str, str]) -> None:
    stored = message(EVENT | change, headers)

    refused = read_request(stored, TEAM)

    assert isinstance(refused, RequestRefused)
    assert (refused.admission.request_id, refused.admission.correlation_id) == ("order 1", "c-1")
    assert refused.admission.workflow_id == workflow_of_request(stored) == workflow_id_for(SUBJECT, "order 1", "/shop")
    assert correlation_id_of_request(stored) == "c-1"


@pytest.mark.parametrize(
    "change", [{"ce-time": "yesterday"}, {"ce-specversion": "0.3"}, {"ce-datacontenttype": "text/plain"}], ids=str
)
def test_a_refused_event_in_headers_keeps_its_decoded_identity(change: dict[str, str]) -> None:
    envelope = Envelope(id="order 1", type=Request.event_type, source="/é", time=NOW, correlation_id="c 1")
    stored = StoredMessage(SUBJECT, b'{"input": "x"}', encode(envelope) | change, 7, NOW)

    refused = read_request(stored, TEAM)

    assert isinstance(refused, RequestRefused)
    assert (refused.admission.request_id, refused.admission.correlation_id) == ("order 1", "c 1")
    assert refused.admission.workflow_id == workflow_id_for(SUBJECT, "order 1", "/é")


def test_a_refused_bare_request_keeps_its_correlation_id_and_its_reply_subject() -> None:
    body = b'{"input": 7, "correlation_id": "c-1", "reply_to": "_INBOX.a.b"}'

    refused = read_request(StoredMessage(SUBJECT, body, {}, 7, NOW), TEAM)

    assert isinstance(refused, RequestRefused)
    assert (refused.admission.correlation_id, refused.reply_to) == ("c-1", "_INBOX.a.b")


@pytest.mark.parametrize("subject", ["pointsman.request.team", "$JS.API.STREAM.DELETE.X", "a b", ""])
def test_a_refused_request_cannot_name_a_forbidden_reply_subject(subject: str) -> None:
    body = json.dumps({"input": 7, "reply_to": subject}).encode()

    refused = read_request(StoredMessage(SUBJECT, body, {}, 7, NOW), TEAM)

    assert isinstance(refused, RequestRefused)
    assert refused.reply_to is None


ESCAPES = {
    r'{"a": "x\ud83d"}': {"a": "x?"},
    r'{"a": "\ud83d\ude00"}': {"a": "😀"},
    r'{"a": "\uDE00\ud83d\ude00"}': {"a": "?😀"},
    r'{"a": "\\ud83d"}': {"a": r"\ud83d"},
    r'{"a": "\\\ud83d\\"}': {"a": "\\?\\"},
    r'{"\udc00": ["\ud800\ud800"]}': {"?": ["??"]},
    r'{"a": "é"}': {"a": "é"},
}


@pytest.mark.parametrize(("text", "value"), ESCAPES.items())
def test_only_halves_of_surrogate_pairs_are_replaced(text: str, value: Any) -> None:
    assert parse_json(replace_surrogate_escapes(text.encode())) == value


@pytest.mark.parametrize("structured", [False, True])
def test_half_a_character_in_a_result_is_replaced(structured: bool) -> None:
    result = Result(
        workflow_id="wf_1", task_id="t1", attempt=1, agent="cutter", status="succeeded", output={"text": "CUT"},
        started_at=NOW, ended_at=NOW,
    )  # fmt: skip
    body = dump(result)
    if structured:
        body = b'{"specversion":"1.0","id":"e1","source":"/x","type":"%s","data":%s}' % (
            Result.event_type.encode(), body,
        )  # fmt: skip
    body = body.replace(b"CUT", rb"x\ud83d")
    subject = SUBJECTS.result("team", "cutter", "wf_1", "t1", 1, "token")

    received = read_input(StoredMessage(subject, body, STRUCTURED if structured else {}, 7, NOW), SUBJECTS)

    assert isinstance(received, ResultReceived)
    assert received.result.output == {"text": "x?"}
