"""Define the state of a workflow, which is the fold of its log entries. All values are immutable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Annotated, Literal, TypeAlias, TypeVar

from pydantic import JsonValue, PlainSerializer, TypeAdapter

from pointsman.core.model.inputs import ROUND_MARK
from pointsman.core.model.lifecycle import SETTLED, TERMINAL, Phase, TaskStatus
from pointsman_schemas.card import Role
from pointsman_schemas.events import (
    Answer,
    AttemptError,
    Budget,
    History,
    Outcome,
    PlanUsage,
    Result,
    Usage,
    UserMessage,
)
from pointsman_schemas.files import File
from pointsman_schemas.log import AbandonCause, Parent, ThreadTurn, TraceOrigin
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.retry import RetryPolicy
from pointsman_schemas.team import Limits, Strategy

__all__ = [
    "OpenQuestion",
    "State",
    "Task",
    "copy_with",
    "from_snapshot",
    "in_review",
    "reviewed_stage",
    "to_snapshot",
    "unused_id",
    "unused_ids",
    "usage_bounds",
]

ValueT = TypeVar("ValueT", "State", "Task")

_MAX_TASK_ID_CHARS = 64
"""Longest task id, in characters. A task id is a token of a subject, and a token may not be longer."""

NO_USAGE = Usage()
NO_PLAN_USAGE = PlanUsage()


NameSet: TypeAlias = Annotated[frozenset[str], PlainSerializer(sorted, return_type=list[str])]
"""A set that is serialized in sorted order. So equal states have equal snapshots."""


@dataclass(frozen=True)
class Task:
    """One task of a workflow: a task of its plan, or a task of a role such as the planner or the synthesizer.

    `attempt` is 0 before the first dispatch. `commit` is the number of the commit that dispatched the current attempt.
    `since` is the time of the dispatch. `not_before` is the earliest start of the attempt.
    """

    id: str
    role: Role
    agent: str
    intent: str
    input: JsonValue
    max_attempts: int
    retry: RetryPolicy | None = None
    """The task's own retry policy; None if the task uses the team's policy."""
    skill: str = ""
    """The skill that the agent must have. If a skill is set, the agent is selected for each attempt."""
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
    """The budget of the current attempt, reserved while the task is `active`."""
    event: str = ""
    """The domain event to which the task reacts."""
    definition: PlannedTask | None = None
    """The task as planned, if the plan gives the task a condition, a list of items, or fields from results."""
    item_of: str = ""
    """The id of the task with `for_each`, if this task does one of its items."""
    item_index: int = 0
    items: tuple[str, ...] = ()
    """The ids of the tasks for the items, if this task has `for_each`."""
    intentionally_skipped: bool = False
    """True if a false condition skipped the task or its dependency. Then the task is not a gap of the answer."""
    needs_approval: bool = False
    approved: bool = False
    refined_by: str = ""
    """The id of the refiner's task that writes a new intent."""
    returned_by_review: bool = False
    """True if a judge has returned the output of the task, which a judge may do only once."""
    answers: tuple[Answer, ...] = ()
    """The answers of persons to the questions of earlier attempts."""
    messages: int = 0
    """Number of messages in the handoff of the current attempt. These are all messages before its dispatch."""
    asking_attempts: tuple[int, ...] = ()
    """The attempts that ended with a question."""
    team: bool = False
    """True if the agent is a team, which runs a workflow of its own."""
    rerouted: bool = False
    """True if the task was held, or was dispatched to a fallback."""
    result: Result | None = None
    event_id: str = ""
    error: AttemptError | None = None
    reason: str = ""
    abandon_cause: AbandonCause | None = None
    usage: Usage = NO_USAGE
    work_seconds: float = 0.0
    """Seconds that agents worked on the task, over all attempts."""

    @property
    def settled(self) -> bool:
        """True if the task is in a terminal status."""
        return self.status in SETTLED

    @property
    def held(self) -> bool:
        """True if the task waits for a live agent whose circuit allows work."""
        return self.status is TaskStatus.HELD

    @property
    def has_items(self) -> bool:
        """True if the task is done for each item of a list. Then only the items have attempts."""
        return self.definition is not None and self.definition.for_each is not None and not self.item_of

    @property
    def active(self) -> bool:
        """True if an attempt is with an agent, or is scheduled."""
        return self.status in (TaskStatus.RUNNING, TaskStatus.BACKING_OFF)


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question without an answer. `task_id` is None for a plan."""

    id: str
    about: Literal["task", "tool", "plan", "information"]
    asked_at: datetime
    expires_at: datetime
    task_id: str | None = None
    tool: str = ""
    input: JsonValue = None
    key: str = ""
    text: str = ""
    input_schema: dict[str, JsonValue] | None = None
    has_default: bool = False
    default: JsonValue = None
    plan: Plan | None = None
    revision: int = 0


@dataclass(frozen=True)
class State:
    """The state of one workflow. Equal entries fold to equal states."""

    workflow_id: str
    team: str
    request_id: str
    correlation_id: str
    input: str | dict[str, JsonValue]
    metadata: dict[str, JsonValue]
    files: tuple[File, ...]
    """The files of the request."""
    agents: Literal["*"] | tuple[str, ...]
    strategy: Strategy
    limits: Limits
    retry: RetryPolicy
    started_at: datetime
    deadline: datetime
    budget: Budget | None
    reply_to: str | None
    trace: TraceOrigin
    caller: str
    secret: str
    parent: Parent | None = None
    request_digest: str = ""
    ignored_fields: tuple[str, ...] = ()
    depth: int = 0
    thread: ThreadTurn | None = None
    summarizer: str | None = None
    history: History | None = None
    """The earlier turns of the thread at the time of the request. The summary that this workflow's summarizer writes is
    not in this field; `conversation` adds that summary."""
    approve_plan: bool = False
    refiner: str | None = None
    judge: str | None = None
    questions: Mapping[str, OpenQuestion] = field(default_factory=dict)
    """The open questions, by id. The deadline is paused while a question is open."""
    questions_asked: int = 0
    information_questions: int = 0
    """Number of the questions that asked for information."""
    answer_wait_since: datetime | None = None
    phase: Phase = Phase.PLANNING
    tasks: Mapping[str, Task] = field(default_factory=dict)
    dependants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    open_tasks: int = 0
    """Number of tasks of the plan that are not settled."""
    plan: Plan | None = None
    revision: int = 0
    """The number of the newest plan that was requested, even if the plan was not accepted."""
    rejections: int = 0
    """Number of plans that were refused in a row."""
    replans: int = 0
    """Number of plans that were requested while a plan was running. A request to repair a plan does not count."""
    results_seen_by_planner: int = 0
    """Number of settled tasks that the newest planner received."""
    messages: tuple[UserMessage, ...] = ()
    """The messages to the workflow, in order."""
    messages_read: int = 0
    """The number of the newest message that an agent had received before the agent gave a result."""
    messages_seen_by_planner: int = 0
    """Number of messages that the newest planner received."""
    timer: str = ""
    timer_due: datetime | None = None
    timers: int = 0
    reached_limit: str = ""
    missing_agents: tuple[str, ...] = ()
    """Agents with open tasks that were not live at the deadline."""
    usage: Usage = NO_USAGE
    child_plan_usage: PlanUsage = NO_PLAN_USAGE
    """Tasks and re-plans that child teams have used. If a result states no usage, the whole budget of the attempt
    counts."""
    ignored_events: NameSet = frozenset()
    """Ids of events that must have no effect if they arrive again: ignored results, and commands that were applied or
    ignored."""
    outcome: Outcome | None = None
    """The outcome of the present round; None while the round runs."""
    commits: int = 0
    round: int = 1
    """The number of the round. The first round is 1, and each resume adds 1."""
    round_started_at: datetime | None = None
    """The time of the newest resume; None in the first round."""
    earlier_usage: Usage = NO_USAGE
    """The usage of earlier rounds. `usage` is the usage of the present round, and the limits apply to `usage` only."""
    time_limit: timedelta = timedelta()
    """The duration from the start of a round to its deadline."""
    start_pending: bool = False
    """True if the round begins without a plan, and no task of the round was added yet."""
    refused: bool = False
    """True if the request was refused, for example because it could not be read. A refused workflow cannot be
    resumed."""

    @property
    def ended(self) -> bool:
        """True if the phase is terminal."""
        return self.phase in TERMINAL

    @property
    def has_begun(self) -> bool:
        """True if the workflow has tasks or has asked a question, so its start no longer waits for an agent.

        In a thread, the task of the summarizer does not count, because this task precedes the start.
        """
        if self.start_pending:
            return False
        if self.thread is None:
            return bool(self.tasks) or self.questions_asked > 0
        return self.questions_asked > 0 or any(task.role is not Role.SUMMARIZE for task in self.tasks.values())

    @property
    def next_timer(self) -> str:
        """Name of the timer that is armed next."""
        name = f"wake-{self.timers + 1}"
        return name if self.round == 1 else f"{name}{ROUND_MARK}{self.round}"

    @property
    def round_began_at(self) -> datetime:
        """Start of the present round."""
        return self.round_started_at or self.started_at

    @property
    def total_usage(self) -> Usage:
        """Usage of all rounds."""
        return self.earlier_usage + self.usage if self.round > 1 else self.usage

    def plan_tasks(self) -> Iterator[Task]:
        """Return the tasks of the plan, in order."""
        return (task for task in self.tasks.values() if task.role is Role.WORK)

    def answering_tasks(self) -> Iterator[Task]:
        """Return the tasks of the plan, in order, without the items of a task with `for_each` that succeeded.

        The result of such a task is the list of its items' outputs, so the items would be in the answer twice.
        """
        return (
            task
            for task in self.plan_tasks()
            if not task.item_of or self.tasks[task.item_of].status is not TaskStatus.SUCCEEDED
        )

    def retry_policy(self, task: Task) -> RetryPolicy:
        """Return the retry policy of `task`: its own policy or, without one, the team's policy."""
        return task.retry or self.retry

    def can_start(self, task: Task) -> bool:
        """Return True if the task waits and all its dependencies are settled."""
        if task.status is not TaskStatus.WAITING:
            return False
        return not task.depends_on or all(self.tasks[name].settled for name in task.depends_on)


