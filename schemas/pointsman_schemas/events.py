"""Define the bodies of the events on the bus.

Readers ignore unknown fields. Times have a zone. Money is in US dollars.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from operator import not_
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import AwareDatetime, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from pointsman_schemas.base import Options
from pointsman_schemas.card import Role
from pointsman_schemas.files import File
from pointsman_schemas.ids import AgentName, OptionalAgentName, TaskId, TeamName, Token, WorkflowId
from pointsman_schemas.strict_json import MAX_DEPTH, JsonValue

__all__ = [
    "ATTEMPT_STARTED",
    "MAX_DEADLINE_S",
    "MAX_MESSAGE_CHARS",
    "MAX_QUESTIONS_AT_ONCE",
    "MAX_QUESTION_CHARS",
    "MAX_RETRY_AFTER_S",
    "Answer",
    "AttemptError",
    "Budget",
    "Cancellation",
    "Conflict",
    "Control",
    "DeadLetter",
    "Delta",
    "EmittedEvent",
    "ErrorKind",
    "Event",
    "Gap",
    "Handoff",
    "History",
    "Outcome",
    "PastTurn",
    "PlanUsage",
    "Progress",
    "Question",
    "QuestionRequest",
    "Request",
    "RequestInput",
    "Result",
    "Step",
    "StepToolCall",
    "TaskReport",
    "TaskSummary",
    "Timer",
    "Usage",
    "UserMessage",
    "UserMessages",
    "Verdict",
]

MAX_DEADLINE_S = 315_360_000
"""Longest time limit that a workflow or an attempt may have, in seconds: ten years of 365 days. Without this bound, a
deadline could be after the year 9999, which a `datetime` cannot represent."""
MAX_RETRY_AFTER_S = 86_400
"""Upper limit of `retry_after`, in seconds: one day."""

ATTEMPT_STARTED = "begun"
"""The `name` of the `progress` report with which a worker reports the start of an attempt."""

MAX_QUESTIONS_AT_ONCE = 32
"""Largest number of questions with which one attempt may end."""

MAX_QUESTION_CHARS = 4_000
"""Longest text of a question, in characters."""

MAX_MESSAGE_CHARS = 4_000
"""Longest message to a running workflow, in characters."""

Verdict: TypeAlias = Literal["approved", "rejected", "answered", "expired"]
"""The kinds of answers to a question. `expired` means that no answer arrived in time."""

Text = Annotated[str, Field(max_length=200_000)]


class Event(Options):
    """The base of the bodies of whole messages.

    An event with NaN or Infinity is refused when it is made, because JSON would contain null instead.

    Attributes:
        event_type: The CloudEvents type, with its version.
        max_depth: Deepest nesting that a reader accepts. The default is the limit of the JSON parser. If the data of an
            event becomes a part of other events, the limit is lower, because the data is nested deeper there.
    """

    model_config = ConfigDict(frozen=True, defer_build=True, allow_inf_nan=False)
    event_type: ClassVar[str]
    max_depth: ClassVar[int] = 200

    @classmethod
    def short_name(cls) -> str:
        """Return the name in the event type, such as `request` for `io.pointsman.request.v1`.

        Returns:
            The name.
        """
        return cls.event_type.split(".")[-2]


class Part(Options):
    """The base of parts of a body."""

    model_config = ConfigDict(frozen=True, defer_build=True, allow_inf_nan=False)


class Usage(Part):
    """Usage of model calls."""

    calls: int = Field(default=0, ge=0, description="Number of model calls.")
    input_tokens: int = Field(default=0, ge=0, description="Number of tokens of the prompts.")
    output_tokens: int = Field(default=0, ge=0, description="Number of tokens of the answers.")
    cost: float = Field(default=0.0, ge=0, description="Cost in US dollars; 0 for models without a known price.")

    def __add__(self, other: Usage) -> Usage:
        if not (other.calls or other.tokens or other.cost):
            return self
        return Usage(
            calls=self.calls + other.calls,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost=self.cost + other.cost,
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            calls=max(0, self.calls - other.calls),
            input_tokens=max(0, self.input_tokens - other.input_tokens),
            output_tokens=max(0, self.output_tokens - other.output_tokens),
            cost=max(0.0, self.cost - other.cost),
        )

    @property
    def tokens(self) -> int:
        """Tokens of prompts and answers together."""
        return self.input_tokens + self.output_tokens


class PlanUsage(Part):
    """Tasks and re-plans that a team and all teams below it have used."""

    tasks: int = Field(default=0, ge=0, description="Number of planned tasks.")
    replans: int = Field(default=0, ge=0, description="Number of re-plans.")

    def __add__(self, other: PlanUsage) -> PlanUsage:
        return PlanUsage(tasks=self.tasks + other.tasks, replans=self.replans + other.replans)


class Budget(Part):
    """Upper limits of usage; None means unlimited. The budget in a handoff limits the usage of one attempt."""

    calls: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        default=None, description="Largest number of model calls."
    )
    tokens: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        default=None, description="Largest number of tokens of prompts and answers together."
    )
    cost: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] | None = Field(
        default=None, description="Largest cost in US dollars."
    )
    tasks: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        default=None, description="Largest number of tasks of a team and of all teams below it together."
    )
    replans: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        default=None, description="Largest number of re-plans of a team and of all teams below it together."
    )


class ErrorKind(StrEnum):
    """Kinds of errors of attempts. On the wire, the kind is any text, so other agents can use further kinds."""

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
    NEEDS_ANSWER = "needs_answer"
    UNANSWERED = "unanswered"
    REJECTED = "rejected"
    INSUFFICIENT = "insufficient"
    CONTEXT_OVERFLOW = "context_overflow"
    OUTCOME_UNKNOWN = "outcome_unknown"
    TEAM = "team_failed"
    CIRCUIT = "circuit_open"
    THREAD = "thread_refused"
    DAILY_LIMIT = "daily_limit"
    ITEMS = "items_failed"


class AttemptError(Part):
    """The error of a failed attempt."""

    kind: str = Field(description="The kind of error, such as `timeout` or `handler_error`.")
    message: str = Field(description="The error in one or two sentences.")
    detail: str = Field(
        default="",
        description="The text of the exception that caused the error. Only operators receive this text.",
    )
    retryable: bool = Field(default=False, description="True if another attempt might succeed.")
    retry_after: Annotated[float, Field(ge=0, le=MAX_RETRY_AFTER_S)] | None = Field(
        default=None, description="Seconds to wait before the next attempt, as requested by a provider or an agent."
    )

    @property
    def for_operators(self) -> str:
        """The message, followed by the detail if the error has a detail."""
        return f"{self.message}: {self.detail}" if self.detail else self.message

    @property
    def for_agents(self) -> AttemptError:
        """The error without its detail."""
        return self.model_copy(update={"detail": ""}) if self.detail else self


def _text_or_object(value: object) -> object:
    """Validate a text or an object. This validator reports one error; the union would report one for each member."""
    if isinstance(value, str | Mapping) and value != "":
        return value
    raise PydanticCustomError("text_or_object", "text that is not empty, or an object, is expected")


RequestInput: TypeAlias = Annotated[
    Annotated[str, Field(min_length=1)] | dict[str, JsonValue], BeforeValidator(_text_or_object)
]
"""The input of a request: a text, or an object for teams that expect fields."""


class Request(Event):
    """A request that starts a workflow. The subject names the team."""

    event_type: ClassVar[str] = "io.pointsman.request.v1"
    max_depth: ClassVar[int] = MAX_DEPTH + 4

    input: RequestInput = Field(
        description="The request: a text, or an object for teams that expect fields. A team with a fixed "
        "plan reads the inputs of its tasks, by task id, from the field `inputs` of the object."
    )
    deadline: Annotated[float, Field(strict=True, ge=0.001, le=MAX_DEADLINE_S)] | None = Field(
        default=None,
        description="Seconds from the start of the workflow to its deadline. The default, and the maximum, "
        "is the team's limit.",
    )
    budget: Budget | None = Field(
        default=None, description="Limits of this workflow. They can only be lower than the team's limits."
    )
    metadata: dict[str, JsonValue] = Field(default={}, description="Facts about the request, such as a customer's id.")
    files: tuple[File, ...] = Field(
        default=(), exclude_if=not_, description="Files in the object store that belong to the request."
    )
    correlation_id: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        default=None,
        description="The caller's id, which every event of the workflow has. A caller that sends no headers "
        "can give the id here.",
    )
    thread: Token | None = Field(
        default=None,
        description="The id of a thread. The request becomes the next turn of the thread; a new id begins "
        "a new thread.",
    )
    reply_to: Annotated[str, Field(pattern=r"^[!-)+-=?-~]{1,200}$")] | None = Field(
        default=None, description="A core NATS subject that receives a copy of the outcome."
    )


class Gap(Part):
    """A task whose result is missing in the answer, and the reason."""

    task_id: TaskId = Field(description="The task.")
    agent: OptionalAgentName = Field(description="The agent of the task; empty if no agent had the skill.")
    reason: str = Field(description="The reason, in one sentence.")


class TaskReport(Part):
    """The result of a task, as dependent tasks and the synthesizer receive it."""

    task_id: TaskId = Field(description="The task.")
    agent: OptionalAgentName = Field(description="The agent of the task; empty if no agent had the skill.")
    intent: str = Field(description="The intent of the task.")
    status: str = Field(description="The status of the task, such as `succeeded` or `failed`.")
    output: JsonValue = Field(default=None, description="The output of a task that succeeded.")
    error: AttemptError | None = Field(default=None, description="The error of a task that failed.")
    files: tuple[File, ...] = Field(default=(), exclude_if=not_, description="Files that the task returned.")


class QuestionRequest(Part):
    """A question of an agent that a person must answer before the task continues.

    A question about a `tool` requests the approval of one call. A question for `information` requests a value.
    """

    about: Literal["tool", "information"] = Field(
        default="tool", description="The subject of the question: a tool call that needs an approval, or information."
    )
    tool: str = Field(default="", description="The name of the tool.")
    arguments: dict[str, JsonValue] = Field(default={}, description="The arguments of the call.")
    key: str = Field(
        default="", max_length=64, description="For information: the key of the question, equal in each attempt."
    )
    text: str = Field(default="", max_length=MAX_QUESTION_CHARS, description="For information: the question.")
    input_schema: dict[str, JsonValue] | None = Field(
        default=None,
        description="For information: JSON Schema of the answer. For a tool call: JSON Schema of the arguments that "
        "a person can give instead of the call's arguments.",
    )
    timeout: Annotated[float, Field(ge=0.001, le=MAX_DEADLINE_S)] | None = Field(
        default=None,
        description="Seconds until the question expires. The default, and the maximum, is the team's limit.",
    )
    has_default: bool = Field(default=False, description="True if `default` is the answer when the question expires.")
    default: JsonValue = Field(default=None, description="The answer that is used if the question expires.")


class Answer(Part):
    """A person's answer to a question of an earlier attempt."""

    tool: str = Field(default="", description="For a tool call: the name of the tool.")
    arguments: dict[str, JsonValue] = Field(default={}, description="The arguments of the call.")
    key: str = Field(default="", description="For information: the key of the question.")
    text: str = Field(default="", description="For information: the question.")
    verdict: Verdict = Field(
        description="The verdict. `expired` means that no answer arrived in time. Without a default "
        "answer, `expired` counts as `rejected`."
    )
    input: JsonValue = Field(
        default=None,
        description="For information: the answer or the default. For a tool call: the new arguments, if "
        "the person changed the arguments.",
    )
    reason: str = Field(default="", description="The person's reason.")
    by: str = Field(default="", description="The name of the user at the broker who answered.")


