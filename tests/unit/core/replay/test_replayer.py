"""A replay with unchanged code makes the same decisions. A changed decision is reported with its commit."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core import WorkflowDriver, admission, card, failure, plan, task
from support.world import World, random_workflow

from pointsman.core.model.inputs import RequestReceived
from pointsman.core.replay.replayer import replay_log
from pointsman.errors import InvariantError
from pointsman_schemas.events import Request
from pointsman_schemas.log import LimitReached, PlanRejected, RetryScheduled, TaskFailed
from pointsman_schemas.team import Choreography, DailyLimits, Limits, RetryPolicy, Router, Team
from pointsman_schemas.threads import ThreadPolicy


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**64))
def test_recorded_decisions_replay_identically(seed: int) -> None:
    chance = Random(seed)
    story = random_workflow(chance).start()
    world = World(chance, story)
    for _ in range(chance.randint(0, 60)):
        world.step()
    world.drain()

    found = list(replay_log(story.commits))

    assert found == []


def test_a_changed_decision_is_reported_with_its_commit() -> None:
    story = WorkflowDriver().planned(task("a"), task("b", needs=["a"]))
    story.fail_task("a", failure(retryable=True))
    story.wait(5).complete_task("a")
    (commit,) = [commit for commit in story.commits if any(isinstance(e, RetryScheduled) for e in commit.entries)]
    place = next(n for n, entry in enumerate(commit.entries) if isinstance(entry, RetryScheduled))
    retry = commit.entries[place]
    other = retry.model_copy(update={"reason": "an older release said so"})
    entries = (*commit.entries[:place], other, *commit.entries[place + 1 :])
    commits = [each if each is not commit else each.model_copy(update={"entries": entries}) for each in story.commits]

    (difference,) = replay_log(commits)

    before = sum(len(each.entries) for each in story.commits[: commit.number - 1])
    assert (difference.entry, difference.commit) == (before + place + 1, commit.number)
    assert (difference.expected, difference.actual) == (other, retry)


def test_extra_or_missing_entries_are_found() -> None:
    story = WorkflowDriver(retry=RetryPolicy(attempts=1)).planned(task("a"), task("b"))
    story.fail_task("a", failure())
    commit = story.commits[-1]
    (place,) = [n for n, entry in enumerate(commit.entries) if isinstance(entry, TaskFailed)]
    cut = commit.model_copy(update={"entries": commit.entries[:place]})

    (difference,) = replay_log([*story.commits[:-1], cut])

    assert (difference.expected, difference.actual) == (None, commit.entries[place])


def test_a_refused_plan_is_refused_again() -> None:
    story = WorkflowDriver().start()
    story.complete_task("plan-1", plan(task("a", "ghost"), task("a", needs=["a"])))

    assert list(replay_log(story.commits)) == []


def test_plan_for_a_missing_skill_replays_as_refused() -> None:
    story = WorkflowDriver(cards=(card("worker", skills=("craft",)), card("other"))).start()
    story.complete_task("plan-1", plan(task("a", skill="magic")))
    story.complete_task("plan-2", plan(task("a", "other", needs=["b"]), task("b", skill="craft")))

    assert story.statuses() == {"a": "waiting", "b": "running"}
    assert list(replay_log(story.commits)) == []


def test_plan_without_live_agents_replays_as_refused() -> None:
    story = WorkflowDriver().start()
    story.cards = ()
    story.complete_task("plan-1", plan(task("a")))

    assert len(story.entries_of(PlanRejected)) == 1
    assert list(replay_log(story.commits)) == []


def test_missing_planner_replays_as_missing() -> None:
    story = WorkflowDriver(limits=Limits(replans=2), retry=RetryPolicy(attempts=1)).planned(
        task("a"), task("b", needs=["a"])
    )
    story.fail_task("a")

    story.fire_timer()

    assert (story.task("plan-2").status, story.task("plan-3").status) == ("failed", "running")
    assert story.commits[-1].entries[0].at == story.task("plan-3").since
    assert list(replay_log(story.commits)) == []


@pytest.mark.parametrize("retry_first", [True, False])
def test_reaction_and_retry_in_one_commit_replay(retry_first: bool) -> None:
    dancers = (card("one", reacts_to=("a",)), card("two", reacts_to=("a",)))
    story = WorkflowDriver(strategy=Choreography(start_event="a"), cards=dancers, limits=Limits(deadline=20)).start()
    heard = [
        story.result("two-a", error=failure(retryable=True, retry_after=3)),
        story.result("one-a", events=[{"name": "a", "data": None}]),
    ]

    story.decide_and_apply(*(heard if retry_first else reversed(heard)))

    assert story.statuses() == {
        "one-a": "succeeded",
        "two-a": "backing_off",
        "one-a-2": "running",
        "two-a-2": "running",
    }
    assert list(replay_log(story.commits)) == []


@pytest.mark.parametrize("agents", ["*", ("one", "two", "three")])
def test_reactions_that_would_have_been_too_many_would_be_again(agents: Literal["*"] | tuple[str, ...]) -> None:
    dancers = (card("one", reacts_to=("a", "b")), card("two", reacts_to=("c",)), card("three", reacts_to=("c",)))
    story = WorkflowDriver(
        strategy=Choreography(start_event="a"), cards=dancers, agents=agents, limits=Limits(tasks=3)
    ).start()

    story.complete_task("one-a", events=[{"name": "b", "data": None}, {"name": "c", "data": None}])

    assert [entry.detail for entry in story.entries_of(LimitReached)] == [
        "the limit of 3 tasks was passed: c would make 4"
    ]
    assert list(replay_log(story.commits)) == []


def test_replay_context_keeps_the_team_without_planner_only_fields() -> None:
    team = Team(
        name="team",
        description="does it",
        skills=("doing",),
        agents=("worker",),
        own_agents=("worker",),
        strategy=Router(synthesizer=None),
        limits=Limits(deadline=5),
        retry=RetryPolicy(attempts=4),
        approve_plan=True,
        refiner=None,
        threads=ThreadPolicy(turns=3),
        daily=DailyLimits(calls=6),
        daily_per_caller=DailyLimits(calls=7),
        judge="arbiter",
    )
    assert all(getattr(team, name) != field.default for name, field in Team.model_fields.items())
    story = WorkflowDriver()

    story.decide_and_apply(RequestReceived(replace(admission(Router(), Limits()), team=team), Request(input="do it")))

    # `agents` has the full names of `own_agents`. Daily limits and the policy of threads apply only to the admission of
    # requests. A state has only the summarizer of this policy.
    admitting = {"daily", "daily_per_caller", "threads"}
    kept = Team.model_fields.keys() - {"name", "description", "skills", "own_agents", *admitting}
    assert {name: getattr(story.state, name) for name in kept} == {name: getattr(team, name) for name in kept}
    assert list(replay_log(story.commits)) == []


def test_commit_without_a_decision_context_is_not_replayed() -> None:
    story = WorkflowDriver().planned(task("a", "ghost"))
    assert all(commit.decision_context for commit in story.commits)

    silent = [commit.model_copy(update={"decision_context": None}) for commit in story.commits]

    assert list(replay_log(silent)) == []


def test_a_log_that_does_not_fold_is_not_judged() -> None:
    story = WorkflowDriver().planned(task("a"))
    story.complete_task("a")

    with pytest.raises(InvariantError):
        list(replay_log([story.commits[0], *story.commits[2:]]))
