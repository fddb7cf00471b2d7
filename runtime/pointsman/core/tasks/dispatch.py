"""The moves of a task until its attempt runs: one function for each change of status."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from pydantic import JsonValue

from pointsman.core.budget.reservation import BudgetExhausted, reserve
from pointsman.core.decision import SYNTHESIS_GRACE, Decision, Probe
from pointsman.core.model.agent_health import probe_id
from pointsman.core.model.lifecycle import TaskStatus
from pointsman.core.model.state import State, Task
from pointsman.core.tasks.agent_selection import AgentChoice, select_agent
from pointsman.core.tasks.approval_requests import request_task_approval
from pointsman_schemas.card import Role
from pointsman_schemas.ids import span_id_for
from pointsman_schemas.log import BudgetAwaited, TaskAbandoned, TaskAdded, TaskDispatched, TaskHeld
from pointsman_schemas.role_io import (
    ClassifierInput,
    JudgeInput,
    PlannerInput,
    RefinerInput,
    ReviewInput,
    SynthesizerInput,
)

__all__ = [
    "RESULT_GRACE",
    "abandon_task",
    "add_role_task",
    "await_budget",
    "dispatch_task",
    "hold_task",
    "needs_approval",
    "record_dispatch",
    "start_task",
    "task_deadline",
    "unused_id",
    "unused_ids",
]


RESULT_GRACE = timedelta(seconds=1)
"""How long past a task's deadline its result is waited for: the agent ends its own work then, and says so."""

_MAX_TASK_ID_CHARS = 64  # characters of a token, which an id of a task is


def add_role_task(
    decision: Decision,
    task_id: str,
    role: Role,
    agent: str,
    intent: str,
    asked: PlannerInput | ClassifierInput | SynthesizerInput | RefinerInput | JudgeInput | ReviewInput,
) -> None:
    """Give one of the roles its task, at once. What stands in the log already is left out."""
    given: JsonValue = asked.model_dump(mode="json", exclude_defaults=True, exclude={"request", "metadata", "results"})
    decision.add(TaskAdded(at=decision.now, task_id=task_id, role=role, agent=agent, intent=intent, input=given))
    dispatch_task(decision, task_id)


def unused_id(state: State, wanted: str) -> str:
    """`wanted`, or the first of `wanted-2`, `wanted-3`, ... that no task has taken."""
    return unused_ids(state, (wanted,))[0]


def unused_ids(state: State, wanted: Iterable[str]) -> list[str]:
    """An id for each, as `unused_id` gives it, and no two alike; one that is too long for a token is cut."""
    taken = set(state.tasks)
    found: list[str] = []
    for each in wanted:
        number, name = 1, each[:_MAX_TASK_ID_CHARS]
        while name in taken:
            number += 1
            tail = f"-{number}"
            name = each[: _MAX_TASK_ID_CHARS - len(tail)] + tail
        taken.add(name)
        found.append(name)
    return found


def dispatch_task(decision: Decision, task_id: str, choice: AgentChoice | None = None) -> None:
    """Hand the next attempt at a task to its agent, or to who stands in for it, unless it was chosen already; hold it
    while there is nobody, and let it wait while there is nothing for it to use."""
    state = decision.state
    task = state.tasks[task_id]
    choice = choice or select_agent(decision, task)
    if choice.until is not None:
        return hold_task(decision, task, choice.until)
    card = decision.context.card(choice.agent)
    allowance = reserve(state, task, choice.agent, decision.context)
    if isinstance(allowance, BudgetExhausted):
        return await_budget(decision, task, choice.agent if task.skill else task.agent, allowance)
    fallback = card.fallback if card else None
    if choice.fallback_for is not None:
        fallback = None  # one may stand in for another, and nobody for both
    elif task.status in (TaskStatus.HELD, TaskStatus.AWAITING_BUDGET) and task.attempt:
        fallback = task.fallback  # it may have been there before
    deadline = task_deadline(decision, task.role, choice.agent, decision.now)
    record_dispatch(decision, choice.agent, task, deadline)
    decision.add(
        TaskDispatched(
            at=decision.now,
            task_id=task_id,
            attempt=task.attempt + 1,
            agent=choice.agent,
            deadline=deadline,
            span_id=span_id_for(state.workflow_id, task_id),
            fallback=fallback,
            team=card.team if card else False,
            fallback_for=choice.fallback_for,
            budget=allowance,
        )
    )
    return None


def hold_task(decision: Decision, task: Task, until: datetime) -> None:
    """Keep the task until somebody may be sent it."""
    reason = f"{task.agent} keeps failing and is sent no work" if task.agent else _no_agent_reason(task)
    decision.add(TaskHeld(at=decision.now, task_id=task.id, until=until, reason=reason))


def _no_agent_reason(task: Task) -> str:
    return f"nobody is alive who has the skill {task.skill}"


def record_dispatch(decision: Decision, agent: str, task: Task, deadline: datetime) -> None:
    """The next attempt at `task` goes to `agent`; if that keeps failing, it is its probe."""
    decision.dispatched[agent] += 1
    if agent in decision.context.circuits:
        name = probe_id(decision.state.workflow_id, task.id, task.attempt + 1)
        decision.probes[agent] = Probe(name, deadline + RESULT_GRACE)


def await_budget(
    decision: Decision, task: Task, agent: str, shortage: BudgetExhausted, not_before: datetime | None = None
) -> None:
    """Let the task wait, once, until something comes back that its next attempt can use."""
    decision.shortages[task.id] = shortage
    if task.status is not TaskStatus.AWAITING_BUDGET:
        decision.add(
            BudgetAwaited(at=decision.now, task_id=task.id, agent=agent, limit=shortage.limit, not_before=not_before)
        )


def task_deadline(decision: Decision, role: Role, agent: str, start: datetime) -> datetime:
    """When the attempt must be over: by its own timeout, and no later than the workflow."""
    state = decision.state
    card = decision.context.card(agent)
    seconds = min(state.limits.task_timeout, card.timeout) if card else state.limits.task_timeout
    own = start + timedelta(seconds=seconds)
    if role is Role.SYNTHESIZE:
        last = max(state.deadline, start + SYNTHESIS_GRACE)
        return min(own, last, state.parent.deadline) if state.parent else min(own, last)
    return min(own, state.deadline)


def abandon_task(decision: Decision, task: Task, reason: str) -> None:
    """Wait no longer for a task. One whose agent nobody knows may be with a team, which must hear of it."""
    card = decision.context.card(task.agent)
    team = task.role is Role.WORK and task.attempt > 0 and (card is None or card.team)
    decision.add(TaskAbandoned(at=decision.now, task_id=task.id, reason=reason, team=team))


def start_task(decision: Decision, task_id: str) -> None:
    """Hand a task to its agent, once a person has allowed it where one must."""
    task = decision.state.tasks[task_id]
    choice = select_agent(decision, task)
    if choice.until is None and needs_approval(decision, task, choice.agent):
        return request_task_approval(decision, task, choice.agent)
    return dispatch_task(decision, task_id, choice)


def needs_approval(decision: Decision, task: Task, agent: str) -> bool:
    """Whether a person must allow the task, or `agent`, first, and has not yet."""
    card = decision.context.card(agent)
    return not task.approved and (task.needs_approval or (card is not None and card.approval == "required"))