class PastTurn(Part):
    """An earlier turn of a thread."""

    number: int = Field(ge=1, description="The number of the turn in its thread.")
    request: str = Field(description="The request. A long request is cut after its beginning.")
    answer: str = Field(default="", description="The answer. A long answer is cut after its beginning.")
    status: str = Field(default="completed", description="The status of the outcome.")


class History(Part):
    """The earlier turns of a thread, as agents receive them."""

    summary: str = Field(default="", description="A summary of turns that are older than `turns`.")
    turns: tuple[PastTurn, ...] = Field(default=(), description="The newest turns, in order.")
    left_out: int = Field(
        default=0, ge=0, description="Number of turns that are missing in both `turns` and `summary`."
    )


class UserMessage(Part):
    """A message that a person or a system sent to a running workflow."""

    number: int = Field(ge=1, description="The number of the message in its workflow, from 1.")
    text: str = Field(max_length=MAX_MESSAGE_CHARS, description="The message.")
    by: str = Field(default="", description="The name of the user at the broker who sent the message.")
    at: AwareDatetime = Field(description="Time at which the workflow recorded the message.")


class UserMessages(Event):
    """All messages to a workflow so far, for an agent that works on one of its tasks.

    The newest event on `{ns}.message.{agent}.{team}.{workflow}.*` also has the messages of all earlier events.
    """

    event_type: ClassVar[str] = "io.pointsman.messages.v1"

    workflow_id: WorkflowId = Field(description="The workflow.")
    messages: tuple[UserMessage, ...] = Field(description="The messages, in order.")


