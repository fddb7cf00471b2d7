"""A dead letter can be read, replayed once, and discarded."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest
from support.factory import echo
from support.history import START, TEAM, WORKFLOW, at, completed, ended, failing, store

from pointsman.bus.memory.bus import MemoryBus
from pointsman.engine.operations.dead_letter_replay import NotReplayableError
from pointsman.engine.operations.dead_letters import DeadLetters
from pointsman.engine.process.dead_lettering import stream_of
from pointsman.errors import NotFoundError, UndecodableEventError
from pointsman_schemas.envelope import Envelope, decode, encode
from pointsman_schemas.events import AttemptError, Control, DeadLetter, Request
from pointsman_schemas.ids import derive_id, workflow_id_for
from pointsman_schemas.log import Parent, TaskReopened, WorkflowStarted
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.subjects import Subjects

SUBJECTS = Subjects()
REQUEST = b'{"input": "mend it"}'


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
def letters(bus: MemoryBus) -> DeadLetters:
    return DeadLetters(bus, SUBJECTS)


async def bury(bus: MemoryBus, name: str = "d1", **changes: Any) -> None:
    fields: dict[str, Any] = {
        "id": name,
        "origin": "fitter",
        "cause": AttemptError(kind="handler_error", message="out of bolts"),
        "attempts": 3,
        "subject": f"pointsman.handoff.fitter.crew.{WORKFLOW}.t1.3",
        "body": base64.b64encode(b"{}").decode(),
        "workflow_id": WORKFLOW,
        "team": TEAM,
        "task_id": "t1",
        "at": START,
        **changes,
    }
    letter = DeadLetter(**fields)
    envelope = Envelope(id=name, type=DeadLetter.event_type, source="test", time=START)
    await bus.publish(SUBJECTS.dead_letter(letter.origin, letter.workflow_id, name), dump(letter), encode(envelope))


async def bury_request(bus: MemoryBus, body: bytes = REQUEST, headers: Mapping[str, str] | None = None) -> None:
    await bury(
        bus, origin=TEAM, workflow_id=None, task_id=None, subject=f"pointsman.request.{TEAM}.anonymous",
        headers=headers or {}, body=base64.b64encode(body).decode(),
    )  # fmt: skip


async def all_of(bus: MemoryBus, subject: str) -> list[Any]:
    return [stored async for stored in bus.read(stream_of(SUBJECTS, subject), subject)]


async def test_letters_are_listed_by_origin_and_by_workflow(bus: MemoryBus, letters: DeadLetters) -> None:
    await bury(bus, "d1")
    await bury(bus, "d2", origin="tester")
    await bury(bus, "d3", workflow_id="wf_other")

    async def names(**which: Any) -> list[str]:
        return [letter.content.id for letter in await letters.list(**which)]

    assert await names() == ["d1", "d2", "d3"]
    assert await names(origin="fitter") == ["d1", "d3"]
    assert await names(workflow=WORKFLOW) == ["d1", "d2"]
    assert await names(origin="fitter", workflow=WORKFLOW) == ["d1"]
    assert await names(limit=2) == ["d1", "d2"]


async def test_letters_are_listed_by_cause_and_half_open_time_range(bus: MemoryBus, letters: DeadLetters) -> None:
    for second in range(3):
        await bury(bus, f"d{second}", at=at(second))
    await bury(bus, "d3", at=at(1), cause=AttemptError(kind="timeout", message="no answer"))

    found = await letters.list(cause="handler_error", since=at(1), until=at(2))

    assert [letter.content.id for letter in found] == ["d1"]


async def test_an_unknown_letter_is_not_found(letters: DeadLetters) -> None:
    with pytest.raises(NotFoundError, match="d9"):
        await letters.get("d9")


@pytest.mark.parametrize(("body", "decoded"), [(b'{"a": 1}', {"a": 1}), (b"\xff not json", "\ufffd not json")])
async def test_a_body_is_shown_as_json_or_else_as_text(
    bus: MemoryBus, letters: DeadLetters, body: bytes, decoded: object
) -> None:
    await bury(bus, body=base64.b64encode(body).decode())

    assert (await letters.get("d1")).decoded == decoded


async def test_a_discarded_letter_is_gone_and_discarding_it_again_reports_it(
    bus: MemoryBus, letters: DeadLetters
) -> None:
    await bury(bus)
    letter = await letters.get("d1")

    assert await letters.discard(letter) is True
    assert await letters.discard(letter) is False
    assert await letters.list() == ()


async def test_replayed_request_has_an_id_derived_from_its_letter(bus: MemoryBus, letters: DeadLetters) -> None:
    headers = encode(Envelope(id="r-1", type=Request.event_type, source="/shop", time=START, correlation_id="order 7"))
    nats = {"Nats-Msg-Id": "r-1", "Nats-Expected-Last-Subject-Sequence": "0"}
    await bury_request(bus, headers=headers | nats)

    done = await letters.replay(await letters.get("d1"))

    [sent] = await all_of(bus, f"pointsman.request.{TEAM}.anonymous")
    envelope, body = decode(sent.headers, sent.body)
    assert envelope is not None
    assert envelope.id != "r-1"
    assert (envelope.source, envelope.correlation_id, body) == ("/shop", "order 7", REQUEST)
    assert done.workflow == workflow_id_for(SUBJECTS.request(TEAM, "anonymous"), envelope.id, envelope.source)
    assert (done.action, done.removed) == ("request", True)
    assert await letters.list() == ()


async def test_a_bare_request_gets_an_id_of_its_own(bus: MemoryBus, letters: DeadLetters) -> None:
    await bury_request(bus)

    done = await letters.replay(await letters.get("d1"))

    [sent] = await all_of(bus, f"pointsman.request.{TEAM}.anonymous")
    envelope, body = decode(sent.headers, sent.body)
    assert envelope is not None
    assert (envelope.id, body) == ("replay-" + derive_id("replay", "d1"), REQUEST)
    assert done.workflow == workflow_id_for(SUBJECTS.request(TEAM, "anonymous"), envelope.id, envelope.source)


@pytest.mark.parametrize("headers", [{"content-type": "application/cloudevents+json"}, {}], ids=["typed", "Dapr"])
async def test_a_structured_request_gets_its_new_id_inside(
    bus: MemoryBus, letters: DeadLetters, headers: dict[str, str]
) -> None:
    event = {"specversion": "1.0", "id": "r-1", "type": Request.event_type, "source": "/shop", "data": {"input": "x"}}
    await bury_request(bus, json.dumps(event).encode(), headers)

    done = await letters.replay(await letters.get("d1"))

    [sent] = await all_of(bus, f"pointsman.request.{TEAM}.anonymous")
    assert done.workflow == workflow_id_for(SUBJECTS.request(TEAM, "anonymous"), json.loads(sent.body)["id"], "/shop")
    assert json.loads(sent.body)["data"] == {"input": "x"}


async def test_truncated_letter_is_replayed_whole_from_its_stream_or_refused(
    bus: MemoryBus, letters: DeadLetters
) -> None:
    subject = f"pointsman.request.{TEAM}.anonymous"
    sequence = await bus.publish(subject, REQUEST, {})
    cut: dict[str, Any] = {"body": base64.b64encode(REQUEST[:3]).decode(), "truncated": True, "sequence": sequence}
    await bury(bus, origin=TEAM, workflow_id=None, task_id=None, subject=subject, **cut)
    letter = await letters.get("d1")

    await letters.replay(letter, keep=True)

    assert [each.body for each in await all_of(bus, subject)] == [REQUEST, REQUEST]
    await bus.delete("requests", sequence)
    with pytest.raises(NotReplayableError, match=f"message {sequence} of .* was removed"):
        await letters.replay(letter)


async def test_replaying_a_request_twice_is_one_workflow(bus: MemoryBus, letters: DeadLetters) -> None:
    await bury_request(bus)
    letter = await letters.get("d1")

    first = await letters.replay(letter, keep=True)
    second = await letters.replay(letter)

    assert (first.workflow, first.removed, second.removed) == (second.workflow, False, True)
    sent = await all_of(bus, f"pointsman.request.{TEAM}.anonymous")
    assert len({(each.headers["ce-id"], each.body) for each in sent}) == 1


async def test_a_handoff_of_a_running_workflow_reopens_its_task_once(bus: MemoryBus, letters: DeadLetters) -> None:
    await store(bus, *failing())
    await store(bus, TaskReopened(at=at(6), event_id=derive_id("replay", "d1"), task_id="t1"), number=2)
    await bury(bus)
    letter = await letters.get("d1")

    done = await letters.replay(letter, keep=True)
    await letters.replay(letter)

    [sent] = await all_of(bus, f"pointsman.control.{TEAM}.{WORKFLOW}.*.*.*")
    control = parse(Control, sent.body)
    assert (control.action, control.task_id) == ("replay", "t1")
    assert (done.action, done.workflow) == ("task", WORKFLOW)
    assert await letters.list() == ()


async def test_letter_is_kept_until_its_task_is_reopened_in_the_log(bus: MemoryBus) -> None:
    await store(bus, *failing())
    await bury(bus)
    letters = DeadLetters(bus, SUBJECTS, patience=0.01)

    with pytest.raises(NotReplayableError, match="remains"):
        await letters.replay(await letters.get("d1"))

    assert len(await letters.list()) == 1
    assert len(await all_of(bus, f"pointsman.control.{TEAM}.{WORKFLOW}.*.*.*")) == 1


async def test_a_workflow_that_ends_instead_is_said_to_have_ended(bus: MemoryBus, letters: DeadLetters) -> None:
    await store(bus, *failing())
    await bury(bus)
    replaying = asyncio.create_task(letters.replay(await letters.get("d1")))

    await store(bus, ended("partial", 6), number=2)

    with pytest.raises(NotReplayableError, match="ended: partial"):
        await replaying


async def test_a_handoff_of_an_ended_workflow_is_refused_and_kept(bus: MemoryBus, letters: DeadLetters) -> None:
    await store(bus, *completed())
    await bury(bus)

    with pytest.raises(NotReplayableError, match="--as-new"):
        await letters.replay(await letters.get("d1"))

    assert len(await letters.list()) == 1


async def test_as_new_sends_a_handoff_to_a_team_as_a_request_of_the_operator(
    bus: MemoryBus, letters: DeadLetters
) -> None:
    begun, *others = completed()
    assert isinstance(begun, WorkflowStarted)
    parent = Parent(team="parent", workflow_id="wf_1", task_id="t1", attempt=1, return_to="r", deadline=begun.deadline)
    await store(bus, begun.model_copy(update={"caller": "team:parent", "parent": parent}), *others)
    await bury(bus)
    await bus.registry.announce(echo("fitter").card.model_copy(update={"instance": "i1"}))

    await letters.replay(await letters.get("d1"), as_new=True)

    (sent,) = await all_of(bus, f"pointsman.request.{TEAM}.*")
    assert sent.subject.rpartition(".")[2] != "ada"


async def test_as_new_sends_the_workflows_own_request_again(bus: MemoryBus, letters: DeadLetters) -> None:
    await store(bus, *completed())
    await bury(bus)
    await bus.registry.announce(echo("fitter").card.model_copy(update={"instance": "i1"}))
    letter = await letters.get("d1")

    first = await letters.replay(letter, as_new=True, keep=True)
    second = await letters.replay(letter, as_new=True)

    sent, again = await all_of(bus, f"pointsman.request.{TEAM}.ada")
    assert (again.headers["ce-id"], again.body) == (sent.headers["ce-id"], sent.body)
    envelope, body = decode(sent.headers, sent.body)
    request = parse(Request, body)
    assert envelope is not None
    assert (envelope.correlation_id, envelope.causation_id) == ("c-1", "d1")
    assert (request.input, request.deadline) == ("mend it", 600)
    assert (
        first.workflow
        == second.workflow
        == workflow_id_for(SUBJECTS.request(TEAM, "ada"), envelope.id, envelope.source)
        != WORKFLOW
    )


async def test_letter_for_a_dead_agent_is_not_replaced_by_a_new_workflow(bus: MemoryBus, letters: DeadLetters) -> None:
    await store(bus, *completed())
    await bury(bus)
    letter = await letters.get("d1")

    with pytest.raises(NotReplayableError, match=r"'fitter', which is not live.*the letter remains"):
        await letters.replay(letter, as_new=True)

    assert await all_of(bus, f"pointsman.request.{TEAM}.anonymous") == []
    kept = await letters.replay(letter, as_new=True, keep=True)
    assert (kept.action, kept.removed) == ("request", False)
    assert len(await letters.list()) == 1


async def test_a_result_of_a_running_workflow_is_published_again(bus: MemoryBus, letters: DeadLetters) -> None:
    await store(bus, *failing())
    subject = f"pointsman.result.{TEAM}.fitter.{WORKFLOW}.t1.1.token"
    body = base64.b64encode(b'{"late": true}').decode()
    await bury(bus, origin=TEAM, subject=subject, body=body, headers={"ce-id": "old"})

    done = await letters.replay(await letters.get("d1"))

    [sent] = await all_of(bus, subject)
    assert (done.action, sent.body) == ("event", b'{"late": true}')
    assert sent.headers["ce-id"] != "old"


@pytest.mark.parametrize(
    "changes",
    [
        {"subject": "elsewhere.request"},
        {"subject": f"pointsman.log.{TEAM}.{WORKFLOW}"},
        {"workflow_id": None},
        {"task_id": None},
    ],
    ids=str,
)
async def test_unreplayable_letter_is_refused_and_kept(
    bus: MemoryBus, letters: DeadLetters, changes: dict[str, Any]
) -> None:
    await store(bus, *failing())
    await bury(bus, **changes)

    with pytest.raises(NotReplayableError):
        await letters.replay(await letters.get("d1"))

    assert len(await letters.list()) == 1


async def test_letter_of_a_missing_log_is_not_found(bus: MemoryBus, letters: DeadLetters) -> None:
    await bury(bus)

    for as_new in (False, True):
        with pytest.raises(NotFoundError):
            await letters.replay(await letters.get("d1"), as_new=as_new)


async def test_letter_of_the_agent_of_a_retry_is_replayed(bus: MemoryBus, letters: DeadLetters) -> None:
    """In the log of `failing`, the second attempt goes to another agent than the first attempt."""
    await store(bus, *failing())
    await bury(bus, origin="helper", subject=f"pointsman.handoff.helper.{TEAM}.{WORKFLOW}.t1.2")
    replaying = asyncio.create_task(letters.replay(await letters.get("d1")))
    name = derive_id("replay", "d1")
    await store(bus, TaskReopened(at=at(9), task_id="t1", event_id=name), number=2)

    assert (await replaying).action == "task"


FOREIGN: dict[str, dict[str, Any]] = {
    "request": {"subject": "pointsman.request.payroll.cfo"},
    "approval": {"subject": f"pointsman.control.{TEAM}.{WORKFLOW}.approve.ops.x"},
    "result": {"subject": f"pointsman.result.{TEAM}.tester.{WORKFLOW}.t1.1.token"},
    "task of another agent": {"origin": "spy", "subject": f"pointsman.handoff.spy.{TEAM}.{WORKFLOW}.t1.1"},
    "timer": {"origin": "spy", "subject": f"pointsman.timer.{TEAM}.{WORKFLOW}.deadline"},
    "no task": {"origin": "spy", "subject": f"pointsman.handoff.spy.{TEAM}.{WORKFLOW}.t1.1", "task_id": None},
    "unknown task": {"origin": "spy", "subject": f"pointsman.schedule.{TEAM}.{WORKFLOW}.handoff.x", "task_id": "t99"},
}


@pytest.mark.parametrize("as_new", [False, True])
@pytest.mark.parametrize("forged", FOREIGN.values(), ids=FOREIGN)
async def test_letter_of_a_worker_replays_nothing_that_was_sent_to_others(
    bus: MemoryBus, letters: DeadLetters, forged: dict[str, Any], *, as_new: bool
) -> None:
    """A worker may publish dead letters of its agent. The replay of a forged letter must have no effect."""
    await store(bus, *failing())
    await bus.registry.announce(echo("spy").card.model_copy(update={"instance": "i1"}))
    await bury(bus, **forged)
    before = [await all_of(bus, f"pointsman.{kind}.>") for kind in ("request", "control", "result")]

    with pytest.raises(NotReplayableError, match="forged"):
        await letters.replay(await letters.get("d1"), as_new=as_new)

    assert [await all_of(bus, f"pointsman.{kind}.>") for kind in ("request", "control", "result")] == before


@pytest.mark.parametrize("subject", [f"pointsman.log.{TEAM}.{WORKFLOW}", "elsewhere.request", "pointsman.x"])
async def test_letter_of_a_message_of_another_kind_starts_no_workflow(
    bus: MemoryBus, letters: DeadLetters, subject: str
) -> None:
    await store(bus, *failing())
    await bus.registry.announce(echo("spy").card.model_copy(update={"instance": "i1"}))
    await bury(bus, origin="spy", subject=subject)

    with pytest.raises(NotReplayableError, match="only requests"):
        await letters.replay(await letters.get("d1"), as_new=True)

    assert await all_of(bus, "pointsman.request.>") == []


@pytest.mark.parametrize("said", [{"origin": TEAM}, {"workflow_id": "wf_other"}, {"id": "d2"}], ids=str)
async def test_letter_that_contradicts_its_subject_is_ignored(
    bus: MemoryBus, letters: DeadLetters, said: dict[str, str]
) -> None:
    await bury(bus, "true")
    forged = (await letters.get("true")).content.model_copy(update={"id": "d1", **said})
    await bus.publish(SUBJECTS.dead_letter("fitter", WORKFLOW, "d1"), dump(forged), {})

    assert [letter.content.id for letter in await letters.list()] == ["true"]
    with pytest.raises(UndecodableEventError):
        await letters.get("d1")
