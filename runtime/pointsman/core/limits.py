"""What ends work that has used too much or taken too long, who gets what comes back of a budget, and the wake-up that
makes sure somebody looks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from pointsman.core.approvals.responses import expire_overdue, next_expiry
from pointsman.core.attempts.failures import handle_attempt_failure, resume_waiting_task
from pointsman.core.attempts.held import waiting_tasks
from pointsman.core.budget.reservation import BudgetExhausted
from pointsman.core.budget.team_quota import plan_usage, quota
from pointsman.core.completion.caller_messages import START_AGENT_ADVICE, agent_gone, explain_failure
from pointsman.core.completion.outcome import end_workflow
from pointsman.core.completion.synthesis import raw_results, request_synthesis
from pointsman.core.decision import Decision
from pointsman.core.model.lifecycle import Phase, TaskStatus
from pointsman.core.model.state import State, Task, usage_bounds
from pointsman.core.strategies.registry import finish_workflow
from pointsman.core.tasks.availability import missing_agent, next_check
from pointsman.core.tasks.dispatch import RESULT_GRACE, abandon_task
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, ErrorKind
from pointsman_schemas.log import Entry, LimitReached, TimerArmed

__all__ = ["arm_timer", "enforce_limits", "release_budget"]

_MAX_TIMER_DELAY = timedelta(days=1)
"""No timer sleeps longer: a stream that keeps messages for a week drops one that is due later before it has fired."""


def enforce_limits(decision: Decision) -> None:
    """End what has used too much, and what has taken too long."""
    state = decision.state
    if not state.reached_limit and (limit := _exceeded_limit(state)):
        return _stop_work(decision, *limit)
    expire_overdue(decision)
    state = decision.state
    if decision.now >= state.deadline and not state.approvals and state.phase in (Phase.PLANNING, Phase.RUNNING):
        seconds = (state.deadline - state.started_at).total_seconds()
        reached = f"the deadline of {seconds:g} s was reached"
        if not state.has_begun:
            nobody = missing_agent(decision) or "whoever could came too late"
            reason = f"no worker took it: {nobody}; {reached}"
            return end_workflow(decision, Phase.FAILED, explain_failure(reason, START_AGENT_ADVICE), reason)
        return _stop_work(decision, "deadline", reached)
    if state.timer_due is None or decision.now < state.timer_due:
        return None  # no deadline comes before the timer that was armed for the first of them
    for task in tuple(state.tasks.values()):
        if task.active and task.deadline and decision.now >= task.deadline + RESULT_GRACE and not decision.state.ended:
            handle_attempt_failure(decision, task, _fail_overdue(decision, task), f"overdue-{task.id}-{task.attempt}")
    return None


def release_budget(decision: Decision) -> None:
    """Give what has come back of the budget to those that wait for it; where nothing can come any more, end."""
    for each in _waiting_for_budget(decision):
        if not decision.state.ended:
            resume_waiting_task(decision, each.id)
        if not decision.state.ended and decision.state.tasks[each.id].status is TaskStatus.AWAITING_BUDGET:
            if decision.shortages[each.id].limit == "tasks":
                continue  # which only teams need
            break  # what is too little for one is too little for those behind it
    while not decision.state.ended and (hungry := _waiting_for_budget(decision)):
        state, shortage = decision.state, decision.shortages[hungry[0].id]
        if any(task.active and (task.budget or task.role is Role.PLAN) for task in state.tasks.values()):
            return  # it may bring something back: a new plan takes the place of tasks that have not begun
        if shortage.limit == "tasks" and (
            state.approvals or any(task.active or task.held for task in state.tasks.values())
        ):
            return  # which only teams need: what others do is done first
        _end_without_budget(decision, hungry[0], shortage)


def _waiting_for_budget(decision: Decision) -> Sequence[Task]:
    """Those that wait for budget and may have it now."""
    return waiting_tasks(decision.state, TaskStatus.AWAITING_BUDGET)


def _end_without_budget(decision: Decision, task: Task, shortage: BudgetExhausted) -> None:
    """End for want of what `task` needs. An answer for which nothing is left is made of the bare results."""
    state = decision.state
    if state.phase is not Phase.SYNTHESIZING:
        return _stop_work(decision, shortage.limit, shortage.detail)
    if not state.reached_limit:  # else what ended the work has left nothing for its answer, either
        state = decision.add(LimitReached(at=decision.now, limit=shortage.limit, detail=shortage.detail))
    abandon_task(decision, task, shortage.detail)
    if task.role is Role.JUDGE:
        return request_synthesis(decision)
    return end_workflow(decision, Phase.PARTIAL, raw_results(decision), state.reached_limit)


def arm_timer(decision: Decision) -> None:
    """One schedule a workflow: armed again only when something is due before it fires, or when it has fired."""
    state = decision.state
    if state.ended:
        return
    fired = state.timer in decision.fired_timers
    started = [due for entry in decision.entries if (due := _deadline_set_by(entry)) is not None]
    if not fired and state.timer_due is not None and all(state.timer_due <= deadline for deadline in started):
        return
    deadlines = [task.deadline + RESULT_GRACE for task in state.tasks.values() if task.active and task.deadline]
    deadlines += [task.not_before for task in waiting_tasks(state, TaskStatus.HELD) if task.not_before]
    deadlines += next_expiry(decision)
    if state.phase in (Phase.PLANNING, Phase.RUNNING) and not state.approvals:
        deadlines.append(state.deadline)
    nobody = "" if state.has_begun else missing_agent(decision)
    if nobody:
        deadlines.append(next_check(decision))
    due = min(*deadlines, decision.now + _MAX_TIMER_DELAY)
    if fired or state.timer_due is None or due < state.timer_due:
        name = f"wake-{state.timers + 1}"
        decision.add(TimerArmed(at=decision.now, name=name, due=max(due, decision.now), reason=nobody))


def _deadline_set_by(entry: Entry) -> datetime | None:
    """The deadline that begins to run with `entry`."""
    match entry.kind:
        case "task_dispatched" | "retry_scheduled":
            return entry.deadline + RESULT_GRACE
        case "approval_requested":
            return entry.expires_at
        case "task_held":
            return entry.until
        case _:
            return None


def _fail_overdue(decision: Decision, task: Task) -> AttemptError:
    waited = (decision.now - (task.not_before or task.since or decision.now)).total_seconds()
    if decision.context.card(task.agent) is None:
        message = f"{agent_gone(task.agent)}; it waited {waited:.0f} s"
        return AttemptError(kind=ErrorKind.NO_WORKER, message=message)
    message = (
        f"{task.agent} gave no result for {waited:.0f} s, until the attempt's deadline had passed: nobody took it, or "
        "whoever did died or hangs; the log of its workers tells which"
    )
    return AttemptError(kind=ErrorKind.TIMEOUT, message=message, retryable=True)


def _exceeded_limit(state: State) -> tuple[str, str] | None:
    for name, (used, bound) in usage_bounds(state).items():
        if used > bound:
            return name, f"the limit of {bound:.10g} {name} was passed: {used:.10g} used"
    if state.child_plan_usage.tasks and (tasks := plan_usage(state).tasks) > (most := quota(state).tasks):
        return "tasks", f"the limit of {most} tasks was passed: {tasks} planned"
    return None


def _stop_work(decision: Decision, limit: str, detail: str) -> None:
    """No new work and no more waiting; answer from what there is."""
    open_tasks = [task for task in decision.state.tasks.values() if not task.settled]
    lacks = {task.id: _missing_agent_reason(decision, task) for task in open_tasks}
    told = "; ".join(dict.fromkeys([detail, *(lack for lack in lacks.values() if lack and limit == "deadline")]))
    state = decision.add(LimitReached(at=decision.now, limit=limit, detail=told))
    if state.phase is Phase.SYNTHESIZING:
        return
    for task in open_tasks:
        abandon_task(decision, task, f"{detail}; {lack}" if (lack := lacks[task.id]) else detail)
    finish_workflow(decision)


def _missing_agent_reason(decision: Decision, task: Task) -> str:
    """Who was not there to work on an open task, in words; nothing where somebody was."""
    if task.held and not task.agent:
        return f"nobody was alive who has the skill {task.skill}"
    if task.held:
        return f"{task.agent} kept failing and was sent no work"
    if task.active and decision.context.card(task.agent) is None:
        return agent_gone(task.agent)
    return ""