class Handoff(Event):
    """One attempt at a task, sent to an agent."""

    event_type: ClassVar[str] = "io.pointsman.handoff.v1"

    workflow_id: WorkflowId = Field(description="The workflow.")
    task_id: TaskId = Field(description="The task.")
    attempt: int = Field(ge=1, description="The number of the attempt, from 1.")
    from_agent: AgentName = Field(description="The team that sends the handoff.")
    to_agent: AgentName = Field(description="The agent that receives the handoff.")
    role: Role = Field(default=Role.WORK, description="The role of the task.")
    intent: str = Field(description="The task, in one or two sentences.")
    input: JsonValue = Field(default=None, description="The input of the task.")
    context: tuple[TaskReport, ...] = Field(default=(), description="Results of the tasks on which this task depends.")
    files: tuple[File, ...] = Field(
        default=(), exclude_if=not_, description="Files of the request. Results in `context` can also have files."
    )
    return_to: str = Field(description="The subject on which the agent publishes its result.")
    deadline: AwareDatetime = Field(description="Time from which the result is not accepted any more.")
    idempotency_key: str = Field(description="An idempotency key for side effects, equal for all attempts at the task.")
    budget: Budget | None = Field(default=None, description="The budget of this attempt.")
    feedback: str = Field(default="", description="The reason why the output of the last attempt was rejected.")
    depth: int = Field(default=0, ge=0, description="Number of teams above the team that sends the handoff.")
    event: str = Field(
        default="",
        description="The domain event to which the task reacts. The input of the task is the data of the event.",
    )
    history: History | None = Field(
        default=None, description="The earlier turns of the thread, for a turn of a thread."
    )
    messages: tuple[UserMessage, ...] = Field(
        default=(),
        exclude_if=not_,
        description="Messages that the workflow received before this attempt. Later messages are on "
        "`{ns}.message.{agent}.{team}.{workflow}.*`.",
    )
    answers: tuple[Answer, ...] = Field(
        default=(), description="Answers of persons to questions of the attempts in `continued_attempts`."
    )
    continued_attempts: tuple[int, ...] = Field(
        default=(), description="Earlier attempts that ended with a question and are continued by this attempt."
    )


