"""Tasks and re-plans are bounded for a whole tree of teams: the topmost team's limits hold for all below it, too.

What a workflow plans counts at once. A team that is handed a task gets a share of what is left, set aside until its
result says how much of it was used; what nobody tells of counts as used. So whatever runs side by side, what is planned
and what is set aside never exceed what the workflow may have.
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
    """What the workflow and the teams below it may plan: the tighter of the team's limits and of what it was given."""
    limits, given = state.limits, state.budget
    if given is None:
        return PlanUsage(tasks=limits.tasks, replans=limits.replans)
    return PlanUsage(
        tasks=limits.tasks if given.tasks is None else min(limits.tasks, given.tasks),
        replans=limits.replans if given.replans is None else min(limits.replans, given.replans),
    )


def plan_usage(state: State) -> PlanUsage:
    """What the workflow and the teams below it have planned, as far as is known. The steps of an adaptive planner are
    no re-plans: each has tasks, which are counted."""
    replans = 0 if isinstance(state.strategy, Adaptive) else state.replans
    tasks = sum(task.role is Role.WORK for task in state.tasks.values())
    return PlanUsage(tasks=state.child_plan_usage.tasks + tasks, replans=state.child_plan_usage.replans + replans)


def committed(state: State, asking: Task | None = None) -> PlanUsage:
    """What is planned, asked about, and set aside for teams at work. The last attempt of who is `asking` is over."""
    planned, given = plan_usage(state), reserved_budgets(state, asking)
    return PlanUsage(
        tasks=planned.tasks + sum(each.tasks or 0 for each in given) + _tasks_awaiting_approval(state),
        replans=planned.replans + sum(each.replans or 0 for each in given),
    )


def reserved_budgets(state: State, asking: Task | None = None) -> Sequence[Budget]:
    """What the attempts that are under way were given. The last one of who is `asking` is over."""
    own = asking.id if asking else ""
    return [each.budget for each in state.tasks.values() if each.budget and each.active and each.id != own]


def remaining_tasks(state: State) -> int:
    """How many tasks a new plan may have. What has not started of the present one gives way to it, but what a person
    is asked about counts: it may be allowed, and start, before there is a new plan."""
    staying = (TaskStatus.FAILED, TaskStatus.AWAITING_APPROVAL)
    giving_way = sum(1 for task in state.plan_tasks() if not (task.attempt or task.event or task.status in staying))
    return max(quota(state).tasks - committed(state).tasks + giving_way + _tasks_awaiting_approval(state), 0)


def remaining_replans(state: State) -> int:
    """How often the workflow may still be planned again."""
    return max(quota(state).replans - committed(state).replans, 0)


def team_share(state: State, task: Task, teams: Container[str]) -> PlanUsage:
    """What the next attempt at `task`, which may go to a team, may plan: an equal part of what is left, where there is
    any. One part is kept where other `teams` come later or more is planned here."""
    bound, gone = quota(state), committed(state, task)
    tasks, replans = max(bound.tasks - gone.tasks, 0), max(bound.replans - gone.replans, 0)
    among = share_count(state, task, later=task.role is not Role.WORK or _may_plan_more(state, replans), agents=teams)
    return PlanUsage(tasks=max(tasks // among, min(tasks, 1)), replans=replans // among)


def share_count(
    state: State, asking: Task, *, later: bool, agents: Container[str] | None = None, enough: float = math.inf
) -> int:
    """Among how many something is shared: `asking`, the others that could start now, and one for all that comes
    `later`. Of `agents`, only the tasks of those count. Who is one of `enough` gets the least there is, and the rest of
    a long plan need not be counted."""
    ready = 1
    for task in state.tasks.values():
        if ready >= enough:
            break
        if task.id == asking.id or task.settled or task.active or (agents is not None and task.agent not in agents):
            continue
        if task.status is TaskStatus.AWAITING_BUDGET or state.can_start(task):
            ready += 1
        else:
            later = True
    return ready + later


def exhausted_quota(state: State) -> str:
    """The limit that kept the workflow from being planned again after a failure; nothing where none did."""
    if not (_can_replan(state) and state.limits.replans):
        return ""
    if all(task.status is not TaskStatus.FAILED for task in state.plan_tasks()):
        return ""
    if not remaining_replans(state):
        return f"the limit of {quota(state).replans} re-plans is used up"
    return "" if remaining_tasks(state) else f"the limit of {quota(state).tasks} tasks is used up"


def _tasks_awaiting_approval(state: State) -> int:
    """The tasks of a plan that waits for a person's yes."""
    return sum(len(each.plan.tasks) for each in state.approvals.values() if each.plan is not None)


def _can_replan(state: State) -> bool:
    """Whether another plan is asked for when one has failed: a planner wrote it, and not step by step."""
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
