"""The moves of a task until its attempt runs: one function for each change of status."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from pydantic import JsonValue

from pointsman.core.budget.reservation import Shortage, allot
from pointsman.core.decision import LAST_WORD, Draft, Probe
from pointsman.core.model.agent_health import probe_name
from pointsman.core.model.lifecycle import TaskStatus
from pointsman.core.model.state import State, Task
from pointsman.core.tasks.agent_selection import Choice, choose
from pointsman.core.tasks.approval_requests import ask_about_task
from pointsman_schemas.card import Role
from pointsman_schemas.ids import span_id_for
from pointsman_schemas.log import AllowanceAwaited, TaskAbandoned, TaskAdded, TaskDispatched, TaskHeld
from pointsman_schemas.role_io import (
    ClassifierInput,
    JudgeInput,
    PlannerInput,
    RefinerInput,
    ReviewInput,
    SynthesizerInput,
)

__all__ = [
    "LATE",
    "abandon",
    "add_role_task",
    "await_allowance",
    "dispatch",
    "free_id",
    "free_ids",
    "hold",
    "must_be_approved",
    "note_sent",
    "start",
    "task_deadline",
]


LATE = timedelta(seconds=1)
"""How long past a task's deadline its result is waited for: the agent ends its own work then, and says so."""

_LONGEST = 64  # characters of a token, which an id of a task is


def add_role_task(
    draft: Draft,
    task_id: str,
    role: Role,
    agent: str,
    intent: str,
    asked: PlannerInput | ClassifierInput | SynthesizerInput | RefinerInput | JudgeInput | ReviewInput,
) -> None:
    """Give one of the roles its task, at once. What stands in the log already is left out."""
    given: JsonValue = asked.model_dump(mode="json", exclude_defaults=True, exclude={"request", "metadata", "results"})
    draft.add(TaskAdded(at=draft.now, task_id=task_id, role=role, agent=agent, intent=intent, input=given))
    dispatch(draft, task_id)


def free_id(state: State, wanted: str) -> str:
    """`wanted`, or the first of `wanted-2`, `wanted-3`, ... that no task has taken."""
    return free_ids(state, (wanted,))[0]


def free_ids(state: State, wanted: Iterable[str]) -> list[str]:
    """An id for each, as `free_id` gives it, and no two alike; one that is too long for a token is cut."""
    taken = set(state.tasks)
    found: list[str] = []
    for each in wanted:
        number, name = 1, each[:_LONGEST]
        while name in taken:
            number += 1
            tail = f"-{number}"
            name = each[: _LONGEST - len(tail)] + tail
        taken.add(name)
        found.append(name)
    return found


def dispatch(draft: Draft, task_id: str, choice: Choice | None = None) -> None:
    """Hand the next attempt at a task to its agent, or to who stands in for it, unless it was chosen already; hold it
    while there is nobody, and let it wait while there is nothing for it to use."""
    state = draft.open()
    task = state.tasks[task_id]
    choice = choice or choose(draft, task)
    if choice.until is not None:
        return hold(draft, task, choice.until)
    card = draft.around.card(choice.agent)
    allowance = allot(state, task, choice.agent, draft.around)
    if isinstance(allowance, Shortage):
        return await_allowance(draft, task, choice.agent if task.skill else task.agent, allowance)
    fallback = card.fallback if card else None
    if choice.instead_of is not None:
        fallback = None  # one may stand in for another, and nobody for both
    elif task.status in (TaskStatus.HELD, TaskStatus.AWAITING_BUDGET) and task.attempt:
        fallback = task.fallback  # it may have been there before
    deadline = task_deadline(draft, task.role, choice.agent, draft.now)
    note_sent(draft, choice.agent, task, deadline)
    draft.add(
        TaskDispatched(
            at=draft.now,
            task_id=task_id,
            attempt=task.attempt + 1,
            agent=choice.agent,
            deadline=deadline,
            span_id=span_id_for(state.workflow_id, task_id),
            fallback=fallback,
            team=card.team if card else False,
            instead_of=choice.instead_of,
            allowance=allowance,
        )
    )
    return None


def hold(draft: Draft, task: Task, until: datetime) -> None:
    """Keep the task until somebody may be sent it."""
    reason = f"{task.agent} keeps failing and is sent no work" if task.agent else _nobody(task)
    draft.add(TaskHeld(at=draft.now, task_id=task.id, until=until, reason=reason))


def _nobody(task: Task) -> str:
    return f"nobody is alive who has the skill {task.skill}"


def note_sent(draft: Draft, agent: str, task: Task, deadline: datetime) -> None:
    """The next attempt at `task` goes to `agent`; if that keeps failing, it is its probe."""
    draft.sent[agent] += 1
    if agent in draft.around.circuits:
        name = probe_name(draft.open().workflow_id, task.id, task.attempt + 1)
        draft.probes[agent] = Probe(name, deadline + LATE)


def await_allowance(
    draft: Draft, task: Task, agent: str, shortage: Shortage, not_before: datetime | None = None
) -> None:
    """Let the task wait, once, until something comes back that its next attempt can use."""
    draft.short[task.id] = shortage
    if task.status is not TaskStatus.AWAITING_BUDGET:
        draft.add(
            AllowanceAwaited(at=draft.now, task_id=task.id, agent=agent, limit=shortage.limit, not_before=not_before)
        )


def task_deadline(draft: Draft, role: Role, agent: str, start: datetime) -> datetime:
    """When the attempt must be over: by its own timeout, and no later than the workflow."""
    state = draft.open()
    card = draft.around.card(agent)
    seconds = min(state.limits.task_timeout, card.timeout) if card else state.limits.task_timeout
    own = start + timedelta(seconds=seconds)
    if role is Role.SYNTHESIZE:
        last = max(state.deadline, start + LAST_WORD)
        return min(own, last, state.parent.deadline) if state.parent else min(own, last)
    return min(own, state.deadline)


def abandon(draft: Draft, task: Task, reason: str) -> None:
    """Wait no longer for a task. One whose agent nobody knows may be with a team, which must hear of it."""
    card = draft.around.card(task.agent)
    team = task.role is Role.WORK and task.attempt > 0 and (card is None or card.team)
    draft.add(TaskAbandoned(at=draft.now, task_id=task.id, reason=reason, team=team))


def start(draft: Draft, task_id: str) -> None:
    """Hand a task to its agent, once a person has allowed it where one must."""
    task = draft.open().tasks[task_id]
    choice = choose(draft, task)
    if choice.until is None and must_be_approved(draft, task, choice.agent):
        return ask_about_task(draft, task, choice.agent)
    return dispatch(draft, task_id, choice)


def must_be_approved(draft: Draft, task: Task, agent: str) -> bool:
    """Whether a person must allow the task, or `agent`, first, and has not yet."""
    card = draft.around.card(agent)
    return not task.approved and (task.needs_approval or (card is not None and card.approval == "required"))
