"""Agents and planners ask a person for information. An invalid answer has no effect. A question ends at its timeout."""

from __future__ import annotations

from typing import Any

import pytest
from support.core import WORKFLOW, WorkflowDriver, cards, failure, messages, plan, task

from pointsman.core.questions.answer_schema import MAX_ANSWER_BYTES
from pointsman.core.replay.replayer import replay_log
from pointsman_schemas.events import Question, QuestionRequest
from pointsman_schemas.log import ControlIgnored, PlanRejected, QuestionAnswered, QuestionAsked
from pointsman_schemas.team import Adaptive, Limits, PlanAndExecute

FIRST, SECOND = f"{WORKFLOW}-q1", f"{WORKFLOW}-q2"
ACCOUNT = {"type": "object", "properties": {"number": {"type": "string"}}, "required": ["number"]}


def question(key: str = "k1", **given: Any) -> QuestionRequest:
    return QuestionRequest(about="information", key=key, text="Which account?", **given)


def asking(*questions: QuestionRequest, **given: Any) -> WorkflowDriver:
    """Return a workflow with a succeeded task, and with a task `pay` that asks `questions`."""
    story = WorkflowDriver(cards=cards("worker", "payer"), **given).planned(task("look"), task("pay", "payer"))
    story.complete_task("look", {"found": 2})
    story.fail_task("pay", failure("needs_answer"), questions=questions)
    return story


def asked(story: WorkflowDriver) -> list[Question]:
    return [message.event for message in messages(story.state) if isinstance(message.event, Question)]


def test_question_shows_the_request_the_team_and_the_results_so_far() -> None:
    (shown,) = asked(asking(question(input_schema=ACCOUNT, has_default=True, default={"number": "1"})))

    assert (shown.id, shown.about, shown.text, shown.team) == (FIRST, "information", "Which account?", "team")
    assert (shown.task_id, shown.agent, shown.request) == ("pay", "payer", "do it")
    assert [(each.task_id, each.output) for each in shown.known] == [("look", {"found": 2})]
    assert (shown.input_schema, shown.has_default, shown.default) == (ACCOUNT, True, {"number": "1"})


def test_long_request_and_results_are_cut_in_a_question() -> None:
    story = WorkflowDriver(cards=cards("worker", "payer")).start("x" * 9_000)
    story.complete_task("plan-1", plan(task("look"), task("pay", "payer")))
    story.complete_task("look", ["y" * 9_000])
    story.fail_task("pay", failure("needs_answer"), questions=(question(),))

    (shown,) = asked(story)

    assert shown.request == "x" * 4_000 + "..."
    assert isinstance(shown.known[0].output, str)
    assert len(shown.known[0].output) == 4_003


def test_answer_that_fits_continues_the_task_with_the_answer() -> None:
    story = asking(question(input_schema=ACCOUNT))

    story.control("answer", question=FIRST, input={"number": "17"}, actor="Ann", event_id="e1")

    (answer,) = story.handoff("pay").answers
    assert (answer.key, answer.verdict, answer.input) == ("k1", "answered", {"number": "17"})
    assert (story.task("pay").status, story.task("pay").attempt) == ("running", 2)
    assert story.handoff("pay").continued_attempts == (1,)
    assert story.entries_of(QuestionAnswered)[0].by == "Ann"
    assert not list(replay_log(story.commits))


@pytest.mark.parametrize(
    ("action", "given", "fault"),
    [
        ("answer", {"number": 17}, "the answer does not fit the question: $.number: 17 is not of type 'string'"),
        ("answer", None, "the answer does not fit the question: $: None is not of type 'object'"),
        ("answer", {"number": "1" * MAX_ANSWER_BYTES}, "bytes of JSON; at most 65536 are allowed"),
        ("approve", None, "is about information: expected `answer` or `reject`, not `approve`"),
    ],
)
def test_wrong_answer_is_refused_with_the_fault_and_the_question_stays_open(
    action: Any, given: Any, fault: str
) -> None:
    story = asking(question(input_schema=ACCOUNT))

    story.control(action, question=FIRST, input=given, event_id="wrong")

    (ignored,) = story.entries_of(ControlIgnored)
    assert fault in ignored.reason
    assert [each.id for each in asked(story)] == [FIRST]
    assert not list(replay_log(story.commits))
    story.control("answer", question=FIRST, input={"number": "17"}, event_id="right")
    assert story.task("pay").status == "running"


def test_approval_takes_no_answer() -> None:
    story = WorkflowDriver(cards=cards("worker")).planned(task("a"))
    story.fail_task("a", failure("needs_answer"), questions=(QuestionRequest(tool="pay"),))

    story.control("answer", question=FIRST, input="yes", event_id="e1")

    assert "expected `approve` or `reject`, not `answer`" in story.entries_of(ControlIgnored)[0].reason
    assert [each.id for each in asked(story)] == [FIRST]


