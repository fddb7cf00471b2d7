"""A judge reviews an output. The output passes, is returned once with a reason, or ends the pipeline."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from support.core import WORKFLOW, WorkflowDriver, card, cards, failure

from pointsman.core.completion.caller_messages import generic_failure
from pointsman.core.replay.replayer import replay_log
from pointsman.core.views.trace import build_trace
from pointsman_schemas.card import Role
from pointsman_schemas.events import ErrorKind, PlanUsage
from pointsman_schemas.log import AttemptFailed, ReviewRequested, TaskSucceeded
from pointsman_schemas.role_io import Review
from pointsman_schemas.team import Check, Limits, Pipeline, RetryPolicy, Stage

STAGES = Pipeline(
    stages=(
        Stage(agent="find"),
        Stage(
            agent="write",
            intent="Write to the customer",
            check=Check(min_length=5, judge="reviewer", criteria="It promises nothing"),
        ),
        Stage(agent="send"),
    )
)
AGENTS = (card("find"), card("write", fallback="other"), *cards("send", "other"), card("reviewer", role=Role.JUDGE))
PASS = {"verdict": "pass", "reason": ""}
AGAIN = {"verdict": "again", "reason": "It names no amount."}
STOP = {"verdict": "stop", "reason": "It threatens the customer."}


def written(**given: Any) -> WorkflowDriver:
    """Return a pipeline whose second stage has a result."""
    story = WorkflowDriver(strategy=STAGES, cards=AGENTS, **given).start("refund me")
    story.complete_task("find", {"charge": "ch-1"})
    story.complete_task("write", "Dear customer")
    return story


def judge_of(story: WorkflowDriver) -> str:
    return next(task.id for task in story.state.tasks.values() if task.role is Role.JUDGE and not task.settled)


def test_judge_gets_the_output_the_intent_and_the_earlier_results() -> None:
    story = written()

    asked = story.handoff("judge-write")
    assert (asked.role, asked.to_agent) == (Role.JUDGE, "reviewer")
    assert asked.input == {
        "request": "refund me",
        "task_id": "write",
        "agent": "write",
        "intent": "Write to the customer",
        "criteria": "It promises nothing",
    }
    assert [(report.task_id, report.output) for report in asked.context] == [
        ("find", {"charge": "ch-1"}),
        ("write", "Dear customer"),
    ]


def test_nothing_continues_before_the_judge_has_let_it_pass() -> None:
    story = written()

    assert story.statuses() == {"find": "succeeded", "write": "in_review", "send": "waiting"}
    assert (story.state.phase, story.state.open_tasks) == ("running", 2)
    story.complete_task("judge-write", PASS)

    assert story.statuses() == {"find": "succeeded", "write": "succeeded", "send": "running"}
    assert [report.output for report in story.handoff("send").context] == [{"charge": "ch-1"}, "Dear customer"]
    story.complete_task("send", "sent")
    assert (story.outcome.status, story.outcome.answer) == ("completed", "sent")
    assert not list(replay_log(story.commits))


def test_usage_is_counted_once_before_the_review() -> None:
    story = written()
    asked, before = story.state.usage.calls, story.task("write")

    story.complete_task("judge-write", PASS)

    assert (asked, story.state.usage.calls) == (2, 3)
    assert (
        (before.usage.calls, before.work_seconds)
        == (story.task("write").usage.calls, story.task("write").work_seconds)
        == (1, 2.0)
    )


@pytest.mark.parametrize("said", [PASS, AGAIN, STOP])
def test_plan_usage_of_a_nested_stage_is_counted_once(said: Any) -> None:
    agents = (card("find"), card("write", team=True), card("send"), card("reviewer", role=Role.JUDGE))
    story = WorkflowDriver(strategy=STAGES, cards=agents).start()
    story.complete_task("find")
    story.complete_task("write", "Dear customer", plan_usage={"tasks": 2})

    story.complete_task("judge-write", said)

    assert story.state.child_plan_usage == PlanUsage(tasks=2)
    assert not list(replay_log(story.commits))


def test_output_that_fails_its_check_is_not_reviewed() -> None:
    story = WorkflowDriver(strategy=STAGES, cards=AGENTS).start()
    story.complete_task("find")

    story.complete_task("write", "Hm")

    assert story.entries_of(ReviewRequested) == []
    assert story.handoff("write").attempt == 2


def test_returned_stage_runs_again_at_once_with_the_review_as_feedback() -> None:
    story = written()

    story.complete_task("judge-write", AGAIN)

    handoff = story.handoff("write")
    assert (handoff.attempt, handoff.feedback) == (2, "reviewer returned the output: It names no amount.")
    assert story.task("write").not_before == story.now
    assert (story.task("write").result, story.task("write").returned_by_review) == (None, True)
    story.complete_task("write", "Dear customer, $49")
    assert story.handoff("judge-write-2").context[-1].output == "Dear customer, $49"
    story.complete_task("judge-write-2", PASS)
    story.complete_task("send", "sent")
    assert story.outcome.status == "completed"
    assert not list(replay_log(story.commits))


def test_stage_is_returned_once_and_then_the_judge_is_told() -> None:
    story = written(retry=RetryPolicy(attempts=5))
    story.complete_task("judge-write", AGAIN)
    story.complete_task("write", "Dear friend")

    asked = story.handoff("judge-write-2").input
    assert isinstance(asked, dict)
    assert asked["is_last_attempt"] is True
    story.complete_task("judge-write-2", AGAIN)

    assert story.outcome.status == "partial"
    assert story.outcome.answer == {"charge": "ch-1"}
    assert story.outcome.reason == (
        "the stage write of 3 could not be done: reviewer rejected the output, and no attempt is left: "
        "It names no amount.; done before it: find (2.00 s)"
    )
    assert not list(replay_log(story.commits))


def test_a_stage_without_attempts_is_not_returned() -> None:
    story = written(retry=RetryPolicy(attempts=1))

    asked = story.handoff("judge-write").input
    assert isinstance(asked, dict)
    assert asked["is_last_attempt"] is True
    story.complete_task("judge-write", AGAIN)

    assert story.outcome.status == "partial"


def test_a_judge_may_stop_the_pipeline_and_no_fallback_is_asked_instead() -> None:
    story = written()

    story.complete_task("judge-write", STOP)

    assert story.statuses() == {"find": "succeeded", "write": "failed", "send": "skipped"}
    assert story.entries_of(AttemptFailed)[-1].error.kind == "rejected"
    assert not story.task("write").returned_by_review
    assert "reviewer rejected the output: It threatens the customer." in story.outcome.reason
    assert "Dear customer" not in str(story.outcome.answer)
    assert not list(replay_log(story.commits))


def test_a_failed_judge_accepts_nothing() -> None:
    story = written()

    story.fail_task("judge-write", failure("provider_error"))

    assert story.outcome.status == "partial"
    assert "reviewer could not review the stage: provider_error was seen" in story.outcome.reason
    assert not list(replay_log(story.commits))


def test_judge_refusal_is_not_the_stages_and_is_hidden_from_the_caller() -> None:
    stages = Pipeline(stages=(Stage(agent="write", check=Check(judge="reviewer")),))
    story = WorkflowDriver(strategy=stages, cards=AGENTS).start()
    story.complete_task("write")

    story.fail_task("judge-write", failure("refused"), status="refused")

    assert story.outcome.answer == generic_failure(WORKFLOW)
    assert "reviewer could not review the stage: refused was seen" in story.outcome.reason


def test_invalid_review_is_not_shown_to_the_stage() -> None:
    story = written(retry=RetryPolicy(attempts=1))

    story.complete_task("judge-write", "fine")

    error = story.task("write").error
    assert error is not None
    assert error.kind == ErrorKind.HANDLER
    assert error.message.startswith("reviewer could not review the stage: the review does not fit")


@pytest.mark.parametrize("said", ["fine", {"verdict": "perhaps"}, {"verdict": "stop", "reason": " "}])
def test_judge_without_a_verdict_is_asked_again(said: Any) -> None:
    story = written()

    story.complete_task("judge-write", said)

    assert story.statuses()["write"] == "in_review"
    handoff = story.handoff("judge-write")
    assert handoff.attempt == 2
    assert handoff.feedback.endswith("expected a verdict of pass, again or stop, and a reason")


def test_a_result_that_comes_again_while_it_is_judged_changes_nothing() -> None:
    story = written()

    again = story.decide_and_apply(story.result("write", "Dear customer"))
    other = story.decide_and_apply(story.result("write", "Another", event_id="other"))

    assert again == ()
    assert [entry.kind for entry in other] == ["result_ignored"]
    story.complete_task("judge-write", PASS)
    assert story.entries_of(TaskSucceeded)[-1].result.output == "Dear customer"


def test_output_under_review_at_the_deadline_is_not_in_the_answer() -> None:
    story = written(limits=Limits(deadline=10, task_timeout=60))

    story.fire_timer()

    assert (story.outcome.status, story.outcome.answer) == ("partial", {"charge": "ch-1"})
    assert story.statuses()["write"] == "abandoned"


def test_trace_shows_the_reviewer_and_the_verdict() -> None:
    story = written()
    while_judged = build_trace(story.log).children[0].children
    story.complete_task("judge-write", AGAIN)
    story.complete_task("write", "Dear customer, $49")
    story.complete_task("judge-write-2", PASS)

    nodes = {node.task_id: node for node in build_trace(story.log).children[0].children}

    assert [node.status for node in while_judged] == ["succeeded", "in review", "handed over", "waiting"]
    assert [node.status for node in nodes["write"].children] == ["failed", "succeeded"]
    assert nodes["write"].children[0].detail == "insufficient: reviewer returned the output: It names no amount."
    assert nodes["write"].children[0].seconds == 2.0
    assert nodes["judge-write"].name == "judge reviewer"
    assert nodes["judge-write"].detail == "again: It names no amount."


def test_every_verdict_except_pass_needs_a_reason() -> None:
    with pytest.raises(ValidationError, match="a verdict of again needs a reason"):
        Review(verdict="again")

    assert Review(verdict="pass").reason == ""
