"""The stages of a pipeline run in order with checks and feedback. The outcome states the progress."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from support.core import WorkflowDriver, cards, failure

from pointsman_schemas.log import AttemptFailed
from pointsman_schemas.team import Check, Limits, Pipeline, RetryPolicy, Stage

STAGES = Pipeline(
    stages=(
        Stage(agent="extract", check=Check(fields=("customer",))),
        Stage(agent="decide", check=Check(mentions=("approved", "denied"))),
        Stage(agent="write", check=Check(min_length=20)),
    )
)
LONG = "Your refund was approved and is on its way."


def begun(**given: Any) -> WorkflowDriver:
    return WorkflowDriver(strategy=STAGES, cards=cards("extract", "decide", "write"), **given).start("refund me")


def test_stages_run_in_order_with_the_results_before_them() -> None:
    story = begun()

    assert story.statuses() == {"extract": "running", "decide": "waiting", "write": "waiting"}
    story.complete_task("extract", {"customer": "C-1"})
    story.complete_task("decide", "approved")

    handoff = story.handoff("write")
    assert [(report.task_id, report.output) for report in handoff.context] == [
        ("extract", {"customer": "C-1"}),
        ("decide", "approved"),
    ]
    assert handoff.input == {"request": "refund me"}


def test_the_last_stage_gives_the_answer() -> None:
    story = begun()
    story.complete_task("extract", {"customer": "C-1"})
    story.complete_task("decide", "approved")

    story.complete_task("write", LONG)

    assert (story.outcome.status, story.outcome.answer) == ("completed", LONG)


def test_insufficient_output_is_requested_again_at_once_with_the_reason() -> None:
    story = begun()

    story.complete_task("extract", {"customer": ""})

    handoff = story.handoff("extract")
    assert (handoff.attempt, handoff.feedback) == (2, "the output lacks customer, or has an empty value there")
    assert story.task("extract").not_before == story.now
    assert story.entries_of(AttemptFailed)[0].error.kind == "insufficient"


def test_usage_of_an_insufficient_attempt_is_counted() -> None:
    story = begun()
    story.complete_task("extract", "nothing")
    story.complete_task("extract", {"customer": "C-1"})

    assert story.state.usage.calls == 2


def test_feedback_is_of_the_check_alone() -> None:
    story = begun()

    story.fail_task("extract", failure(retryable=True))

    assert story.handoff("extract").feedback == ""


@pytest.mark.parametrize(
    ("check", "output", "why"),
    [
        (Check(fields=("a", "b")), "text", "the output is not a JSON object; expected one with a, b"),
        (Check(fields=("a", "b")), {"a": 0, "b": []}, "the output lacks b, or has an empty value there"),
        (Check(mentions=("approved", "denied")), {"approved": False}, "the output must state one of: approved, denied"),
        (Check(mentions=("approved",)), "disapproved", "the output must state one of: approved"),
        (Check(min_length=5), {"say": ["no"]}, "the output has 2 characters; at least 5 are expected"),
        (Check(min_length=5), "1234", "the output has 4 characters; at least 5 are expected"),
    ],
)
def test_check_names_the_missing_fields(check: Check, output: Any, why: str) -> None:
    story = WorkflowDriver(strategy=Pipeline(stages=(Stage(agent="worker", check=check),))).start()

    story.complete_task("worker", output)

    assert story.handoff("worker").feedback == why


@pytest.mark.parametrize(
    ("check", "output"),
    [
        (Check(), None),
        (Check(fields=("a",)), {"a": False}),
        (Check(mentions=("approved", "denied")), {"verdict": "DENIED: too late"}),
        (Check(min_length=5), "12345"),
    ],
)
def test_check_passes_complete_output(check: Check, output: Any) -> None:
    story = WorkflowDriver(strategy=Pipeline(stages=(Stage(agent="worker", check=check),))).start()

    story.decide_and_apply(story.result("worker", output))

    assert (story.outcome.status, story.outcome.answer) == ("completed", output)


def test_insufficient_stage_ends_the_pipeline_with_the_results_and_times() -> None:
    story = begun(retry=RetryPolicy(attempts=2))
    story.complete_task("extract", {"customer": "C-1"})

    story.complete_task("decide", "hm")
    story.complete_task("decide", "hm again")

    assert story.outcome.status == "partial"
    assert story.outcome.answer == {"customer": "C-1"}
    assert story.outcome.reason == (
        "the stage decide of 3 could not be done: the output must state one of: approved, denied; "
        "done before it: extract (2.00 s)"
    )
    assert [gap.task_id for gap in story.outcome.gaps] == ["decide", "write"]


def test_failed_first_stage_fails_the_pipeline() -> None:
    story = begun()

    story.fail_task("extract")

    assert story.outcome.status == "failed"
    assert story.outcome.reason.startswith("the stage extract of 3 could not be done: provider_error")


def test_refusal_of_the_first_stage_reaches_the_caller() -> None:
    story = begun()

    story.fail_task("extract", failure("refused"))

    assert (story.outcome.status, "because refused was seen" in str(story.outcome.answer)) == ("failed", True)


def test_the_deadline_is_named_with_the_stage_it_came_in() -> None:
    story = begun(limits=Limits(deadline=10, task_timeout=60))
    story.complete_task("extract", {"customer": "C-1"})

    story.fire_timer()

    assert story.outcome.status == "partial"
    assert "the stage decide of 3 could not be done: the deadline of 10 s was reached" in story.outcome.reason


def test_stage_given_as_text_is_refused_with_the_right_form() -> None:
    with pytest.raises(ValidationError, match=r"write Stage\(agent='write'\)"):
        Pipeline.model_validate({"stages": ["write"]})


def test_two_stages_of_one_agent_need_names() -> None:
    with pytest.raises(ValidationError, match="two stages are called write"):
        Pipeline(stages=(Stage(agent="write"), Stage(agent="write")))

    assert Pipeline(stages=(Stage(agent="write"), Stage(agent="write", name="again"))).stages[1].name == "again"
