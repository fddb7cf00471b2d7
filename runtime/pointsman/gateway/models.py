"""The bodies of the REST API."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, JsonValue
from pydantic_core import CoreSchema, PydanticCustomError

from pointsman.engine.process.agent_versions import group_by_name
from pointsman_schemas.card import AgentCard
from pointsman_schemas.events import (
    MAX_DEADLINE_S,
    MAX_MESSAGE_CHARS,
    Budget,
    DeadLetter,
    Outcome,
    Question,
    RequestInput,
    Usage,
)
from pointsman_schemas.ids import MAX_CALLER_ID_CHARS, TeamName, Token
from pointsman_schemas.strict_json import stop_at_first_fault

__all__ = [
    "FILE_ID_PATTERN",
    "MAX_FILES",
    "AgentView",
    "Answer",
    "AnswerView",
    "Approval",
    "CancelRequest",
    "DeadLetterPage",
    "DeadLetterView",
    "Health",
    "LenientBody",
    "OutcomeView",
    "QuestionPage",
    "QuestionView",
    "Rejection",
    "ReplayRequest",
    "ReplayView",
    "ResumeRequest",
    "TeamView",
    "Timestamp",
    "WorkflowItem",
    "WorkflowPage",
    "WorkflowRequest",
    "WorkflowStatus",
    "WorkflowView",
    "agent_views",
]

FILE_ID_PATTERN = r"^file-[0-9a-f]{24}-[0-9a-f]{64}$"
"""The id of an upload."""
MAX_FILES = 100
"""Largest number of files of a request. `Limits.files` of a team can be smaller."""
WorkflowStatus = Literal[
    "queued",
    "cancelling",
    "running",
    "waiting_for_answer",
    "imported",
    "completed",
    "partial",
    "failed",
    "cancelled",
]


class LenientBody(BaseModel):
    """A body of a request.

    For a list, only the first invalid member is reported, because a body may have a million invalid members.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the body."""
        schema = handler(source)
        stop_at_first_fault(schema)
        return schema


class Body(LenientBody):
    """A body of a request. An unknown field is refused, because an unknown field is most often a misspelled field."""

    model_config = ConfigDict(extra="forbid")


def _whole(value: object) -> object:
    """Convert 3.0 to 3. JSON has one kind of number, and JSON Schema calls 3.0 an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_timestamp(value: object) -> object:
    """Refuse numbers. Pydantic would read a number as seconds since 1970."""
    if isinstance(value, str) and not re.match(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d", value):
        raise PydanticCustomError("timestamp", "a time such as 2026-01-31T12:00:00Z is expected")
    return value


Count = Annotated[int, Field(strict=True, ge=0), BeforeValidator(_whole)]
Timestamp = Annotated[AwareDatetime, BeforeValidator(_is_timestamp)]
"""A time in a query or a body, with a time zone."""


class BudgetRequest(Body):
    """Limits of one workflow. These limits can only lower the limits of the team."""

    calls: Count | None = Field(default=None, description="Largest number of model calls.")
    tokens: Count | None = Field(default=None, description="Largest number of tokens of all prompts and answers.")
    cost: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] | None = Field(
        default=None, description="Largest cost in US dollars."
    )
    tasks: Count | None = Field(default=None, description="Largest number of tasks in all plans together.")
    replans: Count | None = Field(default=None, description="Largest number of plans after the first plan.")

    def as_budget(self) -> Budget:
        """Return the budget of the request."""
        return Budget(**self.model_dump())


class WorkflowRequest(Body):
    """A request to a team."""

    team: TeamName = Field(description="The team that is to serve the request.")
    input: RequestInput = Field(description="The request: a text, or an object for teams that expect fields.")
    deadline: Annotated[float, Field(strict=True, ge=0.001, le=MAX_DEADLINE_S)] | None = Field(
        default=None, description="Seconds from admission to the deadline. Default: the team's deadline."
    )
    budget: BudgetRequest | None = Field(default=None, description="Limits of the workflow.")
    metadata: dict[str, JsonValue] = Field(default={}, description="Data for the agents, such as the id of a customer.")
    correlation_id: Annotated[str, Field(min_length=1, max_length=MAX_CALLER_ID_CHARS)] | None = Field(
        default=None, description="Your own id. All events of the workflow contain this id."
    )
    thread: Token | None = Field(
        default=None,
        description="The id of one of your threads. The request becomes the next turn of the thread. The agents get "
        "the previous turns.",
    )
    files: list[Annotated[str, Field(pattern=FILE_ID_PATTERN)]] = Field(
        default=[], max_length=MAX_FILES, description="Ids of your uploads. The agents can read these files."
    )


class GapView(BaseModel):
    """A task whose result is missing in the answer."""

    task_id: str = Field(description="The task.")
    agent: str = Field(description="The agent of the task.")
    reason: str = Field(description="The reason, in one sentence.")


