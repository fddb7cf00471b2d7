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
from pointsman_schemas.events import Budget, Planned
from pointsman_schemas.strategies import Adaptive, Choreography, Router, Supervisor

__all__ = [
    "allowances",
    "may_plan",
    "planned_so_far",
    "replans_left",
    "share",
    "sharing",
    "taken",
    "tasks_left",
    "used_up",
]


def may_plan(state: State) -> Planned:
    """What the workflow and the teams below it may plan: the tighter of the team's limits and of what it was given."""
    limits, given = state.limits, state.budget
    if given is None:
        return Planned(tasks=limits.tasks, replans=limits.replans)
    return Planned(
        tasks=limits.tasks if given.tasks is None else min(limits.tasks, given.tasks),
        replans=limits.replans if given.replans is None else min(limits.replans, given.replans),
    )


def planned_so_far(state: State) -> Planned:
    """What the workflow and the teams below it have planned, as far as is known. The steps of an adaptive planner are
    no re-plans: each has tasks, which are counted."""
    replans = 0 if isinstance(state.strategy, Adaptive) else state.replans
    tasks = sum(task.role is Role.WORK for task in state.tasks.values())
    return Planned(tasks=state.below.tasks + tasks, replans=state.below.replans + replans)


def taken(state: State, asking: Task | None = None) -> Planned:
    """What is planned, asked about, and set aside for teams at work. The last attempt of who is `asking` is over."""
    planned, given = planned_so_far(state), allowances(state, asking)
    return Planned(
        tasks=planned.tasks + sum(each.tasks or 0 for each in given) + _asked_about(state),
        replans=planned.replans + sum(each.replans or 0 for each in given),
    )


def allowances(state: State, asking: Task | None = None) -> Sequence[Budget]:
    """What the attempts that are under way were given. The last one of who is `asking` is over."""
    own = asking.id if asking else ""
    return [each.allowance for each in state.tasks.values() if each.allowance and each.live and each.id != own]


def tasks_left(state: State) -> int:
    """How many tasks a new plan may have. What has not started of the present one gives way to it, but what a person
    is asked about counts: it may be allowed, and start, before there is a new plan."""
    staying = (TaskStatus.FAILED, TaskStatus.AWAITING_APPROVAL)
    giving_way = sum(1 for task in state.work() if not (task.attempt or task.event or task.status in staying))
    return max(may_plan(state).tasks - taken(state).tasks + giving_way + _asked_about(state), 0)


def replans_left(state: State) -> int:
    """How often the workflow may still be planned again."""
    return max(may_plan(state).replans - taken(state).replans, 0)


def share(state: State, task: Task, teams: Container[str]) -> Planned:
    """What the next attempt at `task`, which may go to a team, may plan: an equal part of what is left, where there is
    any. One part is kept where other `teams` come later or more is planned here."""
    bound, gone = may_plan(state), taken(state, task)
    tasks, replans = max(bound.tasks - gone.tasks, 0), max(bound.replans - gone.replans, 0)
    among = sharing(state, task, later=task.role is not Role.WORK or _plans_more(state, replans), agents=teams)
    return Planned(tasks=max(tasks // among, min(tasks, 1)), replans=replans // among)


def sharing(
    state: State, asking: Task, *, later: bool, agents: Container[str] | None = None, enough: float = math.inf
) -> int:
    """Among how many something is shared: `asking`, the others that could start now, and one for all that comes
    `later`. Of `agents`, only the tasks of those count. Who is one of `enough` gets the least there is, and the rest of
    a long plan need not be counted."""
    ready = 1
    for task in state.tasks.values():
        if ready >= enough:
            break
        if task.id == asking.id or task.settled or task.live or (agents is not None and task.agent not in agents):
            continue
        if task.status is TaskStatus.AWAITING_BUDGET or state.may_start(task):
            ready += 1
        else:
            later = True
    return ready + later


def used_up(state: State) -> str:
    """The limit that kept the workflow from being planned again after a failure; nothing where none did."""
    if not (_replanned(state) and state.limits.replans):
        return ""
    if all(task.status is not TaskStatus.FAILED for task in state.work()):
        return ""
    if not replans_left(state):
        return f"the limit of {may_plan(state).replans} re-plans is used up"
    return "" if tasks_left(state) else f"the limit of {may_plan(state).tasks} tasks is used up"


def _asked_about(state: State) -> int:
    """The tasks of a plan that waits for a person's yes."""
    return sum(len(each.plan.tasks) for each in state.approvals.values() if each.plan is not None)


def _replanned(state: State) -> bool:
    """Whether another plan is asked for when one has failed: a planner wrote it, and not step by step."""
    if isinstance(state.strategy, Adaptive):
        return False
    return any(task.role is Role.PLAN for task in state.tasks.values())


def _plans_more(state: State, replans: int) -> bool:
    match state.strategy:
        case Adaptive():
            return not (state.plan is not None and state.plan.done)
        case Supervisor() | Router():
            return replans > 0 and _replanned(state)
        case strategy:
            return isinstance(strategy, Choreography)
