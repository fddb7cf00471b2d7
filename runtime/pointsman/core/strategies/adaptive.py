"""Adaptive planning: a planner says what comes next, hears of every result, and says when nothing remains."""

from __future__ import annotations

from pointsman.core.decision import Decision
from pointsman.core.model.state import State
from pointsman.core.planning.role_tasks import request_plan
from pointsman_schemas.log import LimitReached
from pointsman_schemas.strategies import Adaptive

__all__ = ["plan_next_step"]


def plan_next_step(decision: Decision) -> bool:
    """Ask an adaptive planner for the next step, if there are results it has not heard of. Nothing of the plan there is
    starts meanwhile: it may be another one now."""
    state = decision.state
    strategy = state.strategy
    if not isinstance(strategy, Adaptive) or state.reached_limit or (state.plan is not None and state.plan.done):
        return False
    new = sum(1 for task in state.plan_tasks() if task.settled) - state.results_seen_by_planner
    if new <= 0:
        return False
    if state.replans + 1 < strategy.max_plans:
        request_plan(decision, strategy, reason=_replan_hints(state, new))
        return True
    if state.open_tasks == 0:
        detail = f"the limit of {strategy.max_plans} plans was reached before the planner said that it was done"
        decision.add(LimitReached(at=decision.now, limit="plans", detail=detail))
    return False


def _replan_hints(state: State, new: int) -> str:
    """What the `new` results settled last suggest."""
    settled = [task for task in state.plan_tasks() if task.settled]
    settled.sort(key=lambda task: task.ended_at or state.started_at)
    return "; ".join(
        f"{task.agent} suggests it: {task.result.replan_hint}"
        for task in settled[-new:]
        if task.result and task.result.replan_hint
    )
