"""Define the entries of a workflow's log. The state of the workflow is computed from its entries (a fold).

One message on `{ns}.log.{team}.{workflow}` is one commit, with the entries that a supervisor decided together. Every
entry contains its time. So the fold needs no clock, and gives the same state at any time and in any process.
"""

from __future__ import annotations

from operator import not_
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import AwareDatetime, Field

from pointsman_schemas.card import Role
from pointsman_schemas.events import (
    AttemptError,
    Budget,
    Event,
    History,
    Outcome,
    Part,
    PastTurn,
    Result,
    UserMessage,
    Verdict,
)
from pointsman_schemas.files import File
from pointsman_schemas.ids import AgentName, TaskId, TeamName, Token, WorkflowId
from pointsman_schemas.plan import Plan
from pointsman_schemas.retry import RetryPolicy
from pointsman_schemas.strict_json import JsonValue
from pointsman_schemas.team import Limits, Strategy

__all__ = [
    "AbandonCause",
    "AgentLoad",
    "AttemptFailed",
    "BudgetAwaited",
    "Commit",
    "ControlIgnored",
    "Entry",
    "IgnoreCause",
    "ItemsGathered",
    "LimitReached",
    "MessageReceived",
    "OpenCircuit",
    "Parent",
    "PlanAccepted",
    "PlanRejected",
    "QuestionAnswered",
    "QuestionAsked",
    "RecordedContext",
    "RefinementRequested",
    "ResultIgnored",
    "RetryScheduled",
    "ReviewRequested",
    "TaskAbandoned",
    "TaskAdded",
    "TaskDispatched",
    "TaskExpanded",
    "TaskFailed",
    "TaskHeld",
    "TaskRefined",
    "TaskReopened",
    "TaskSkipped",
    "TaskSucceeded",
    "ThreadTurn",
    "TimerArmed",
    "TraceOrigin",
    "WorkflowCancellation",
    "WorkflowEnded",
    "WorkflowResumed",
    "WorkflowStarted",
]


AbandonCause: TypeAlias = Literal["limit", "cancelled", "ended"]
"""The cause of an abandoned task: a limit, the cancellation of the workflow, or the end of the workflow."""

IgnoreCause: TypeAlias = Literal["other_workflow", "unknown_task", "other_agent", "stale_attempt"]
"""The cause of an ignored result: another workflow, an unknown task, another agent, or an attempt that is not
current."""


class TraceOrigin(Part):
    """The trace context of a workflow."""

    trace_id: str = Field(description="The trace of the workflow, as 32 hexadecimal digits.")
    span_id: str = Field(description="The span of the workflow, as 16 hexadecimal digits.")
    parent_span_id: str | None = Field(default=None, description="The caller's span, if the request had one.")
    flags: int = Field(default=1, description="The W3C trace flags; 1 means sampled.")
    tracestate: str = Field(default="", description="The W3C `tracestate` of the request.")


class Parent(Part):
    """The task of another team for which a child workflow was started."""

    team: TeamName = Field(description="The other team.")
    workflow_id: WorkflowId = Field(description="The other team's workflow.")
    task_id: TaskId = Field(description="The task.")
    attempt: int = Field(description="The number of the attempt, from 1.")
    return_to: str = Field(description="The subject on which the result is published.")
    deadline: AwareDatetime = Field(description="Time from which the result is not accepted any more.")


class ThreadTurn(Part):
    """The place of a workflow in its thread."""

    thread: Token = Field(description="The id of the thread.")
    caller: Token = Field(description="The caller to whom the thread belongs.")
    number: int = Field(ge=1, description="The number of the turn.")
    overflow: tuple[PastTurn, ...] = Field(default=(), description="Turns that the summarizer must add to the summary.")


