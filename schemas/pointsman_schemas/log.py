"""The entries of a workflow's log. They say what happened, in the past tense, and they ARE the workflow's state.

One message on `{ns}.log.{team}.{workflow}` is one commit: the entries that one supervisor decided together. Every
entry carries its own time, so that a log read later, anywhere, folds to the same state.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import AwareDatetime, Field

from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, Budget, Event, Outcome, Part, Result
from pointsman_schemas.ids import AgentName, TaskId, TeamName, Token, WorkflowId
from pointsman_schemas.plan import Plan
from pointsman_schemas.strict_json import JsonValue
from pointsman_schemas.team import Limits, Strategy

__all__ = [
    "AgentLoad",
    "AllowanceAwaited",
    "ApprovalDecided",
    "ApprovalRequested",
    "AttemptFailed",
    "Commit",
    "ControlIgnored",
    "Entry",
    "Grounds",
    "LimitReached",
    "OpenCircuit",
    "Parent",
    "PlanAccepted",
    "PlanRejected",
    "RefinementAsked",
    "ResultIgnored",
    "RetryScheduled",
    "ReviewAsked",
    "TaskAbandoned",
    "TaskAdded",
    "TaskDispatched",
    "TaskFailed",
    "TaskHeld",
    "TaskRefined",
    "TaskReopened",
    "TaskSkipped",
    "TaskSucceeded",
    "TimerArmed",
    "TraceOrigin",
    "WorkflowEnded",
    "WorkflowStarted",
]


class TraceOrigin(Part):
    """Where a workflow's spans hang: its own trace and span, and the caller's span when there is one."""

    trace_id: str
    span_id: str
    parent_span_id: str | None = None
    flags: int = 1
    tracestate: str = ""


class Parent(Part):
    """The task of another team's workflow that a workflow was started for. The result goes to `return_to`, by
    `deadline`."""

    team: TeamName
    workflow_id: WorkflowId
    task_id: TaskId
    attempt: int
    return_to: str
    deadline: AwareDatetime


class WorkflowStarted(Part):
    """A request was admitted, or, with a `parent`, a handoff to the team. `depth` is how many teams are above it.
    Strategy and limits are kept as they were then: a team's new version changes no running workflow. No refiner and no
    judge is null or left out, as by a release that knew neither. By `request_digest` the same request is known when it
    comes again, and another one under the same id is told from it; nothing for a handoff."""

    kind: Literal["workflow_started"] = "workflow_started"
    at: AwareDatetime
    workflow_id: WorkflowId
    team: TeamName
    request_id: str
    request_digest: str = ""
    correlation_id: str
    input: str | dict[str, JsonValue]
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    agents: Literal["*"] | tuple[AgentName, ...] = "*"
    strategy: Strategy
    limits: Limits
    approve_plan: bool = False
    refiner: AgentName | None = None
    judge: AgentName | None = None
    deadline: AwareDatetime
    budget: Budget | None = None
    reply_to: str | None = None
    trace: TraceOrigin
    parent: Parent | None = None
    depth: int = 0


class TaskAdded(Part):
    """A task outside the plan: the planner's, the classifier's, the synthesizer's own work."""

    kind: Literal["task_added"] = "task_added"
    at: AwareDatetime
    task_id: TaskId
    role: Role
    agent: AgentName
    intent: str
    input: JsonValue = None


class PlanAccepted(Part):
    """A plan passed its checks and its tasks are now the workflow's. A task for a `skill` has the name of an agent that
    has it; who gets the task is said when it is dispatched. In a choreography its tasks are the reactions to
    an `event`."""

    kind: Literal["plan_accepted"] = "plan_accepted"
    at: AwareDatetime
    revision: int
    plan: Plan
    event: str = ""


class PlanRejected(Part):
    """A plan did not pass its checks. `raw` is what the planner sent, cut at 4,000 characters."""

    kind: Literal["plan_rejected"] = "plan_rejected"
    at: AwareDatetime
    revision: int
    problems: tuple[str, ...]
    raw: str = ""


