"""A workflow's state: what the entries of its log add up to. Values only; every change makes a new one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Annotated, Literal, TypeAlias, TypeVar

from pydantic import JsonValue, PlainSerializer, TypeAdapter

from pointsman.core.model.lifecycle import SETTLED, TERMINAL, Phase, TaskStatus
from pointsman_schemas.card import Role
from pointsman_schemas.events import ApprovalVerdict, AttemptError, Budget, Outcome, PlanUsage, Result, Usage
from pointsman_schemas.log import AbandonCause, Parent, TraceOrigin
from pointsman_schemas.plan import Plan
from pointsman_schemas.retry import RetryPolicy
from pointsman_schemas.team import Limits, Strategy

__all__ = [
    "PendingApproval",
    "State",
    "Task",
    "copy_with",
    "from_snapshot",
    "in_review",
    "reviewed_stage",
    "to_snapshot",
    "usage_bounds",
]

ValueT = TypeVar("ValueT", "State", "Task")

NO_USAGE = Usage()
NO_PLAN_USAGE = PlanUsage()


NameSet: TypeAlias = Annotated[frozenset[str], PlainSerializer(sorted, return_type=list[str])]
"""Written in order, so that the snapshot of a state is the same bytes whoever writes it."""


@dataclass(frozen=True)
class Task:
    """One piece of work of a workflow: a task of its plan, or the planner's, classifier's or synthesizer's own.

    `attempt` counts from 1 once it was dispatched. `max_attempts` is how many attempts it may have. `commit` is the
    number of the commit that dispatched the current attempt. `since` is when that attempt was decided, `not_before`
    when it may start."""

    id: str
    role: Role
    agent: str
    intent: str
    input: JsonValue
    max_attempts: int
    retry: RetryPolicy | None = None
    """The task's own retry policy; None for the team's."""
    skill: str = ""
    """What its agent must have: who gets it is chosen for each attempt."""
    depends_on: tuple[str, ...] = ()
    optional: NameSet = frozenset()
    status: TaskStatus = TaskStatus.WAITING
    attempt: int = 0
    commit: int = 0
    since: datetime | None = None
    started_at: datetime | None = None
    not_before: datetime | None = None
    deadline: datetime | None = None
    ended_at: datetime | None = None
    span_id: str = ""
    fallback: str | None = None
    budget: Budget | None = None
    """What the current attempt may use, set aside while it is `active`."""
    event: str = ""
    """The domain event it reacts to."""
    needs_approval: bool = False
    approved: bool = False
    refined_by: str = ""
    """The task that was to find better words for it."""
    returned_by_review: bool = False
    """A judge wanted it done again, which it may once."""
    verdicts: tuple[ApprovalVerdict, ...] = ()
    """What people said to the tool calls it asked about."""
    approval_attempts: tuple[int, ...] = ()
    """The attempts that ended with such a question."""
    team: bool = False
    """The agent is a team, which works in a workflow of its own."""
    rerouted: bool = False
    """It was held, or went to who stands in for its agent."""
    result: Result | None = None
    event_id: str = ""
    error: AttemptError | None = None
    reason: str = ""
    abandon_cause: AbandonCause | None = None
    usage: Usage = NO_USAGE
    work_seconds: float = 0.0
    """Seconds that agents worked on it, over all attempts."""

    @property
    def settled(self) -> bool:
        return self.status in SETTLED

    @property
    def held(self) -> bool:
        """Nobody may be sent it yet."""
        return self.status is TaskStatus.HELD

    @property
    def active(self) -> bool:
        """An attempt at it is, or will be, with an agent."""
        return self.status in (TaskStatus.RUNNING, TaskStatus.BACKING_OFF)


@dataclass(frozen=True, slots=True)
class PendingApproval:
    """What a person is asked, and has not answered. `task_id` is None for a plan."""

    id: str
    about: Literal["task", "tool", "plan"]
    asked_at: datetime
    expires_at: datetime
    task_id: str | None = None
    tool: str = ""
    input: JsonValue = None
    plan: Plan | None = None
    revision: int = 0


@dataclass(frozen=True)
class State:
    """Everything a supervisor knows of one workflow. Two states with the same entries behind them are equal."""

    workflow_id: str
    team: str
    request_id: str
    correlation_id: str
    input: str | dict[str, JsonValue]
    metadata: dict[str, JsonValue]
    agents: Literal["*"] | tuple[str, ...]
    strategy: Strategy
    limits: Limits
    retry: RetryPolicy
    started_at: datetime
    deadline: datetime
    budget: Budget | None
    reply_to: str | None
    trace: TraceOrigin
    parent: Parent | None = None
    request_digest: str = ""
    depth: int = 0
    approve_plan: bool = False
    refiner: str | None = None
    judge: str | None = None
    approvals: Mapping[str, PendingApproval] = field(default_factory=dict)
    """What people are asked, by id. The deadline does not run while they are."""
    approvals_requested: int = 0
    approval_wait_since: datetime | None = None
    phase: Phase = Phase.PLANNING
    tasks: Mapping[str, Task] = field(default_factory=dict)
    dependants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    open_tasks: int = 0
    """Tasks of the plan that are not settled."""
    plan: Plan | None = None
    revision: int = 0
    """The number of the newest plan asked for, accepted or not."""
    rejections: int = 0
    """Plans refused in a row."""
    replans: int = 0
    """Plans asked for while one was running; refused ones sent back do not count again."""
    results_seen_by_planner: int = 0
    """Settled tasks that the newest planner was told of."""
    timer: str = ""
    timer_due: datetime | None = None
    timers: int = 0
    reached_limit: str = ""
    missing_agents: tuple[str, ...] = ()
    """Agents with open tasks that were not live when the deadline was reached."""
    usage: Usage = NO_USAGE
    child_plan_usage: PlanUsage = NO_PLAN_USAGE
    """What the teams it handed tasks to have planned; of attempts that nobody told of, all they were given."""
    ignored_events: NameSet = frozenset()
    """Ids of events that were dealt with and must not count again: ignored results, replays."""
    outcome: Outcome | None = None
    commits: int = 0

    @property
    def ended(self) -> bool:
        return self.phase in TERMINAL

    @property
    def has_begun(self) -> bool:
        """There is something to do, or a person is asked whether there is: it waits for nobody to come any more."""
        return bool(self.tasks) or self.approvals_requested > 0

    def plan_tasks(self) -> Iterator[Task]:
        """The tasks of the plan, in its order."""
        return (task for task in self.tasks.values() if task.role is Role.WORK)

    def retry_policy(self, task: Task) -> RetryPolicy:
        """Return the policy that governs the retries of `task`: its own, or else the team's."""
        return task.retry or self.retry

    def can_start(self, task: Task) -> bool:
        """Whether a task that waits has nothing to wait for."""
        if task.status is not TaskStatus.WAITING:
            return False
        return not task.depends_on or all(self.tasks[name].settled for name in task.depends_on)