class EmittedEvent(Part):
    """A domain event that an agent emitted, as part of its result."""

    name: Token = Field(description="The name of the event.")
    data: JsonValue = Field(default=None, description="The data of the event.")


class Result(Event):
    """The result of one attempt."""

    event_type: ClassVar[str] = "io.pointsman.result.v1"
    max_depth: ClassVar[int] = MAX_DEPTH + 4

    workflow_id: WorkflowId = Field(description="The workflow.")
    task_id: TaskId = Field(description="The task.")
    attempt: int = Field(ge=1, description="The number of the attempt, from 1.")
    agent: AgentName = Field(description="The agent that made the attempt.")
    status: Literal["succeeded", "failed", "refused"] = Field(
        description="The status. `refused` means that the agent has declined the task."
    )
    output: JsonValue = Field(default=None, description="The output of an attempt that succeeded.")
    error: AttemptError | None = Field(default=None, description="The error of an attempt that did not succeed.")
    usage: Usage = Field(default=Usage(), description="Usage of model calls in the attempt.")
    confidence: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="The agent's confidence in its output, from 0 to 1."
    )
    replan_hint: str | None = Field(default=None, description="A request for a new plan, with the reason.")
    gaps: tuple[Gap, ...] = Field(default=(), description="Gaps in the output, if the agent is a team.")
    plan_usage: PlanUsage | None = Field(
        default=None,
        description="Tasks and re-plans that the agent has used, if the agent is a team. If the field is missing in "
        "the result of a team, the whole budget of the team counts as used.",
    )
    events: tuple[EmittedEvent, ...] = Field(default=(), description="Domain events that the agent emitted.")
    files: tuple[File, ...] = Field(
        default=(), exclude_if=not_, description="Files in the object store that the agent returned."
    )
    questions: tuple[QuestionRequest, ...] = Field(
        default=(),
        max_length=MAX_QUESTIONS_AT_ONCE,
        description="Questions to a person. An attempt with questions has failed with `needs_answer`. When all "
        "questions have an answer, the task is dispatched again.",
    )
    messages_read: int = Field(
        default=0,
        ge=0,
        exclude_if=not_,
        description="The number of the newest message to the workflow that the attempt has read; 0 for none.",
    )
    revision: str = Field(
        default="",
        max_length=300,
        description="Version of the agent and digest of its code, such as `1.0.0+3f9ac1d2`; empty if unknown.",
    )
    started_at: AwareDatetime = Field(description="Start of the attempt.")
    ended_at: AwareDatetime = Field(description="End of the attempt, not before `started_at`.")


