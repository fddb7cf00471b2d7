"""Move a task from `waiting` to a running attempt. Each move has one function, in the order of `TASK_MOVES`.

From `waiting`, `start_task` or `_skip_task` moves the task. The module `for_each` makes one task for each item of a
task with `for_each`. `start_task` calls `dispatch_task`, which hands over the attempt or leaves the task `held` or
`awaiting_budget`. The module `limits` moves tasks out of these two statuses. `abandon_task` ends a task that the
workflow does not need any more.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic import JsonValue

from pointsman.core.budget.reservation import BudgetExhausted, reserve
from pointsman.core.decision import SYNTHESIS_GRACE, Decision, Probe
from pointsman.core.model.agent_health import probe_id
from pointsman.core.model.lifecycle import SETTLED, Phase, TaskStatus
from pointsman.core.model.state import Task, usage_bounds
from pointsman.core.tasks.agent_selection import AgentChoice, select_agent
from pointsman.core.tasks.expressions import false_condition
from pointsman.core.tasks.for_each import expand_task, gather_items
from pointsman.core.tasks.questions import request_task_approval
from pointsman_schemas.card import AgentCard, Role
from pointsman_schemas.events import Budget
from pointsman_schemas.ids import span_id_for
from pointsman_schemas.log import (
    AbandonCause,
    BudgetAwaited,
    TaskAbandoned,
    TaskAdded,
    TaskDispatched,
    TaskHeld,
    TaskSkipped,
)
from pointsman_schemas.role_io import (
    ClassifierInput,
    JudgeInput,
    PlannerInput,
    RefinerInput,
    ReviewInput,
    SummarizerInput,
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
    "reserve_budget",
    "start_ready_tasks",
    "start_task",
    "task_deadline",
]

RESULT_GRACE = timedelta(seconds=1)
"""Time after a task's deadline in which its result may still arrive. An agent that reaches the deadline ends the
attempt, and publishes the result after that. So such a result is always a little late.
"""

_FATES = {TaskStatus.FAILED: "failed", TaskStatus.SKIPPED: "was skipped", TaskStatus.ABANDONED: "was abandoned"}


def start_ready_tasks(decision: Decision) -> None:
    """Start or skip each task of `decision.ready` whose dependencies are settled."""
    decision.ready = list(dict.fromkeys(decision.ready))  # check a task once, even if many dependencies have added it
    while decision.ready and decision.state.phase is Phase.RUNNING:
        _start_or_skip(decision, decision.ready.pop(0))


def _start_or_skip(decision: Decision, task_id: str) -> None:
    state = decision.state
    task = state.tasks.get(task_id)
    if task is not None and task.status is TaskStatus.EXPANDED:
        return gather_items(decision, task)
    if task is None or task.status is not TaskStatus.WAITING:
        return None  # the task has started or is settled, or a new plan has replaced the task
    for name in task.depends_on:
        dependency = state.tasks[name]
        if dependency.status not in SETTLED:  # like `settled`, but faster: a task may have very many dependencies
            return None
        if dependency.status is not TaskStatus.SUCCEEDED and name not in task.optional:
            return _skip_dependant(decision, task, dependency)
    if task.definition is not None and not task.item_of:
        if (reason := false_condition(state, task)) is not None:
            return _skip_task(decision, task, reason, intended=True)
        if task.definition.for_each is not None:
            return expand_task(decision, task, task.definition.for_each)
    return start_task(decision, task_id)


def _skip_dependant(decision: Decision, task: Task, dependency: Task) -> None:
    """Skip a task because `dependency` did not succeed."""
    cause = dependency.reason or (dependency.error.message if dependency.error else dependency.status.value)
    reason = f"it needs {dependency.id}, which {_FATES[dependency.status]}: {cause}"
    _skip_task(decision, task, reason, intended=dependency.intentionally_skipped, dependency=dependency.id)


def _skip_task(decision: Decision, task: Task, reason: str, *, intended: bool, dependency: str | None = None) -> None:
    """Skip a task, and check the tasks that depend on it."""
    decision.add(
        TaskSkipped(at=decision.now, task_id=task.id, unmet_dependency=dependency, reason=reason, intended=intended)
    )
    decision.ready.extend(decision.state.dependants.get(task.id, ()))


def start_task(decision: Decision, task_id: str) -> None:
    """Dispatch a task of the plan. If the task needs an approval, request the approval instead."""
    task = decision.state.tasks[task_id]
    choice = select_agent(decision, task)
    if choice.until is None and needs_approval(decision, task, choice.agent):
        return request_task_approval(decision, task, choice.agent)
    return dispatch_task(decision, task_id, choice)


def needs_approval(decision: Decision, task: Task, agent: str) -> bool:
    """Return True if the task, or its dispatch to `agent`, needs an approval that no person has given yet."""
    card = decision.card(agent)
    return not task.approved and (task.needs_approval or (card is not None and card.approval == "required"))


def add_role_task(
    decision: Decision,
    task_id: str,
    role: Role,
    agent: str,
    intent: str,
    role_input: PlannerInput
    | ClassifierInput
    | SynthesizerInput
    | RefinerInput
    | JudgeInput
    | ReviewInput
    | SummarizerInput,
) -> None:
    """Add a task for a role and dispatch the task. The entry omits input that can be restored from other entries."""
    given: JsonValue = role_input.model_dump(
        mode="json", exclude_defaults=True, exclude={"request", "metadata", "results", "summary", "turns"}
    )
    decision.add(TaskAdded(at=decision.now, task_id=task_id, role=role, agent=agent, intent=intent, input=given))
    dispatch_task(decision, task_id)


def dispatch_task(decision: Decision, task_id: str, choice: AgentChoice | None = None) -> None:
    """Dispatch the next attempt at a task.

    If no agent can receive the attempt now, hold the task. If no budget is left, let the task wait for budget.

    Args:
        decision: The decision in progress.
        task_id: The task.
        choice: The selected agent; by default the agent is selected here.
    """
    state = decision.state
    task = state.tasks[task_id]
    choice = choice or select_agent(decision, task)
    if choice.until is not None:
        return hold_task(decision, task, choice.until)
    card = decision.card(choice.agent)
    budget = reserve_budget(decision, task, card)
    if isinstance(budget, BudgetExhausted):
        return await_budget(decision, task, choice.agent if task.skill else task.agent, budget)
    fallback = card.fallback if card else None
    if choice.fallback_for is not None:
        fallback = None  # a fallback has no fallback of its own
    elif task.status in (TaskStatus.HELD, TaskStatus.AWAITING_BUDGET) and task.attempt:
        fallback = task.fallback  # None if an earlier attempt has used the fallback
    deadline = task_deadline(decision, task.role, card, decision.now)
    record_dispatch(decision, choice.agent, task, deadline)
    decision.add(
        TaskDispatched(
            at=decision.now,
            task_id=task_id,
            attempt=task.attempt + 1,
            agent=choice.agent,
            deadline=deadline,
            span_id=span_id_for(state.workflow_id, task_id if state.round == 1 else f"{task_id}/{state.round}"),
            fallback=fallback,
            team=card.team if card else False,
            fallback_for=choice.fallback_for,
            budget=budget,
        )
    )
    return None


def reserve_budget(decision: Decision, task: Task, card: AgentCard | None) -> Budget | BudgetExhausted | None:
    """Return the budget of the next attempt at `task`; None if no limit bounds the attempt.

    Args:
        decision: The decision in progress.
        task: The task.
        card: The card of the agent that gets the attempt; None if no instance is live.
    """
    may_be_team = card.team if card is not None else task.role is Role.WORK
    if not may_be_team and not usage_bounds(decision.state):
        return None
    teams = {each.name for each in decision.context.cards if each.team}
    return reserve(decision.state, task, card, teams)


def record_dispatch(decision: Decision, agent: str, task: Task, deadline: datetime) -> None:
    """Count an attempt for `agent`. If the agent's circuit is not closed, the attempt is the probe of the circuit."""
    decision.dispatched[agent] += 1
    if agent in decision.context.circuits:
        name = probe_id(decision.state.workflow_id, task.id, task.attempt + 1)
        decision.probes[agent] = Probe(name, deadline + RESULT_GRACE)