class UsageView(BaseModel):
    """Usage of model calls."""

    calls: int = Field(description="Number of model calls.")
    input_tokens: int = Field(description="Tokens of the prompts.")
    output_tokens: int = Field(description="Tokens of the answers.")
    cost: float = Field(description="Cost in US dollars.")

    @classmethod
    def of(cls, usage: Usage) -> UsageView:
        """Return the view of a usage.

        Args:
            usage: The usage.
        """
        return cls(**usage.model_dump())


class OutcomeView(BaseModel):
    """The end of a workflow."""

    status: Literal["completed", "partial", "failed", "cancelled"] = Field(
        description="`partial` is an answer with gaps."
    )
    answer: JsonValue = Field(description="The answer.")
    reason: str = Field(description="The reason for a status other than `completed`.")
    gaps: list[GapView] = Field(description="Tasks whose result is missing in the answer.")
    usage: UsageView = Field(description="Usage of the workflow and of its child workflows.")
    elapsed: float = Field(description="Seconds from start to end.")

    @classmethod
    def of(cls, outcome: Outcome) -> OutcomeView:
        """Return the view of an outcome.

        Args:
            outcome: The outcome.
        """
        return cls(
            status=outcome.status,
            answer=outcome.answer,
            reason=outcome.reason,
            gaps=[GapView(**gap.model_dump()) for gap in outcome.gaps],
            usage=UsageView.of(outcome.usage),
            elapsed=outcome.elapsed,
        )


class WorkflowItem(BaseModel):
    """A workflow in a list."""

    id: str = Field(description="The workflow.")
    team: str = Field(description="The team of the workflow.")
    status: WorkflowStatus = Field(description="The status.")
    correlation_id: str = Field(description="The correlation id of the request.")
    caller: str = Field(description="The caller; empty for a request that was not sent to a gateway.")
    created_at: AwareDatetime = Field(
        description="Time of admission; while the request waits for admission, the time of the request."
    )
    ended_at: AwareDatetime | None = Field(default=None, description="Time of the end.")


class WorkflowView(WorkflowItem):
    """A workflow."""

    input: str | dict[str, JsonValue] = Field(description="The input of the request.")
    outcome: OutcomeView | None = Field(default=None, description="The end of the workflow.")
    questions: list[str] = Field(default=[], description="Ids of the questions for which the workflow waits.")
    warning: str | None = Field(
        default=None, description="For a request that waits for admission: a warning that the team might not exist."
    )


class WorkflowPage(BaseModel):
    """A page of a list, the newest workflow first."""

    workflows: list[WorkflowItem] = Field(description="The workflows.")
    next_cursor: str | None = Field(default=None, description="The cursor of the next page; null on the last page.")


class CancelRequest(Body):
    """The cancellation of a workflow."""

    reason: str = Field(default="", max_length=1_000, description="The reason, which the outcome repeats.")


class MessageRequest(Body):
    """A message to a workflow."""

    text: str = Field(
        min_length=1,
        max_length=MAX_MESSAGE_CHARS,
        pattern=r"[^\s\x1c-\x1f]",  # a character that is not white space; \x1c-\x1f are white space for Python
        description="The message. A text of only white space is refused.",
    )


class MessageView(BaseModel):
    """The result of a message to a workflow."""

    workflow_id: str = Field(description="The workflow.")
    number: int | None = Field(
        default=None,
        description="The number of the message in its workflow; null if no supervisor has recorded the message yet.",
    )
    next_turn: str | None = Field(
        default=None, description="The workflow of the next turn of the thread, if the message begins the next turn."
    )
    detail: str = Field(description="The result in one sentence.")


class ResumeRequest(Body):
    """The resumption of a workflow."""

    reason: str = Field(default="", max_length=1_000, description="The reason, which the log stores.")


class QuestionView(BaseModel):
    """A question that waits for a person."""

    id: str = Field(description="The id of the question.")
    workflow_id: str = Field(description="The workflow that waits.")
    team: str = Field(description="The team of the workflow.")
    about: Literal["task", "tool", "plan", "information"] = Field(
        description="The subject of the question. A person must approve or reject a task, a tool call or a plan. For "
        "information, a person must give an answer."
    )
    task_id: str | None = Field(default=None, description="The task that waits.")
    agent: str | None = Field(default=None, description="The agent of the task.")
    intent: str = Field(description="The intent of the task.")
    tool: str = Field(description="The name of the tool.")
    text: str = Field(description="For information: the question.")
    input: JsonValue = Field(description="The task's input, the tool's arguments or the plan.")
    input_schema: dict[str, JsonValue] | None = Field(
        default=None,
        description="For information: JSON Schema of the answer. For a tool call: JSON Schema of the arguments, which "
        "a person can replace.",
    )
    has_default: bool = Field(description="True if `default` is the answer when the question expires.")
    default: JsonValue = Field(description="The answer that is used if the question expires.")
    asked_at: AwareDatetime = Field(description="Time of the question.")
    expires_at: AwareDatetime = Field(description="Time after which an answer is refused.")

    @classmethod
    def of(cls, question: Question) -> QuestionView:
        """Return the view of a question.

        Args:
            question: The question.
        """
        return cls(**question.model_dump(include=set(cls.model_fields)))


