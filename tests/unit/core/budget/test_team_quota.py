"""A tree of teams plans at most the quota of its top team. Shares are reserved, and results return unused quota."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.core import SECRET, SUBJECTS, T0, WorkflowDriver, card, failure, plan, task

from pointsman.core.budget.team_quota import plan_usage
from pointsman.core.decide import decide
from pointsman.core.decision import DecisionContext
from pointsman.core.evolve import fold_entries
from pointsman.core.model.agent_health import Circuit
from pointsman.core.model.inputs import Admission, Input, RequestReceived, RequestRefused, ResultReceived
from pointsman.core.model.inputs import TimerFired as Fired
from pointsman.core.model.state import State, from_snapshot, to_snapshot
from pointsman.core.outbox import outbox
from pointsman.core.replay.replayer import replay_log
from pointsman.core.tasks.child_workflow import child_request
from pointsman_schemas.card import Role
from pointsman_schemas.events import Budget, Handoff, PlanUsage, Request, Result, Usage
from pointsman_schemas.ids import attempt_token, child_id_for
from pointsman_schemas.log import BudgetAwaited, LimitReached, Parent, TraceOrigin
from pointsman_schemas.team import (
    Adaptive,
    Choreography,
    FanOut,
    Limits,
    Pipeline,
    PlanAndExecute,
    RetryPolicy,
    Stage,
    Strategy,
    Team,
)

DESK = card("desk", team=True)
BARE = PlanAndExecute(synthesizer=None)


def desks(limits: Limits, **given: Any) -> WorkflowDriver:
    return WorkflowDriver(
        limits=limits, cards=(DESK, card("worker")), agents=("desk", "worker"), strategy=BARE, **given
    )


def shares(story: WorkflowDriver, *names: str) -> list[Budget | None]:
    return [story.handoff(name).budget for name in names]


def test_parallel_teams_share_the_remaining_tasks() -> None:
    story = desks(Limits(tasks=12)).planned(task("a", "desk"), task("b", "desk"), task("c"))

    assert shares(story, "a", "b", "c") == [Budget(tasks=4, replans=0), Budget(tasks=5, replans=0), None]


def test_unplanned_tasks_of_a_team_return_with_its_result() -> None:
    story = desks(Limits(tasks=10)).planned(task("a", "desk"), task("b", "desk", needs=["a"]))
    assert shares(story, "a") == [Budget(tasks=4, replans=0)]

    story.complete_task("a", plan_usage={"tasks": 3})

    assert shares(story, "b") == [Budget(tasks=5, replans=0)]


def test_replan_is_reserved_for_the_team_and_the_rest_is_shared() -> None:
    story = desks(Limits(tasks=50, replans=3)).planned(task("a", "desk"), task("b", "desk"))

    assert [each.replans for each in shares(story, "a", "b") if each] == [1, 1]
    story.complete_task("a", plan_usage={"replans": 1}, replan_hint="there is a better way")
    story.complete_task("plan-2", plan(task("c", "desk")))
    story.complete_task("b", plan_usage={"replans": 1})
    story.fail_task("c")

    assert story.state.replans == 1
    assert story.outcome.reason == "the limit of 3 re-plans is used up"


def test_unreported_plan_usage_counts_as_used() -> None:
    story = desks(Limits(tasks=9), retry=RetryPolicy(attempts=1)).planned(task("a", "desk"), task("b", "worker"))

    story.fire_timer()  # the desk never answers

    assert story.state.child_plan_usage == PlanUsage(tasks=7)


def test_a_team_of_an_earlier_release_counts_as_having_used_its_share() -> None:
    story = desks(Limits(tasks=9)).planned(task("a", "desk"), task("b", "worker"))

    story.complete_task("a")

    assert story.state.child_plan_usage == PlanUsage(tasks=7)


def test_team_without_quota_waits_and_others_do_not_wait_behind_it() -> None:
    story = desks(Limits(tasks=4, calls=4)).planned(task("a", "desk"), task("b", "desk"), task("c"))
    assert story.statuses() == {"a": "running", "b": "awaiting_budget", "c": "running"}
    assert [entry.limit for entry in story.entries_of(BudgetAwaited)] == ["tasks"]

    story.complete_task("a", plan_usage={}, usage=Usage(calls=1))

    assert story.statuses()["b"] == "running"


def test_team_without_quota_does_not_end_other_work() -> None:
    story = desks(Limits(tasks=3)).planned(task("a", "desk"), task("b"), task("c", needs=["b"]))
    assert story.statuses() == {"a": "awaiting_budget", "b": "running", "c": "waiting"}

    story.complete_task("b")
    story.complete_task("c", "found")

    assert story.statuses() == {"a": "abandoned", "b": "succeeded", "c": "succeeded"}
    assert (story.outcome.status, story.outcome.reason) == ("partial", "the limit of 3 tasks is used up: 3 planned")
    assert list(replay_log(story.commits)) == []


def test_pending_approval_outlasts_a_team_without_quota() -> None:
    cards = (DESK, card("worker", approval="required"))
    story = WorkflowDriver(limits=Limits(tasks=2), cards=cards, agents=("desk", "worker"), strategy=BARE)
    story.planned(task("a", "desk"), task("b"))
    assert story.statuses() == {"a": "awaiting_budget", "b": "awaiting_answer"}

    story.control("approve", question=next(iter(story.state.questions)))
    story.complete_task("b", "found")

    assert story.statuses() == {"a": "abandoned", "b": "succeeded"}
    assert story.outcome.reason == "the limit of 2 tasks is used up: 2 planned"


def test_held_task_outlasts_a_team_without_quota() -> None:
    story = desks(Limits(tasks=2), circuits={"worker": Circuit(since=T0, until=T0 + timedelta(seconds=5))})
    story.planned(task("a", "desk"), task("b"))
    assert story.statuses() == {"a": "awaiting_budget", "b": "held"}

    story.circuits = {}
    story.wait(6).fire_timer()
    story.complete_task("b", "found")

    assert story.statuses() == {"a": "abandoned", "b": "succeeded"}


def test_if_no_task_can_return_the_outcome_names_the_limit() -> None:
    story = desks(Limits(tasks=3)).planned(task("a", "desk"), task("b", "desk"))

    story.complete_task("a", "found", plan_usage={"tasks": 1})

    assert [entry.limit for entry in story.entries_of(LimitReached)] == ["tasks"]
    assert (story.outcome.status, story.outcome.reason) == ("partial", "the limit of 3 tasks is used up: 3 planned")


def test_planner_may_plan_the_quota_left_by_teams() -> None:
    story = desks(Limits(tasks=10, replans=1)).planned(task("a", "desk"), task("b"))

    story.complete_task("a", plan_usage={"tasks": 3}, replan_hint="there is a better way")
    asked: Any = story.handoff("plan-2").input
    story.complete_task("plan-2", plan(*(task(f"t{number}") for number in range(6))))

    assert asked["max_tasks"] == 5
    again: Any = story.handoff("plan-3").input
    assert again["problems"] == ["the plan has 6 tasks; at most 5 are allowed"]


@pytest.mark.parametrize("verdict", ["approve", "reject"])
def test_open_approval_survives_a_replan(verdict: Any) -> None:
    cards = (card("worker"), card("guarded", approval="required"))
    story = WorkflowDriver(limits=Limits(tasks=4, replans=1), cards=cards, strategy=BARE)
    story.planned(task("look"), task("pay", "guarded"), task("last", needs=["look", "pay"]))

    story.complete_task("look", replan_hint="there is a better way")
    asked: Any = story.handoff("plan-2").input
    story.control(verdict, question=next(iter(story.state.questions)))
    story.complete_task("plan-2", plan(*(task(f"t{number}") for number in range(asked["max_tasks"]))))

    assert asked["max_tasks"] == 2
    assert plan_usage(story.state).tasks == 4


def test_too_many_fixed_stages_end_the_pipeline_with_the_limit() -> None:
    stages = Pipeline(stages=tuple(Stage(agent="worker", name=name) for name in "abc"))

    story = WorkflowDriver(strategy=stages).start(budget=Budget(tasks=2))

    assert story.outcome.status == "failed"
    assert story.outcome.reason == "the limit of 2 tasks leaves 2, and serving the request takes 3"


def test_a_team_that_may_plan_nothing_asks_no_planner() -> None:
    story = WorkflowDriver().start(budget=Budget(tasks=0))

    assert story.outcome.reason == "the limit of 0 tasks leaves 0, and serving the request takes 1"
    assert list(story.state.tasks) == []


def test_dead_agent_that_may_be_a_team_gets_a_reproducible_share() -> None:
    story = WorkflowDriver(strategy=Pipeline(stages=(Stage(agent="ghost"),)), limits=Limits(tasks=5)).start()

    assert shares(story, "ghost") == [Budget(tasks=4, replans=0)]
    assert list(replay_log(story.commits)) == []


def test_dead_agent_gets_its_task_even_without_quota() -> None:
    story = WorkflowDriver(strategy=Pipeline(stages=(Stage(agent="ghost"),)), limits=Limits(tasks=1)).start()

    assert shares(story, "ghost") == [Budget(tasks=0, replans=0)]


def test_shares_are_decided_so_again() -> None:
    story = desks(Limits(tasks=9, replans=1)).planned(task("a", "desk"), task("b"), task("c", "desk", needs=["b"]))
    story.fail_task("a", failure(retryable=True), plan_usage={"tasks": 1})
    story.complete_task("b")

    assert list(replay_log(story.commits)) == []


def test_a_state_of_a_release_without_counts_folds() -> None:
    state = desks(Limits(tasks=9)).planned(task("a", "desk")).state
    snapshot = to_snapshot(state)
    assert isinstance(snapshot, dict)

    assert from_snapshot({name: value for name, value in snapshot.items() if name != "below"}) == state


def test_child_time_and_usage_stay_within_the_parents() -> None:
    handoff = desks(Limits(deadline=100)).planned(task("a", "desk")).handoff("a")
    for depth in range(1, 4):
        asked = child_request(handoff, Team(name="desk", limits=Limits(deadline=10_000, task_timeout=10_000)), T0)
        assert isinstance(asked, Request)
        below = WorkflowDriver(limits=Limits(deadline=10_000, task_timeout=10_000), cards=(DESK,), agents=("desk",))
        below.start(deadline=asked.deadline)
        below.complete_task("plan-1", plan(task("a", "desk")))

        inner = below.handoff("a")

        assert inner.deadline <= below.state.deadline < handoff.deadline, f"at depth {depth}"
        handoff = inner


# Property tests


class Tree:
    """Workflows of nested teams that the core decides. Messages are late or lost."""

    def __init__(self, chance: Random) -> None:
        self.chance, self.now = chance, T0
        self.teams = {name: self._team(name) for name in ("top", "mid", "low")}
        self.cards = (*(card(name, team=True) for name in self.teams), card("worker"))
        self.flows: dict[str, State] = {}
        self.handed: set[str] = set()
        self.coming: list[tuple[str, Input]] = []
        self.asked: list[Handoff] = []
        self._feed("wf_top", RequestReceived(self._admission("wf_top", "top"), Request(input="do it")))

    def _team(self, name: str) -> Team:
        chance = self.chance
        drawn: list[Strategy] = [
            PlanAndExecute(synthesizer=None),
            PlanAndExecute(),
            Adaptive(synthesizer=None, max_plans=4),
            FanOut(synthesizer=None),
            Choreography(synthesizer=None),
            Pipeline(stages=tuple(Stage(agent=agent) for agent in ("worker", "low")[: chance.randint(1, 2)])),
        ]
        limits = Limits(
            tasks=chance.choice([3, 8, 20]) if name == "top" else chance.choice([5, 1_000]),
            replans=chance.randint(0, 3),
            calls=chance.choice([None, None, 12]),
            task_timeout=20,
            deadline=200,
        )
        strategy = drawn[0] if name == "top" else chance.choice(drawn)
        retry = RetryPolicy(attempts=chance.randint(1, 2))
        return Team(name=name, agents=("mid", "low", "worker"), strategy=strategy, limits=limits, retry=retry)

    def _admission(self, workflow: str, team: str, **more: Any) -> Admission:
        trace = TraceOrigin(trace_id="0" * 31 + "1", span_id="0" * 15 + "1")
        return Admission(workflow, workflow, workflow, self.teams[team], trace, "ada", SECRET, **more)

    def _feed(self, workflow: str, given: Input) -> None:
        before = self.flows.get(workflow)
        state = fold_entries(decide(before, [given], DecisionContext(self.now, self.cards)), before)
        if state is None:
            return
        self.flows[workflow] = state
        for message in outbox(state, SUBJECTS):
            if message.id in self.handed:
                continue
            self.handed.add(message.id)
            if isinstance(message.event, Handoff):
                self.asked.append(message.event)
            elif isinstance(message.event, Result):
                self.coming.append((message.event.workflow_id, _received(message.id, message.event)))

    def turn(self) -> None:
        chance = self.chance
        happening = chance.choices(["take", "hear", "timer", "lose"], [6, 6, 1, 0.3])[0]
        self.now += timedelta(seconds=chance.choice([0, 0, 1, 4]))
        if happening == "take" and self.asked:
            self._take(self.asked.pop(chance.randrange(len(self.asked))))
        elif happening == "hear" and self.coming:
            self._feed(*self.coming.pop(chance.randrange(len(self.coming))))
        elif happening == "timer":
            workflow = chance.choice(list(self.flows))
            if (due := self.flows[workflow].timer_due) is not None and not self.flows[workflow].ended:
                self.now = max(self.now, due)
                self._feed(workflow, Fired(self.flows[workflow].timer))
        elif happening == "lose" and self.coming:
            self.coming.pop()

    def _take(self, handoff: Handoff) -> None:
        if handoff.to_agent in self.teams and handoff.role is Role.WORK:
            name = child_id_for(handoff.to_agent, handoff.workflow_id, handoff.task_id, handoff.attempt)
            sender = self.flows[handoff.workflow_id].team
            parent = Parent(
                team=sender,
                workflow_id=handoff.workflow_id,
                task_id=handoff.task_id,
                attempt=handoff.attempt,
                return_to=handoff.return_to,
                deadline=handoff.deadline,
            )
            admitted = self._admission(name, handoff.to_agent, parent=parent, depth=handoff.depth + 1)
            asked = child_request(handoff, self.teams[handoff.to_agent], self.now)
            begun = RequestReceived(admitted, asked) if isinstance(asked, Request) else RequestRefused(admitted, asked)
            return self._feed(name, begun)
        self.coming.append((handoff.workflow_id, self._answer(handoff, self.now)))
        return None

    def _answer(self, handoff: Handoff, now: datetime) -> ResultReceived:
        chance = self.chance
        fails = chance.random() < 0.2
        output: Any = {"from": handoff.task_id}
        if handoff.role is Role.PLAN:
            asked = handoff.input.get("max_tasks", 4) if isinstance(handoff.input, dict) else 4
            count = chance.choice([1, 2, min(asked, 8) if isinstance(asked, int) else 4])
            names = [f"{handoff.task_id}-{number}" for number in range(count)]
            output = plan(*(task(name, chance.choice(["mid", "low", "worker"])) for name in names))
        result = Result(
            workflow_id=handoff.workflow_id, task_id=handoff.task_id, attempt=handoff.attempt, agent=handoff.to_agent,
            status="failed" if fails else "succeeded", output=None if fails else output,
            error=failure(retryable=chance.random() < 0.5) if fails else None, usage=Usage(calls=1),
            replan_hint="there is a better way" if chance.random() < 0.2 else None, started_at=now, ended_at=now,
        )  # fmt: skip
        return _received(f"{handoff.workflow_id}-{handoff.task_id}-{handoff.attempt}-r", result)


def _received(event_id: str, result: Result) -> ResultReceived:
    return ResultReceived(event_id, result, attempt_token(SECRET, result.task_id, result.attempt))


def planned_by_all(tree: Tree) -> PlanUsage:
    """Return the planned tasks of every workflow of the tree, counted independently."""
    whole = defaultdict[str, int](int)
    for state in tree.flows.values():
        whole["tasks"] += sum(1 for each in state.tasks.values() if each.role is Role.WORK)
        whole["replans"] += 0 if isinstance(state.strategy, Adaptive) else state.replans
    return PlanUsage(**whole)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.integers(0, 2**64))
def test_nested_teams_plan_no_more_than_the_root_team_may(seed: int) -> None:
    tree = Tree(Random(seed))
    most = tree.teams["top"].limits

    for _ in range(150):
        tree.turn()
        whole = planned_by_all(tree)
        assert whole.tasks <= most.tasks, f"{whole.tasks} tasks; at most {most.tasks} are allowed"
        assert whole.replans <= most.replans, f"{whole.replans} re-plans; at most {most.replans} are allowed"
        top = tree.flows["wf_top"]
        if top.ended:
            assert whole.tasks <= plan_usage(top).tasks
            break
