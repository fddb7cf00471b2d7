"""Run a team as an agent. A handoff to the team starts a child workflow, and the child's outcome is the result.

The id of the child is computed from the handoff, so the parent can address the child without a message from the child.
Like any agent, the child publishes its result on the subject that the handoff names. If the parent does not need the
result any more, the parent cancels the child.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import JsonValue, ValidationError

from pointsman.core.budget.team_quota import plan_usage
from pointsman.core.model.messages import Message
from pointsman.core.model.state import State, Task
from pointsman_schemas.events import AttemptError, Control, ErrorKind, Handoff, Outcome, Request, Result
from pointsman_schemas.files import File
from pointsman_schemas.ids import child_id_for
from pointsman_schemas.log import Parent
from pointsman_schemas.strict_json import describe
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Team

__all__ = ["PARENT_CONTROL", "child_cancellation", "child_request", "child_result"]

PARENT_CONTROL = "parent"
"""The id of the control with which a parent cancels its child. The subject of the control ends with this id. The id is
the same for every child, so a supervisor can look up the control by its subject.
"""

_CHILD_DEADLINE_SHARE = 0.9
"""The child's deadline is at this share of the handoff's remaining time. In the rest of the time, after that deadline,
the child can still answer from partial results."""


def child_request(handoff: Handoff, team: Team, now: datetime) -> Request | AttemptError:
    """Return the request that `handoff` makes to `team`. If the handoff is refused, return the error."""
    if handoff.depth + 1 > team.limits.nesting:
        message = f"{team.name} has {handoff.depth + 1} teams above it; at most {team.limits.nesting} are allowed"
        return AttemptError(kind=ErrorKind.LIMIT, message=message)
    left = (handoff.deadline - now).total_seconds()
    if left <= 0:
        return AttemptError(
            kind=ErrorKind.TIMEOUT,
            message="the deadline of the handoff had passed before the team received the handoff",
        )
    given: dict[str, JsonValue] = dict(handoff.input) if isinstance(handoff.input, dict) else {}
    if not given and handoff.input is not None:
        given = {"request": handoff.input}
    results: dict[str, JsonValue] = {report.task_id: report.output for report in handoff.context if report.output}
    try:
        return Request(
            input={"intent": handoff.intent, **given, **({"results": results} if results else {})},
            deadline=left * _CHILD_DEADLINE_SHARE,
            budget=handoff.budget,
            files=_files_of(handoff),
        )
    except ValidationError as error:
        return AttemptError(kind=ErrorKind.INVALID_INPUT, message=describe(error))


def _files_of(handoff: Handoff) -> tuple[File, ...]:
    """Return the files of a handoff and of the results in its context. If names are equal, take only the first file."""
    found: dict[str, File] = {}
    for file in (*handoff.files, *(file for report in handoff.context for file in report.files)):
        found.setdefault(file.name, file)
    return tuple(found.values())


def child_result(state: State, parent: Parent, outcome: Outcome) -> Message:
    """Return the result for the parent's task. A partial outcome becomes a successful result with gaps."""
    good = outcome.status in ("completed", "partial")
    kind = ErrorKind.CANCELLED if outcome.status == "cancelled" else ErrorKind.TEAM
    result = Result(
        workflow_id=parent.workflow_id,
        task_id=parent.task_id,
        attempt=parent.attempt,
        agent=state.team,
        status="succeeded" if good else "failed",
        output=outcome.answer if good else None,
        error=None if good else AttemptError(kind=kind, message=f"{state.team} {outcome.status}: {outcome.reason}"),
        usage=outcome.usage,
        gaps=outcome.gaps,
        files=outcome.files,
        plan_usage=plan_usage(state),
        messages_read=state.messages_read,
        started_at=outcome.started_at,
        # The clocks of supervisors differ slightly, so the end may be before the start. Such a result would be refused.
        ended_at=max(outcome.started_at, outcome.ended_at),
    )
    return Message(
        subject=parent.return_to,
        event=result,
        id=f"{state.workflow_id}-result",
        at=outcome.ended_at,
        commit=state.commits,
        span_id=state.trace.span_id,
    )


def child_cancellation(state: State, task: Task, subjects: Subjects) -> Message:
    """Return the control that cancels the child workflow of an abandoned task."""
    child = child_id_for(task.agent, state.workflow_id, task.id, task.attempt)
    return Message(
        subject=subjects.control(task.agent, child, "cancel", state.team, PARENT_CONTROL),
        event=Control(action="cancel", reason=f"{state.workflow_id}: {task.reason}"),
        id=f"{child}-{PARENT_CONTROL}",
        at=task.ended_at or state.started_at,
        commit=state.commits,
        span_id=task.span_id,
    )
