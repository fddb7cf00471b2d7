"""The bodies of the events on the bus. Unknown fields are ignored; times carry a zone; money is in US dollars."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from pointsman_schemas.base import Options
from pointsman_schemas.card import Role
from pointsman_schemas.ids import AgentName, MaybeAgent, TaskId, TeamName, Token, WorkflowId
from pointsman_schemas.strict_json import MAX_DEPTH, JsonValue

__all__ = [
    "BEGUN",
    "LONGEST_WAIT",
    "Approval",
    "ApprovalWanted",
    "AttemptError",
    "Budget",
    "Cancellation",
    "Conflict",
    "Control",
    "DeadLetter",
    "Delta",
    "Emitted",
    "ErrorKind",
    "Event",
    "Gap",
    "Handoff",
    "Outcome",
    "Planned",
    "Progress",
    "Request",
    "Result",
    "Step",
    "StepCall",
    "TaskReport",
    "TaskSummary",
    "Timer",
    "Usage",
    "Verdict",
]

LONGEST_WAIT = 86_400
"""Seconds of `retry_after` that an error may ask for: a day; who must wait longer than that has failed."""

BEGUN = "begun"
"""The `name` of the `progress` report by which a worker says that an attempt has begun."""

Text = Annotated[str, Field(max_length=200_000)]


class Event(BaseModel):
    """A body that travels on its own. `event_type` is its CloudEvents type, version included.

    `max_depth` is the nesting it may have when read: 200, the JSON parser's own bound, except for those whose data end
    up inside other events. NaN and Infinity are refused when an event is made, for they would be written as null.
    """

    model_config = ConfigDict(frozen=True, defer_build=True, allow_inf_nan=False)
    event_type: ClassVar[str]
    max_depth: ClassVar[int] = 200

    @classmethod
    def short_name(cls) -> str:
        """`request` for `io.pointsman.request.v1`."""
        return cls.event_type.split(".")[-2]


class Part(BaseModel):
    """A piece of a body."""

    model_config = ConfigDict(frozen=True, defer_build=True, allow_inf_nan=False)


class Usage(Part):
    """What model calls used. `cost` is in US dollars, 0 where no price is known."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        if not (other.calls or other.tokens or other.cost):
            return self
        return Usage(
            calls=self.calls + other.calls,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost=self.cost + other.cost,
        )

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class Planned(Part):
    """What a team has planned, with all the teams below it: tasks, and plans made again."""

    tasks: Annotated[int, Field(ge=0)] = 0
    replans: Annotated[int, Field(ge=0)] = 0

    def __add__(self, other: Planned) -> Planned:
        return Planned(tasks=self.tasks + other.tasks, replans=self.replans + other.replans)


class Budget(Options, Part):
    """What may be used at most; None is without a bound. In a handoff it is the attempt's own share. `tasks` and
    `replans` are for a team: its own and those of all the teams below it."""

    calls: int | None = None
    tokens: int | None = None
    cost: float | None = None
    tasks: Annotated[int, Field(ge=0)] | None = None
    replans: Annotated[int, Field(ge=0)] | None = None


class ErrorKind(StrEnum):
    """Why an attempt did not succeed. Other kinds may come from other languages: the field is text."""

    HANDLER = "handler_error"
    INVALID_INPUT = "invalid_input"
    INVALID_OUTPUT = "invalid_output"
    OVERSIZE = "oversize"
    TIMEOUT = "timeout"
    CRASHED = "worker_crashed"
    NO_WORKER = "no_worker"
    REFUSED = "refused"
    UNDECODABLE = "undecodable"
    BAD_PLAN = "invalid_plan"
    CANCELLED = "cancelled"
    LIMIT = "limit"
    NEEDS_APPROVAL = "needs_approval"
    REJECTED = "rejected"
    INSUFFICIENT = "insufficient"
    CONTEXT_OVERFLOW = "context_overflow"
    OUTCOME_UNKNOWN = "outcome_unknown"
    TEAM = "team_failed"
    CIRCUIT = "circuit_open"


class AttemptError(Part):
    """Why an attempt failed. `retry_after` is in seconds and comes from whoever asked to wait, such as a provider."""

    kind: str
    message: str
    retryable: bool = False
    retry_after: Annotated[float, Field(ge=0, le=LONGEST_WAIT)] | None = None


def _text_or_object(value: object) -> object:
    """One error for what is neither, where the union would tell one for each."""
    if isinstance(value, str | Mapping) and value != "":
        return value
    raise PydanticCustomError("text_or_object", "text that is not empty, or an object, is expected")


class Request(Event):
    """What a caller wants. `deadline` is in seconds from admission; the team is named by the subject.

    `correlation_id` may be given here by callers that send no headers. `reply_to` is a plain NATS subject that gets a
    copy of the outcome.
    """

    event_type: ClassVar[str] = "io.pointsman.request.v1"
    max_depth: ClassVar[int] = MAX_DEPTH + 4

    input: Annotated[Annotated[str, Field(min_length=1)] | dict[str, JsonValue], BeforeValidator(_text_or_object)]
    deadline: Annotated[float, Field(gt=0, le=2_592_000)] | None = None
    budget: Budget | None = None
    metadata: dict[str, JsonValue] = {}
    correlation_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    reply_to: Annotated[str, Field(pattern=r"^[!-)+-=?-~]{1,200}$")] | None = None


