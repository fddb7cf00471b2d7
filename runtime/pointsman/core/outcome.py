"""The one final answer of a workflow, made from its state. The gaps are listed whatever any model wrote."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Final

from pydantic import JsonValue, ValidationError

from pointsman.core.state import State, Task
from pointsman.core.transitions import Phase, TaskStatus
from pointsman.core.tree import used_up
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, Conflict, ErrorKind, Gap, Outcome, TaskSummary
from pointsman_schemas.roles import Ruling

__all__ = [
    "ASK_FOR_LESS",
    "GONE",
    "NOT_SERVED",
    "START_IT",
    "could_not",
    "decisions",
    "gaps",
    "gone",
    "not_served",
    "outcome_of",
]

NOT_SERVED: Final = "The request could not be served. Please try again later."
"""The answer where something failed that may pass. Why is for those who run it, and stands in the outcome's reason:
what an exception said may be nobody's business who only asked."""

START_IT: Final = "Ask again once it runs; `pointsman agents` shows who does."
ASK_FOR_LESS: Final = "Ask for less, or have more allowed."
GONE: Final = "no result came, and no agent named"
_NEXT: Final = {
    ErrorKind.REFUSED: "Say what is missing, or ask for something else.",
    ErrorKind.INVALID_INPUT: "Correct the request and publish it again under a new id.",
    ErrorKind.OVERSIZE: "Send less at once, or a reference to it.",
    ErrorKind.LIMIT: ASK_FOR_LESS,
    ErrorKind.NO_WORKER: START_IT,
}
"""What failed for these is told to who asked: it is in words of ours, or of an agent that means them for the caller.
Each has what can be done about it."""


def gone(agent: str) -> str:
    """Why there is no result of a task whose agent is not alive. Who takes a handoff says so only with its result."""
    return f"{GONE} {agent} is alive: nobody took it, or who did has stopped"


def could_not(reason: str, next_step: str) -> str:
    """The answer of a workflow that has none, for a reason that its caller can do something about."""
    return f"Could not help, because {reason.strip().rstrip('.')}. {next_step}"


def not_served(workflow: str, errors: Iterable[AttemptError] = ()) -> str:
    """What who asked is told where `errors` have left `workflow` without an answer: what is wrong, if all of it may be
    told; to try again, if that may help; else who can be asked."""
    errors = tuple(errors)
    if errors and all(error.kind in _NEXT for error in errors):
        said = "; ".join(dict.fromkeys(error.message.rstrip(".") for error in errors))
        return could_not(said, " ".join(dict.fromkeys(_NEXT[ErrorKind(error.kind)] for error in errors)))
    if any(error.retryable for error in errors):
        return NOT_SERVED
    return (
        "The request could not be served, and trying again is unlikely to help. "
        f"Whoever runs this finds the reason with `pointsman show {workflow}`."
    )


def outcome_of(state: State, phase: Phase, now: datetime, *, answer: JsonValue = None, reason: str = "") -> Outcome:
    """The outcome of `state` if it ended in `phase` at `now`.

    `elapsed` is from the request to `now`; `sequential` is what the same tasks took one after the other, in seconds.
    """
    return Outcome.model_validate(
        {
            "workflow_id": state.workflow_id,
            "team": state.team,
            "status": phase.value,
            "answer": answer,
            "reason": reason or state.limit or (used_up(state) if phase is Phase.PARTIAL else ""),
            "gaps": gaps(state),
            "conflicts": decisions(state),
            "tasks": tuple(_summary(task, now) for task in state.tasks.values()),
            "usage": state.usage,
            "correlation_id": state.correlation_id,
            "trace_id": state.trace.trace_id,
            "started_at": state.started_at,
            "ended_at": now,
            "elapsed": (now - state.started_at).total_seconds(),
            "sequential": sum(task.busy for task in state.tasks.values()),
        }
    )


def gaps(state: State) -> tuple[Gap, ...]:
    """What is missing of the plan's tasks."""
    return tuple(gap for task in state.work() for gap in _gaps(task))


def decisions(state: State) -> tuple[Conflict, ...]:
    """What a judge decided where results contradicted each other."""
    found: list[Conflict] = []
    for task in state.tasks.values():
        if task.role is Role.JUDGE and task.status is TaskStatus.SUCCEEDED and task.result is not None:
            with suppress(ValidationError):  # it answered something else
                found.extend(Ruling.model_validate(task.result.output).decisions)
    return tuple(found)


def _gaps(task: Task) -> tuple[Gap, ...]:
    """What is missing of a task: all of it, or what a team could not do of it."""
    if task.status is TaskStatus.SUCCEEDED:
        missing = task.result.gaps if task.result else ()
        return tuple(
            Gap(task_id=task.id, agent=gap.agent, reason=f"{gap.task_id} of {task.agent}: {gap.reason}")
            for gap in missing
        )
    reason = task.cause or (task.error.message if task.error else f"it is {task.status.value}")
    return (Gap(task_id=task.id, agent=task.agent, reason=reason),)


def _summary(task: Task, now: datetime) -> TaskSummary:
    begun = task.started_at
    return TaskSummary(
        task_id=task.id,
        agent=task.agent,
        role=task.role,
        intent=task.intent,
        status=task.status.value,
        attempts=task.attempt,
        elapsed=((task.ended_at or now) - begun).total_seconds() if begun else 0.0,
        usage=task.usage,
    )
