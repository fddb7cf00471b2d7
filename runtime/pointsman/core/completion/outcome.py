"""Build the outcome of a workflow from its state. The outcome always lists the gaps; the answer may omit gaps."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

from pydantic import JsonValue, ValidationError

from pointsman.core.budget.team_quota import exhausted_quota
from pointsman.core.decision import Decision
from pointsman.core.model.lifecycle import Phase, TaskStatus
from pointsman.core.model.state import State, Task
from pointsman.core.tasks.dispatch import abandon_task
from pointsman.core.user_messages import unread_messages
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, Conflict, Gap, Outcome
from pointsman_schemas.log import AbandonCause, WorkflowCancellation, WorkflowEnded
from pointsman_schemas.role_io import ConflictRuling

__all__ = ["build_outcome", "conflict_decisions", "end_workflow", "find_gaps"]


def build_outcome(state: State, phase: Phase, now: datetime, *, answer: JsonValue = None, reason: str = "") -> Outcome:
    """Return the outcome for the end of the workflow in `phase` at `now`.

    `elapsed` is the time from the request to `now`; `sequential` is the sum of the times of the tasks, in seconds.
    """
    return Outcome.model_validate(
        {
            "workflow_id": state.workflow_id,
            "team": state.team,
            "caller": state.caller,
            "parent": state.parent.workflow_id if state.parent else None,
            "status": phase.value,
            "answer": answer,
            "reason": reason or state.reached_limit or (exhausted_quota(state) if phase is Phase.PARTIAL else ""),
            "gaps": find_gaps(state),
            "conflicts": conflict_decisions(state),
            "ignored_fields": state.ignored_fields,
            "tasks": tuple(_task_summary(task, now) for task in state.tasks.values()),
            "files": tuple(
                dict.fromkeys(
                    file
                    for task in state.tasks.values()
                    if task.result and task.status is TaskStatus.SUCCEEDED
                    for file in task.result.files
                )
            ),
            "usage": state.total_usage,
            "round": state.round,
            "unread_messages": len(unread_messages(state)),
            "correlation_id": state.correlation_id,
            "trace_id": state.trace.trace_id,
            "started_at": state.started_at,
            "ended_at": now,
            "elapsed": (now - state.started_at).total_seconds(),
            "sequential": sum(task.work_seconds for task in state.tasks.values()),
        }
    )


def find_gaps(state: State) -> tuple[Gap, ...]:
    """Return the gaps of the plan's tasks."""
    return tuple(gap for task in state.plan_tasks() for gap in _task_gaps(task))


def conflict_decisions(state: State) -> tuple[Conflict, ...]:
    """Return the decisions of the judge on contradictions between results, in the present round."""
    found: list[Conflict] = []
    for task in state.tasks.values():
        if task.role is not Role.JUDGE or task.status is not TaskStatus.SUCCEEDED or task.result is None:
            continue
        if task.ended_at is not None and task.ended_at >= state.round_began_at:
            with suppress(ValidationError):  # an output with a different schema has no decisions
                found.extend(ConflictRuling.model_validate(task.result.output).decisions)
    return tuple(found)


def _task_gaps(task: Task) -> tuple[Gap, ...]:
    """Return the gaps of a task: the gaps of the result, or the task itself if it has not succeeded."""
    if task.intentionally_skipped:
        return ()
    if task.status is TaskStatus.SUCCEEDED:
        missing = task.result.gaps if task.result else ()
        return tuple(
            Gap(task_id=task.id, agent=gap.agent, reason=f"{gap.task_id} of {task.agent}: {gap.reason}")
            for gap in missing
        )
    reason = task.reason or (task.error.message if task.error else f"it is {task.status.value}")
    return (Gap(task_id=task.id, agent=task.agent, reason=reason),)


def _task_summary(task: Task, now: datetime) -> dict[str, object]:
    """Return the data of a `TaskSummary`."""
    begun = task.started_at
    return {
        "task_id": task.id,
        "agent": task.agent,
        "role": task.role,
        "intent": task.intent,
        "status": str(task.status),
        "attempts": task.attempt,
        "elapsed": ((task.ended_at or now) - begun).total_seconds() if begun else 0.0,
        "usage": task.usage,
        "reason": task.reason if task.intentionally_skipped else "",
    }


def end_workflow(
    decision: Decision,
    phase: Phase,
    answer: JsonValue,
    reason: str = "",
    *,
    cancellation: WorkflowCancellation | None = None,
    refusal: AttemptError | None = None,
) -> None:
    """End the workflow and abandon its open tasks.

    Args:
        decision: The decision in progress.
        phase: The terminal phase.
        answer: The answer for the caller.
        reason: The reason, for the outcome and for each abandoned task.
        cancellation: The cancellation; None if the workflow was not cancelled.
        refusal: The error of a refused request; None if the request was accepted.
    """
    cause: AbandonCause = "cancelled" if cancellation else "limit" if decision.state.reached_limit else "ended"
    for task in decision.state.tasks.values():
        if not task.settled:
            abandon_task(decision, task, reason or f"the workflow is {phase}", cause)
    outcome = build_outcome(decision.state, phase, decision.now, answer=answer, reason=reason)
    decision.add(WorkflowEnded(at=decision.now, outcome=outcome, cancellation=cancellation, refusal=refusal))
