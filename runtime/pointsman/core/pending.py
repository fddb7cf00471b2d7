"""Folding what people are asked and what they say. The time in which a workflow waits for a person is given back."""

from __future__ import annotations

from datetime import datetime

from pointsman.core.state import Pending, State, Task, changed
from pointsman.errors import InvariantError
from pointsman_schemas.events import Verdict
from pointsman_schemas.log import ApprovalDecided, ApprovalRequested

__all__ = ["approval_decided", "approval_requested", "without_approvals", "without_plan"]


def approval_requested(state: State, entry: ApprovalRequested) -> State:
    """`state` with one more thing that a person is asked."""
    pending = Pending(
        id=entry.approval,
        about=entry.about,
        asked_at=entry.at,
        expires_at=entry.expires_at,
        task_id=entry.task_id,
        tool=entry.tool,
        input=entry.input,
        plan=entry.plan,
        revision=entry.revision,
    )
    return changed(
        state,
        approvals={**state.approvals, pending.id: pending},
        asked=state.asked + 1,
        asking_since=state.asking_since or entry.at,
    )


def approval_decided(state: State, entry: ApprovalDecided) -> State:
    """`state` with the answer. Raises `InvariantError` when nobody was asked."""
    if (pending := state.approvals.get(entry.approval)) is None:
        raise InvariantError(f"{state.workflow_id} does not wait for the approval {entry.approval}")
    answered = changed(_without(state, {pending.id}, entry.at), ignored=state.ignored | {entry.event_id})
    if pending.task_id is None:
        return answered
    task = answered.tasks[pending.task_id]
    return changed(answered, tasks={**answered.tasks, task.id: _answered(task, pending, entry)})


def without_approvals(state: State, at: datetime, task_id: str | None = None) -> State:
    """`state` with nothing left to ask: of one task, or at all."""
    if not state.approvals:
        return state
    gone = {each.id for each in state.approvals.values() if task_id is None or each.task_id == task_id}
    return _without(state, gone, at) if gone else state


def without_plan(state: State, at: datetime) -> State:
    """`state` with no plan to ask about. What is asked about tasks stays, for as long as they do."""
    gone = {each.id for each in state.approvals.values() if each.about == "plan"}
    return _without(state, gone, at) if gone else state


def _answered(task: Task, pending: Pending, entry: ApprovalDecided) -> Task:
    if pending.about == "task":
        edited = {} if entry.input is None else {"input": entry.input}
        return changed(task, approved=entry.verdict == "approved", **edited)
    arguments = pending.input if isinstance(pending.input, dict) else {}
    verdict = Verdict(
        tool=pending.tool,
        arguments=arguments,
        verdict=entry.verdict,
        input=entry.input if isinstance(entry.input, dict) else None,
        reason=entry.reason,
        by=entry.by,
    )
    return changed(task, verdicts=(*task.verdicts, verdict))


def _without(state: State, gone: set[str], at: datetime) -> State:
    kept = {name: each for name, each in state.approvals.items() if name not in gone}
    if kept or state.asking_since is None:
        return changed(state, approvals=kept)
    given_back = max(at, state.asking_since) - state.asking_since
    return changed(state, approvals=kept, asking_since=None, deadline=state.deadline + given_back)