def copy_with(value: ValueT, **changes: object) -> ValueT:
    """Return a copy of a state or a task with changed fields.

    The copy takes a tenth of the time of `dataclasses.replace`, which used a third of the time of a decision. The copy
    reads the `__dict__` of the instance, so `State` and `Task` have no slots.

    Args:
        value: The state or the task.
        changes: The new values, by field.

    Returns:
        The copy.

    Raises:
        TypeError: The class has no field of that name.
    """
    fields = value.__dict__ | changes
    if len(fields) != len(value.__dict__):
        raise TypeError(f"a {type(value).__name__} has no {', '.join(changes.keys() - value.__dict__.keys())}")
    made = object.__new__(type(value))
    object.__setattr__(made, "__dict__", fields)
    return made


def usage_bounds(state: State) -> Mapping[str, tuple[float, float]]:
    """Return the used amount and the bound of calls, tokens and cost. An amount without a bound is left out."""
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


def unused_id(state: State, wanted: str) -> str:
    """Return `wanted`, or the first of `wanted-2`, `wanted-3`, ... that no task has."""
    return unused_ids(state, (wanted,))[0]


def unused_ids(state: State, wanted: Iterable[str]) -> list[str]:
    """Return a different, unused task id for each of `wanted`. An id that is too long for a subject token is cut."""
    taken = set(state.tasks)
    found: list[str] = []
    for each in wanted:
        number, name = 1, each[:_MAX_TASK_ID_CHARS]
        while name in taken:
            number += 1
            tail = f"-{number}"
            name = each[: _MAX_TASK_ID_CHARS - len(tail)] + tail
        taken.add(name)
        found.append(name)
    return found


def in_review(state: State | None, task_id: str) -> bool:
    """Return True if a judge reviews the result of the task. Such a task needs no further result of its agent."""
    task = state.tasks.get(task_id) if state is not None else None
    return task is not None and task.status is TaskStatus.IN_REVIEW


def reviewed_stage(state: State, judge: Task) -> Task | None:
    """Return the stage whose output the task `judge` reviews; None for any other task."""
    if judge.role is not Role.JUDGE or not isinstance(judge.input, dict):
        return None
    name = judge.input.get("task_id")
    return state.tasks.get(name) if isinstance(name, str) else None


@cache  # built on first use, because the build takes 50 ms and a worker needs no snapshots
def _state_adapter() -> TypeAdapter[State]:
    return TypeAdapter(State)


def to_snapshot(state: State) -> JsonValue:
    """Return `state` as JSON data, for a commit of the log."""
    snapshot: JsonValue = _state_adapter().dump_python(state, mode="json")
    return snapshot


def from_snapshot(snapshot: JsonValue) -> State:
    """Return the state that `to_snapshot` wrote.

    Raises:
        ValidationError: The data is not a state.
    """
    return _state_adapter().validate_python(snapshot)