class TaskDispatched(Part):
    """An attempt at a task was handed to an agent. `fallback` is who gets the task when this agent is exhausted; the
    agent may be a `team`. It stands in for `instead_of`, whose circuit was open. `allowance` is what the attempt may
    use, set aside until its result is there; None where nothing is bounded."""

    kind: Literal["task_dispatched"] = "task_dispatched"
    at: AwareDatetime
    task_id: TaskId
    attempt: int
    agent: AgentName
    deadline: AwareDatetime
    span_id: str
    fallback: AgentName | None = None
    team: bool = False
    instead_of: AgentName | None = None
    allowance: Budget | None = None


class TaskHeld(Part):
    """Nobody may be sent the task: its agent's circuit is open. It is looked at again at `until`."""

    kind: Literal["task_held"] = "task_held"
    at: AwareDatetime
    task_id: TaskId
    until: AwareDatetime
    reason: str = ""


class AllowanceAwaited(Part):
    """Everything that the next attempt at the task could use is set aside for others: it waits until some comes back,
    and, when it is a retry, for the time `not_before`. `limit` is the one that lacks."""

    kind: Literal["allowance_awaited"] = "allowance_awaited"
    at: AwareDatetime
    task_id: TaskId
    agent: AgentName
    limit: str
    not_before: AwareDatetime | None = None


class TaskSucceeded(Part):
    """The `attempt` was answered with this `result`, by the event `event_id`, and the task is done."""

    kind: Literal["task_succeeded"] = "task_succeeded"
    at: AwareDatetime
    task_id: TaskId
    attempt: int
    event_id: str
    result: Result


class AttemptFailed(Part):
    """The `attempt` failed with `error`; `result` is what its agent said, None where nobody answered."""

    kind: Literal["attempt_failed"] = "attempt_failed"
    at: AwareDatetime
    task_id: TaskId
    attempt: int
    event_id: str
    error: AttemptError
    result: Result | None = None


class RetryScheduled(Part):
    """The task will be tried again, not before `not_before`, by `agent`: the same one, or its fallback, with an
    `allowance` of its own."""

    kind: Literal["retry_scheduled"] = "retry_scheduled"
    at: AwareDatetime
    task_id: TaskId
    attempt: int
    agent: AgentName
    not_before: AwareDatetime
    deadline: AwareDatetime
    reason: str = ""
    team: bool = False
    allowance: Budget | None = None


class ReviewAsked(Part):
    """What an attempt at a stage made passed its check, and counts once the agent `judge` lets it pass:
    `task_succeeded` with the same result follows, or `attempt_failed`."""

    kind: Literal["review_asked"] = "review_asked"
    at: AwareDatetime
    task_id: TaskId
    attempt: int
    event_id: str
    judge: AgentName
    result: Result


class TaskRefined(Part):
    """The task is tried again in other words, or, with an `intent` that is empty, in the same: nobody had better."""

    kind: Literal["task_refined"] = "task_refined"
    at: AwareDatetime
    task_id: TaskId
    intent: str = ""


class RefinementAsked(Part):
    """The task has failed more than once; the task `by` is to find better words for it."""

    kind: Literal["refinement_asked"] = "refinement_asked"
    at: AwareDatetime
    task_id: TaskId
    by: TaskId


class TaskFailed(Part):
    """The task failed for good. `attempts` tries were made at it."""

    kind: Literal["task_failed"] = "task_failed"
    at: AwareDatetime
    task_id: TaskId
    error: AttemptError
    attempts: int


class TaskSkipped(Part):
    """The task will not run, because `cause` did not succeed."""

    kind: Literal["task_skipped"] = "task_skipped"
    at: AwareDatetime
    task_id: TaskId
    cause: TaskId
    reason: str


class TaskAbandoned(Part):
    """The workflow no longer waits for the task. Its agent is, or may be, a `team`, which is told so."""

    kind: Literal["task_abandoned"] = "task_abandoned"
    at: AwareDatetime
    task_id: TaskId
    reason: str
    team: bool = False


class TaskReopened(Part):
    """A person replayed the dead letter of a failed task; those skipped for it wait again."""

    kind: Literal["task_reopened"] = "task_reopened"
    at: AwareDatetime
    event_id: str
    task_id: TaskId
    by: str = ""


class ResultIgnored(Part):
    """A result that counts for nothing: late, foreign, or a second one for the same attempt."""

    kind: Literal["result_ignored"] = "result_ignored"
    at: AwareDatetime
    event_id: str
    task_id: str
    attempt: int
    agent: str
    reason: str