class StepToolCall(Part):
    """A tool call that a model requested."""

    id: str = Field(description="The id of the call, unique within the answer.")
    name: str = Field(description="The name of the tool.")
    arguments: str = Field(description="The arguments in the form that the model wrote, usually JSON.")


class Step(Event):
    """An answer of a model or a result of a tool within an attempt. The step is stored before the attempt continues.

    If the worker dies, the next delivery of the attempt repeats only the calls without a stored step. The attempt's
    result includes `usage`, `confidence` and `replan_hint` of the steps. Only one step contains the usage of a model
    call, so the call is counted once.
    """

    event_type: ClassVar[str] = "io.pointsman.step.v1"

    workflow_id: WorkflowId = Field(description="The workflow.")
    task_id: TaskId = Field(description="The task.")
    attempt: int = Field(ge=1, description="The number of the attempt, from 1.")
    agent: AgentName = Field(description="The agent that makes the attempt.")
    name: Token = Field(
        description="The name of the step. `answer-2` is the answer of turn 2. `result-2-0` is the result "
        "of the first tool call of turn 2. `call-KEY` is a call that a person has approved. `event-KEY` is "
        "an event that a tool emitted. `messages-2` and `messages-KEY` are the messages to the workflow that "
        "were read in that turn or call."
    )
    text: str = Field(default="", description="The text of an answer.")
    calls: tuple[StepToolCall, ...] = Field(default=(), description="Tool calls of an answer.")
    data: JsonValue = Field(default=None, description="The structured output of an answer, or the result of a tool.")
    is_error: bool = Field(default=False, description="True if the tool failed.")
    finish: str = Field(default="", description="The reason why the model stopped.")
    model: str = Field(default="", description="The model that answered.")
    provider_state: dict[str, JsonValue] | None = Field(
        default=None,
        description="Opaque data of an answer, such as signatures. The next request to the provider must "
        "contain this data.",
    )
    usage: Usage = Field(default=Usage(), description="Usage of this step.")
    confidence: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="The confidence that the step reported, from 0 to 1."
    )
    replan_hint: str | None = Field(default=None, description="A request for a new plan, with the reason.")
    at: AwareDatetime = Field(description="Time of the step.")


