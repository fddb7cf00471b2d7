"""A task that has failed twice is tried in other words: an agent that knows the error finds them, once a task."""

from __future__ import annotations

from pydantic import ValidationError

from pointsman.core.decision import Draft
from pointsman.core.model.lifecycle import TaskStatus
from pointsman.core.model.state import State, Task
from pointsman.core.tasks.dispatch import add_role_task, free_id
from pointsman.core.tasks.handoff_input import input_of
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, Result
from pointsman_schemas.log import RefinementAsked
from pointsman_schemas.role_io import Refinement, RefinerInput

__all__ = ["ask_refiner", "may_be_refined", "refined_task", "words_of"]

_AFTER = 2
"""Failed attempts after which the words are changed: the first failure may be chance, the second says it is not."""


def may_be_refined(draft: Draft, task: Task) -> bool:
    """Whether it failed often enough, was not refined yet, and somebody lives who can."""
    refiner = draft.open().refiner
    return (
        task.role is Role.WORK
        and task.attempt >= _AFTER
        and not task.refined_by
        and refiner is not None
        and draft.around.card(refiner) is not None
    )


def ask_refiner(draft: Draft, task: Task, error: AttemptError) -> None:
    """Have the task rewritten; it waits meanwhile."""
    state = draft.open()
    card = draft.around.card(task.agent)
    asked = RefinerInput(
        request=state.input,
        intent=task.intent,
        task_input=input_of(state, task) if task.input is not None else None,
        agent=task.agent,
        agent_description=card.description if card else "",
        attempts=task.attempt,
        error=f"{error.kind}: {error.message}",
    )
    name = free_id(state, f"refine-{state.revision}-{len(state.tasks) + 1}")
    draft.add(RefinementAsked(at=draft.now, task_id=task.id, by=name))
    add_role_task(draft, name, Role.REFINE, state.refiner or "", "Find better words for a task that failed", asked)


def refined_task(state: State, refiner: Task) -> Task | None:
    """The task that waits for this refiner's."""
    waiting = (task for task in state.work() if task.refined_by == refiner.id and task.status is TaskStatus.REFINING)
    return next(waiting, None)


def words_of(result: Result) -> str:
    """The better words; nothing when the answer has none."""
    try:
        return Refinement.model_validate(result.output).intent.strip()
    except ValidationError:
        return ""
