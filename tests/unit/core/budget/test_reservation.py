"""Parallel attempts cannot overspend, because each attempt reserves its share until its result arrives."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.core import WorkflowDriver, card, failure, plan, task
from support.world import AGENTS, World, audit, random_limits, random_strategy

from pointsman.core.budget.reservation import reserve, reserved
from pointsman.core.model.state import State
from pointsman_schemas.card import Role
from pointsman_schemas.events import Budget, Usage
from pointsman_schemas.log import BudgetAwaited, LimitReached, RetryScheduled, TaskDispatched
from pointsman_schemas.role_io import PlannerInput, RemainingLimits
from pointsman_schemas.team import Limits, Pipeline, PlanAndExecute, Router, Stage

BARE = PlanAndExecute(synthesizer=None)


def calls(count: int) -> Usage:
    return Usage(calls=count)


def test_parallel_tasks_share_equally_and_one_call_is_reserved_for_the_answer() -> None:
    story = WorkflowDriver(limits=Limits(calls=8)).planned(task("a"), task("b"), task("c"))

    assert [story.handoff(name).budget for name in "abc"] == [Budget(calls=2)] * 3
    assert reserved(story.state)["calls"] == 6


def test_a_planner_leaves_half_of_the_budget_to_the_work() -> None:
    story = WorkflowDriver(limits=Limits(calls=9)).start()

    assert story.handoff("plan-1").budget == Budget(calls=4)


def test_a_classifier_leaves_half_of_the_budget_to_the_work() -> None:
    story = WorkflowDriver(limits=Limits(calls=9), strategy=Router()).start()
    (asked,) = story.entries_of(TaskDispatched)

    assert story.handoff(asked.task_id).budget == Budget(calls=4)


def test_one_call_is_the_minimum_budget_of_an_attempt() -> None:
    wide = WorkflowDriver(limits=Limits(calls=41), strategy=BARE).start()
    wide.complete_task("plan-1", plan(*(task(f"t{number}") for number in range(40))), usage=calls(1))

    assert [each.budget for each in wide.state.plan_tasks() if each.active] == [Budget(calls=1)] * 40


def test_share_is_reserved_for_dependent_tasks() -> None:
    story = WorkflowDriver(limits=Limits(calls=7), strategy=BARE).planned(
        task("a"), task("b"), task("c", needs=["a", "b"])
    )

    assert [story.handoff(name).budget for name in "ab"] == [Budget(calls=2)] * 2


def test_a_limit_of_exactly_the_needed_calls_is_enough() -> None:
    story = WorkflowDriver(limits=Limits(calls=5)).planned(task("a"), task("b"), task("c", needs=["a"]))

    for name in ("a", "b", "c", "synthesis"):
        story.complete_task(name, {"answer": "whole"})

    assert (story.outcome.status, story.outcome.usage.calls) == ("completed", 5)


def test_unused_budget_returns_with_the_result() -> None:
    story = WorkflowDriver(limits=Limits(calls=9), strategy=BARE).planned(task("a"), task("b", needs=["a"]))

    story.complete_task("a", usage=calls(1))

    assert story.handoff("b").budget == Budget(calls=7)


def test_task_without_budget_waits_for_returned_budget() -> None:
    story = WorkflowDriver(limits=Limits(calls=3), strategy=BARE).planned(task("a"), task("b"), task("c"))
    assert story.statuses() == {"a": "running", "b": "running", "c": "awaiting_budget"}
    assert [(entry.task_id, entry.limit) for entry in story.entries_of(BudgetAwaited)] == [("c", "calls")]

    story.complete_task("b", usage=calls(0))

    assert story.statuses()["c"] == "running"
    assert story.handoff("c").budget == Budget(calls=1)


def test_exhausted_budget_is_named_in_a_partial_outcome() -> None:
    story = WorkflowDriver(limits=Limits(calls=3), strategy=BARE).planned(task("a"), task("b"), task("c"))

    story.complete_task("a", "found")
    story.complete_task("b", "seen")

    assert [entry.limit for entry in story.entries_of(LimitReached)] == ["calls"]
    assert (story.outcome.status, story.outcome.reason) == ("partial", "the limit of 3 calls is used up: 3 used")
    assert story.outcome.answer == {"a": "found", "b": "seen"}
    assert [gap.reason for gap in story.outcome.gaps] == ["the limit of 3 calls is used up: 3 used"]


def test_a_workflow_that_cannot_even_plan_reports_it() -> None:
    story = WorkflowDriver(limits=Limits(calls=1)).start()

    assert story.outcome.status == "failed"
    assert story.outcome.reason == "the limit of 1 calls is used up: 0 used; the rest is reserved for the answer"


def test_an_answer_without_budget_is_the_bare_results() -> None:
    story = WorkflowDriver(limits=Limits(tokens=440)).planned(task("a"), task("b"))

    story.complete_task("a", "found", usage=Usage(calls=1, input_tokens=165))
    story.complete_task("b", "seen", usage=Usage(calls=1, input_tokens=165))

    assert (story.outcome.status, story.outcome.answer) == ("partial", {"a": "found", "b": "seen"})
    assert story.outcome.reason == "the limit of 440 tokens is used up: 440 used"


def test_a_twentieth_of_a_small_limit_is_reserved_for_the_answer() -> None:
    story = WorkflowDriver(limits=Limits(cost=0.1, tokens=10_000)).start()

    given = story.handoff("plan-1").budget
    assert given is not None
    assert given.tokens == (10_000 - 500) // 2
    assert given.cost == pytest.approx((0.1 - 0.005) / 2)


def test_an_attempt_gets_its_minimum_budget_or_waits() -> None:
    story = WorkflowDriver(limits=Limits(tokens=1_000), strategy=BARE).planned(
        *(task(f"t{number}") for number in range(20))
    )

    (waits, *_) = [name for name, status in story.statuses().items() if status == "awaiting_budget"]
    given = [each.budget.tokens for each in story.state.plan_tasks() if each.budget]

    assert waits == "t17"
    assert set(given) == {50}


def test_the_answer_may_have_less_than_the_minimum_budget() -> None:
    story = WorkflowDriver(limits=Limits(tokens=1_000)).planned(task("a"))

    story.complete_task("a", usage=Usage(calls=1, input_tokens=860))

    assert story.handoff("synthesis").budget == Budget(tokens=30)


@pytest.mark.parametrize(
    ("strategy", "limits", "used", "reason"),
    [
        (BARE, Limits(tokens=1_000), Usage(calls=1, input_tokens=860), "the limit of 1000 tokens is used up: 970 used"),
        (PlanAndExecute(), Limits(calls=4), calls(3), "the limit of 4 calls is used up: 4 used"),
        (PlanAndExecute(), Limits(calls=4), calls(2),
         "the limit of 4 calls is used up: 3 used; the rest is reserved for the answer"),
    ],
    ids=["nobody writes", "nothing is left", "something is left"],
)  # fmt: skip
def test_remaining_budget_goes_to_the_answer(
    strategy: PlanAndExecute, limits: Limits, used: Usage, reason: str
) -> None:
    story = WorkflowDriver(limits=limits, strategy=strategy).planned(task("a"), task("b", needs=["a"]))

    story.complete_task("a", usage=used)

    assert story.entries_of(LimitReached)[0].detail == reason


def test_limit_is_not_reported_again_for_the_skipped_answer() -> None:
    story = WorkflowDriver(limits=Limits(calls=4)).planned(task("a"), task("b"))
    story.complete_task("a", "found", usage=calls(1))

    story.complete_task("b", usage=calls(9))

    assert [entry.detail for entry in story.entries_of(LimitReached)] == ["the limit of 4 calls was passed: 11 used"]
    assert (story.outcome.status, story.outcome.reason) == ("partial", "the limit of 4 calls was passed: 11 used")
    (synthesis,) = (each for each in story.state.tasks.values() if each.role is Role.SYNTHESIZE)
    assert (synthesis.status, synthesis.reason) == ("abandoned", "the limit of 4 calls is used up: 11 used")


def test_retry_waits_for_budget_and_for_its_time() -> None:
    story = WorkflowDriver(limits=Limits(calls=3), strategy=BARE).planned(task("a"), task("b"))

    story.fail_task("a", failure(retryable=True, retry_after=30))
    assert story.statuses()["a"] == "awaiting_budget"
    story.wait(5).complete_task("b", usage=calls(0))

    assert story.statuses()["a"] == "backing_off"
    (retry,) = story.entries_of(RetryScheduled)
    assert ((retry.not_before - story.now).total_seconds(), retry.budget) == (25, Budget(calls=1))


def test_retry_may_use_its_unspent_share_at_once() -> None:
    story = WorkflowDriver(limits=Limits(calls=9), strategy=BARE).planned(task("a"))

    story.fail_task("a", failure(retryable=True, retry_after=30), usage=calls(2))

    assert story.entries_of(BudgetAwaited) == []
    (retry,) = story.entries_of(RetryScheduled)
    assert (retry.budget, retry.reason) == (Budget(calls=6), "attempt 1 failed: provider_error")


def test_new_plan_waits_for_returned_budget() -> None:
    story = WorkflowDriver(limits=Limits(calls=4, replans=1), strategy=BARE).planned(task("a"), task("b"), task("c"))

    story.complete_task("a", replan_hint="there is a better way")
    assert story.task("plan-2").status == "awaiting_budget"
    story.complete_task("b", usage=calls(0))

    assert story.handoff("plan-2").budget == Budget(calls=1)


def test_an_approved_task_waits_for_budget_too() -> None:
    story = WorkflowDriver(
        cards=(card("worker"), card("payer", approval="required")), limits=Limits(calls=2), strategy=BARE
    )
    story.planned(task("a"), task("pay", "payer"))

    story.control("approve", question="wf_1-q1")
    assert story.statuses() == {"a": "running", "pay": "awaiting_budget"}
    story.complete_task("a", usage=calls(0))

    assert story.statuses() == {"a": "succeeded", "pay": "running"}


def test_with_small_shares_fewer_attempts_run_at_a_time() -> None:
    story = WorkflowDriver(limits=Limits(tokens=5_000), strategy=Pipeline(stages=(Stage(agent="worker"),)))
    wide = WorkflowDriver(limits=Limits(tokens=5_000), strategy=BARE).start()
    wide.complete_task("plan-1", plan(*(task(f"t{number}") for number in range(40))), usage=calls(1))

    running = [each for each in wide.state.plan_tasks() if each.active]

    assert story.start().handoff("worker").budget == Budget(tokens=5_000)
    assert [each.budget for each in running] == [Budget(tokens=250)] * 20


def test_plentiful_limit_is_shared_among_all_despite_a_scarce_one() -> None:
    story = WorkflowDriver(limits=Limits(calls=6, tokens=100_000), strategy=BARE)
    story.planned(*(task(f"t{number}") for number in range(10)))

    assert [each.budget for each in story.state.plan_tasks() if each.active] == [Budget(calls=1, tokens=9_989)] * 5


def test_a_refiner_leaves_half_of_the_budget_to_the_work() -> None:
    agents = (card("worker"), card("refiner", role=Role.REFINE))
    story = WorkflowDriver(limits=Limits(calls=10), strategy=BARE, cards=agents).planned(task("t1"))

    for _ in range(2):
        story.fail_task("t1", failure(retryable=True), usage=calls(1))

    assert story.handoff(story.task("t1").refined_by).budget == Budget(calls=3)


def test_returned_budget_is_offered_until_it_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    story = WorkflowDriver(limits=Limits(calls=10), strategy=BARE).planned(
        *(task(f"t{number}") for number in range(60))
    )
    asked = Mock(side_effect=reserve)
    monkeypatch.setattr("pointsman.core.tasks.dispatch.reserve", asked)

    story.complete_task("t0", usage=calls(0))

    assert [each.id for each in story.state.plan_tasks() if each.active] == [f"t{number}" for number in range(1, 10)]
    assert asked.call_count == 2  # one attempt gets the share, the other attempt gets none


def test_the_tighter_of_the_requests_and_the_teams_limits_is_shared() -> None:
    story = WorkflowDriver(limits=Limits(calls=10, cost=4), strategy=BARE).start(budget=Budget(calls=4))
    story.complete_task("plan-1", plan(task("a")))

    assert story.handoff("a").budget == Budget(calls=3, cost=3.75)


def test_where_nothing_is_bounded_no_attempt_has_an_allowance() -> None:
    story = WorkflowDriver().planned(task("a"))

    assert all(entry.budget is None for entry in story.entries_of(TaskDispatched))
    assert story.handoff("a").budget is None


def test_children_share_the_budget_of_their_parent() -> None:
    desk = card("desk", team=True)
    story = WorkflowDriver(limits=Limits(calls=21), cards=(desk,), agents=("desk",), strategy=BARE)

    story.planned(task("a", "desk"), task("b", "desk"))

    assert [story.handoff(name).budget for name in "ab"] == [Budget(calls=10, tasks=499, replans=0)] * 2


def test_planner_gets_the_remaining_budget() -> None:
    story = WorkflowDriver(limits=Limits(calls=10, deadline=60, replans=2), strategy=BARE).start(deadline=30)
    first: Any = story.handoff("plan-1").input
    story.wait(5).complete_task("plan-1", plan(task("a"), task("b", needs=["a"])))

    story.wait(5).complete_task("a", replan_hint="there is a better way")

    again: Any = story.handoff("plan-2").input
    assert first["remaining_limits"] == {"seconds": 30, "replans": 2, "calls": 10}
    assert again["remaining_limits"] == {"seconds": 20, "replans": 1, "calls": 8}
    assert PlannerInput.model_validate(again).remaining_limits == RemainingLimits(seconds=20, replans=1, calls=8)


def test_planner_gets_the_remaining_time_if_only_time_is_bounded() -> None:
    given: Any = WorkflowDriver().start().handoff("plan-1").input

    assert given["remaining_limits"] == {"seconds": 600, "replans": 0}


# Property tests


class Thrifty(World):
    """A world in which each agent uses between nothing and its budget."""

    def _answer(self, handoff: Any) -> Any:
        answer = super()._answer(handoff)
        may = handoff.budget or Budget()
        used = Usage(
            calls=self.chance.randint(0, 4 if may.calls is None else may.calls),
            input_tokens=self.chance.randint(0, 500 if may.tokens is None else may.tokens),
            cost=self.chance.uniform(0, 1 if may.cost is None else may.cost),
        )
        return replace(answer, result=answer.result.model_copy(update={"usage": used}))


def _holds(state: State, limits: Limits) -> None:
    used, aside = state.usage, reserved(state)
    for name, spent in (("calls", used.calls), ("tokens", used.tokens), ("cost", used.cost)):
        bound = getattr(limits, name)
        assert bound is None or spent + aside[name] <= bound + 1e-9, f"{spent} {name} used and {aside[name]} reserved"


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.integers(0, 2**64))
def test_used_and_reserved_budget_stays_within_every_limit(seed: int) -> None:
    chance = Random(seed)
    bounded = {
        "calls": chance.choice([None, 3, 9, 40]),
        "tokens": chance.choice([None, 700, 5_000]),
        "cost": chance.choice([None, 0.2, 3.0]),
    }
    limits = random_limits(chance).model_copy(update=bounded)
    story = WorkflowDriver(strategy=random_strategy(chance), limits=limits, cards=AGENTS).start()
    world = Thrifty(chance, story)

    for _ in range(chance.randint(10, 60)):
        _holds(story.state, limits)
        world.step()
    world.drain()

    _holds(story.state, limits)
    audit(story, chance)


@pytest.mark.parametrize("role", [Role.PLAN, Role.WORK])
def test_overspending_agent_ends_the_work_at_the_limit(role: Role) -> None:
    story = WorkflowDriver(limits=Limits(calls=4), strategy=BARE).start()
    if role is Role.WORK:
        story.complete_task("plan-1", plan(task("a"), task("b")))

    name = "plan-1" if role is Role.PLAN else "a"
    story.complete_task(name, plan(task("a")), usage=calls(9))

    assert "calls was passed" in story.outcome.reason