class WorkflowStarted(Part):
    """A request to the team was admitted. If `parent` is set, a handoff to the team was admitted instead.

    The entry stores strategy and limits. So a new version of the team does not change a running workflow.
    """

    kind: Literal["workflow_started"] = Field(default="workflow_started", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    workflow_id: WorkflowId = Field(description="The workflow.")
    team: TeamName = Field(description="The team of the workflow.")
    request_id: str = Field(description="The id of the request, unique within its source.")
    request_digest: str = Field(
        default="",
        description="A digest of the request; empty for a handoff. The digest distinguishes a repeated "
        "request from a different request with the same id.",
    )
    correlation_id: str = Field(description="The correlation id of the request.")
    caller: str = Field(
        description="The caller, from the subject of the request. For a handoff: `team:` and the name of "
        "the parent team.",
    )
    secret: str = Field(description="The secret from which the tokens of the workflow's attempts are computed.")
    input: str | dict[str, JsonValue] = Field(description="The input of the request.")
    metadata: dict[str, JsonValue] = Field(default_factory=dict, description="The metadata of the request.")
    files: tuple[File, ...] = Field(default=(), exclude_if=not_, description="The files of the request.")
    ignored_fields: tuple[str, ...] = Field(
        default=(),
        description="Fields of the request that were ignored, because the schema of a request does not have them.",
    )
    agents: Literal["*"] | tuple[AgentName, ...] = Field(
        default="*", description="The agents that plans may use; `*` for every live agent."
    )
    strategy: Strategy = Field(description="The strategy of the team.")
    limits: Limits = Field(description="The limits of the team.")
    retry: RetryPolicy = Field(description="The retry policy of the team.")
    approve_plan: bool = Field(default=False, description="True if a person must approve each plan.")
    refiner: AgentName | None = Field(
        default=None, description="The agent that rewrites failed tasks, if the team has one."
    )
    judge: AgentName | None = Field(
        default=None, description="The agent that decides contradictions, if the team has one."
    )
    deadline: AwareDatetime = Field(description="Time at which the workflow ends at the latest.")
    budget: Budget | None = Field(default=None, description="Limits of the request or of the handoff.")
    reply_to: str | None = Field(default=None, description="A core NATS subject that receives a copy of the outcome.")
    trace: TraceOrigin = Field(description="The trace context.")
    parent: Parent | None = Field(
        default=None, description="The task of another team, if a handoff started the workflow."
    )
    depth: int = Field(default=0, description="Number of teams above this workflow.")
    thread: ThreadTurn | None = Field(default=None, description="The turn of a thread, if the request named a thread.")
    summarizer: AgentName | None = Field(default=None, description="The agent that summarizes older turns.")
    history: History | None = Field(default=None, description="The earlier turns of the thread.")
    messages: tuple[UserMessage, ...] = Field(
        default=(),
        exclude_if=not_,
        description="For a handoff: the messages that the workflow of the parent received before the handoff.",
    )


class TaskAdded(Part):
    """A task outside the plan was added, for the planner, the classifier, the synthesizer or another role."""

    kind: Literal["task_added"] = Field(default="task_added", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    task_id: TaskId = Field(description="The task.")
    role: Role = Field(description="The role of the task.")
    agent: AgentName = Field(description="The agent of the task.")
    intent: str = Field(description="The task, in one or two sentences.")
    input: JsonValue = Field(default=None, description="The input of the task.")


class PlanAccepted(Part):
    """A valid plan was accepted, and its tasks became tasks of the workflow.

    If a task names a `skill`, the plan names some agent with that skill as a placeholder. The agent that receives the
    task is selected at dispatch.
    """

    kind: Literal["plan_accepted"] = Field(default="plan_accepted", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    revision: int = Field(description="The number of the plan, from 1.")
    plan: Plan = Field(description="The plan.")
    event: str = Field(default="", description="In a choreography: the event to which the tasks react.")


class PlanRejected(Part):
    """A plan did not pass validation."""

    kind: Literal["plan_rejected"] = Field(default="plan_rejected", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    revision: int = Field(description="The number of the plan, from 1.")
    problems: tuple[str, ...] = Field(description="The problems, one sentence each.")
    raw: str = Field(default="", description="The first 4,000 characters of the planner's answer.")


class TaskDispatched(Part):
    """An attempt at a task was sent to an agent."""

    kind: Literal["task_dispatched"] = Field(default="task_dispatched", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    task_id: TaskId = Field(description="The task.")
    attempt: int = Field(description="The number of the attempt, from 1.")
    agent: AgentName = Field(description="The agent that receives the handoff.")
    deadline: AwareDatetime = Field(description="Deadline of the attempt.")
    span_id: str = Field(description="The span of the task, as 16 hexadecimal digits.")
    fallback: AgentName | None = Field(
        default=None, description="The agent that receives the task after all attempts of this agent have failed."
    )
    team: bool = Field(default=False, description="True if the agent is a team.")
    fallback_for: AgentName | None = Field(
        default=None, description="The agent that `agent` replaces, because the circuit of the replaced agent is open."
    )
    budget: Budget | None = Field(
        default=None,
        description="The budget that is reserved until the attempt's result arrives; None if no limit is set.",
    )


class TaskHeld(Part):
    """No agent can receive the task now, because the circuit of its agent is open, or no live agent has its skill."""

    kind: Literal["task_held"] = Field(default="task_held", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    task_id: TaskId = Field(description="The task.")
    until: AwareDatetime = Field(description="Time of the next check.")
    reason: str = Field(default="", description="The reason.")


class BudgetAwaited(Part):
    """The next attempt at the task waits for budget, because other attempts have reserved the rest."""

    kind: Literal["budget_awaited"] = Field(default="budget_awaited", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    task_id: TaskId = Field(description="The task.")
    agent: AgentName = Field(description="The agent of the next attempt.")
    limit: str = Field(description="The limit with no budget left: `calls`, `tokens`, `cost`, `tasks` or `replans`.")
    not_before: AwareDatetime | None = Field(default=None, description="For a retry: the earliest time of the attempt.")


class TaskSucceeded(Part):
    """An attempt succeeded, so the task succeeded."""

    kind: Literal["task_succeeded"] = Field(default="task_succeeded", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    task_id: TaskId = Field(description="The task.")
    attempt: int = Field(description="The number of the attempt, from 1.")
    event_id: str = Field(description="The id of the event with the result.")
    result: Result = Field(description="The result.")


class AttemptFailed(Part):
    """An attempt failed."""

    kind: Literal["attempt_failed"] = Field(default="attempt_failed", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    task_id: TaskId = Field(description="The task.")
    attempt: int = Field(description="The number of the attempt, from 1.")
    event_id: str = Field(description="The id of the event that reported the failure.")
    error: AttemptError = Field(description="The error.")
    result: Result | None = Field(
        default=None, description="The result of the agent; None if the agent did not answer."
    )


class RetryScheduled(Part):
    """Another attempt at the task was scheduled."""

    kind: Literal["retry_scheduled"] = Field(default="retry_scheduled", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    task_id: TaskId = Field(description="The task.")
    attempt: int = Field(description="The number of the next attempt.")
    agent: AgentName = Field(description="The agent of the next attempt: the same agent or its fallback.")
    not_before: AwareDatetime = Field(description="Earliest time of the attempt.")
    deadline: AwareDatetime = Field(description="Deadline of the attempt.")
    reason: str = Field(default="", description="The reason for the retry.")
    team: bool = Field(default=False, description="True if the agent is a team.")
    budget: Budget | None = Field(
        default=None,
        description="The budget that is reserved until the attempt's result arrives; None if no limit is set.",
    )


class ReviewRequested(Part):
    """The result of a stage met the requirements of the stage. A judge now reviews the result.

    The next entry about the task is `task_succeeded` with the same result, or `attempt_failed`.
    """

    kind: Literal["review_requested"] = Field(default="review_requested", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    task_id: TaskId = Field(description="The task of the stage.")
    attempt: int = Field(description="The number of the attempt, from 1.")
    event_id: str = Field(description="The id of the event with the result.")
    judge: AgentName = Field(description="The agent that reviews the result.")
    result: Result = Field(description="The result.")


class TaskRefined(Part):
    """The refiner of a task has answered or failed. The next attempt at the task follows."""

    kind: Literal["task_refined"] = Field(default="task_refined", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    task_id: TaskId = Field(description="The task.")
    intent: str = Field(default="", description="The new intent of the task; empty if the intent does not change.")


class RefinementRequested(Part):
    """A task failed more than once, and a refiner must rewrite the intent of the task."""

    kind: Literal["refinement_requested"] = Field(default="refinement_requested", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    task_id: TaskId = Field(description="The task that failed.")
    refiner_task: TaskId = Field(description="The task of the refiner.")


class TaskFailed(Part):
    """A task failed permanently."""

    kind: Literal["task_failed"] = Field(default="task_failed", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    task_id: TaskId = Field(description="The task.")
    error: AttemptError = Field(description="The error of the last attempt.")
    attempts: int = Field(description="Number of attempts.")


class TaskExpanded(Part):
    """A task with `for_each` was expanded to one task for each item. The task succeeds if enough items succeed."""

    kind: Literal["task_expanded"] = Field(default="task_expanded", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    task_id: TaskId = Field(description="The task.")
    items: tuple[TaskId, ...] = Field(description="The tasks of the items, in the order of the items.")


class ItemsGathered(Part):
    """A task with `for_each` succeeded, because enough items succeeded. Its result is the list of items' results."""

    kind: Literal["items_gathered"] = Field(default="items_gathered", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    task_id: TaskId = Field(description="The task.")
    missing: tuple[TaskId, ...] = Field(default=(), description="The tasks of items that did not succeed.")


class TaskSkipped(Part):
    """A task will not run, because its condition is false or one of its dependencies did not succeed."""

    kind: Literal["task_skipped"] = Field(default="task_skipped", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    task_id: TaskId = Field(description="The task.")
    unmet_dependency: TaskId | None = Field(
        default=None, description="The dependency that did not succeed; null if the condition of the task is false."
    )
    reason: str = Field(description="The reason.")
    intended: bool = Field(
        default=False,
        description="True if the condition of the task is false, or if a dependency was skipped for this reason. Then "
        "the task is not a gap of the answer.",
    )


class TaskAbandoned(Part):
    """The workflow does not need the task's result any more."""

    kind: Literal["task_abandoned"] = Field(default="task_abandoned", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    task_id: TaskId = Field(description="The task.")
    cause: AbandonCause = Field(description="The cause: a limit, a cancellation, or the end of the workflow.")
    reason: str = Field(description="The reason, for people.")
    team: bool = Field(
        default=False,
        description="True if the agent is a team, or might be one. Then the workflow of that team is cancelled, too.",
    )


class TaskReopened(Part):
    """A person replayed the dead letter of a failed task. Tasks that were skipped because of the failure wait again."""

    kind: Literal["task_reopened"] = Field(default="task_reopened", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    event_id: str = Field(description="The id of the control event.")
    task_id: TaskId = Field(description="The task.")
    by: str = Field(default="", description="The actor, from the subject of the control event.")


class ResultIgnored(Part):
    """A result was ignored, because it was late, repeated, or named another workflow, task or agent."""

    kind: Literal["result_ignored"] = Field(default="result_ignored", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    event_id: str = Field(description="The id of the event with the result.")
    task_id: str = Field(description="The task that the result names.")
    attempt: int = Field(description="The attempt that the result names.")
    agent: str = Field(description="The agent that the result names.")
    cause: IgnoreCause = Field(description="The cause.")
    workflow_id: str = Field(default="", description="The workflow that the result names, if it is another workflow.")
    reason: str = Field(description="The reason, for people.")


class QuestionAsked(Part):
    """The workflow asked a person to approve a task, a tool call or a plan, or to give information."""

    kind: Literal["question_asked"] = Field(default="question_asked", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    question: Token = Field(description="The id of the question.")
    about: Literal["task", "tool", "plan", "information"] = Field(description="The subject of the question.")
    task_id: TaskId | None = Field(default=None, description="The task that waits.")
    agent: AgentName | None = Field(default=None, description="The agent that asks, or that would receive the task.")
    tool: str = Field(default="", description="The name of the tool.")
    input: JsonValue = Field(default=None, description="The arguments of the tool call.")
    key: str = Field(default="", description="For information: the key by which the agent finds the answer.")
    text: str = Field(default="", description="For information: the question.")
    input_schema: dict[str, JsonValue] | None = Field(
        default=None,
        description="For information: JSON Schema of the answer. For a tool call: JSON Schema of the arguments that "
        "a person can give instead of the call's arguments.",
    )
    has_default: bool = Field(default=False, description="True if `default` is the answer when the question expires.")
    default: JsonValue = Field(default=None, description="The answer that is used if the question expires.")
    plan: Plan | None = Field(default=None, description="The plan.")
    revision: int = Field(default=0, description="The number of the plan, from 1.")
    expires_at: AwareDatetime = Field(description="Time from which an answer is not accepted any more.")


class QuestionAnswered(Part):
    """A person answered a question, or the question expired."""

    kind: Literal["question_answered"] = Field(default="question_answered", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    event_id: str = Field(description="The id of the control event or of the timer.")
    question: Token = Field(description="The id of the question.")
    verdict: Verdict = Field(
        description="The verdict. `expired` means that no answer arrived in time. Without a default "
        "answer, `expired` counts as `rejected`."
    )
    input: JsonValue = Field(
        default=None,
        description="For information: the answer or the default. Otherwise: the task's input, the tool's "
        "arguments or the plan with which the person replaced the original.",
    )
    reason: str = Field(default="", description="The person's reason.")
    by: str = Field(default="", description="The actor, from the subject of the control event.")


class MessageReceived(Part):
    """A message to the workflow was recorded. Later attempts and the agents of running attempts receive the message."""

    kind: Literal["message_received"] = Field(default="message_received", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    event_id: str = Field(description="The id of the control event.")
    number: int = Field(description="The number of the message, from 1.")
    text: str = Field(description="The message.")
    by: str = Field(default="", description="The actor, from the subject of the control event.")


class ControlIgnored(Part):
    """A control event was ignored."""

    kind: Literal["control_ignored"] = Field(default="control_ignored", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    event_id: str = Field(description="The id of the control event.")
    action: str = Field(description="The command.")
    question: Token | None = Field(default=None, description="The question that the command names.")
    input: JsonValue = Field(default=None, description="The input of the command.")
    reason: str = Field(description="The reason.")


class TimerArmed(Part):
    """A timer was armed. The timer wakes the workflow at `due`, even if no other input arrives."""

    kind: Literal["timer_armed"] = Field(default="timer_armed", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    name: str = Field(description="The name of the timer.")
    due: AwareDatetime = Field(description="Time at which the timer fires.")
    reason: str = Field(default="", description="The missing agents, if the start of the workflow waits for them.")


class LimitReached(Part):
    """A limit ended the work. The answer is written from the results so far."""

    kind: Literal["limit_reached"] = Field(default="limit_reached", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    limit: str = Field(description="The limit, such as `deadline` or `tokens`.")
    detail: str = Field(description="The used amount and the limit, in one sentence.")
    missing_agents: tuple[AgentName, ...] = Field(
        default=(), description="The agents with open tasks that had no live instance at the deadline."
    )


class WorkflowCancellation(Part):
    """The control that cancelled a workflow."""

    by: str = Field(default="", description="The actor, from the subject of the control event.")
    reason: str = Field(default="", description="The actor's reason.")


class WorkflowResumed(Part):
    """A person resumed a workflow that ended as `failed` or `partial`. The tasks in `tasks` are done again.

    The limits of the workflow apply to each round separately.
    """

    kind: Literal["workflow_resumed"] = Field(default="workflow_resumed", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    event_id: str = Field(description="The id of the control event.")
    round: int = Field(description="The number of the round that begins, from 2.")
    tasks: tuple[TaskId, ...] = Field(
        description="The tasks of the plan that are done again: failed, skipped and abandoned tasks, and tasks of "
        "teams whose result has gaps."
    )
    deadline: AwareDatetime = Field(description="Time at which the round ends at the latest.")
    by: str = Field(default="", description="The actor, from the subject of the control event.")
    reason: str = Field(default="", description="The person's reason.")


class WorkflowEnded(Part):
    """The workflow ended. Only `workflow_resumed` can follow."""

    kind: Literal["workflow_ended"] = Field(default="workflow_ended", description="The kind of entry.")
    at: AwareDatetime = Field(description="Time of the entry.")
    outcome: Outcome = Field(description="The outcome.")
    cancellation: WorkflowCancellation | None = Field(
        default=None, description="The cancellation; null if the workflow was not cancelled."
    )
    refusal: AttemptError | None = Field(
        default=None,
        description="The error of a refused request or handoff; null if the request or handoff was accepted.",
    )


Entry: TypeAlias = Annotated[
    WorkflowStarted
    | TaskAdded
    | PlanAccepted
    | PlanRejected
    | TaskDispatched
    | TaskHeld
    | BudgetAwaited
    | TaskSucceeded
    | AttemptFailed
    | RetryScheduled
    | RefinementRequested
    | TaskRefined
    | ReviewRequested
    | TaskFailed
    | TaskExpanded
    | ItemsGathered
    | TaskSkipped
    | TaskAbandoned
    | TaskReopened
    | ResultIgnored
    | QuestionAsked
    | QuestionAnswered
    | MessageReceived
    | ControlIgnored
    | TimerArmed
    | LimitReached
    | WorkflowEnded
    | WorkflowResumed,
    Field(discriminator="kind"),
]


class OpenCircuit(Part):
    """The open circuit of an agent. The agent receives no work, because several tasks in a row have failed there."""

    until: AwareDatetime = Field(description="Time before which the agent receives no work.")
    probe: str = Field(default="", description="The one attempt that was sent to test the agent, if there is one.")


class AgentLoad(Part):
    """The load of an agent."""

    queued: int = Field(description="Number of handoffs in the agent's queue and in progress.")
    seconds: float | None = Field(
        default=None, description="Average duration of the agent's recent attempts, in seconds."
    )


class RecordedContext(Part):
    """Facts that a decision used in addition to its inputs. With these facts, the decision can be made again."""

    agents: tuple[dict[str, JsonValue], ...] | None = Field(
        default=None,
        description="The cards of the live agents, without default values, prose and schemas; null if the cards are "
        "equal to the newest cards in earlier commits.",
    )
    circuits: dict[AgentName, OpenCircuit] | None = Field(default=None, description="All open circuits, by agent.")
    loads: dict[AgentName, AgentLoad] | None = Field(
        default=None, description="The load of the agents that the decision compared."
    )
    max_body: int | None = Field(
        default=None, description="Largest size of an event in bytes, if the size differs from the default."
    )
    fired_timers: tuple[str, ...] | None = Field(default=None, description="The timers that fired.")


class Commit(Event):
    """One message of the log of a workflow."""

    event_type: ClassVar[str] = "io.pointsman.log.v1"

    number: int = Field(description="The number of the commit in its workflow, from 1.")
    entries: tuple[Entry, ...] = Field(description="The entries, in order.")
    snapshot: JsonValue = Field(
        default=None, description="The whole state after the entries. Only some commits have a snapshot."
    )
    snapshot_sequence: int | None = Field(
        default=None, description="Sequence number, in the stream, of the newest earlier commit with a snapshot."
    )
    open_questions: tuple[Token, ...] = Field(
        default=(), description="Questions for which the workflow waits after the commit."
    )
    round: int = Field(default=1, ge=1, description="The round of the workflow after the commit, from 1.")
    decision_context: RecordedContext | None = Field(
        default=None, description="Facts that the decision used in addition to its inputs."
    )
