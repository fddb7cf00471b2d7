"""Every message on a stream is parsed quickly into an input or a typed error."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.mutations import at_most, mutated

from pointsman.core.model.inputs import ControlReceived, RequestReceived, RequestRefused
from pointsman.engine.log.requests import (
    failed_result_for,
    input_address,
    read_input,
    read_request,
    workflow_of_request,
)
from pointsman.ports.bus import StoredMessage
from pointsman_schemas.envelope import Envelope, encode, encode_structured
from pointsman_schemas.errors import ContractError, UndecodableEventError, UnknownEventTypeError
from pointsman_schemas.events import AttemptError, Control, Request, Result, Timer, Usage
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import HandoffAddress, ResultAddress, Subjects
from pointsman_schemas.team import Limits, PlanAndExecute, Team

steady = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TEAM = Team(name="team", agents="*", strategy=PlanAndExecute(), limits=Limits())
SUBJECTS = Subjects()

REQUEST = Request(
    input={"text": "hi", "rows": [1, 2.5, None]}, deadline=5, metadata={"a": {"b": []}}, reply_to="_INBOX.b"
)
RESULT = Result(
    workflow_id="wf_1", task_id="t1", attempt=1, agent="billing", status="failed", output={"text": "é", "n": 1},
    error=AttemptError(kind="handler_error", message="no", retryable=True, retry_after=1.5), usage=Usage(calls=1),
    confidence=0.5, started_at=NOW, ended_at=NOW,
)  # fmt: skip
CONTROL = Control(action="cancel", task_id="t1", reason="r")
TIMER = Timer(name="wake-1", due=NOW)


def headers_of(kind: str) -> dict[str, str]:
    return encode(Envelope(id="e1", type=f"io.pointsman.{kind}.v1", source="/shop", time=NOW, subject="wf_1"))


def structured(kind: str, data: Any) -> bytes:
    envelope = Envelope(id="e1", type=f"io.pointsman.{kind}.v1", source="/shop", time=NOW, subject="wf_1")
    return encode_structured(envelope, data)[1]


STRUCTURED = {"Content-Type": "application/cloudevents+json"}
BODIES = tuple(dump(each) for each in (REQUEST, RESULT, CONTROL, TIMER))
EVENTS = tuple(
    structured(kind, each.model_dump(mode="json"))
    for kind, each in (("request", REQUEST), ("result", RESULT), ("control", CONTROL), ("timer", TIMER))
)
INPUTS = (
    SUBJECTS.result("team", "billing", "wf_1", "t1", 1, "token"),
    SUBJECTS.control("team", "wf_1", "cancel", "me", "c1"),
    SUBJECTS.timer("team", "wf_1", "wake-1"),
)


def test_unknown_fields_of_a_request_are_named_and_ignored() -> None:
    body = json.dumps({"input": "x", "deadlin": 3, "budget": {"tokns": 1}, "later": {}}).encode()

    received = read_request(StoredMessage("pointsman.request.team.ada", body, {}, 7, NOW), TEAM)

    assert isinstance(received, RequestReceived)
    assert received.ignored_fields == (
        "deadlin (did you mean deadline?)",
        "budget.tokns (did you mean tokens?)",
        "later",
    )


def test_names_of_ignored_fields_are_bounded() -> None:
    body = json.dumps({"input": "x"} | {f"{number}{'x' * 1_000}": 1 for number in range(1_000)}).encode()

    received = read_request(StoredMessage("pointsman.request.team.ada", body, {}, 7, NOW), TEAM)

    assert isinstance(received, RequestReceived)
    assert len("".join(received.ignored_fields)) <= 4_000


@pytest.mark.parametrize("name", ["inptu", "Input"])
def test_an_answer_whose_input_would_be_lost_is_refused(name: str) -> None:
    body = json.dumps({"action": "approve", "approval": "a1", name: {"amount": 1}}).encode()
    subject = SUBJECTS.control("team", "wf_1", "approve", "ada", "c1")

    with pytest.raises(UndecodableEventError, match=rf"has no '{name}'; did you mean input\?"):
        read_input(StoredMessage(subject, body, {}, 7, NOW), SUBJECTS)


bodies = st.binary(max_size=200) | mutated(BODIES)
odd = st.sampled_from(("", "a", "%FF", "%", "\udcff", "é", "1.0", "2.0", "application/json", "text/plain", "x" * 5000))
headers = st.sampled_from(
    ({}, STRUCTURED, {"Nats-Msg-Id": "7"}, *(headers_of(kind) for kind in ("request", "result", "control", "timer")))
)
changes = st.dictionaries(st.sampled_from((*headers_of("request"), "Content-Type", "traceparent", "tracestate")), odd,
                          max_size=3)  # fmt: skip
mails = st.tuples(headers, bodies) | st.tuples(st.just(STRUCTURED), mutated(EVENTS))


@pytest.mark.parametrize(
    "other",
    [
        StoredMessage("tenant.request.crew.anonymous", b'{"input": "x"}', {}, 7, NOW),
        StoredMessage("pointsman.request.other.anonymous", b'{"input": "x"}', {}, 7, NOW),
        StoredMessage("pointsman.request.crew.ada", b'{"input": "x"}', {}, 8, NOW),
        StoredMessage(
            "pointsman.request.crew.ada", b'{"input": "x"}', {}, 7, NOW + timedelta(days=1)
        ),  # from a stream that was created again
    ],
    ids=["namespace", "team", "place", "stream"],
)
def test_bare_requests_of_different_tenants_teams_and_streams_are_different_workflows(other: StoredMessage) -> None:
    one = StoredMessage("pointsman.request.crew.ada", b'{"input": "x"}', {}, 7, NOW)

    assert workflow_of_request(one) == workflow_of_request(replace(one, headers={"Accept": "*/*"}))  # redelivered
    assert workflow_of_request(one) != workflow_of_request(other)


def stored(subject: str, headers: dict[str, str], body: bytes) -> StoredMessage:
    by = SUBJECTS.schedule("team", "wf_1", "wake-1") if subject == INPUTS[2] else ""
    return StoredMessage(subject, body, headers, 7, NOW, by)


@steady
@given(mails, changes)
def test_any_request_is_received_or_refused(mail: tuple[dict[str, str], bytes], changed: dict[str, str]) -> None:
    with at_most(0.2):
        received = read_request(stored(SUBJECTS.request("team", "anonymous"), {**mail[0], **changed}, mail[1]), TEAM)

    assert isinstance(received, RequestReceived | RequestRefused)
    assert len(received.admission.request_id) <= 256
    if isinstance(received, RequestRefused):
        assert len(received.error.message) < 2_000


@steady
@given(st.sampled_from(INPUTS), mails, changes)
def test_any_input_is_read_or_is_a_contract_error(
    subject: str, mail: tuple[dict[str, str], bytes], changed: dict[str, str]
) -> None:
    message = stored(subject, {**mail[0], **changed}, mail[1])
    address = input_address(subject, SUBJECTS)

    refusal = None
    with at_most(0.2):
        try:
            read_input(message, SUBJECTS)
        except ContractError as error:
            refusal = error
            if isinstance(address, ResultAddress):
                failed_result_for(message, address, error)

    assert len(str(refusal)) < 2_000


@pytest.mark.parametrize(
    "other", [{"workflow_id": "wf_2"}, {"task_id": "t2"}, {"attempt": 2}, {"agent": "refunds"}], ids=str
)
def test_a_result_that_speaks_of_another_attempt_than_its_subject_is_refused(other: dict[str, Any]) -> None:
    message = stored(INPUTS[0], headers_of("result"), dump(RESULT.model_copy(update=other)))

    with pytest.raises(UndecodableEventError, match="publish on the handoff's return_to"):
        read_input(message, SUBJECTS)


@pytest.mark.parametrize("place", range(3), ids=["result", "control", "timer"])
def test_event_of_another_type_or_version_than_its_subject_is_refused(place: int) -> None:
    message = stored(INPUTS[place], headers_of("outcome"), BODIES[place + 1])

    with pytest.raises(
        UnknownEventTypeError, match=r"'io\.pointsman\.outcome\.v1'; expected 'io\.pointsman\.(re|co|ti)"
    ):
        read_input(message, SUBJECTS)


@steady
@given(st.text(max_size=60) | st.lists(st.sampled_from(("control", "team", "result", "²", "1", "", ">", "*", "timer")))
       .map(lambda parts: ".".join(("pointsman", *parts))))  # fmt: skip
def test_any_subject_is_an_address_or_a_contract_error(subject: str) -> None:
    for parse in (partial(input_address, subjects=SUBJECTS), partial(SUBJECTS.parse, form=HandoffAddress)):
        try:
            parse(subject)
        except ContractError:
            continue


@pytest.mark.parametrize("body", BODIES)
def test_examples_are_valid_before_their_mutation(body: bytes) -> None:
    kind = ("request", "result", "control", "timer")[BODIES.index(body)]
    if kind == "request":
        assert isinstance(
            read_request(stored(SUBJECTS.request("team", "anonymous"), headers_of(kind), body), TEAM), RequestReceived
        )
    else:
        subject = next(each for each in INPUTS if f".{kind}." in each)
        assert read_input(stored(subject, headers_of(kind), body), SUBJECTS)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"usage": {"calls": -5}}, "usage.calls: Input should be greater than or equal to 0"),
        ({"usage": {"input_tokens": -1}}, "usage.input_tokens"),
        ({"usage": {"output_tokens": -1}}, "usage.output_tokens"),
        ({"usage": {"cost": -0.01}}, "usage.cost"),
        ({"ended_at": "2026-01-02T03:04:04Z"}, "ended_at is 2026-01-02T03:04:04+00:00, before started_at"),
    ],
)
def test_result_with_impossible_numbers_fails_the_attempt(change: dict[str, Any], problem: str) -> None:
    body = json.dumps({**RESULT.model_dump(mode="json"), **change}).encode()
    message, address = stored(INPUTS[0], headers_of("result"), body), SUBJECTS.parse(INPUTS[0], ResultAddress)

    with pytest.raises(UndecodableEventError) as refused:
        read_input(message, SUBJECTS)

    assert problem in str(refused.value)
    result = failed_result_for(message, address, refused.value).result
    assert result.status == "failed"
    assert result.usage == Usage()


@pytest.mark.parametrize(
    "by", ["", SUBJECTS.schedule("team", "wf_2", "wake-1"), "pointsman.schedule.team.wf_1.timer.x"]
)
def test_timer_of_another_schedule_is_refused(by: str) -> None:
    subject = SUBJECTS.timer("team", "wf_1", "wake-1")

    with pytest.raises(
        UndecodableEventError, match=r"expected the schedule pointsman\.schedule\.team\.wf_1\.timer\.wake-1"
    ):
        read_input(StoredMessage(subject, dump(TIMER), headers_of("timer"), 7, NOW, by), SUBJECTS)


def test_control_whose_action_differs_from_its_subject_is_refused() -> None:
    subject = SUBJECTS.control("team", "wf_1", "approve", "me", "c1")

    with pytest.raises(UndecodableEventError, match="the action is 'cancel', but 'approve' in the subject"):
        read_input(StoredMessage(subject, dump(CONTROL), headers_of("control"), 7, NOW), SUBJECTS)


def test_caller_and_actor_are_those_of_the_subject() -> None:
    asked = read_request(StoredMessage(SUBJECTS.request("team", "ada"), b'{"input": "x"}', {}, 7, NOW), TEAM)
    other = read_request(StoredMessage(SUBJECTS.request("team", "ben"), b'{"input": "x"}', {}, 7, NOW), TEAM)
    control = read_input(
        StoredMessage(SUBJECTS.control("team", "wf_1", "cancel", "ops", "c"), dump(CONTROL), {}, 7, NOW), SUBJECTS
    )

    assert (asked.admission.caller, other.admission.caller) == ("ada", "ben")
    assert asked.admission.workflow_id != other.admission.workflow_id
    assert len(asked.admission.secret) == 32
    assert asked.admission.secret != other.admission.secret
    assert isinstance(control, ControlReceived)
    assert control.actor == "ops"


@pytest.mark.parametrize("reply_to", ["caller.box", "pointsman.request.team.ada", "_INBOX", "_INBOX..a", "$SYS.x"])
def test_reply_subject_outside_the_inboxes_of_callers_is_refused(reply_to: str) -> None:
    body = json.dumps({"input": "x", "reply_to": reply_to}).encode()

    assert isinstance(
        read_request(StoredMessage(SUBJECTS.request("team", "ada"), body, {}, 7, NOW), TEAM), RequestRefused
    )
