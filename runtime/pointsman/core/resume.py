"""Resume a workflow that ended as failed or partial: a new round does the open tasks again.

A task is open if it did not succeed, or if its result has gaps. Other results stay. The usage counts from zero, because
the limits of the workflow apply to each round separately. Each round ends with its own outcome.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from pointsman.core.decision import Decision
from pointsman.core.model.inputs import ControlReceived
from pointsman.core.model.lifecycle import RESUMABLE, TaskStatus
from pointsman.core.model.state import State, Task
from pointsman.core.strategies.choreography import add_missed_reactions
from pointsman.core.strategies.registry import start_workflow
from pointsman_schemas.files import find_file_fault
from pointsman_schemas.log import ControlIgnored, WorkflowResumed
from pointsman_schemas.strategies import Choreography

__all__ = ["RESUME_MARGIN", "expires_soon", "resume_refusal", "resume_workflow"]

RESUME_MARGIN = timedelta(hours=1)
"""Time before the end of the retention period in which an ended workflow cannot be resumed, because a supervisor whose
clock is ahead might already delete the log. If half of the retention period is shorter, that half is used instead."""


def resume_workflow(decision: Decision, received: ControlReceived) -> None:
    """Begin a new round of an ended workflow, if the workflow can be resumed.

    A running workflow records that the command was ignored. An ended workflow that cannot be resumed records nothing,
    because only an entry that resumes the workflow can follow its end.
    """
    state, control = decision.state, received.control
    if received.event_id in state.ignored_events:
        return None  # a redelivery
    if not state.ended:
        reason = f"the workflow has not ended: it is in round {state.round}"
        decision.add(ControlIgnored(at=decision.now, event_id=received.event_id, action=control.action, reason=reason))
        return None
    if resume_refusal(decision, received):
        return None
    again = tuple(task.id for task in state.plan_tasks() if _is_open(state, task))
    decision.add(
        WorkflowResumed(
            at=decision.now,
            event_id=received.event_id,
            round=state.round + 1,
            tasks=again,
            deadline=decision.now + state.time_limit,
            by=received.actor,
            reason=control.reason,
        )
    )
    if state.plan is None:
        return start_workflow(decision)
    decision.ready.extend(again)
    if isinstance(strategy := state.strategy, Choreography):
        add_missed_reactions(decision, strategy)
    return None


def resume_refusal(decision: Decision, received: ControlReceived) -> str:
    """Return the reason for which an ended workflow cannot be resumed; an empty text if a resume is possible."""
    return "; ".join(_obstacles(decision, decision.state, received))


def expires_soon(decision: Decision) -> bool:
    """Return True if the log of an ended workflow could be deleted during the start of a new round."""
    kept, outcome = decision.context.retention, decision.state.outcome
    if kept is None or outcome is None:
        return False
    return decision.now >= outcome.ended_at + kept - min(RESUME_MARGIN, kept / 2)


def _obstacles(decision: Decision, state: State, received: ControlReceived) -> Iterator[str]:
    if state.phase not in RESUMABLE:
        yield f"the workflow ended as {state.phase}; only a workflow that ended as failed or partial can be resumed"
    if (asked := received.control.round) is not None and asked != state.round:
        yield f"the command names round {asked}, and the workflow is in round {state.round}"
    if state.refused:
        yield "the request could not be read; correct the request and publish it again under a new id"
    limits = state.limits
    if fault := find_file_fault(state.files, limits.files, limits.file_bytes, limits.file_types):
        yield f"{fault}; correct the files and publish the request again under a new id"
    if state.parent is not None:
        yield (
            f"the workflow works for task {state.parent.task_id} of {state.parent.workflow_id}, which has its result; "
            "resume that workflow"
        )
    if expires_soon(decision):
        ended_at = state.outcome.ended_at if state.outcome else decision.now
        yield f"the workflow ended at {ended_at.isoformat()}, and its log will be deleted soon"


def _is_open(state: State, task: Task) -> bool:
    """Return True if the task must be done again, because it did not succeed or its result has gaps."""
    if any(state.tasks[name].status is not TaskStatus.SUCCEEDED for name in task.items):
        return True
    return task.status is not TaskStatus.SUCCEEDED or bool(task.result and task.result.gaps)