def test_several_questions_are_open_together_and_the_task_waits_for_all() -> None:
    story = asking(question("k1"), question("k2"), question("k1"))

    story.control("answer", question=SECOND, input="b", event_id="e2")
    between = story.task("pay").status
    story.control("answer", question=FIRST, input="a", event_id="e1")

    assert between == "awaiting_answer"
    assert [(each.key, each.input) for each in story.handoff("pay").answers] == [("k2", "b"), ("k1", "a")]


@pytest.mark.parametrize("default", [None, "tomorrow"])
def test_expired_question_continues_the_task_with_its_default(default: Any) -> None:
    story = asking(question(timeout=60.0, has_default=default is not None, default=default))

    story.wait(61).fire_timer()

    (answer,) = story.handoff("pay").answers
    assert (answer.verdict, answer.input) == ("expired", default)
    assert asked(story) == []


def test_timeout_of_a_question_cannot_exceed_the_limit_of_the_team() -> None:
    story = asking(question(timeout=9_999.0), limits=Limits(answer_timeout=60))

    (entry,) = story.entries_of(QuestionAsked)
    assert (entry.expires_at - entry.at).total_seconds() == 60


def test_person_may_decline_to_answer() -> None:
    story = asking(question())

    story.control("reject", question=FIRST, reason="ask Bo", event_id="e1")

    (answer,) = story.handoff("pay").answers
    assert (answer.verdict, answer.reason) == ("rejected", "ask Bo")


def test_more_questions_than_the_limit_fail_the_attempt() -> None:
    story = asking(question("k1"), question("k2"), limits=Limits(questions=1))

    assert asked(story) == []
    error = story.task("pay").error
    assert story.task("pay").status == "failed"
    assert error is not None
    assert "may ask 1 questions for information" in error.message


def test_approvals_do_not_count_as_questions_for_information() -> None:
    story = WorkflowDriver(cards=cards("worker"), limits=Limits(questions=0)).planned(task("a"))

    story.fail_task("a", failure("needs_answer"), questions=(QuestionRequest(tool="pay"),))

    assert [each.about for each in asked(story)] == ["tool"]


def test_deadline_is_suspended_while_a_question_is_open() -> None:
    story = asking(question(), limits=Limits(deadline=100, answer_timeout=10_000))
    before = story.state.deadline

    story.wait(1_000)
    story.control("answer", question=FIRST, input="a", event_id="e1")

    assert (story.state.deadline - before).total_seconds() == 1_000
    assert story.task("pay").status == "running"


# The planner


ASKS = {"goal": "", "tasks": [], "questions": [{"question": "For when?", "choices": ["today", "later"]}]}


@pytest.mark.parametrize("strategy", [PlanAndExecute(may_ask=True), Adaptive(may_ask=True)])
def test_planner_asks_first_and_plans_with_the_answer(strategy: Any) -> None:
    story = WorkflowDriver(cards=cards("worker"), strategy=strategy).start()
    assert story.handoff_input("plan-1")["may_ask"] is True

    story.complete_task("plan-1", ASKS)
    (shown,) = asked(story)
    story.control("answer", question=shown.id, input="now", event_id="wrong")
    story.control("answer", question=shown.id, input="today", event_id="right")

    assert (shown.text, shown.input_schema) == ("For when?", {"type": "string", "enum": ["today", "later"]})
    assert len(story.entries_of(ControlIgnored)) == 1
    assert story.handoff_input("plan-1")["answers"] == [{"question": "For when?", "answer": "today"}]
    story.complete_task("plan-1", plan(task("a")))
    assert story.statuses()["a"] == "running"
    assert not list(replay_log(story.commits))


def test_planner_gets_a_note_that_a_question_has_no_answer() -> None:
    story = WorkflowDriver(cards=cards("worker"), strategy=PlanAndExecute(may_ask=True)).start()
    story.complete_task("plan-1", ASKS)

    story.wait(86_401).fire_timer()

    said = [{"question": "For when?", "unanswered": "no answer arrived in time"}]
    assert story.handoff_input("plan-1")["answers"] == said
    story.complete_task("plan-1", {"goal": "", "tasks": [task("a", "ghost")]})
    assert story.handoff_input("plan-2")["answers"] == said  # the planner that repairs the plan gets the answers, too


def test_planner_that_may_not_ask_is_told_to_plan() -> None:
    story = WorkflowDriver(cards=cards("worker")).start()

    story.complete_task("plan-1", ASKS)

    assert asked(story) == []
    assert story.entries_of(PlanRejected)[0].problems == (
        "the plan asks questions, but this planner may ask no further question; plan without answers",
    )
    assert "may_ask" not in story.handoff_input("plan-2")
