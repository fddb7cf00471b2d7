"""Operators cancel and replay; whatever they do twice happens once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.core import Story, admission, card, cards, failure, messages, task

from pointsman.core.model.inputs import ControlReceived, RequestReceived
from pointsman_schemas.card import Role
from pointsman_schemas.events import Control, Request, Usage
from pointsman_schemas.log import TaskAbandoned, WorkflowEnded
from pointsman_schemas.team import Limits, Router


def planning() -> Story:
    return Story().start()


def classifying() -> Story:
    return Story(strategy=Router()).start()


def running() -> Story:
    return Story().planned(task("a"), task("b", needs=["a"]))


def backing_off() -> Story:
    story = running()
    story.fail("a", failure(retryable=True))
    return story


def synthesizing() -> Story:
    story = Story().planned(task("a"))
    story.succeed("a")
    return story


@pytest.mark.parametrize("begin", [planning, classifying, running, backing_off, synthesizing])
def test_a_cancel_ends_the_workflow_in_any_phase(begin: Callable[[], Story]) -> None:
    story = begin()
    open_tasks = {each.id for each in story.state.tasks.values() if not each.settled}

    story.control("cancel", by="ops", reason="not needed")

    assert (story.outcome.status, story.outcome.reason) == ("cancelled", "cancelled by ops: not needed")
    assert {entry.task_id for entry in story.of(TaskAbandoned)} == open_tasks
    assert [message.id for message in messages(story.state)] == ["wf_1-outcome"]


def test_many_cancels_are_one() -> None:
    story = running()
    cancels = [ControlReceived(f"cancel-{number}", Control(action="cancel")) for number in range(5)]

    story.feed(*cancels)
    story.feed(*cancels)

    assert len(story.of(WorkflowEnded)) == 1
    assert story.outcome.reason == "cancelled"


def test_a_cancel_that_comes_with_a_result_beyond_a_limit_is_a_cancel() -> None:
    story = Story(limits=Limits(calls=4)).planned(task("a"))

    story.feed(story.result("a", usage=Usage(calls=9)), ControlReceived("cancel", Control(action="cancel")))

    assert (story.outcome.status, story.outcome.reason) == ("cancelled", "cancelled")


def test_a_control_for_a_workflow_that_never_began_is_nothing() -> None:
    assert Story().feed(ControlReceived("cancel", Control(action="cancel"))) == ()


def test_only_a_cancel_keeps_a_request_that_it_came_with_from_beginning() -> None:
    begun, unwanted = Story(), Story()
    request = RequestReceived(admission(begun.strategy, begun.limits), Request(input="do it"))

    begun.feed(ControlReceived("answer", Control(action="approve", approval="no-such")), request)
    unwanted.feed(ControlReceived("cancel", Control(action="cancel")), request)

    assert begun.handoff("plan-1").to_agent == "planner"
    assert (unwanted.outcome.status, unwanted.outcome.tasks) == ("cancelled", ())


def broken() -> Story:
    """`a` failed for good, what needs it is skipped, `x` still runs."""
    story = Story(limits=Limits(attempts=1)).planned(
        task("a"), task("b", needs=["a"]), task("c", needs=["b"]), task("x"), task("y", needs=["x"])
    )
    story.fail("a")
    assert story.statuses() == {"a": "failed", "b": "skipped", "c": "skipped", "x": "running", "y": "waiting"}
    return story


def test_a_replayed_task_has_one_more_attempt_and_what_was_skipped_waits_for_it_again() -> None:
    story = broken()

    story.control("replay", task_id="a", by="ops")

    assert story.statuses() == {"a": "running", "b": "waiting", "c": "waiting", "x": "running", "y": "waiting"}
    assert story.handoff("a").attempt == 2
    for name in ("x", "a", "b", "y", "c"):
        story.succeed(name)
    story.succeed("synthesis", {"answer": "all of it"})
    assert (story.outcome.status, story.outcome.gaps) == ("completed", ())


def test_a_replayed_task_that_fails_again_skips_its_dependants_again() -> None:
    story = broken()
    story.control("replay", task_id="a")

    story.fail("a", failure(retryable=True))

    assert story.statuses() == {"a": "failed", "b": "skipped", "c": "skipped", "x": "running", "y": "waiting"}


def test_a_replay_delivered_again_after_the_task_failed_again_changes_nothing() -> None:
    story = broken()
    story.control("replay", task_id="a", event_id="once")
    story.fail("a")

    assert story.control("replay", task_id="a", event_id="once") == ()
    assert story.control("replay", task_id="a", event_id="twice") != ()


def test_the_dead_letters_of_two_failures_are_two() -> None:
    story = broken()
    (first,) = [each for each in messages(story.state) if ".dead." in each.subject]
    story.control("replay", task_id="a")
    assert not [each for each in messages(story.state) if ".dead." in each.subject]
    story.fail("a")

    (second,) = [each for each in messages(story.state) if ".dead." in each.subject]

    assert first.id != second.id


def test_a_replay_while_the_answer_is_written_comes_too_late() -> None:
    story = Story(limits=Limits(attempts=1)).planned(task("a"), task("b"))
    story.fail("a")
    story.succeed("b")

    assert story.control("replay", task_id="a") == ()


def test_a_refiner_that_failed_cannot_be_replayed() -> None:
    story = Story(cards=(*cards("worker"), card("refiner", role=Role.REFINE))).planned(task("a"))
    story.fail("a", failure(retryable=True))
    story.wait(10).fail("a", failure(retryable=True))
    (refiner,) = (each.id for each in story.state.tasks.values() if each.role is Role.REFINE)
    story.fail(refiner)

    assert story.control("replay", task_id=refiner) == ()


@pytest.mark.parametrize("task_id", ["x", "b", "plan-1", "nowhere", None])
def test_only_a_failed_task_of_the_plan_can_be_replayed(task_id: str | None) -> None:
    assert broken().control("replay", task_id=task_id) == ()


def test_a_dependant_of_two_failures_waits_for_the_one_that_is_replayed_and_is_skipped_for_the_other() -> None:
    story = Story().planned(task("a"), task("b"), task("c", needs=["a", "b"]), task("x"))
    story.fail("a")
    story.fail("b")
    story.control("replay", task_id="a")
    assert story.statuses()["c"] == "waiting"

    story.succeed("a")

    assert story.statuses()["c"] == "skipped"


def test_a_replay_while_another_plan_is_made_leaves_no_task_behind() -> None:
    story = Story(limits=Limits(replans=1)).planned(task("a"), task("w"), task("b", needs=["a", "w"]), task("x"))
    story.fail("a")
    story.succeed("x", replan_hint="look elsewhere")
    story.control("replay", task_id="a")

    story.succeed("plan-2", {"goal": "", "tasks": [task("z", needs=["a"])]})
    story.succeed("w")
    story.succeed("a")
    story.succeed("z")

    assert story.statuses() == {"a": "succeeded", "w": "succeeded", "x": "succeeded", "z": "succeeded"}
    assert story.state.phase == "synthesizing"
