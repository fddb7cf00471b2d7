"""Convert entries of the log to events for callers. Only listed fields are shown; internal fields are not."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import AwareDatetime, BaseModel, Field, JsonValue

from pointsman.gateway.models import OutcomeView, UsageView
from pointsman.gateway.streams import LogEvent
from pointsman_schemas.events import AttemptError, Delta, Progress, Result
from pointsman_schemas.log import Entry, MessageReceived, PlanAccepted, WorkflowEnded, WorkflowStarted

__all__ = ["WorkflowEvent", "error_view", "event_view", "live_view"]

_SHOWN_FIELDS = (
    "task_id",
    "attempt",
    "agent",
    "role",
    "intent",
    "revision",
    "problems",
    "reason",
    "until",
    "not_before",
    "deadline",
    "unmet_dependency",
    "cause",
    "question",
    "about",
    "tool",
    "verdict",
    "by",
    "attempts",
    "limit",
    "expires_at",
    "round",
)
"""Fields of entries that callers may see. A new field of the log is hidden until this list contains the field."""


class EventError(BaseModel):
    """An error of an attempt, without the detail that only operators may see."""

    kind: str = Field(description="The kind of error.")
    message: str = Field(description="The error in one or two sentences.")
    retryable: bool = Field(description="True if another attempt may succeed.")


class PlannedTaskView(BaseModel):
    """A task of a plan."""

    id: str = Field(description="The task.")
    agent: str = Field(description="The agent of the task; empty if the task names a skill.")
    intent: str = Field(description="The task in one or two sentences.")
    depends_on: list[str] = Field(description="The tasks that must end before this task.")


class WorkflowEvent(BaseModel):
    """The data of an event of a workflow. The type of the event decides which fields are set."""

    type: str = Field(
        description="The type: a kind of log entry, such as `workflow_started`, `plan_accepted`, `task_dispatched`, "
        "`task_succeeded`, `attempt_failed`, `question_asked` or `workflow_ended`. With `live`, also "
        "`progress` and `text`."
    )
    at: AwareDatetime | None = Field(default=None, description="Time of the event.")
    workflow_id: str = Field(description="The workflow.")
    team: str | None = Field(default=None, description="The team.")
    task_id: str | None = Field(default=None, description="The task.")
    attempt: int | None = Field(default=None, description="The number of the attempt, from 1.")
    agent: str | None = Field(default=None, description="The agent.")
    role: str | None = Field(default=None, description="The role of the task.")
    intent: str | None = Field(default=None, description="The task in one or two sentences.")
    revision: int | None = Field(default=None, description="The number of the plan, from 1.")
    goal: str | None = Field(default=None, description="The goal of the plan.")
    tasks: list[PlannedTaskView] | None = Field(default=None, description="The tasks of the plan.")
    problems: list[str] | None = Field(default=None, description="Problems of a rejected plan.")
    output: JsonValue = Field(default=None, description="The output of a task.")
    usage: UsageView | None = Field(default=None, description="Usage of model calls.")
    error: EventError | None = Field(default=None, description="The error.")
    reason: str | None = Field(default=None, description="The reason.")
    until: AwareDatetime | None = Field(default=None, description="Time of the next check of a held task.")
    not_before: AwareDatetime | None = Field(default=None, description="Earliest time of the next attempt.")
    deadline: AwareDatetime | None = Field(default=None, description="Time after which the attempt has failed.")
    unmet_dependency: str | None = Field(default=None, description="The dependency that did not succeed.")
    cause: str | None = Field(default=None, description="The cause of an abandoned task or an ignored result.")
    question: str | None = Field(default=None, description="The id of the question.")
    about: str | None = Field(default=None, description="The subject of the question.")
    tool: str | None = Field(default=None, description="The tool.")
    verdict: str | None = Field(default=None, description="The answer to the question.")
    by: str | None = Field(default=None, description="The person or system that acted.")
    attempts: int | None = Field(default=None, description="Number of attempts.")
    limit: str | None = Field(default=None, description="The limit that was reached.")
    expires_at: AwareDatetime | None = Field(default=None, description="End of the wait for an answer.")
    round: int | None = Field(default=None, description="The number of the round that begins.")
    outcome: OutcomeView | None = Field(default=None, description="The outcome of the workflow.")
    kind: str | None = Field(
        default=None, description="For `progress`: `progress`, `tool`, `chat` or the name of an event."
    )
    name: str | None = Field(default=None, description="For `progress`: the tool, the model or the event.")
    text: str | None = Field(default=None, description="For `text`, `progress` and `message_received`: the text.")
    call: str | None = Field(default=None, description="For `text`: the id of the model call that writes the text.")
    offset: int | None = Field(
        default=None, description="For `text`: number of characters of the text before this piece."
    )
    number: int | None = Field(default=None, description="For `message_received`: the number of the message, from 1.")


def event_view(workflow: str, event: LogEvent) -> WorkflowEvent:
    """Return the event for an entry of the log.

    Args:
        workflow: The workflow.
        event: The entry.

    Returns:
        The event.
    """
    entry = event.entry
    fields: dict[str, Any] = {
        name: value for name in _SHOWN_FIELDS if (value := getattr(entry, name, None)) is not None and _is_plain(value)
    }
    fields |= _special_fields(entry)
    return WorkflowEvent(type=entry.kind, at=entry.at, workflow_id=workflow, **fields)


def live_view(workflow: str, item: Progress | Delta) -> WorkflowEvent:
    """Return the event for a report or a piece of text.

    Args:
        workflow: The workflow.
        item: The report or the text.

    Returns:
        The event.
    """
    if isinstance(item, Delta):
        return WorkflowEvent(
            type="text", workflow_id=workflow, task_id=item.task_id, attempt=item.attempt, agent=item.agent,
            role=item.role, call=item.call, offset=item.offset, text=item.text,
        )  # fmt: skip
    return WorkflowEvent(
        type="progress",
        at=item.started_at,
        workflow_id=workflow,
        task_id=item.task_id,
        attempt=item.attempt,
        agent=item.agent,
        kind=item.kind,
        name=item.name,
        text=item.message,
    )


def error_view(error: AttemptError) -> EventError:
    """Return an error without the detail that only operators may see.

    Args:
        error: The error.

    Returns:
        The view.
    """
    return EventError(kind=error.kind, message=error.message, retryable=error.retryable)


def _special_fields(entry: Entry) -> Mapping[str, Any]:
    fields: dict[str, Any] = {}
    if isinstance(error := getattr(entry, "error", None), AttemptError):
        fields["error"] = error_view(error)
    if isinstance(result := getattr(entry, "result", None), Result):
        fields |= {"agent": result.agent, "usage": UsageView.of(result.usage)}
        if entry.kind == "task_succeeded":
            fields["output"] = result.output
    match entry:
        case WorkflowStarted():
            fields |= {"team": entry.team, "deadline": entry.deadline}
        case PlanAccepted():
            fields["goal"] = entry.plan.goal or entry.plan.cannot or None
            fields["tasks"] = [
                PlannedTaskView(
                    id=task.id, agent=task.agent or "", intent=task.intent, depends_on=list(task.depends_on)
                )
                for task in entry.plan.tasks
            ]
        case MessageReceived():
            fields |= {"text": entry.text, "number": entry.number}
        case WorkflowEnded():
            fields["outcome"] = OutcomeView.of(entry.outcome)
    return fields


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float | datetime | tuple) and value != ""
