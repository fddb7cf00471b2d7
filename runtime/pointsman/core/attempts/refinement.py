"""Have an agent rewrite the intent of a task that has failed twice. The intent of a task is rewritten only once."""

from __future__ import annotations

from pydantic import ValidationError

from pointsman.core.decision import Decision
from pointsman.core.model.lifecycle import TaskStatus
from pointsman.core.model.state import State, Task, unused_id
from pointsman.core.tasks.dispatch import add_role_task
from pointsman.core.tasks.handoff_input import handoff_input
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, Result
from pointsman_schemas.log import RefinementRequested
from pointsman_schemas.role_io import Refinement, RefinerInput

__all__ = ["can_refine", "refined_intent", "refined_task", "request_refinement"]

_MIN_FAILED_ATTEMPTS = 2
"""Number of failed attempts before the intent is rewritten. One is not enough, because its failure might be chance."""


def can_refine(decision: Decision, task: Task) -> bool:
    """Return True if the task has failed often enough, was not refined yet, and the refiner is live."""
    refiner = decision.state.refiner
    return (
        task.role is Role.WORK
        and task.attempt >= _MIN_FAILED_ATTEMPTS
        and not task.refined_by
        and refiner is not None
        and decision.card(refiner) is not None
    )


def request_refinement(decision: Decision, task: Task, error: AttemptError) -> None:
    """Request a new intent for a task from the refiner. The task waits until the refiner has answered."""
    state = decision.state
    card = decision.card(task.agent)
    asked = RefinerInput(
        request=state.input,
        intent=task.intent,
        task_input=handoff_input(state, task) if task.input is not None else None,
        agent=task.agent,
        agent_description=card.description if card else "",
        attempts=task.attempt,
        error=f"{error.kind}: {error.message}",
    )
    name = unused_id(state, f"refine-{state.revision}-{len(state.tasks) + 1}")
    decision.add(RefinementRequested(at=decision.now, task_id=task.id, refiner_task=name))
    add_role_task(decision, name, Role.REFINE, state.refiner or "", "Find better words for a task that failed", asked)


def refined_task(state: State, refiner: Task) -> Task | None:
    """Return the task that waits for a new intent from the task `refiner`; None if no task waits for it."""
    waiting = (
        task for task in state.plan_tasks() if task.refined_by == refiner.id and task.status is TaskStatus.REFINING
    )
    return next(waiting, None)


def refined_intent(result: Result) -> str:
    """Return the new intent in the answer of a refiner; an empty text if the answer has no intent."""
    try:
        return Refinement.model_validate(result.output).intent.strip()
    except ValidationError:
        return ""
