"""A request that arrives before its agents waits for them, like a task that waits for its agent."""

from __future__ import annotations

from typing import Any

import pytest
from support.core import T0, WorkflowDriver, card, cards, plan, task

from pointsman.core.replay.replayer import replay_log
from pointsman_schemas.card import Role
from pointsman_schemas.log import TimerArmed
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.team import (
    Adaptive,
    Choreography,
    FanOut,
    Fixed,
    Limits,
    Pipeline,
    PlanAndExecute,
    Router,
    Stage,
    Strategy,
)

CHOOSING = (PlanAndExecute(), Adaptive(), Router(), FanOut(), Choreography())
PLANNER = card("planner", role=Role.PLAN)


def early(strategy: Strategy, **given: Any) -> WorkflowDriver:
    """Return a request that arrived before its agents."""
    return WorkflowDriver(strategy=strategy, **{"cards": (), **given}).start()


@pytest.mark.parametrize("strategy", CHOOSING)
def test_a_request_that_comes_before_the_agents_begins_when_one_is_there(strategy: Strategy) -> None:
    story = early(strategy)
    story.fire_timer()
    assert not story.state.tasks

    story.cards = (card("worker", reacts_to=("requested",)),)
    story.fire_timer()

    assert [each.attempt for each in story.state.tasks.values()] == [1]
    assert list(replay_log(story.commits)) == []


def test_planner_gets_the_agents_that_joined_meanwhile() -> None:
    story = early(PlanAndExecute())
    story.cards = cards("late")

    story.fire_timer()
    story.complete_task("plan-1", plan(task("a", "late")))

    assert story.statuses() == {"a": "running"}


@pytest.mark.parametrize("strategy", CHOOSING)
def test_deadline_without_agents_names_them(strategy: Strategy) -> None:
    story = early(strategy, limits=Limits(deadline=20))
    while not story.state.ended:
        story.fire_timer()

    assert (story.outcome.status, story.outcome.elapsed) == ("failed", 20)
    assert story.outcome.reason.startswith("no worker took the request: no ")
    assert story.outcome.reason.endswith("; the deadline of 20 s was reached")
    assert list(replay_log(story.commits)) == []


@pytest.mark.parametrize("strategy", CHOOSING)
def test_agent_that_joins_too_late_starts_nothing(strategy: Strategy) -> None:
    story = early(strategy, limits=Limits(deadline=20)).wait(20)
    story.cards = (card("worker", reacts_to=("requested",)),)

    story.fire_timer()

    assert (story.outcome.status, story.outcome.tasks) == ("failed", ())
    assert "the required agent became live too late" in story.outcome.reason


def test_the_planner_is_named_where_it_is_not_there_either() -> None:
    assert "no agent named planner is alive" in early(PlanAndExecute()).entries_of(TimerArmed)[0].reason


def test_live_planner_is_asked_even_without_agents() -> None:
    assert [each.agent for each in early(PlanAndExecute(), cards=(PLANNER,)).state.tasks.values()] == ["planner"]


def test_the_pauses_between_checks_for_agents_grow() -> None:
    story = early(PlanAndExecute(), limits=Limits(deadline=60))
    while not story.state.ended:
        story.fire_timer()

    looks = [(entry.due - T0).total_seconds() for entry in story.entries_of(TimerArmed)]
    assert looks == [0.5, 1, 2, 4, 8, 16, 26, 36, 46, 56, 60]


def test_workflow_waiting_for_agents_can_be_cancelled() -> None:
    story = early(PlanAndExecute())

    story.control("cancel")

    assert story.outcome.status == "cancelled"


@pytest.mark.parametrize(
    ("strategy", "given"),
    [
        (Pipeline(stages=(Stage(agent="one"),)), {}),
        (FanOut(), {"agents": ("one",)}),
        (Fixed(plan=Plan(tasks=(PlannedTask(id="a", agent="one", intent="do it"),))), {}),
        (PlanAndExecute(), {"agents": ()}),
        (PlanAndExecute(fallback="desk"), {"cards": (card("desk", team=True),)}),
        (PlanAndExecute(), {"agents": ("below",), "cards": (card("below", team=True),), "limits": Limits(nesting=0)}),
    ],
    ids=["stages", "members", "fixed", "nobody ever", "a fallback", "too deep"],
)
def test_only_selected_live_members_are_awaited(strategy: Strategy, given: dict[str, Any]) -> None:
    story = early(strategy, **given)

    assert story.state.tasks
    assert list(replay_log(story.commits)) == []
