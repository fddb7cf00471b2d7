"""Plan step by step. The planner receives every result and plans the next tasks, until no further task is necessary.

The planner also receives the messages to the workflow. If a message arrives after the planner's last plan, one more
plan is requested before the answer is written.
"""

from __future__ import annotations

from pointsman.core.budget.team_quota import quota, remaining_tasks
from pointsman.core.decision import Decision
from pointsman.core.model.state import State
from pointsman.core.planning.role_tasks import request_plan
from pointsman_schemas.log import LimitReached
from pointsman_schemas.strategies import Adaptive

__all__ = ["plan_next_step"]


def plan_next_step(decision: Decision) -> bool:
    """Request the next tasks from an adaptive planner, if it has not received all results and messages.

    A message does not interrupt the tasks. The planner receives the message together with the next result. If no task
    is open, the planner receives the message at once.

    While the planner is asked, no further task of the current plan starts, because the new plan may replace the task.

    Args:
        decision: The decision in progress.

    Returns:
        True if the planner was asked.
    """
    state = decision.state
    strategy = state.strategy
    if not isinstance(strategy, Adaptive) or state.reached_limit:
        return False
    new = sum(1 for task in state.plan_tasks() if task.settled) - state.results_seen_by_planner
    done = new <= 0 or (state.plan is not None and state.plan.done)
    if done and (state.open_tasks or len(state.messages) <= state.messages_seen_by_planner):
        return False
    if not remaining_tasks(state):  # the task limit is used up, so any new plan would be rejected
        if state.open_tasks == 0 and not done:
            detail = f"the limit of {quota(state).tasks} tasks was reached before the planner had finished"
            decision.add(LimitReached(at=decision.now, limit="tasks", detail=detail))
        return False
    if state.replans + 1 < strategy.max_plans:
        request_plan(decision, strategy, reason=_replan_hints(state, max(new, 0)))
        return True
    if state.open_tasks == 0 and not done:
        detail = f"the limit of {strategy.max_plans} plans was reached before the planner had finished"
        decision.add(LimitReached(at=decision.now, limit="plans", detail=detail))
    return False


def _replan_hints(state: State, new: int) -> str:
    """Return the re-plan hints of the newest results, and a note about new messages; `new` is the number of results."""
    settled = [task for task in state.plan_tasks() if task.settled]
    settled.sort(key=lambda task: task.ended_at or state.started_at)
    hints = [
        f"{task.agent} suggests a new plan: {task.result.replan_hint}"
        for task in settled[len(settled) - new :]
        if task.result and task.result.replan_hint
    ]
    if len(state.messages) > state.messages_seen_by_planner:
        hints.append("new messages arrived during the work")
    return "; ".join(hints)
