"""Operators cancel and replay. A repeated control has an effect only once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.core import WorkflowDriver, admission, card, cards, failure, messages, task

from pointsman.core.model.inputs import ControlReceived, RequestReceived
from pointsman_schemas.card import Role
from pointsman_schemas.events import Control, Request, Usage
from pointsman_schemas.log import TaskAbandoned, WorkflowEnded
from pointsman_schemas.team import Limits, RetryPolicy, Router


def planning() -> WorkflowDriver:
    return WorkflowDriver().start()


def classifying() -> WorkflowDriver:
    return WorkflowDriver(strategy=Router()).start()


def running() -> WorkflowDriver:
    return WorkflowDriver().planned(task("a"), task("b", needs=["a"]))


def backing_off() -> WorkflowDriver:
    story = running()
    story.fail_task("a", failure(retryable=True))
    return story


def synthesizing() -> WorkflowDriver:
    story = WorkflowDriver().planned(task("a"))
    story.complete_task("a")
    return story


@pytest.mark.parametrize("begin", [planning, classifying, running, backing_off, synthesizing])
def test_a_cancel_ends_the_workflow_in_any_phase(begin: Callable[[], WorkflowDriver]) -> None:
    story = begin()
    open_tasks = {each.id for each in story.state.tasks.values() if not each.settled}

    story.control("cancel", actor="ops", reason="not needed")

    assert (story.outcome.status, story.outcome.reason) == ("cancelled", "cancelled by ops: not needed")
    assert {entry.task_id for entry in story.entries_of(TaskAbandoned)} == open_tasks
    assert [message.id for message in messages(story.state)] == ["wf_1-outcome"]


def test_many_cancels_have_one_effect() -> None:
    story = running()
    cancels = [ControlReceived(f"cancel-{number}", Control(action="cancel"), "ada") for number in range(5)]

    story.decide_and_apply(*cancels)
    story.decide_and_apply(*cancels)

    assert len(story.entries_of(WorkflowEnded)) == 1
    assert story.outcome.reason == "cancelled by ada"


def test_cancel_wins_over_a_result_beyond_a_limit() -> None:
    story = WorkflowDriver(limits=Limits(calls=4)).planned(task("a"))

    story.decide_and_apply(
        story.result("a", usage=Usage(calls=9)), ControlReceived("cancel", Control(action="cancel"), "ada")
    )

    assert (story.outcome.status, story.outcome.reason) == ("cancelled", "cancelled by ada")


def test_a_control_for_a_workflow_that_never_started_has_no_effect() -> None:
    assert WorkflowDriver().decide_and_apply(ControlReceived("cancel", Control(action="cancel"), "ada")) == ()


def test_only_a_cancel_keeps_a_request_that_it_came_with_from_beginning() -> None:
    begun, unwanted = WorkflowDriver(), WorkflowDriver()
    request = RequestReceived(admission(begun.strategy, begun.limits), Request(input="do it"))

    begun.decide_and_apply(ControlReceived("answer", Control(action="approve", question="no-such"), "ada"), request)
    unwanted.decide_and_apply(ControlReceived("cancel", Control(action="cancel"), "ada"), request)

    assert begun.handoff("plan-1").to_agent == "planner"
    assert (unwanted.outcome.status, unwanted.outcome.tasks) == ("cancelled", ())


def broken() -> WorkflowDriver:
    """Return a workflow in which `a` has failed, its dependents are skipped, and `x` still runs."""
    story = WorkflowDriver(retry=RetryPolicy(attempts=1)).planned(
        task("a"), task("b", needs=["a"]), task("c", needs=["b"]), task("x"), task("y", needs=["x"])
    )
    story.fail_task("a")
    assert story.statuses() == {"a": "failed", "b": "skipped", "c": "skipped", "x": "running", "y": "waiting"}
    return story


def test_replayed_task_has_one_more_attempt_and_its_dependents_wait() -> None:
    story = broken()

    story.control("replay", task_id="a", actor="ops")

    assert story.statuses() == {"a": "running", "b": "waiting", "c": "waiting", "x": "running", "y": "waiting"}
    assert story.handoff("a").attempt == 2
    for name in ("x", "a", "b", "y", "c"):
        story.complete_task(name)
    story.complete_task("synthesis", {"answer": "all of it"})
    assert (story.outcome.status, story.outcome.gaps) == ("completed", ())


def test_a_replayed_task_that_fails_again_skips_its_dependants_again() -> None:
    story = broken()
    story.control("replay", task_id="a")

    story.fail_task("a", failure(retryable=True))

    assert story.statuses() == {"a": "failed", "b": "skipped", "c": "skipped", "x": "running", "y": "waiting"}


def test_a_replay_delivered_again_after_the_task_failed_again_changes_nothing() -> None:
    story = broken()
    story.control("replay", task_id="a", event_id="once")
    story.fail_task("a")

    assert story.control("replay", task_id="a", event_id="once") == ()
    assert story.control("replay", task_id="a", event_id="twice") != ()


def test_the_dead_letters_of_two_failures_are_two() -> None:
    story = broken()
    (first,) = [each for each in messages(story.state) if ".dead." in each.subject]
    story.control("replay", task_id="a")
    assert not [each for each in messages(story.state) if ".dead." in each.subject]
    story.fail_task("a")

    (second,) = [each for each in messages(story.state) if ".dead." in each.subject]

    assert first.id != second.id


def test_a_replay_while_the_answer_is_written_comes_too_late() -> None:
    story = WorkflowDriver(retry=RetryPolicy(attempts=1)).planned(task("a"), task("b"))
    story.fail_task("a")
    story.complete_task("b")

    assert story.control("replay", task_id="a") == ()


def test_a_refiner_that_failed_cannot_be_replayed() -> None:
    story = WorkflowDriver(cards=(*cards("worker"), card("refiner", role=Role.REFINE))).planned(task("a"))
    story.fail_task("a", failure(retryable=True))
    story.wait(10).fail_task("a", failure(retryable=True))
    (refiner,) = (each.id for each in story.state.tasks.values() if each.role is Role.REFINE)
    story.fail_task(refiner)

    assert story.control("replay", task_id=refiner) == ()


@pytest.mark.parametrize("task_id", ["x", "b", "plan-1", "nowhere", None])
def test_only_a_failed_task_of_the_plan_can_be_replayed(task_id: str | None) -> None:
    assert broken().control("replay", task_id=task_id) == ()


def test_dependent_of_two_failures_waits_for_the_replayed_one() -> None:
    story = WorkflowDriver().planned(task("a"), task("b"), task("c", needs=["a", "b"]), task("x"))
    story.fail_task("a")
    story.fail_task("b")
    story.control("replay", task_id="a")
    assert story.statuses()["c"] == "waiting"

    story.complete_task("a")

    assert story.statuses()["c"] == "skipped"


def test_a_replay_while_another_plan_is_made_leaves_no_task_behind() -> None:
    story = WorkflowDriver(limits=Limits(replans=1)).planned(
        task("a"), task("w"), task("b", needs=["a", "w"]), task("x")
    )
    story.fail_task("a")
    story.complete_task("x", replan_hint="look elsewhere")
    story.control("replay", task_id="a")

    story.complete_task("plan-2", {"goal": "", "tasks": [task("z", needs=["a"])]})
    story.complete_task("w")
    story.complete_task("a")
    story.complete_task("z")

    assert story.statuses() == {"a": "succeeded", "w": "succeeded", "x": "succeeded", "z": "succeeded"}
    assert story.state.phase == "synthesizing"