def copy_with(value: ValueT, **changes: object) -> ValueT:
    """A copy of a state or a task with some fields changed: `dataclasses.replace` in a tenth of its time, which was a
    third of all that deciding costs. It needs the instance's `__dict__`, so these two have no slots.

    Raises:
        TypeError: there is no field of that name.
    """
    fields = value.__dict__ | changes
    if len(fields) != len(value.__dict__):
        raise TypeError(f"a {type(value).__name__} has no {', '.join(changes.keys() - value.__dict__.keys())}")
    made = object.__new__(type(value))
    object.__setattr__(made, "__dict__", fields)
    return made


def usage_bounds(state: State) -> Mapping[str, tuple[float, float]]:
    """What was used of calls, tokens and cost, each with its bound: the tighter of the team's and the request's. Only
    what has a bound is listed."""
    limits = state.limits
    if state.budget is None and limits.calls is None and limits.tokens is None and limits.cost is None:
        return {}
    budget = state.budget or Budget()
    allowed = {
        "calls": (state.usage.calls, limits.calls, budget.calls),
        "tokens": (state.usage.tokens, limits.tokens, budget.tokens),
        "cost": (state.usage.cost, limits.cost, budget.cost),
    }
    tight = {name: [bound for bound in both if bound is not None] for name, (_, *both) in allowed.items()}
    return {name: (allowed[name][0], min(both)) for name, both in tight.items() if both}


def in_review(state: State | None, task_id: str) -> bool:
    """Whether a judge is looking at what the task's agent made: that has answered, and what comes next says nothing new
    of it."""
    task = state.tasks.get(task_id) if state is not None else None
    return task is not None and task.status is TaskStatus.IN_REVIEW


def reviewed_stage(state: State, judge: Task) -> Task | None:
    """The stage whose result the task `judge` is to look at; None when it decides between results, or is no judge's."""
    asked = judge.input if judge.role is Role.JUDGE and isinstance(judge.input, dict) else {}
    name = asked.get("task_id")
    return state.tasks.get(name) if isinstance(name, str) else None


@cache  # building it takes some 50 ms, which a process that meets no snapshot, as a worker, need not wait for
def _state_adapter() -> TypeAdapter[State]:
    return TypeAdapter(State)


def to_snapshot(state: State) -> JsonValue:
    """`state` as JSON data, for a log commit."""
    snapshot: JsonValue = _state_adapter().dump_python(state, mode="json")
    return snapshot


def from_snapshot(snapshot: JsonValue) -> State:
    """The state that `to_snapshot` wrote. Raises pydantic's `ValidationError` when it is not one."""
    return _state_adapter().validate_python(snapshot)