class Gap(Part):
    """A task that gave nothing to the answer, and why."""

    task_id: TaskId
    agent: MaybeAgent
    reason: str


class TaskReport(Part):
    """What came of a task, as told to the tasks that depend on it and to the synthesizer."""

    task_id: TaskId
    agent: MaybeAgent
    intent: str
    status: str
    output: JsonValue = None
    error: AttemptError | None = None


class ApprovalWanted(Part):
    """A tool call that a person must allow before its task goes on. `input_schema` is the JSON Schema that arguments
    given in place of these must fit."""

    tool: str
    arguments: dict[str, JsonValue] = {}
    input_schema: dict[str, JsonValue] | None = None


class Verdict(Part):
    """What a person said to a tool call that an earlier attempt wanted to make. `input` are the arguments to use where
    the person changed them. Nobody's answer in time is `expired`, which means no."""

    tool: str
    arguments: dict[str, JsonValue] = {}
    verdict: Literal["approved", "rejected", "expired"]
    input: dict[str, JsonValue] | None = None
    reason: str = ""
    by: str = ""


class Handoff(Event):
    """Do this. `return_to` is the whole subject for the result; `idempotency_key` stays the same over retries.

    `feedback` says why the last attempt's output would not do. `depth` is how many teams are above the one it is from.
    `event` is the domain event that the task reacts to, and the input is its data. `verdicts` are what people said to
    the tool calls that earlier attempts asked about, and those attempts are the ones that this one `continues`.
    """

    event_type: ClassVar[str] = "io.pointsman.handoff.v1"

    workflow_id: WorkflowId
    task_id: TaskId
    attempt: Annotated[int, Field(ge=1)]
    from_agent: AgentName
    to_agent: AgentName
    role: Role = Role.WORK
    intent: str
    input: JsonValue = None
    context: tuple[TaskReport, ...] = ()
    return_to: str
    deadline: AwareDatetime
    idempotency_key: str
    budget: Budget | None = None
    feedback: str = ""
    depth: Annotated[int, Field(ge=0)] = 0
    event: str = ""
    verdicts: tuple[Verdict, ...] = ()
    continues: tuple[int, ...] = ()


class Emitted(Part):
    """A domain event that an agent emitted, as its result tells the supervisor."""

    name: Token
    data: JsonValue = None


class Result(Event):
    """What came of one attempt. `confidence` is from 0 to 1; `replan_hint` asks for a new plan and says why.

    `approvals` are tool calls that a person must allow: the attempt has failed with `needs_approval`, and the task is
    handed out again once there is an answer to each. `events` are those the agent emitted. `gaps` are what is missing
    from the output of a team, which works in a workflow of its own, and `planned` is what it used of its budget's tasks
    and re-plans; a team that does not say so counts as having used all of it.
    """

    event_type: ClassVar[str] = "io.pointsman.result.v1"
    max_depth: ClassVar[int] = MAX_DEPTH + 4

    workflow_id: WorkflowId
    task_id: TaskId
    attempt: Annotated[int, Field(ge=1)]
    agent: AgentName
    status: Literal["succeeded", "failed", "refused"]
    output: JsonValue = None
    error: AttemptError | None = None
    usage: Usage = Usage()
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None
    replan_hint: str | None = None
    gaps: tuple[Gap, ...] = ()
    planned: Planned | None = None
    events: tuple[Emitted, ...] = ()
    approvals: Annotated[tuple[ApprovalWanted, ...], Field(max_length=32)] = ()
    started_at: AwareDatetime
    ended_at: AwareDatetime


class StepCall(Part):
    """A model's wish to use a tool. `arguments` is the text it wrote."""

    id: str
    name: str
    arguments: str


class Step(Event):
    """What a model answered or a tool gave within an attempt, kept before it is acted on.

    `name` says which: `answer-2` is that of the second turn, `result-2-0` that of the first tool it called. With a key,
    `call-` is the one of `calls` that code made because a person allowed it, and `event-` what a tool has emitted.
    Whoever continues an attempt whose worker has died asks and runs again only what has no step. What a step says of
    `usage`, `confidence` and `replan_hint` goes with the attempt's result, whoever gives it; usage that another step
    tells is not in it.
    """

    event_type: ClassVar[str] = "io.pointsman.step.v1"

    workflow_id: WorkflowId
    task_id: TaskId
    attempt: Annotated[int, Field(ge=1)]
    agent: AgentName
    name: Token
    text: str = ""
    calls: tuple[StepCall, ...] = ()
    data: JsonValue = None
    is_error: bool = False
    finish: str = ""
    model: str = ""
    usage: Usage = Usage()
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None
    replan_hint: str | None = None
    at: AwareDatetime


