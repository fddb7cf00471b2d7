"""Bound tasks and re-plans for a tree of teams. The limits of the topmost team bound the tasks of all teams below.

All tasks of a plan count as soon as the plan is accepted. A team that receives a task gets a share of the remaining
number of tasks. The share is reserved until the result states the number of used tasks. If the result states no number,
the whole share counts as used. So the planned and the reserved tasks together never exceed the quota of a workflow,
even if teams work in parallel.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

from pointsman.core.model.lifecycle import TaskStatus
from pointsman.core.model.state import State, Task
from pointsman_schemas.card import Role
from pointsman_schemas.events import Budget, PlanUsage
from pointsman_schemas.strategies import Adaptive, Choreography, PlanAndExecute, Router

__all__ = [
    "committed",
    "exhausted_quota",
    "plan_usage",
    "quota",
    "remaining_replans",
    "remaining_tasks",
    "reserved_budgets",
    "share_count",
    "team_share",
]


def quota(state: State) -> PlanUsage:
    """Return the allowed numbers of tasks and re-plans, for the workflow and its child teams together."""
    limits, given = state.limits, state.budget
    if given is None:
        return PlanUsage(tasks=limits.tasks, replans=limits.replans)
    return PlanUsage(
        tasks=limits.tasks if given.tasks is None else min(limits.tasks, given.tasks),
        replans=limits.replans if given.replans is None else min(limits.replans, given.replans),
    )


def plan_usage(state: State) -> PlanUsage:
    """Return the numbers of tasks and re-plans that the workflow and its child teams have used, as far as known.

    The steps of an adaptive planner do not count as re-plans, but their tasks count.
    """
    replans = 0 if isinstance(state.strategy, Adaptive) else state.replans
    tasks = sum(task.role is Role.WORK for task in state.tasks.values())
    return PlanUsage(tasks=state.child_plan_usage.tasks + tasks, replans=state.child_plan_usage.replans + replans)


def committed(state: State, asking: Task | None = None) -> PlanUsage:
    """Return the numbers of tasks and re-plans that are planned, await an approval, or are reserved for teams.

    The reservation of the task `asking` does not count, because its last attempt has ended.
    """
    planned, given = plan_usage(state), reserved_budgets(state, asking)
    return PlanUsage(
        tasks=planned.tasks + sum(each.tasks or 0 for each in given) + _tasks_awaiting_answer(state),
        replans=planned.replans + sum(each.replans or 0 for each in given),
    )


def reserved_budgets(state: State, asking: Task | None = None) -> Sequence[Budget]:
    """Return the budgets of the active attempts. The task `asking` does not count: its last attempt has ended."""
    own = asking.id if asking else ""
    return [each.budget for each in state.tasks.values() if each.budget and each.active and each.id != own]


def remaining_tasks(state: State) -> int:
    """Return the number of tasks that a new plan may have.

    A new plan replaces the tasks of the current plan that have not started, so these tasks leave room. A task that
    awaits an approval leaves no room, because the task might start before the new plan exists.
    """
    staying = (TaskStatus.FAILED, TaskStatus.AWAITING_ANSWER)
    giving_way = sum(1 for task in state.plan_tasks() if not (task.attempt or task.event or task.status in staying))
    reserved = sum(each.tasks or 0 for each in reserved_budgets(state))
    return max(quota(state).tasks - plan_usage(state).tasks - reserved + giving_way, 0)


def remaining_replans(state: State) -> int:
    """Return the number of re-plans that are left."""
    return max(quota(state).replans - committed(state).replans, 0)


def team_share(state: State, task: Task, teams: Container[str]) -> PlanUsage:
    """Return the numbers of tasks and re-plans that the next attempt at `task` may use, if its agent is a team.

    The remaining numbers are divided into equal parts. If tasks for other `teams`, or more plans, can come later, one
    part is kept for them.
    """
    bound, gone = quota(state), committed(state, task)
    tasks, replans = max(bound.tasks - gone.tasks, 0), max(bound.replans - gone.replans, 0)
    among = share_count(state, task, later=task.role is not Role.WORK or _may_plan_more(state, replans), agents=teams)
    return PlanUsage(tasks=max(tasks // among, min(tasks, 1)), replans=replans // among)


def share_count(
    state: State, asking: Task, *, later: bool, agents: Container[str] | None = None, enough: float = math.inf
) -> int:
    """Return the number of equal parts into which a budget is divided.

    There is one part for `asking`, one part for each other task that can start now, and one part for all later tasks.

    Args:
        state: The workflow's state.
        asking: The task that needs a part now.
        later: True if more tasks can come later. All later tasks together get one part.
        agents: The agents whose tasks count; by default all tasks count.
        enough: Number of parts at which each part is the smallest budget. More parts would not change the budget, so
            the count stops there, which keeps long plans fast.

    Returns:
        The number of parts.
    """
    ready = 1
    for task in state.tasks.values():
        if ready >= enough:
            break
        if task.status is TaskStatus.EXPANDED:
            continue  # each of its items has its own task
        if task.id == asking.id or task.settled or task.active or (agents is not None and task.agent not in agents):
            continue
        if task.status is TaskStatus.AWAITING_BUDGET or state.can_start(task):
            ready += 1
        else:
            later = True
    return ready + later


def exhausted_quota(state: State) -> str:
    """Return a sentence about the limit that prevented a re-plan after a failure. Empty if no limit prevented one."""
    if not (_can_replan(state) and state.limits.replans):
        return ""
    if all(task.status is not TaskStatus.FAILED for task in state.plan_tasks()):
        return ""
    if not remaining_replans(state):
        return f"the limit of {quota(state).replans} re-plans is used up"
    return "" if remaining_tasks(state) else f"the limit of {quota(state).tasks} tasks is used up"


def _tasks_awaiting_answer(state: State) -> int:
    """Return the number of tasks of plans that await an approval."""
    return sum(len(each.plan.tasks) for each in state.questions.values() if each.plan is not None)


def _can_replan(state: State) -> bool:
    """Return True if a failure leads to a new plan: a planner wrote the plan, and the team is not adaptive."""
    if isinstance(state.strategy, Adaptive):
        return False
    return any(task.role is Role.PLAN for task in state.tasks.values())


def _may_plan_more(state: State, replans: int) -> bool:
    match state.strategy:
        case Adaptive():
            return not (state.plan is not None and state.plan.done)
        case PlanAndExecute() | Router():
            return replans > 0 and _can_replan(state)
        case strategy:
            return isinstance(strategy, Choreography)