class Control(Event):
    """A command of a person or a system to a running workflow.

    The subject names the workflow, the action and the actor. The actor is the broker's user who published the command.
    """

    event_type: ClassVar[str] = "io.pointsman.control.v1"
    max_depth: ClassVar[int] = MAX_DEPTH + 4

    action: Literal["cancel", "replay", "approve", "reject", "answer", "resume", "tell"] = Field(
        description="The command; the same as in the subject."
    )
    task_id: TaskId | None = Field(default=None, description="The task to replay.")
    round: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="With `resume`: the round that ended. A workflow in a different round ignores the "
        "command. Without a value, the command resumes the newest round.",
    )
    question: Token | None = Field(
        default=None, description="With `approve`, `reject` or `answer`: the id of the question."
    )
    input: JsonValue = Field(
        default=None,
        description="With `answer`: the answer. With `approve`: a replacement for the task's input, the tool's "
        "arguments or the whole plan.",
    )
    text: str = Field(default="", max_length=MAX_MESSAGE_CHARS, description="With `tell`: the message.")
    reason: str = Field(default="", description="The reason, stored in the log.")


class Question(Event):
    """A question of a workflow to a person, stored on `{ns}.question.{team}.{workflow}.{id}`.

    To answer, publish a control event on `{reply_to}.{action}.{actor}.{id}`, with the id of this question in its field
    `question`. `action` is `answer` for `information`, otherwise `approve` or `reject`. `actor` is the user's name at
    the broker, and `id` is a new id. If no answer arrives until `expires_at`, the default is used as the answer. If
    there is no default, the question counts as rejected.
    """

    event_type: ClassVar[str] = "io.pointsman.question.v1"
    max_depth: ClassVar[int] = MAX_DEPTH + 4

    id: Token = Field(description="The id of the question.")
    workflow_id: WorkflowId = Field(description="The workflow that waits.")
    team: TeamName = Field(description="The team of the workflow.")
    caller: str = Field(
        default="",
        description="The caller of the request. For a task of another team: `team:` and the name of the other team.",
    )
    parent: WorkflowId | None = Field(
        default=None, exclude_if=not_, description="For a task of another team: the workflow of the other team."
    )
    about: Literal["task", "tool", "plan", "information"] = Field(
        description="The subject of the question: the approval of a task, a tool call or a plan, or information."
    )
    task_id: TaskId | None = Field(default=None, description="The task that waits.")
    agent: AgentName | None = Field(default=None, description="The agent of the task.")
    intent: str = Field(default="", description="The intent of the task.")
    tool: str = Field(default="", description="The name of the tool.")
    text: str = Field(default="", description="For information: the question.")
    input: JsonValue = Field(default=None, description="The task's input, the tool's arguments or the plan.")
    input_schema: dict[str, JsonValue] | None = Field(
        default=None,
        description="For information: JSON Schema of the answer. For a tool call: JSON Schema of the arguments that "
        "a person can give instead of the call's arguments.",
    )
    has_default: bool = Field(default=False, description="True if `default` is the answer when the question expires.")
    default: JsonValue = Field(default=None, description="The answer that is used if the question expires.")
    request: str | dict[str, JsonValue] = Field(
        default="", description="The request of the workflow. A long request is cut and becomes a text."
    )
    known: tuple[TaskReport, ...] = Field(
        default=(), description="The newest results of the workflow. A long output is cut and becomes a text."
    )
    asked_at: AwareDatetime = Field(description="Time of the question.")
    expires_at: AwareDatetime = Field(description="Time from which an answer is not accepted any more.")
    reply_to: str = Field(
        description="The beginning of the subject for the answer. The action, the actor and an id follow."
    )


class Cancellation(Event):
    """Tasks whose results are no longer needed.

    The event is broadcast on `{ns}.cancelled.{team}.{workflow}`. It also replaces each handoff of the tasks that no
    agent has taken yet. An agent that receives the event can stop early, but correctness does not depend on this.
    """

    event_type: ClassVar[str] = "io.pointsman.cancellation.v1"

    tasks: tuple[TaskId, ...] = Field(description="The cancelled tasks.")
    attempts: tuple[int, ...] = Field(
        default=(),
        description="The number of the newest cancelled attempt for each of `tasks`, in the same order. "
        "Later attempts are not cancelled. If the list is empty, all attempts are cancelled.",
    )


