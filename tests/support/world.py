"""Simulate the world around a workflow: agents fail, and the broker repeats, reorders and delays messages.

`World.step` does one random step. `World.drain` advances the time until the workflow has ended.
`audit` then reads the log and asserts the invariants.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

from pointsman.core.evolve import apply_commit, evolve
from pointsman.core.model.agent_health import Circuit, Load
from pointsman.core.model.inputs import ControlReceived, Input, ResultReceived, TimerFired
from pointsman.core.model.lifecycle import TaskStatus
from pointsman.core.model.state import State, from_snapshot, to_snapshot
from pointsman_schemas.card import Role
from pointsman_schemas.events import Control, Handoff
from pointsman_schemas.log import (
    AttemptFailed,
    ReviewRequested,
    TaskDispatched,
    TaskReopened,
    TaskSucceeded,
    WorkflowEnded,
)
from pointsman_schemas.plan import Plan
from pointsman_schemas.strict_json import compact_json, parse_json
from pointsman_schemas.team import (
    Adaptive,
    Check,
    Choreography,
    FanOut,
    Fixed,
    Limits,
    Pipeline,
    PlanAndExecute,
    RetryPolicy,
    Router,
    Stage,
    Strategy,
)
from support.core import WORKFLOW, WorkflowDriver, card, failure, messages, plan, selection, task

__all__ = ["AGENTS", "World", "audit", "random_limits", "random_plan", "random_strategy", "random_workflow"]

AGENTS = (
    card("worker", fallback="other", reacts_to=("a", "b"), skills=("craft",)),
    card("other", fallback="worker", timeout=7, skills=("craft", "art")),
    card("selfish", fallback="selfish"),
    card("plain", reacts_to=("a", "c")),
)

_SKILLS = ("", "", "", "craft", "art")
_UNRELIABLE = (*(agent.name for agent in AGENTS), "planner", "synthesizer", "reviewer")

_NEVER, _ALWAYS = Check(fields=("nowhere",)), Check(fields=("from",))
_JUDGED = Check(judge="reviewer")

_LONG_ENOUGH = 300
"""Largest number of timers until the end. It is enough for every attempt of the largest plan in sequence."""


def random_plan(chance: Random, prefix: str = "t", most: int = 7) -> dict[str, Any]:
    """Return a plan of random dependencies in random order."""
    tasks: list[dict[str, Any]] = []
    for number in range(chance.randint(1, most)):
        earlier = [each["id"] for each in tasks]
        needs = [name for name in earlier if chance.random() < 0.3]
        optional = [name for name in earlier if chance.random() < 0.15]
        tasks.append(
            task(f"{prefix}{number}", chance.choice(AGENTS).name, needs, optional, skill=chance.choice(_SKILLS))
        )
    chance.shuffle(tasks)
    return plan(*tasks)


def random_strategy(chance: Random) -> Strategy:
    supervisor = PlanAndExecute(
        synthesizer=chance.choice(["synthesizer", None]), fallback=chance.choice([None, None, "plain", "ghost"])
    )
    router = Router(
        fallback=chance.choice([None, "plain", "ghost"]),
        synthesizer=chance.choice(["synthesizer", None]),
        escalate=chance.choice([None, PlanAndExecute()]),
    )
    stages = tuple(_stage(chance, f"s{number}") for number in range(chance.randint(1, 4)))
    dance = Choreography(start_event="a", end_events=chance.choice([(), ("c",)]), synthesizer=supervisor.synthesizer)
    adaptive = Adaptive(max_plans=chance.randint(1, 4), synthesizer=chance.choice(["synthesizer", None]))
    fan_out = FanOut(
        min_success_ratio=chance.choice([0.1, 0.5, 1]),
        synthesizer=chance.choice(["synthesizer", None]),
        skills=chance.choice([(), (), ("art", "craft"), ("craft", "none")]),
    )
    drawn: list[Strategy] = [
        supervisor,
        supervisor,
        router,
        Pipeline(stages=stages),
        fan_out,
        adaptive,
        adaptive,
        dance,
        _fixed(chance),
    ]
    return chance.choice(drawn)


def _stage(chance: Random, name: str) -> Stage:
    check = chance.choice([*[Check()] * 4, _NEVER, _ALWAYS, _JUDGED, _JUDGED])
    if chance.random() < 0.2:
        return Stage(skill=chance.choice(("craft", "none")), name=name, check=check)
    return Stage(agent=chance.choice(AGENTS).name, name=name, check=check)


def _fixed(chance: Random) -> Fixed:
    """Return a random fixed plan of a team. Some tasks have checks or their own retry policy."""
    drawn = Plan.model_validate(random_plan(chance, "f"))
    tasks = tuple(
        each.model_copy(update={"retry": chance.choice([None, RetryPolicy(attempts=chance.randint(1, 5))])})
        for each in drawn.tasks
    )
    checks = {each.id: chance.choice([_NEVER, _ALWAYS, _JUDGED]) for each in tasks if chance.random() < 0.3}
    synthesizer = chance.choice(["synthesizer", None])
    return Fixed(plan=drawn.model_copy(update={"tasks": tasks}), checks=checks, synthesizer=synthesizer)


def random_limits(chance: Random) -> Limits:
    return Limits(
        deadline=chance.choice([20, 60, 600]),
        task_timeout=chance.choice([5, 15, 200]),
        replans=chance.randint(0, 2),
        plan_repairs=chance.randint(0, 2),
        calls=chance.choice([None, None, 6]),
        tasks=chance.choice([10, 1_000]),
    )


def random_retry(chance: Random) -> RetryPolicy:
    return RetryPolicy(attempts=chance.randint(1, 3), no_retry_on=chance.choice([(), (), ("provider_error",)]))


def random_workflow(chance: Random) -> WorkflowDriver:
    """Return a workflow of a random team, before its request."""
    return WorkflowDriver(
        strategy=random_strategy(chance), limits=random_limits(chance), retry=random_retry(chance), cards=AGENTS
    )


@dataclass
class World:
    """A workflow (`story`), its agents and its broker. `pending_results` are not delivered yet."""

    chance: Random
    story: WorkflowDriver
    pending_results: list[ResultReceived] = field(default_factory=list)
    delivered: list[Input] = field(default_factory=list)
    handed: set[str] = field(default_factory=set)

    def step(self) -> None:
        """Do one random step."""
        self._work()
        happening = self.chance.choices(
            [
                *(self._deliver, self._repeat, self._stray, self._timer, self._pause, self._replay, self._cancel),
                self._health,
            ],
            [12, 3, 1, 2, 3, 2, 0.2, 1],
        )[0]
        happening()

    def _health(self) -> None:
        """Make some agents fail from now on, and the other agents recover."""
        now, chance = self.story.now, self.chance
        until = {
            name: now + timedelta(seconds=chance.choice([-1, 3, 15, 400]))
            for name in _UNRELIABLE
            if chance.random() < 0.3
        }
        self.story.loads = {each.name: Load(chance.randint(0, 9), chance.choice([None, 0.1, 2.0])) for each in AGENTS}
        self.story.circuits = {name: Circuit(since=now, until=moment) for name, moment in until.items()}

    def drain(self) -> None:
        """Advance the time, without other events, until the workflow has ended."""
        for _ in range(_LONG_ENOUGH):
            if self.story.state.ended:
                return
            self.story.fire_timer()
        raise AssertionError(f"after {_LONG_ENOUGH} timers the workflow is still {self.story.state.phase}")

    def _work(self) -> None:
        """Answer new handoffs. Some agents never answer."""
        for message in messages(self.story.state):
            if isinstance(message.event, Handoff) and message.id not in self.handed:
                self.handed.add(message.id)
                if self.chance.random() < 0.93:
                    self.pending_results.append(self._answer(message.event))

    def _answer(self, handoff: Handoff) -> ResultReceived:
        chance, story, name = self.chance, self.story, handoff.task_id
        luck = chance.random()
        if luck < 0.12:
            return story.result(name, error=failure(retryable=True, retry_after=chance.choice([None, 0, 3, 90])))
        if luck < 0.16:
            return story.result(name, error=failure("handler_error"))
        if luck < 0.18:
            return story.result(name, status="refused")
        match handoff.role:
            case Role.SUMMARIZE:
                return story.result(name, {"summary": "what was said"})
            case Role.PLAN:
                bad = plan(task("x", "ghost"), task("x", needs=["x"]))
                cannot = {"tasks": [], "cannot": "there is no way"}
                again = random_plan(chance, chance.choice(["t", f"{name}-"]))
                answers = [again, bad, "hm", cannot, {"done": True}]
                return story.result(name, chance.choices(answers, [8, 1, 1, 0.5, 1])[0])
            case Role.CLASSIFY:
                sure = selection(*((agent.name, chance.random()) for agent in AGENTS))
                sure["agents"].append({"skill": chance.choice(("craft", "none")), "confidence": chance.random()})
                return story.result(name, chance.choices([sure, "hm"], [9, 1])[0])
            case Role.SYNTHESIZE:
                return story.result(name, {"answer": "what there is"})
            case Role.JUDGE:
                reviews = [{"verdict": each, "reason": "so it is"} for each in ("pass", "again", "stop")]
                return story.result(name, chance.choices([*reviews, "hm"], [6, 3, 1, 1])[0])
            case Role.REFINE:
                raise AssertionError("this world has no refiner")
            case Role.WORK:
                hint = "there is another way" if chance.random() < 0.15 else None
                events = [{"name": each, "data": name} for each in "abcd" if chance.random() < 0.15]
                return story.result(name, {"from": name}, replan_hint=hint, events=events)

    def _deliver(self) -> None:
        """Deliver some pending results, in any order."""
        self.chance.shuffle(self.pending_results)
        count = self.chance.randint(1, 4)
        arrived, self.pending_results = self.pending_results[:count], self.pending_results[count:]
        self.delivered.extend(arrived)
        self.story.decide_and_apply(*arrived)

    def _repeat(self) -> None:
        """Redeliver some earlier results."""
        if self.delivered:
            self.story.decide_and_apply(*self.chance.choices(self.delivered, k=self.chance.randint(1, 3)))

    def _stray(self) -> None:
        """Deliver a result that no task expects."""
        name = self.chance.choice([*self.story.state.tasks, "nowhere"])
        wrong: dict[str, Any] = self.chance.choice([{"attempt": 9}, {"agent": "ghost"}, {"workflow_id": "wf_2"}])
        self.delivered.append(self.story.result(name, "stray", event_id=f"stray-{self.chance.random()}", **wrong))
        self.story.decide_and_apply(self.delivered[-1])

    def _timer(self) -> None:
        """Fire a timer that is due, not due yet, or already fired."""
        state = self.story.state
        match self.chance.choice(["due", "early", "old"]):
            case "due" if not state.ended:
                self.story.fire_timer()
            case "early":
                self.story.decide_and_apply(TimerFired(state.timer))
            case _:
                self.story.decide_and_apply(TimerFired(f"wake-{self.chance.randint(1, state.timers)}"))

    def _pause(self) -> None:
        self.story.wait(self.chance.choice([0.1, 1, 4, 20]))

    def _replay(self) -> None:
        tasks = self.story.state.tasks.values()
        failed = [each.id for each in tasks if each.status is TaskStatus.FAILED]
        name = self.chance.choice(failed or [each.id for each in tasks])
        event_id = f"replay-{self.chance.randint(1, 4)}"
        self.story.decide_and_apply(ControlReceived(event_id, Control(action="replay", task_id=name), "ada"))

    def _cancel(self) -> None:
        self.story.decide_and_apply(
            *[ControlReceived("cancel", Control(action="cancel"), "ada")] * self.chance.randint(1, 2)
        )


def audit(story: WorkflowDriver, chance: Random) -> None:
    """Assert on the whole log the invariants of an ended workflow."""
    log, state = story.log, story.state
    assert [entry for entry in log if isinstance(entry, WorkflowEnded)] == log[-1:], (
        "the only terminal entry must be the last entry"
    )

    reopened = Counter(entry.task_id for entry in log if isinstance(entry, TaskReopened))
    for each in state.tasks.values():
        most = state.retry_policy(each).attempts + 1 + 2 * reopened[each.id]
        assert each.attempt <= most, f"{each.id} had too many attempts"

    accepted = Counter(entry.task_id for entry in log if isinstance(entry, TaskSucceeded))
    assert set(accepted.values()) <= {1}, f"a task has more than one accepted result: {accepted}"

    before: State | None = None
    for entry in log:
        if isinstance(entry, TaskSucceeded | AttemptFailed | ReviewRequested) and entry.result and before:
            given, result = before.tasks[entry.task_id], entry.result
            judged = given.status is TaskStatus.IN_REVIEW and not isinstance(entry, ReviewRequested)
            assert given.active or (judged and result == given.result), (
                f"{given.id} is {given.status}, but the log accepts a result for it"
            )
            assert (result.workflow_id, result.agent, result.attempt) == (WORKFLOW, given.agent, given.attempt)
        if isinstance(entry, TaskDispatched) and before is not None:
            starting = before.tasks[entry.task_id]
            for name in set(starting.depends_on) - starting.optional:
                assert before.tasks[name].status is TaskStatus.SUCCEEDED, f"{entry.task_id} started before {name}"
            if entry.attempt == 1:  # a replayed task starts at once and does not wait for optional tasks
                for name in starting.depends_on:
                    assert before.tasks[name].settled, f"{entry.task_id} did not wait for {name}"
        before = evolve(before, entry)

    cut = chance.randint(1, len(story.commits))
    resumed: State | None = None
    for number, commit in enumerate(story.commits, 1):
        resumed = apply_commit(resumed, commit)
        if number == cut:
            resumed = from_snapshot(parse_json(compact_json(to_snapshot(resumed))))
    assert resumed is not None
    assert resumed == state
    assert list(resumed.tasks) == list(state.tasks)