class Control(Event):
    """What a person or a system tells a running workflow. `approve` and `reject` answer the approval they name;
    `input` is what to use in place of what was asked about: a task's input, a tool's arguments, a whole plan."""

    event_type: ClassVar[str] = "io.pointsman.control.v1"
    max_depth: ClassVar[int] = MAX_DEPTH + 4

    action: Literal["cancel", "replay", "approve", "reject"]
    task_id: TaskId | None = None
    approval: Token | None = None
    input: JsonValue = None
    reason: str = ""
    by: str = ""


class Approval(Event):
    """A workflow waits for a person, as `{ns}.event.{workflow}.approval.{id}` says. Silence until `expires_at` is a no.

    It asks about a `task` before it starts, a `tool` call of one, or a `plan` before any of it runs; `input` is the
    task's input, the call's arguments or the plan. Whoever answers publishes a control event, with the action `approve`
    or `reject` and this `id` as its `approval`, on `answer_to`.
    """

    event_type: ClassVar[str] = "io.pointsman.approval.v1"
    max_depth: ClassVar[int] = MAX_DEPTH + 4

    id: Token
    workflow_id: WorkflowId
    team: TeamName
    about: Literal["task", "tool", "plan"]
    task_id: TaskId | None = None
    agent: AgentName | None = None
    intent: str = ""
    tool: str = ""
    input: JsonValue = None
    asked_at: AwareDatetime
    expires_at: AwareDatetime
    answer_to: str


class Cancellation(Event):
    """Nobody waits for these tasks any more. Broadcast on `{ns}.live.{workflow}.cancelled`; nothing depends on it."""

    event_type: ClassVar[str] = "io.pointsman.cancellation.v1"

    tasks: tuple[TaskId, ...]


class Timer(Event):
    """Time has come to look at a workflow's deadlines."""

    event_type: ClassVar[str] = "io.pointsman.timer.v1"

    name: Token
    due: AwareDatetime


class Progress(Event):
    """Something an agent reports while it works; kept beside the log and shown by `watch` and `trace`.

    `kind` is `progress`, `tool`, `chat` or a domain event's name. A `tool` or `chat` report covers the whole call:
    `started_at` to `ended_at`. `data` is what came with a domain event or a progress message. A `progress` report that
    is called `begun` is the worker's: an attempt that is not over at once has begun at `started_at`.
    """

    event_type: ClassVar[str] = "io.pointsman.progress.v1"

    workflow_id: WorkflowId
    task_id: TaskId
    attempt: int
    agent: AgentName
    kind: str
    name: str = ""
    message: str = ""
    data: JsonValue = None
    started_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    error: str | None = None
    usage: Usage | None = None
    span_id: str = ""
    parent_span_id: str = ""


class Delta(Event):
    """A piece of the text that a model is writing, broadcast on `{ns}.live.{workflow}.delta`; nothing depends on it.

    What was said is no result: the call may break off and be made again.
    """

    event_type: ClassVar[str] = "io.pointsman.delta.v1"

    workflow_id: WorkflowId
    task_id: TaskId
    attempt: Annotated[int, Field(ge=1)]
    agent: AgentName
    text: str


class TaskSummary(Part):
    """One line of an outcome: a task, how it ended, and how long it took in seconds over all its attempts."""

    task_id: TaskId
    agent: MaybeAgent
    role: Role
    intent: str
    status: str
    attempts: int
    elapsed: float
    usage: Usage = Usage()


class Conflict(Part):
    """What results said differently, what a judge decided, and why."""

    what: str
    decision: str
    reason: str


class Outcome(Event):
    """The one final answer of a workflow. `elapsed` is wall time and `sequential` the sum of its tasks, in seconds."""

    event_type: ClassVar[str] = "io.pointsman.outcome.v1"

    workflow_id: WorkflowId
    team: TeamName
    status: Literal["completed", "partial", "failed", "cancelled"]
    answer: JsonValue = None
    reason: str = ""
    gaps: tuple[Gap, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    tasks: tuple[TaskSummary, ...] = ()
    usage: Usage = Usage()
    correlation_id: str
    trace_id: str
    started_at: AwareDatetime
    ended_at: AwareDatetime
    elapsed: float
    sequential: float


class DeadLetter(Event):
    """An event nobody could process. `body` is the original body in base64; `subject` and `headers` are the original's.

    `stream` and `sequence` say where the original stood, when it stood in a stream. One whose original is too large to
    be repeated in a message is `truncated`: its `body` is the beginning, and the whole stands at `sequence`.
    """

    event_type: ClassVar[str] = "io.pointsman.dead-letter.v1"

    id: Token
    origin: Token
    workflow_id: WorkflowId | None = None
    team: TeamName | None = None
    task_id: TaskId | None = None
    cause: AttemptError
    attempts: int
    subject: str
    headers: dict[str, str] = {}
    body: str
    truncated: bool = False
    stream: str | None = None
    sequence: int | None = None
    at: AwareDatetime