class Timer(Event):
    """A timer of a workflow that fired. A supervisor then checks the deadlines and the due retries of the workflow."""

    event_type: ClassVar[str] = "io.pointsman.timer.v1"

    name: Token = Field(description="The name of the timer.")
    due: AwareDatetime = Field(description="Time at which the timer was due.")


class Progress(Event):
    """A report of an agent about a running attempt, stored beside the log and shown by `watch` and `trace`.

    If an attempt has no result after half a second, the worker itself sends a `progress` report with the name `begun`.
    In this report, `started_at` is the start of the attempt.
    """

    event_type: ClassVar[str] = "io.pointsman.progress.v1"

    workflow_id: WorkflowId = Field(description="The workflow.")
    task_id: TaskId = Field(description="The task.")
    attempt: int = Field(description="The number of the attempt, from 1.")
    agent: AgentName = Field(description="The agent that reports.")
    kind: str = Field(description="`progress`, `tool`, `chat`, or the name of a domain event.")
    name: str = Field(default="", description="The tool, the model, or the name of a progress report.")
    message: str = Field(default="", description="The text of the report.")
    data: JsonValue = Field(default=None, description="Data of a domain event or of a progress report.")
    started_at: AwareDatetime = Field(description="Time of the report; for `tool` and `chat`, the start of the call.")
    ended_at: AwareDatetime | None = Field(default=None, description="For `tool` and `chat`: the end of the call.")
    error: str | None = Field(default=None, description="The error of a failed call.")
    usage: Usage | None = Field(default=None, description="Usage of a model call.")
    span_id: str = Field(default="", description="The span of the call, as 16 hexadecimal digits.")
    parent_span_id: str = Field(default="", description="The parent of the span.")


class Delta(Event):
    """A piece of text that a model is writing, broadcast on `{ns}.delta.{team}.{workflow}.{agent}`.

    A piece is not a result, because the call might fail and be repeated. Correctness does not depend on pieces. Once a
    second, a piece repeats the whole text of the call. So a reader that was disconnected receives the text that it
    missed. A reader inserts each piece at its `offset`.
    """

    event_type: ClassVar[str] = "io.pointsman.delta.v1"

    workflow_id: WorkflowId = Field(description="The workflow.")
    task_id: TaskId = Field(description="The task.")
    attempt: int = Field(ge=1, description="The number of the attempt, from 1.")
    agent: AgentName = Field(description="The agent whose model writes.")
    role: Role = Field(default=Role.WORK, description="The role of the task; `synthesize` for the answer.")
    call: str = Field(
        default="",
        max_length=64,
        description="The id of the model call that writes the text. Each call writes a text of its own. The id is "
        "empty if no piece repeats the whole text.",
    )
    offset: int = Field(default=0, ge=0, description="Number of characters of the text before this piece.")
    text: str = Field(description="The piece of text.")


class TaskSummary(Part):
    """One task of an outcome."""

    task_id: TaskId = Field(description="The task.")
    agent: OptionalAgentName = Field(description="The agent of the task; empty if no agent had the skill.")
    role: Role = Field(description="The role of the task.")
    intent: str = Field(description="The intent of the task.")
    status: str = Field(description="The final status of the task.")
    attempts: int = Field(description="Number of attempts.")
    elapsed: float = Field(description="Duration of all attempts together, in seconds.")
    usage: Usage = Field(default=Usage(), description="Usage of all attempts together.")
    reason: str = Field(
        default="",
        description="The reason, if a condition skipped the task.",
    )


class Conflict(Part):
    """A contradiction between results, with the decision of the judge."""

    description: str = Field(description="The contradiction, in one sentence.")
    decision: str = Field(description="The statement that the answer uses as true.")
    reason: str = Field(description="The reason for the decision.")


