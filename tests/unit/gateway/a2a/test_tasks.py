"""The A2A task of a workflow is derived from the entries of its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value
from support.history import WORKFLOW, at, completed, ended, started, succeeded

from pointsman.gateway.a2a.messages import answer_in, input_in
from pointsman.gateway.a2a.parts import metadata_of, parts_of
from pointsman.gateway.a2a.tasks import TaskEvent, TaskFold
from pointsman.gateway.streams import LogEvent, Position
from pointsman_schemas.card import Role
from pointsman_schemas.events import Delta, Gap
from pointsman_schemas.files import File
from pointsman_schemas.log import Entry, QuestionAnswered, QuestionAsked, TaskAbandoned, WorkflowResumed

STATE = pb.TaskState.Name


def asked(number: int, **fields: Any) -> QuestionAsked:
    given = {"about": "information", "text": f"Question {number}?", **fields}
    return QuestionAsked(at=at(number), question=f"{WORKFLOW}-q{number}", expires_at=at(600), **given)


def answered(number: int, verdict: Any = "answered", input: Any = None) -> QuestionAnswered:
    return QuestionAnswered(at=at(number), event_id="e", question=f"{WORKFLOW}-q{number}", verdict=verdict, input=input)


def folded(entries: Sequence[Entry]) -> tuple[TaskFold, list[TaskEvent]]:
    fold = TaskFold(WORKFLOW, "crew", "http://gateway/a2a/crew")
    events = [
        event for number, entry in enumerate(entries) for event in fold.apply(LogEvent(Position(number + 1, 0), entry))
    ]
    return fold, events


def states(events: Sequence[TaskEvent]) -> list[str]:
    return [STATE(each.status.state)[11:] for each in events if isinstance(each, pb.TaskStatusUpdateEvent)]


def test_a_log_is_the_same_task_however_often_it_is_read() -> None:
    first, events = folded(completed())
    again, _ = folded(completed())

    assert first.task == again.task
    assert STATE(first.task.status.state) == "TASK_STATE_COMPLETED"
    assert [str(metadata_of(each, "position")) for each in events] == sorted(
        (str(metadata_of(each, "position")) for each in events), key=lambda text: float(text)
    )


@pytest.mark.parametrize(
    "forged",
    [{"agent": "fitter"}, {"task_id": "t1", "agent": "fitter"}, {"attempt": 9}, {"task_id": "other"}],
    ids=["another agent", "its own task", "another attempt", "an unknown task"],
)
def test_only_the_agent_of_the_synthesis_in_the_log_writes_the_answer(forged: dict[str, Any]) -> None:
    """An agent may broadcast text with the role `synthesize` under its own name."""
    own = Delta(
        workflow_id=WORKFLOW, task_id="synthesis", attempt=1, agent="synthesizer", role=Role.SYNTHESIZE, text="a"
    )
    before, after = folded(completed()[:-4])[0], folded(completed()[:-2])[0]

    assert [before.writes_answer(own), after.writes_answer(own)] == [False, True]
    assert not after.writes_answer(own.model_copy(update=forged))


def test_text_that_arrives_before_its_attempt_is_used_after_the_start() -> None:
    own = Delta(
        workflow_id=WORKFLOW, task_id="synthesis", attempt=1, agent="synthesizer", role=Role.SYNTHESIZE, text="a"
    )
    fold, _ = folded(completed()[:-3])

    early = fold.early.keep(own)
    fold.apply(LogEvent(Position(99, 0), completed()[-3]))

    assert (early, fold.early.take(), fold.writes_answer(own)) == (True, [own], True)


def test_two_open_questions_are_asked_one_after_the_other() -> None:
    fold, events = folded([started(), asked(1), asked(2), answered(1, input="north"), answered(2, input=7)])

    assert states(events) == ["WORKING", "INPUT_REQUIRED", "INPUT_REQUIRED", "INPUT_REQUIRED", "WORKING"]
    third = events[3]
    assert isinstance(third, pb.TaskStatusUpdateEvent)
    assert third.status.message.parts[0].text == "Question 2?"
    assert [MessageToDict(each.parts[0]).get("text", 7) for each in fold.task.history] == [
        "mend it", "Question 1?", "Question 2?", "north", 7,
    ]  # fmt: skip


def test_a_question_of_an_abandoned_task_is_closed() -> None:
    entries: list[Entry] = [
        started(),
        asked(1, task_id="t1"),
        TaskAbandoned(at=at(2), task_id="t1", cause="limit", reason="late"),
    ]

    fold, events = folded(entries)

    assert states(events) == ["WORKING", "INPUT_REQUIRED", "WORKING"]
    assert fold.questions == {}


@pytest.mark.parametrize(
    ("status", "more", "state"),
    [
        ("partial", {"gaps": (Gap(task_id="t2", agent="b", reason="no answer"),)}, "COMPLETED"),
        ("failed", {"reason": "the thread is busy", "tasks": ()}, "REJECTED"),
        ("cancelled", {"reason": "enough"}, "CANCELED"),
    ],
)
def test_an_end_has_its_state_and_its_reason(status: str, more: dict[str, Any], state: str) -> None:
    fold, events = folded([started(), ended(status, 5, **more)])

    assert states(events)[-1] == state
    assert bool(fold.task.artifacts) == (status == "partial")
    reason = more.get("reason") or "- t2 (b): no answer"
    assert fold.task.status.message.parts[0].text == reason


def test_a_file_is_an_artifact_once_its_task_has_succeeded_and_stays_in_the_next_round() -> None:
    plan = File(name="plan.txt", media_type="text/plain", size=3, sha256="a" * 64, owner="ada")
    done = succeeded("t1", "fitter", 1, 2)
    done = done.model_copy(update={"result": done.result.model_copy(update={"files": (plan,)})})
    again = WorkflowResumed(at=at(5), event_id="e", round=2, tasks=("t2",), deadline=at(60))

    before, events = folded([started(), done, ended("failed", 3, reason="no answer")])
    after, more = folded([started(), done, ended("partial", 3), again, done, ended("completed", 9, round=2)])

    id = f"{WORKFLOW}-file-1"
    assert [each.artifact.artifact_id for each in events if isinstance(each, pb.TaskArtifactUpdateEvent)] == [id]
    assert [each.artifact_id for each in before.task.artifacts] == [id]
    assert [each.artifact_id for each in after.task.artifacts] == [id, f"{WORKFLOW}-2-answer"]
    assert [each.artifact.artifact_id for each in more if isinstance(each, pb.TaskArtifactUpdateEvent)] == [
        id, f"{WORKFLOW}-1-answer", f"{WORKFLOW}-2-answer",
    ]  # fmt: skip


def test_a_remote_file_is_a_part_with_its_url_and_other_objects_are_data() -> None:
    (file,) = parts_of({"url": "https://example.com/x", "mediaType": "text/plain", "filename": "x"})
    (data,) = parts_of({"url": "https://example.com/x", "mediaType": "text/plain", "price": 3})

    assert (file.url, file.filename) == ("https://example.com/x", "x")
    assert data.data.struct_value["price"] == 3
    assert parts_of("") == parts_of(None) == []


def message(*parts: Any) -> pb.Message:
    given = [pb.Part(text=each) if isinstance(each, str) else pb.Part(data=ParseDict(each, Value())) for each in parts]
    return pb.Message(message_id="m", role=pb.Role.ROLE_USER, parts=given)


def test_one_object_is_the_input_and_texts_come_before_other_data() -> None:
    assert input_in(message({"count": 3})).input == {"count": 3}
    assert input_in(message("hello", {"count": 3})).input == 'hello\n\n{"count":3}'
    with pytest.raises(InvalidParamsError, match="neither text nor data"):
        input_in(message(" "))


@pytest.mark.parametrize(
    ("schema", "given", "value"),
    [
        (None, "7", "7"),
        ({"type": "string"}, "7", "7"),
        ({"type": "integer"}, "7", 7),
        ({"type": "boolean"}, "true", True),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": "object"}, {"a": 1}, {"a": 1}),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"type": "integer"}, "seven", "seven"),
    ],
)
def test_an_answer_is_read_by_the_schema_of_its_question(schema: Any, given: Any, value: Any) -> None:
    assert answer_in(message(given), asked(1, input_schema=schema)).value == value


@pytest.mark.parametrize(
    ("given", "action", "reason"),
    [
        ("Yes, go on", "approve", ""),
        ("no: too early", "reject", "no: too early"),
        ({"approved": True}, "approve", ""),
        ({"approved": False, "reason": "late"}, "reject", "late"),
    ],
)
def test_an_approval_is_read_from_a_word_or_from_data(given: Any, action: str, reason: str) -> None:
    answer = answer_in(message(given), asked(1, about="plan"))

    assert (answer.action, answer.reason) == (action, reason)
