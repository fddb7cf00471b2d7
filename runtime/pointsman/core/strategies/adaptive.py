"""Adaptive planning: a planner says what comes next, hears of every result, and says when nothing remains."""

from __future__ import annotations

from pointsman.core.decision import Draft
from pointsman.core.model.state import State
from pointsman.core.planning.role_tasks import ask_planner
from pointsman_schemas.log import LimitReached
from pointsman_schemas.strategies import Adaptive

__all__ = ["next_step"]


def next_step(draft: Draft) -> bool:
    """Ask an adaptive planner for the next step, if there are results it has not heard of. Nothing of the plan there is
    starts meanwhile: it may be another one now."""
    state = draft.open()
    strategy = state.strategy
    if not isinstance(strategy, Adaptive) or state.limit or (state.plan is not None and state.plan.done):
        return False
    new = sum(1 for task in state.work() if task.settled) - state.told
    if new <= 0:
        return False
    if state.replans + 1 < strategy.plans:
        ask_planner(draft, strategy, reason=_hints(state, new))
        return True
    if state.open_work == 0:
        detail = f"the limit of {strategy.plans} plans was reached before the planner said that it was done"
        draft.add(LimitReached(at=draft.now, limit="plans", detail=detail))
    return False


def _hints(state: State, new: int) -> str:
    """What the `new` results settled last suggest."""
    settled = [task for task in state.work() if task.settled]
    settled.sort(key=lambda task: task.ended_at or state.started_at)
    return "; ".join(
        f"{task.agent} suggests it: {task.result.replan_hint}"
        for task in settled[-new:]
        if task.result and task.result.replan_hint
    )
