"""Tasks that are held because nobody may be sent them: each is looked at again when its time has come."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.core.attempts.failures import fail_task
from pointsman.core.decision import Decision
from pointsman.core.model.lifecycle import Phase, TaskStatus
from pointsman.core.model.state import State, Task
from pointsman.core.tasks.dispatch import dispatch_task, start_task
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, ErrorKind

__all__ = ["dispatch_held", "waiting_tasks"]


def waiting_tasks(state: State, status: TaskStatus) -> Sequence[Task]:
    """The tasks that wait for an agent (`held`) or for budget (`awaiting_budget`). While a plan is made that may take
    its place, what has not begun waits for that alone."""
    waiting = [task for task in state.tasks.values() if task.status is status]
    if not waiting:  # as nearly always
        return waiting
    running = state.phase is Phase.RUNNING
    return [task for task in waiting if running or task.attempt or task.role is not Role.WORK]


def dispatch_held(decision: Decision) -> None:
    """Start what may be started now; what is still held when it is too late to begin has failed."""
    if decision.state.ended:
        return
    for task in waiting_tasks(decision.state, TaskStatus.HELD):
        if decision.state.ended or (task.not_before and decision.now < task.not_before):
            continue
        if decision.now >= decision.latest_start(task.role) and not decision.state.approvals:
            message = f"{task.agent} keeps failing and was sent no work; the deadline has passed"
            fail_task(decision, task, AttemptError(kind=ErrorKind.CIRCUIT, message=message, retryable=True))
        elif task.role is Role.WORK:
            start_task(decision, task.id)
        else:
            dispatch_task(decision, task.id)
