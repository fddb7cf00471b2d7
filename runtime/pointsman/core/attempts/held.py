"""Tasks that are held because nobody may be sent them: each is looked at again when its time has come."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.core.attempts.failures import task_failed
from pointsman.core.decision import Draft
from pointsman.core.model.lifecycle import Phase, TaskStatus
from pointsman.core.model.state import State, Task
from pointsman.core.tasks.dispatch import dispatch, start
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, ErrorKind

__all__ = ["kept_back", "release"]


def kept_back(state: State, status: TaskStatus) -> Sequence[Task]:
    """The tasks that wait for an agent (`held`) or for budget (`awaiting_budget`). While a plan is made that may take
    its place, what has not begun waits for that alone."""
    waiting = [task for task in state.tasks.values() if task.status is status]
    if not waiting:  # as nearly always
        return waiting
    running = state.phase is Phase.RUNNING
    return [task for task in waiting if running or task.attempt or task.role is not Role.WORK]


def release(draft: Draft) -> None:
    """Start what may be started now; what is still held when it is too late to begin has failed."""
    if draft.open().ended:
        return
    for task in kept_back(draft.open(), TaskStatus.HELD):
        if draft.open().ended or (task.not_before and draft.now < task.not_before):
            continue
        if draft.now >= draft.horizon(task.role) and not draft.open().approvals:
            message = f"{task.agent} keeps failing and was sent no work; the deadline has passed"
            task_failed(draft, task, AttemptError(kind=ErrorKind.CIRCUIT, message=message, retryable=True))
        elif task.role is Role.WORK:
            start(draft, task.id)
        else:
            dispatch(draft, task.id)