class Outcome(Event):
    """The final answer of a workflow.

    A workflow that is never resumed has exactly one outcome. Each resume begins a new round, and the outcome of the new
    round replaces the outcome of the round before.
    """

    event_type: ClassVar[str] = "io.pointsman.outcome.v1"

    workflow_id: WorkflowId = Field(description="The workflow.")
    team: TeamName = Field(description="The team of the workflow.")
    caller: str = Field(
        default="",
        description="The caller of the request. For a task of another team: `team:` and the name of the other team.",
    )
    parent: WorkflowId | None = Field(
        default=None, exclude_if=not_, description="For a task of another team: the workflow of the other team."
    )
    status: Literal["completed", "partial", "failed", "cancelled"] = Field(
        description="The status. `partial` means an answer with gaps."
    )
    answer: JsonValue = Field(default=None, description="The answer for the caller.")
    reason: str = Field(default="", description="For operators: the reason for a status other than `completed`.")
    gaps: tuple[Gap, ...] = Field(default=(), description="Tasks without a result in the answer.")
    conflicts: tuple[Conflict, ...] = Field(default=(), description="Contradictions that a judge decided.")
    ignored_fields: tuple[str, ...] = Field(
        default=(),
        description="Fields of the request that were ignored, because the schema of a request does not have them.",
    )
    tasks: tuple[TaskSummary, ...] = Field(default=(), description="All tasks of the workflow.")
    files: tuple[File, ...] = Field(default=(), exclude_if=not_, description="Files that tasks returned.")
    usage: Usage = Field(default=Usage(), description="Usage of the workflow and of its child workflows.")
    correlation_id: str = Field(description="The correlation id of the request.")
    trace_id: str = Field(description="The trace of the workflow, as 32 hexadecimal digits.")
    started_at: AwareDatetime = Field(description="Start of the workflow.")
    ended_at: AwareDatetime = Field(description="End of the workflow.")
    round: int = Field(
        default=1, ge=1, description="The number of the round that ended. The first round is 1, and each resume adds 1."
    )
    unread_messages: int = Field(
        default=0, exclude_if=not_, description="Number of messages to the workflow that no task has read."
    )
    elapsed: float = Field(description="Seconds from start to end.")
    sequential: float = Field(description="Sum of the durations of all tasks, in seconds.")


class Audit(Event):
    """The record of an operation, stored on `{ns}.audit.{action}.{actor}.{id}`. The subject names the actor."""

    event_type: ClassVar[str] = "io.pointsman.audit.v1"

    action: Literal["forget", "discard", "replay", "resume"] = Field(
        description="`forget` deleted a workflow, `discard` a dead letter; `replay` processed a dead letter again; "
        "`resume` deleted the dead letter of a task that a resumed workflow does again."
    )
    workflow_id: WorkflowId | None = Field(default=None, description="The workflow, if it is known.")
    dead_letter: Token | None = Field(default=None, description="The id of the dead letter.")
    reason: str = Field(default="", description="The reason that the actor gave.")
    messages: int = Field(default=0, ge=0, description="For `forget`: the number of deleted messages.")


class DeadLetter(Event):
    """An event that could not be processed, with the cause.

    If the original is too large for a message, `truncated` is true and `body` is the beginning of the original. The
    whole original is then at `sequence` of `stream`.
    """

    event_type: ClassVar[str] = "io.pointsman.dead-letter.v1"

    id: Token = Field(description="The id of the dead letter.")
    origin: Token = Field(description="The team or agent that could not process the event.")
    workflow_id: WorkflowId | None = Field(default=None, description="The workflow, if it is known.")
    team: TeamName | None = Field(default=None, description="The team of the workflow, if it is known.")
    task_id: TaskId | None = Field(default=None, description="The task, if the event belongs to one.")
    cause: AttemptError = Field(description="The error.")
    attempts: int = Field(description="Number of deliveries of the event, or number of attempts at the task.")
    subject: str = Field(description="The subject of the original.")
    headers: dict[str, str] = Field(default={}, description="The headers of the original.")
    body: str = Field(description="The body of the original in base64.")
    truncated: bool = Field(default=False, description="True if `body` is only the beginning.")
    stream: str | None = Field(default=None, description="The stream of the original, if it was stored.")
    sequence: int | None = Field(default=None, description="The sequence number of the original in its stream.")
    at: AwareDatetime = Field(description="Time at which the dead letter was written.")