class QuestionPage(BaseModel):
    """The questions that wait, oldest first."""

    questions: list[QuestionView] = Field(description="The questions.")


class Answer(Body):
    """An answer to a question for information."""

    answer: JsonValue = Field(description="The answer. It must match the JSON Schema of the question.")


class Approval(Body):
    """An approval with an optional change."""

    input: JsonValue = Field(
        default=None,
        description="A replacement for the task's input, the tool's arguments or the plan; null for no change.",
    )


class Rejection(Body):
    """A rejection."""

    reason: str = Field(default="", max_length=1_000, description="The reason, which the planner or the agent reads.")


class AnswerView(BaseModel):
    """The result of an answer."""

    counted: bool | None = Field(
        description="True if this answer counts; false if an earlier answer counts; null if no supervisor has read the "
        "answer yet."
    )
    message: str = Field(description="The result in one sentence.")


class AgentView(BaseModel):
    """A live agent."""

    name: str = Field(description="The name.")
    description: str = Field(description="The tasks that the agent can do.")
    role: str = Field(description="The role of the tasks that the agent accepts, such as `work` or `plan`.")
    skills: list[str] = Field(description="Skills by which a plan can select the agent.")
    examples: list[str] = Field(description="Example requests.")
    version: str = Field(description="The version.")
    model: str | None = Field(default=None, description="The model that the agent uses.")
    instances: int = Field(description="Number of live instances.")
    input_schema: dict[str, Any] = Field(description="JSON Schema of the input.")
    output_schema: dict[str, Any] = Field(description="JSON Schema of the output.")


class TeamView(BaseModel):
    """A team with a live supervisor."""

    name: str = Field(description="The name.")
    description: str = Field(description="The requests that the team serves.")
    skills: list[str] = Field(description="Skills by which a plan of another team can select the team.")
    examples: list[str] = Field(description="Example requests.")
    version: str = Field(description="A digest of the team's definition.")
    supervisors: int = Field(description="Number of live supervisors.")
    input_schema: dict[str, Any] = Field(description="JSON Schema of the input.")
    output_schema: dict[str, Any] = Field(description="JSON Schema of the answer.")


def agent_views(cards: list[AgentCard]) -> list[AgentView]:
    """Return one view for all instances of each agent.

    Args:
        cards: The cards of the live instances.

    Returns:
        The views, sorted by name.
    """
    return [
        AgentView(
            name=name,
            description=found[0].description,
            role=found[0].role.value,
            skills=list(found[0].skills),
            examples=list(found[0].examples),
            version=found[0].version,
            model=found[0].model,
            instances=len(found),
            input_schema=dict(found[0].input_schema),
            output_schema=dict(found[0].output_schema),
        )
        for name, found in sorted(group_by_name(cards).items())
    ]


class DeadLetterView(BaseModel):
    """A message that could not be processed. Only operators of the broker can read its body and its headers."""

    id: str = Field(description="The id.")
    origin: str = Field(description="The team or agent that could not process the message.")
    workflow_id: str | None = Field(default=None, description="The workflow, if the workflow is known.")
    task_id: str | None = Field(default=None, description="The task, if there is one.")
    kind: str = Field(description="The kind of error.")
    message: str = Field(description="The error.")
    attempts: int = Field(description="Number of deliveries or attempts.")
    subject: str = Field(description="The subject of the message.")
    at: AwareDatetime = Field(description="Time of the dead letter.")

    @classmethod
    def of(cls, letter: DeadLetter) -> DeadLetterView:
        """Return the view of a dead letter.

        Args:
            letter: The dead letter.
        """
        return cls(
            id=letter.id,
            origin=letter.origin,
            workflow_id=letter.workflow_id,
            task_id=letter.task_id,
            kind=letter.cause.kind,
            message=letter.cause.for_operators,
            attempts=letter.attempts,
            subject=letter.subject,
            at=letter.at,
        )


class DeadLetterPage(BaseModel):
    """Dead letters, oldest first."""

    dead_letters: list[DeadLetterView] = Field(description="The dead letters.")


class ReplayRequest(Body):
    """A replay of a dead letter."""

    as_new: bool = Field(default=False, description="Send the workflow's request again as a new workflow.")


class ReplayView(BaseModel):
    """The result of a replay."""

    workflow_id: str = Field(description="The workflow that continues, or the new workflow.")
    action: str = Field(description="The action that was taken.")


class Health(BaseModel):
    """The health of a gateway."""

    status: Literal["ok", "starting", "broker_unavailable"] = Field(
        description="`ok`, or the reason why the gateway cannot serve requests at present."
    )
