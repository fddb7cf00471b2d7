"""A reached limit ends the work, and the outcome names it. At the deadline the answer uses the existing results."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from support.core import T0, WorkflowDriver, card, cards, failure, messages, plan, task

from pointsman.core.model.inputs import TimerFired
from pointsman_schemas.card import Role
from pointsman_schemas.events import Budget, Timer
from pointsman_schemas.log import AttemptFailed, LimitReached, TimerArmed
from pointsman_schemas.team import Limits, PlanAndExecute

SHORT = Limits(deadline=60, task_timeout=600)


def test_request_deadline_may_only_shorten_the_teams() -> None:
    assert WorkflowDriver(limits=SHORT).start(deadline=10).state.deadline == T0 + timedelta(seconds=10)
    assert WorkflowDriver(limits=SHORT).start(deadline=100).state.deadline == T0 + timedelta(seconds=60)


def test_the_deadline_while_planning_ends_the_workflow_as_failed() -> None:
    story = WorkflowDriver(limits=SHORT, cards=(card("planner", role=Role.PLAN), card("worker"))).start()

    story.fire_timer()

    assert (story.outcome.status, story.outcome.reason) == ("failed", "the deadline of 60 s was reached")
    assert story.outcome.tasks[0].status == "abandoned"


def test_deadline_while_running_starts_the_synthesis() -> None:
    story = WorkflowDriver(limits=SHORT).planned(task("a"), task("b"), task("c", needs=["b"]))
    story.complete_task("a")

    story.fire_timer()

    given: Any = story.handoff("synthesis").input
    assert given["limit"] == "the deadline of 60 s was reached"
    assert [gap["task_id"] for gap in given["gaps"]] == ["b", "c"]
    assert story.handoff("synthesis").deadline == story.now + timedelta(seconds=30)
    story.wait(5).complete_task("synthesis", {"answer": "what there is"})
    assert (story.outcome.status, story.outcome.answer) == ("partial", "what there is")


def test_the_deadline_with_nothing_done_ends_as_failed() -> None:
    story = WorkflowDriver(limits=SHORT).planned(task("a"))

    story.fire_timer()

    assert story.outcome.status == "failed"
    assert story.outcome.reason == "the deadline of 60 s was reached"


def test_a_result_that_arrives_with_the_deadline_still_counts() -> None:
    story = WorkflowDriver(limits=SHORT).planned(task("a"), task("b"))
    story.wait(60)

    story.decide_and_apply(TimerFired(story.state.timer), story.result("a"))

    assert story.statuses() == {"a": "succeeded", "b": "abandoned"}


def test_a_result_after_the_deadline_is_late() -> None:
    story = WorkflowDriver(limits=SHORT).planned(task("a"), task("b"))
    late = story.result("b", event_id="late")
    story.complete_task("a")
    story.fire_timer()

    (entry,) = story.decide_and_apply(late)

    assert entry.kind == "result_ignored"


def test_a_silent_synthesizer_past_the_deadline_costs_a_bounded_time() -> None:
    story = WorkflowDriver(limits=SHORT).planned(task("a"), task("b"))
    story.complete_task("a", "found")
    story.fire_timer()
    for _ in range(3):
        if not story.state.ended:
            story.fire_timer()

    assert (story.outcome.status, story.outcome.answer) == ("partial", "found")
    assert story.outcome.elapsed < 60 + 2 * 30 + 2


def test_an_attempt_at_the_synthesis_always_has_time() -> None:
    story = WorkflowDriver(limits=SHORT).planned(task("a"))
    story.complete_task("a")
    story.wait(59)

    story.fail_task("synthesis", failure(retryable=True, retry_after=30.5))

    assert story.task("synthesis").deadline == story.now + timedelta(seconds=60.5)


# Usage


@pytest.mark.parametrize(
    ("limits", "detail"),
    [
        (Limits(tokens=219), "the limit of 219 tokens was passed: 220 used"),
        (Limits(cost=0.4), "the limit of 0.4 cost was passed: 0.5 used"),
    ],
)
def test_a_limit_that_is_passed_ends_the_work_and_names_itself(limits: Limits, detail: str) -> None:
    story = WorkflowDriver(limits=limits).planned(task("a"), task("b"))

    story.complete_task("a")

    assert story.statuses() == {"a": "succeeded", "b": "abandoned"}
    assert (story.outcome.status, story.outcome.reason) == ("partial", detail)
    assert story.outcome.answer == {"from": "a"}


@pytest.mark.parametrize("limits", [Limits(calls=3), Limits(tokens=330), Limits(cost=0.75)])
def test_a_limit_that_is_reached_exactly_ends_nothing(limits: Limits) -> None:
    story = WorkflowDriver(limits=limits, strategy=PlanAndExecute(synthesizer=None)).planned(task("a"), task("b"))

    story.complete_task("a")
    story.complete_task("b")

    assert story.entries_of(LimitReached) == []
    assert story.outcome.status == "completed"


@pytest.mark.parametrize("budget", [Budget(tokens=150), Budget(cost=0.3)])
def test_the_request_s_budget_bounds_too(budget: Budget) -> None:
    story = WorkflowDriver(limits=Limits(calls=100, tokens=100_000, cost=100)).start(budget=budget)
    story.complete_task("plan-1", plan(task("a"), task("b")))

    story.complete_task("a")

    assert "was passed" in story.outcome.reason


def test_the_usage_of_failed_attempts_counts() -> None:
    story = WorkflowDriver(limits=Limits(calls=3)).planned(task("a"))

    story.fail_task("a", failure(retryable=True))

    assert story.outcome.reason == "the limit of 3 calls is used up: 2 used; the rest is reserved for the answer"
    assert story.statuses() == {"a": "abandoned"}


def test_without_a_synthesizer_the_bare_results_are_the_answer() -> None:
    story = WorkflowDriver(limits=SHORT, strategy=PlanAndExecute(synthesizer=None)).planned(task("a"), task("b"))
    story.complete_task("a", "found")

    story.fire_timer()

    assert (story.outcome.status, story.outcome.answer) == ("partial", "found")


# The timer


def test_the_timer_is_armed_once_for_the_first_deadline() -> None:
    story = WorkflowDriver().start()

    assert [(entry.name, entry.due) for entry in story.entries_of(TimerArmed)] == [
        ("wake-1", T0 + timedelta(seconds=121))
    ]


def test_results_do_not_arm_the_timer_again() -> None:
    story = WorkflowDriver().planned(*(task(f"t{number}") for number in range(5)))
    for number in range(5):
        story.wait(1).complete_task(f"t{number}")

    assert len(story.entries_of(TimerArmed)) == 1


def test_the_timer_is_armed_again_when_something_is_due_before_it() -> None:
    story = WorkflowDriver(limits=Limits(task_timeout=100)).start()
    story.cards = (story.cards[0].model_copy(update={"timeout": 10.0}),)

    story.complete_task("plan-1", plan(task("a")))

    assert [entry.due for entry in story.entries_of(TimerArmed)] == [
        T0 + timedelta(seconds=101),
        T0 + timedelta(seconds=11),
    ]


def test_the_timer_is_accepted_although_the_clock_lags_a_little() -> None:
    story = WorkflowDriver(cards=(*cards("worker"), card("planner", role=Role.PLAN))).start()
    story.wait(120)

    story.decide_and_apply(TimerFired("wake-1"))

    assert [(entry.task_id, entry.error.kind) for entry in story.entries_of(AttemptFailed)] == [("plan-1", "timeout")]
    assert story.entries_of(TimerArmed)[-1].due > T0 + timedelta(seconds=121)


def test_result_just_before_the_timer_is_on_time() -> None:
    story = WorkflowDriver(limits=Limits(deadline=60)).planned(task("a"), task("b", needs=["a"]))
    assert story.state.timer_due == T0 + timedelta(seconds=60)

    story.wait(59).complete_task("a")

    assert story.entries_of(LimitReached) == []
    assert story.statuses()["b"] == "running"


def test_early_timer_is_rearmed_and_ends_nothing() -> None:
    story = WorkflowDriver().start()

    added = story.decide_and_apply(TimerFired("wake-1"))

    (armed,) = added
    assert isinstance(armed, TimerArmed)
    assert (armed.name, armed.due) == ("wake-2", T0 + timedelta(seconds=121))


def test_an_old_timer_that_fires_again_changes_nothing() -> None:
    story = WorkflowDriver().start()
    story.decide_and_apply(TimerFired("wake-1"))

    assert story.decide_and_apply(TimerFired("wake-1")) == ()


def test_the_armed_timer_is_a_message_for_later() -> None:
    story = WorkflowDriver().start()

    (message,) = [each for each in messages(story.state) if isinstance(each.event, Timer)]

    assert message.subject == "pointsman.timer.team.wf_1.wake-1"
    assert message.schedule == "pointsman.schedule.team.wf_1.timer.wake-1"
    assert message.due == T0 + timedelta(seconds=121)


@pytest.mark.parametrize("days", [0.9, 1, 8, 30])
def test_no_timer_sleeps_longer_than_a_stream_keeps_it(days: float) -> None:
    """The broker drops messages older than the retention of the work stream, including pending schedules."""
    seconds = days * 86_400
    story = WorkflowDriver(cards=(card("worker", approval="required"),), limits=Limits(answer_timeout=seconds)).planned(
        task("a")
    )
    asked = story.now
    while story.state.questions:
        story.fire_timer()

    assert story.now == asked + timedelta(seconds=seconds)
    armed = [entry.due - entry.at for entry in story.entries_of(TimerArmed)]
    assert max(armed) <= timedelta(days=1)
    assert len(armed) <= days + 2
