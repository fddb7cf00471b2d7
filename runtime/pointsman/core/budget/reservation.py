"""What an attempt may use: a share of what is left of the workflow's limits, set aside until its result is there.

What was used and what is set aside never exceed a limit, whatever runs side by side. The rule is in `reserve`: those
that may start now share equally; one share is kept where more is to come, and one call's worth for the answer. An
attempt for which there is nothing waits until a result brings back what it did not use. What a team may plan is in
`tree`."""

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
"""What an attempt gets at least, as one modest model call uses: with less it is better to wait for more. Of a limit
below twenty times that it is a twentieth."""


@dataclass(frozen=True, slots=True)
class BudgetExhausted:
    """Why an attempt gets nothing: the limit, and how it stands."""

    limit: str
    detail: str


def reserve(state: State, task: Task, card: AgentCard | None, teams: Set[str]) -> Budget | BudgetExhausted:
    """Return the budget that the next attempt at `task` may use.

    Args:
        state: The workflow's state.
        task: The task.
        card: The card of the agent that gets the attempt; None where no instance is live, so it may be a team.
        teams: The names of the live teams: a team has a share of the tasks and re-plans, too.

    Returns:
        The budget, or the limit that leaves nothing for the attempt.
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
            rest = "; the rest is for the answer" if kept and bound - used - aside[name] > 0 else ""
            return BudgetExhausted(name, f"the limit of {bound:.10g} {name} is used up: {used:.10g} used{rest}")
        rooms[name] = room, least
    if rooms:
        later = task.role in (Role.PLAN, Role.CLASSIFY)  # a task that is refined waits itself, for what comes after
        enough = max(room / least for room, least in rooms.values())
        among = share_count(state, task, later=later, enough=enough)
        shares |= {name: min(max(room / among, least), room) for name, (room, least) in rooms.items()}
    return Budget.model_validate({name: part if name == "cost" else int(part) for name, part in shares.items()})


def reserved(state: State, asking: Task | None = None) -> dict[str, float]:
    """What the attempts that are under way may use between them. The last one of who is `asking` is over."""
    given = reserved_budgets(state, asking)
    return {
        "calls": sum(each.calls or 0 for each in given),
        "tokens": sum(each.tokens or 0 for each in given),
        "cost": sum(each.cost or 0.0 for each in given),
    }


def _needs_synthesizer(state: State) -> bool:
    """Whether a synthesizer will write the answer, as far as is known."""
    if isinstance(state.strategy, Pipeline) or state.strategy.synthesizer is None:
        return False
    return not isinstance(state.strategy, Router) or state.plan is None or len(state.plan.tasks) > 1