def hold_task(decision: Decision, task: Task, until: datetime) -> None:
    """Hold a task until an agent can receive the task; `until` is the time of the next check."""
    reason = (
        f"{task.agent} keeps failing and is sent no work"
        if task.agent
        else f"no agent with the skill {task.skill} is alive"
    )
    decision.add(TaskHeld(at=decision.now, task_id=task.id, until=until, reason=reason))


def await_budget(
    decision: Decision, task: Task, agent: str, shortage: BudgetExhausted, not_before: datetime | None = None
) -> None:
    """Let a task wait until other attempts return budget. If the task already waits for budget, add no entry."""
    decision.shortages[task.id] = shortage
    if task.status is not TaskStatus.AWAITING_BUDGET:
        decision.add(
            BudgetAwaited(at=decision.now, task_id=task.id, agent=agent, limit=shortage.limit, not_before=not_before)
        )


def abandon_task(decision: Decision, task: Task, reason: str, cause: AbandonCause) -> None:
    """Abandon a task that is not settled.

    If `team` of the entry is True, the outbox cancels the child workflow of the task. `team` is also True if no card of
    the agent is live, because the agent might be a team.
    """
    card = decision.card(task.agent)
    team = task.role is Role.WORK and task.attempt > 0 and (card is None or card.team)
    decision.add(TaskAbandoned(at=decision.now, task_id=task.id, cause=cause, reason=reason, team=team))


def task_deadline(decision: Decision, role: Role, card: AgentCard | None, start: datetime) -> datetime:
    """Return the time at which an attempt that starts at `start` must end, by its timeout and the workflow's deadline.

    A synthesizer may work `SYNTHESIS_GRACE` past the workflow's deadline, but not past the deadline of the parent
    workflow.
    """
    state = decision.state
    seconds = min(state.limits.task_timeout, card.timeout) if card else state.limits.task_timeout
    own = start + timedelta(seconds=seconds)
    if role is Role.SYNTHESIZE:
        last = max(state.deadline, start + SYNTHESIS_GRACE)
        return min(own, last, state.parent.deadline) if state.parent else min(own, last)
    return min(own, state.deadline)
