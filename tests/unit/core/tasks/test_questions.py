"""Guarded work waits for a person. An answer counts once. Without an answer the work is rejected."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from support.core import WORKFLOW, WorkflowDriver, admission, card, cards, failure, messages, plan, task

from pointsman.core.evolve import open_questions
from pointsman.core.model.agent_health import Circuit
from pointsman.core.model.inputs import RequestReceived
from pointsman.core.replay.replayer import replay_log
from pointsman_schemas.events import Answer, Question, QuestionRequest, Request
from pointsman_schemas.log import ControlIgnored, PlanRejected, QuestionAnswered, QuestionAsked
from pointsman_schemas.team import Limits, Pipeline, PlanAndExecute, RetryPolicy, Stage, Team

GUARDED = (card("worker"), card("guarded", approval="required"))
WAITS = "awaiting_answer"
FIRST, SECOND = f"{WORKFLOW}-q1", f"{WORKFLOW}-q2"


def guarded(*more: dict[str, Any], **given: Any) -> WorkflowDriver:
    """Return a workflow whose task `pay` needs approval."""
    return WorkflowDriver(cards=GUARDED, **given).planned(task("pay", "guarded"), *more)


def asked(story: WorkflowDriver) -> list[Question]:
    return [message.event for message in messages(story.state) if isinstance(message.event, Question)]


def approve(story: WorkflowDriver, name: str = FIRST, **given: Any) -> None:
    story.control("approve", question=name, actor="Ann", event_id=given.pop("event_id", f"yes-{name}"), **given)


def of_team(**given: Any) -> WorkflowDriver:
    """Return a workflow of a team that approves its plans."""
    story = WorkflowDriver(**given)
    admitted = admission(story.strategy, story.limits)
    team = Team(name="team", strategy=story.strategy, limits=story.limits, approve_plan=True)
    story.decide_and_apply(RequestReceived(replace(admitted, team=team), Request(input="do it")))
    return story


def stay_silent(story: WorkflowDriver) -> None:
    """Fire timers until no question is open."""
    while story.state.questions:
        assert story.fire_timer()


def same_again(story: WorkflowDriver) -> bool:
    return not list(replay_log(story.commits))


def test_guarded_task_starts_once_approved() -> None:
    story = guarded(task("look", "worker"))

    assert story.statuses() == {"pay": WAITS, "look": "running"}
    (question,) = asked(story)
    assert (question.id, question.about, question.task_id, question.agent) == (FIRST, "task", "pay", "guarded")
    assert question.input == {"request": "do it"}
    approve(story)

    assert story.statuses()["pay"] == "running"
    assert asked(story) == []
    assert story.entries_of(QuestionAnswered)[0].by == "Ann"


@pytest.mark.parametrize(("task_id", "status"), [("synthesis", "failed"), ("a", "refused")])
def test_only_work_that_waits_for_a_person_asks_one(task_id: str, status: Any) -> None:
    story = WorkflowDriver().planned(task("a"))
    if task_id == "synthesis":
        story.complete_task("a")

    story.fail_task(task_id, failure("needs_answer"), status=status, questions=(QuestionRequest(tool="pay"),))

    assert asked(story) == []
    assert story.task(task_id).status == "failed"


def test_a_plan_may_ask_for_a_person_itself() -> None:
    story = WorkflowDriver().planned({**task("pay"), "approval": "required"})

    assert story.statuses() == {"pay": WAITS}


def test_edited_input_reaches_the_agent() -> None:
    story = guarded()

    approve(story, input={"amount": 5})

    assert story.handoff("pay").input == {"amount": 5}


def test_retry_needs_no_second_approval() -> None:
    story = guarded()
    approve(story)

    story.fail_task("pay", failure(retryable=True))

    assert story.statuses()["pay"] == "backing_off"
    assert asked(story) == []


def test_rejected_task_fails_with_the_reason_and_its_dependents_are_skipped() -> None:
    story = guarded(task("tell", needs=["pay"]), task("look"))

    story.control("reject", question=FIRST, reason="too much", actor="Ann")

    assert story.statuses() == {"pay": "failed", "tell": "skipped", "look": "running"}
    error = story.task("pay").error
    assert error is not None
    assert (error.kind, error.message) == ("rejected", "the task was not allowed: too much")


def test_rejecting_person_is_in_the_log_and_not_in_the_answer() -> None:
    story = guarded(task("look"))
    story.control("reject", question=FIRST, reason="too much", actor="Ann")

    story.complete_task("look")

    assert story.entries_of(QuestionAnswered)[0].by == "Ann"
    asked = story.handoff("synthesis").model_dump_json()
    assert "the task was not allowed: too much" in asked
    assert "Ann" not in asked


def test_approved_plan_waits_for_a_missing_skill() -> None:
    story = of_team(cards=(card("quick", skills=("translation",)), card("worker")))
    story.complete_task("plan-1", plan(task("t1", skill="translation")))

    story.cards = (card("worker"),)
    approve(story)

    assert story.handoff("t1").to_agent == "quick"
    assert same_again(story)


def test_approval_of_a_replaced_plan_is_withdrawn() -> None:
    story = guarded(task("look"), limits=Limits(replans=1, plan_repairs=0))

    story.complete_task("look", replan_hint="there is a better way")
    assert open_questions(story.log) == {FIRST}
    story.complete_task("plan-2", "no idea")

    assert open_questions(story.log) == set(story.state.questions) == {SECOND}


def test_rejected_work_is_not_asked_about_again_without_a_new_plan() -> None:
    story = guarded(task("tell", needs=["pay"]), limits=Limits(replans=1, plan_repairs=0))

    story.control("reject", question=FIRST, reason="too much", actor="Ann")
    story.complete_task("plan-2", "no idea")

    assert [entry.question for entry in story.entries_of(QuestionAsked)] == [FIRST]
    assert story.statuses() == {"pay": "failed", "tell": "skipped"}
    assert story.outcome.status == "failed"
    assert {gap.task_id for gap in story.outcome.gaps} == {"pay", "tell"}
    assert same_again(story)


def test_rejected_work_stays_a_gap_after_a_replan() -> None:
    story = guarded(limits=Limits(replans=1))

    story.control("reject", question=FIRST, reason="too much", actor="Ann")
    story.complete_task("plan-2", plan(task("ask")))
    story.complete_task("ask")

    assert story.statuses() == {"pay": "failed", "ask": "succeeded"}
    assert story.entries_of(QuestionAsked)[-1].question == FIRST


def test_a_question_without_an_answer_is_rejected() -> None:
    story = guarded(limits=Limits(answer_timeout=3600))

    stay_silent(story)

    assert story.state.ended
    assert story.outcome.gaps[0].reason == "the task was rejected: its approval got no answer within 1 h"
    assert same_again(story)


def test_timer_is_armed_for_the_expiry_of_an_approval() -> None:
    story = guarded(task("look", "worker"), limits=Limits(answer_timeout=5))

    assert story.state.timer_due == story.state.questions[FIRST].expires_at


def test_the_time_a_person_takes_does_not_count_against_the_deadline() -> None:
    story = guarded(limits=Limits(deadline=60))
    before = story.state.deadline

    story.wait(3600)
    approve(story)

    assert not story.state.ended
    assert (story.state.deadline - before).total_seconds() == 3600
    assert story.state.timer_due is not None
    assert story.state.timer_due <= story.state.deadline


def test_several_wait_at_once_and_each_is_answered_by_its_id() -> None:
    story = guarded(task("pay2", "guarded"))
    assert {question.reply_to for question in asked(story)} == {f"pointsman.control.team.{WORKFLOW}"}

    story.control("reject", question=SECOND, reason="no", actor="Ann")

    assert story.statuses() == {"pay": WAITS, "pay2": "failed"}
    assert [question.id for question in asked(story)] == [FIRST]


@pytest.mark.parametrize("action", ["approve", "reject"])
def test_a_second_answer_changes_nothing_and_reports_it(action: str) -> None:
    story = guarded()
    approve(story)
    before = story.state

    story.control(action, question=FIRST, event_id="again")

    assert "was answered" in story.entries_of(ControlIgnored)[0].reason
    assert story.state.tasks == before.tasks
    assert not story.control(action, question=FIRST, event_id="again"), "a redelivered answer must have no effect"
    assert same_again(story)


def test_an_answer_after_the_expiry_changes_nothing() -> None:
    story = guarded(task("look"), limits=Limits(answer_timeout=60, task_timeout=600))

    story.wait(61)
    approve(story)

    assert "expired" in story.entries_of(ControlIgnored)[0].reason
    assert story.statuses()["pay"] == "failed"


def test_an_answer_after_the_end_changes_nothing() -> None:
    story = guarded()
    story.control("cancel")

    approve(story)

    assert story.outcome.status == "cancelled"
    assert story.state.questions == {}


def test_a_fallback_that_is_guarded_waits_for_a_person_too() -> None:
    agents = (card("worker", fallback="guarded"), card("guarded", approval="required"))
    story = WorkflowDriver(cards=agents).planned(task("pay", "worker"))

    story.fail_task("pay")

    assert story.statuses() == {"pay": WAITS}
    approve(story)
    assert story.handoff("pay").to_agent == "guarded"


def test_nothing_of_a_plan_runs_before_it_is_approved() -> None:
    story = of_team()

    story.complete_task("plan-1", plan(task("t1")))

    assert story.state.phase == "planning"
    assert story.statuses() == {}
    assert asked(story)[0].about == "plan"
    approve(story)
    assert story.statuses() == {"t1": "running"}
    question = story.entries_of(QuestionAsked)[0]
    assert question.plan is not None
    assert question.revision == 1


def test_an_edited_plan_is_checked_like_any_other() -> None:
    story = of_team()
    story.complete_task("plan-1", plan(task("t1")))

    approve(story, input=plan(task("t9", "ghost")), event_id="bad")
    assert "names the agent 'ghost'" in story.entries_of(ControlIgnored)[0].reason
    approve(story, input=plan(task("t9", "other")))

    assert story.statuses() == {"t9": "running"}
    assert same_again(story)


def test_a_rejected_plan_goes_back_to_the_planner_with_the_reason() -> None:
    story = of_team()
    story.complete_task("plan-1", plan(task("t1")))

    story.control("reject", question=FIRST, reason="not on a Sunday", actor="Ann")

    assert story.entries_of(PlanRejected)[0].problems == ("the plan was not allowed: not on a Sunday",)
    assert story.handoff_input("plan-2")["problems"] == ["the plan was not allowed: not on a Sunday"]


def test_unanswered_plan_ends_the_workflow() -> None:
    story = of_team(limits=Limits(answer_timeout=60))
    story.complete_task("plan-1", plan(task("t1")))

    stay_silent(story)

    assert story.outcome.status == "failed"
    assert "the plan was rejected: its approval got no answer" in story.outcome.reason


def test_unanswered_replan_keeps_the_current_plan() -> None:
    story = of_team(limits=Limits(answer_timeout=60, replans=1))
    story.complete_task("plan-1", plan(task("t1"), task("t2", needs=["t1"])))
    approve(story)
    story.complete_task("t1", replan_hint="another way")
    story.complete_task("plan-2", plan(task("t3")))

    stay_silent(story)

    assert story.statuses() == {"t1": "succeeded", "t2": "running"}


def test_approved_task_that_waits_for_its_agent_is_not_asked_about_again() -> None:
    story = guarded()
    story.circuits = {"guarded": Circuit(since=story.now, until=story.now + timedelta(seconds=30))}
    approve(story)
    assert story.statuses() == {"pay": "held"}

    story.circuits = {}
    story.wait(30)
    story.fire_timer()

    assert story.statuses() == {"pay": "running"}


def test_held_task_asks_for_no_approval() -> None:
    story = WorkflowDriver(cards=GUARDED)
    story.circuits = {"guarded": Circuit(since=story.now, until=story.now + timedelta(seconds=30))}

    story.planned(task("pay", "guarded"))

    assert (story.statuses(), asked(story)) == ({"pay": "held"}, [])


def test_rejected_fallback_work_is_not_asked_about_again() -> None:
    story = of_team(strategy=PlanAndExecute(fallback="other"), limits=Limits(plan_repairs=0))
    story.complete_task("plan-1", "no idea")
    assert [question.about for question in asked(story)] == ["plan"]

    story.control("reject", question=FIRST, actor="Ann")

    assert story.outcome.status == "failed"
    assert not story.state.questions


def test_a_fixed_plan_can_be_rejected() -> None:
    story = of_team(strategy=Pipeline(stages=(Stage(agent="worker"),)), cards=cards("worker"))

    story.control("reject", question=FIRST, actor="Ann")

    assert (story.outcome.status, story.outcome.reason) == ("failed", "the plan was not allowed")


SCHEMA: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "integer"}}}


def calls(story: WorkflowDriver, *wanted: dict[str, Any]) -> None:
    """End the attempt of `t1` with questions about the approval of these calls."""
    asking = [{"tool": "refund", "arguments": each, "input_schema": SCHEMA} for each in wanted]
    story.fail_task("t1", error=None, questions=asking)


def test_attempt_continues_once_each_tool_call_is_answered() -> None:
    story = WorkflowDriver(retry=RetryPolicy(attempts=1)).planned(task("t1"))

    calls(story, {"id": 1}, {"id": 2}, {"id": 2})
    assert [question.input for question in asked(story)] == [{"id": 1}, {"id": 2}]
    assert [(each.agent, each.input_schema) for each in story.entries_of(QuestionAsked)] == [("worker", SCHEMA)] * 2
    approve(story, input={"id": 7})
    assert story.statuses() == {"t1": WAITS}
    story.control("reject", question=SECOND, reason="no", actor="Bo")

    assert story.task("t1").attempt == 2
    assert story.handoff("t1").answers == (
        Answer(tool="refund", arguments={"id": 1}, verdict="approved", input={"id": 7}, by="Ann"),
        Answer(tool="refund", arguments={"id": 2}, verdict="rejected", reason="no", by="Bo"),
    )
    story.complete_task("t1")
    assert story.task("t1").status == "succeeded"
    assert same_again(story)


def test_attempt_that_asks_for_approval_counts_against_no_limit() -> None:
    story = WorkflowDriver(retry=RetryPolicy(attempts=2)).planned(task("t1"))
    calls(story, {"id": 1})
    approve(story)

    story.fail_task("t1", failure(retryable=True))
    assert (story.task("t1").attempt, story.statuses()["t1"]) == (3, "backing_off")
    story.fail_task("t1", failure(retryable=True))

    assert story.statuses()["t1"] == "failed"


def test_agent_is_told_that_its_approval_expired() -> None:
    story = WorkflowDriver(limits=Limits(answer_timeout=60)).planned(task("t1"))
    calls(story, {"id": 1})

    stay_silent(story)

    assert story.handoff("t1").answers[0].verdict == "expired"


def test_arguments_that_are_no_object_are_no_answer() -> None:
    story = WorkflowDriver().planned(task("t1"))
    calls(story, {"id": 1})

    approve(story, input="seven")

    assert story.entries_of(ControlIgnored)[0].reason == "the arguments of a tool are an object"
    assert len(asked(story)) == 1


@pytest.mark.parametrize(("second", "status"), [("succeeds", "completed"), ("fails", "partial")])
def test_edited_pipeline_ends_by_its_edited_plan(second: str, status: str) -> None:
    story = of_team(strategy=Pipeline(stages=(Stage(agent="worker"), Stage(agent="other"))))
    approve(story, input=plan(task("worker"), task("instead", "other", ["worker"])))
    story.complete_task("worker")

    story.complete_task("instead", "done") if second == "succeeds" else story.fail_task("instead")

    assert story.outcome.status == status
    assert story.outcome.answer == ("done" if second == "succeeds" else {"from": "worker"})
    assert same_again(story)
