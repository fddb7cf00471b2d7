"""A task that failed twice is reworded once and tried again, within its number of attempts."""

from __future__ import annotations

from support.core import WorkflowDriver, card, cards, failure, task

from pointsman.core.replay.replayer import replay_log
from pointsman_schemas.card import Role
from pointsman_schemas.log import TaskRefined
from pointsman_schemas.team import RetryPolicy

AGENTS = (*cards("worker", "other"), card("refiner", role=Role.REFINE))


def failed_twice() -> WorkflowDriver:
    story = WorkflowDriver(cards=AGENTS, retry=RetryPolicy(attempts=4)).planned(task("t1"))
    story.fail_task("t1", failure("invalid_output", retryable=True))
    story.fail_task("t1", failure("invalid_output", retryable=True))
    return story


def refiner_of(story: WorkflowDriver) -> str:
    return story.task("t1").refined_by


def test_after_the_second_failure_the_refiner_is_asked_and_knows_the_error() -> None:
    story = failed_twice()

    assert story.statuses() == {"t1": "refining"}
    asked = story.handoff(refiner_of(story))
    assert asked.role is Role.REFINE
    assert isinstance(asked.input, dict)
    assert asked.input["error"] == "invalid_output: invalid_output was seen"
    assert (asked.input["attempts"], asked.input["request"]) == (2, "do it")
    assert (asked.input["agent"], asked.input["agent_description"]) == ("worker", "does what worker does")
    assert asked.input["intent"] == "do the work of t1"
    assert "task_input" not in asked.input  # the task's input is the request, which is already there


def test_refiner_gets_the_input_of_the_task() -> None:
    story = WorkflowDriver(cards=AGENTS).planned({**task("t1"), "input": {"port": "Kiel"}})

    story.fail_task("t1", failure(retryable=True))
    story.fail_task("t1", failure(retryable=True))

    asked = story.handoff_input(refiner_of(story))
    assert asked["task_input"] == {"port": "Kiel"}


def test_next_attempt_has_the_refined_intent_and_the_limit_of_attempts_stays() -> None:
    story = failed_twice()

    story.complete_task(refiner_of(story), {"intent": "do it in JSON"})

    assert story.statuses() == {"t1": "backing_off"}
    assert story.handoff("t1").intent == "do it in JSON"
    assert story.task("t1").attempt == 3
    assert not list(replay_log(story.commits))
    story.fail_task("t1", failure(retryable=True))
    assert story.statuses() == {"t1": "backing_off"}, "a task must not be refined twice"
    story.fail_task("t1", failure(retryable=True))
    assert story.statuses() == {"t1": "failed"}


def test_a_refiner_that_fails_or_talks_leaves_the_task_as_it_was() -> None:
    for answer in ("fails", "talks"):
        story = failed_twice()

        if answer == "fails":
            story.fail_task(refiner_of(story))
        else:
            story.complete_task(refiner_of(story), "hm")

        assert story.statuses() == {"t1": "backing_off"}
        assert story.handoff("t1").intent == "do the work of t1"
        assert story.entries_of(TaskRefined)[0].intent == ""


def test_without_a_refiner_a_task_is_tried_again_as_it_was() -> None:
    story = WorkflowDriver().planned(task("t1"))
    story.fail_task("t1", failure(retryable=True))
    story.fail_task("t1", failure(retryable=True))

    assert story.statuses() == {"t1": "backing_off"}


def test_a_team_without_a_refiner_uses_none_even_if_one_is_live() -> None:
    story = WorkflowDriver(cards=AGENTS, refiner=None).planned(task("t1"))
    story.fail_task("t1", failure(retryable=True))
    story.fail_task("t1", failure(retryable=True))

    assert story.statuses() == {"t1": "backing_off"}


def test_a_result_during_a_refinement_has_no_effect() -> None:
    story = failed_twice()

    story.decide_and_apply(story.result("t1", {"late": True}, event_id="late"))

    assert story.statuses() == {"t1": "refining"}
