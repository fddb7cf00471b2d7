"""Reserve a share of the remaining limits of a workflow for each attempt, until its result arrives.

The used and the reserved amounts together never exceed a limit, even if tasks run in parallel. `reserve` has the
rule: the rest of a limit is divided into equal shares, one for each attempt that can start now. One share is kept for
all tasks that start later. The budget of one model call is kept for the answer. An attempt without a share waits until
a result arrives, which returns unused budget. `team_quota` has the rule for the tasks and re-plans of a team.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

from pointsman.core.budget.team_quota import plan_usage, quota, reserved_budgets, share_count, team_share
from pointsman.core.model.state import State, Task, usage_bounds
from pointsman_schemas.card import AgentCard, Role
from pointsman_schemas.events import Budget
from pointsman_schemas.strategies import Pipeline, Router

__all__ = ["BudgetExhausted", "reserve", "reserved"]

_MIN_ATTEMPT_BUDGET = {"calls": 1, "tokens": 1_000, "cost": 0.01}
"""Smallest budget of an attempt: one modest model call. An attempt whose share would be smaller waits. If the limit of
a workflow is below twenty times the amount in this table, the smallest budget is a twentieth of the limit.
"""


@dataclass(frozen=True, slots=True)
class BudgetExhausted:
    """The limit that leaves no budget for an attempt, and a sentence about the use of the limit."""

    limit: str
    detail: str


def reserve(state: State, task: Task, card: AgentCard | None, teams: Set[str]) -> Budget | BudgetExhausted:
    """Return the budget that the next attempt at `task` may use.

    Args:
        state: The workflow's state.
        task: The task.
        card: The card of the agent that gets the attempt; None if no instance is live. The agent might then be a team.
        teams: The names of the live teams. A team also needs a share of the tasks and re-plans.

    Returns:
        The budget, or the limit that leaves no budget for the attempt.
    """
    limits = usage_bounds(state)
    may_be_team = card.team if card is not None else task.role is Role.WORK
    shares: dict[str, float] = {}
    if may_be_team:
        planning = team_share(state, task, teams)
        if not planning.tasks and card is not None:
            detail = f"the limit of {quota(state).tasks} tasks is used up: {plan_usage(state).tasks} planned"
            return BudgetExhausted("tasks", detail)
        shares = {"tasks": planning.tasks, "replans": planning.replans}
    aside = reserved(state, task)
    rooms: dict[str, tuple[float, float]] = {}
    for name, (used, bound) in limits.items():
        least = (
            min(_MIN_ATTEMPT_BUDGET[name], bound / 20)
            if name == "cost"
            else min(_MIN_ATTEMPT_BUDGET[name], math.ceil(bound / 20))
        )
        kept = least if task.role is not Role.SYNTHESIZE and _needs_synthesizer(state) else 0
        room = bound - used - aside[name] - kept
        if room <= 0 or (room < least and task.role is not Role.SYNTHESIZE):
            rest = "; the rest is reserved for the answer" if kept and bound - used - aside[name] > 0 else ""
            return BudgetExhausted(name, f"the limit of {bound:.10g} {name} is used up: {used:.10g} used{rest}")
        rooms[name] = room, least
    if rooms:
        # A task in `refining` needs a share later. `share_count` finds such a task, so Role.REFINE is not listed here.
        later = task.role in (Role.PLAN, Role.CLASSIFY)
        enough = max(room / least for room, least in rooms.values())
        among = share_count(state, task, later=later, enough=enough)
        shares |= {name: min(max(room / among, least), room) for name, (room, least) in rooms.items()}
    return Budget.model_validate({name: part if name == "cost" else int(part) for name, part in shares.items()})


def reserved(state: State, asking: Task | None = None) -> dict[str, float]:
    """Return the sum of the budgets of active attempts, without the attempt at the task `asking`, which has ended."""
    given = reserved_budgets(state, asking)
    return {
        "calls": sum(each.calls or 0 for each in given),
        "tokens": sum(each.tokens or 0 for each in given),
        "cost": sum(each.cost or 0.0 for each in given),
    }


def _needs_synthesizer(state: State) -> bool:
    """Return True if a synthesizer will write the answer, as far as the state shows."""
    if isinstance(state.strategy, Pipeline) or state.strategy.synthesizer is None:
        return False
    return not isinstance(state.strategy, Router) or state.plan is None or len(state.plan.tasks) > 1