class ApprovalRequested(Part):
    """The workflow waits for a person's yes to a task, to a `tool` call of one, or to a `plan`. `input` is the call's
    arguments, and `input_schema` what others in their place must fit. `agent` is who would get the task."""

    kind: Literal["approval_requested"] = "approval_requested"
    at: AwareDatetime
    approval: Token
    about: Literal["task", "tool", "plan"]
    task_id: TaskId | None = None
    agent: AgentName | None = None
    tool: str = ""
    input: JsonValue = None
    input_schema: dict[str, JsonValue] | None = None
    plan: Plan | None = None
    revision: int = 0
    expires_at: AwareDatetime


class ApprovalDecided(Part):
    """A person's answer, or `expired`: nobody gave one in time, which means no. `input` is what the person changed the
    task's input, the arguments or the plan to."""

    kind: Literal["approval_decided"] = "approval_decided"
    at: AwareDatetime
    event_id: str
    approval: Token
    verdict: Literal["approved", "rejected", "expired"]
    input: JsonValue = None
    reason: str = ""
    by: str = ""


class ControlIgnored(Part):
    """What a person or a system asked for counts for nothing, and why."""

    kind: Literal["control_ignored"] = "control_ignored"
    at: AwareDatetime
    event_id: str
    action: str
    approval: Token | None = None
    input: JsonValue = None
    reason: str


class TimerArmed(Part):
    """The supervisor will look at the workflow again at `due`, whatever happens until then. `reason` is who must come
    before the workflow can begin."""

    kind: Literal["timer_armed"] = "timer_armed"
    at: AwareDatetime
    name: str
    due: AwareDatetime
    reason: str = ""


class LimitReached(Part):
    """A limit ended the work; an answer is made of what there is."""

    kind: Literal["limit_reached"] = "limit_reached"
    at: AwareDatetime
    limit: str
    detail: str


class WorkflowEnded(Part):
    """The terminal entry. Nothing follows it."""

    kind: Literal["workflow_ended"] = "workflow_ended"
    at: AwareDatetime
    outcome: Outcome


Entry: TypeAlias = Annotated[
    WorkflowStarted
    | TaskAdded
    | PlanAccepted
    | PlanRejected
    | TaskDispatched
    | TaskHeld
    | AllowanceAwaited
    | TaskSucceeded
    | AttemptFailed
    | RetryScheduled
    | RefinementAsked
    | TaskRefined
    | ReviewAsked
    | TaskFailed
    | TaskSkipped
    | TaskAbandoned
    | TaskReopened
    | ResultIgnored
    | ApprovalRequested
    | ApprovalDecided
    | ControlIgnored
    | TimerArmed
    | LimitReached
    | WorkflowEnded,
    Field(discriminator="kind"),
]


class OpenCircuit(Part):
    """An agent that was sent no work before `until`, or only the attempt `probe`."""

    until: AwareDatetime
    probe: str = ""


class AgentLoad(Part):
    """The handoffs that were `ahead` in an agent's queue and in its hands, and the seconds that one took lately."""

    ahead: int
    seconds: float | None = None


class Grounds(Part):
    """What a commit was decided upon beside its entries' own inputs; null is none. `agents` are the cards of those
    alive, without what is as by default, prose and schemas, and null where they are as in the commit before; `circuits`
    are all that were open, `loads` those of agents that were chosen among, `max_body` the bytes an event might have
    where that was not the default, `fired` the timers that came."""

    agents: tuple[dict[str, JsonValue], ...] | None = None
    circuits: dict[AgentName, OpenCircuit] | None = None
    loads: dict[AgentName, AgentLoad] | None = None
    max_body: int | None = None
    fired: tuple[str, ...] | None = None


class Commit(Event):
    """One message of the log. `number` counts the workflow's commits from 1. A commit that carries a `snapshot` is the
    whole state after its entries; `snapshot_sequence` is where in the stream the newest earlier one stands. `waiting`
    are the approvals that the workflow waits for after it, `grounds` what it was decided upon."""

    event_type: ClassVar[str] = "io.pointsman.log.v1"

    number: int
    entries: tuple[Entry, ...]
    snapshot: JsonValue = None
    snapshot_sequence: int | None = None
    waiting: tuple[Token, ...] = ()
    grounds: Grounds | None = None
