"""Enforce the limits of time and budget, continue held tasks and tasks without budget, and arm the workflow's timer.

Each public function is one pass of `decide`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from pointsman.core.attempts.failures import fail_task, handle_attempt_failure, last_error, schedule_retry
from pointsman.core.attempts.retry import Retry
from pointsman.core.budget.reservation import BudgetExhausted
from pointsman.core.budget.team_quota import plan_usage, quota
from pointsman.core.completion.caller_messages import START_AGENT_ADVICE, agent_gone, explain_failure
from pointsman.core.completion.outcome import end_workflow
from pointsman.core.completion.synthesis import raw_results, request_synthesis
from pointsman.core.decision import Decision
from pointsman.core.model.lifecycle import Phase, TaskStatus
from pointsman.core.model.state import State, Task, usage_bounds
from pointsman.core.questions.answers import expire_questions
from pointsman.core.strategies.registry import finish_workflow, missing_agent
from pointsman.core.tasks.dispatch import RESULT_GRACE, abandon_task, dispatch_task, start_task
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, ErrorKind
from pointsman_schemas.log import (
    Entry,
    LimitReached,
    TimerArmed,
)

__all__ = ["arm_timer", "dispatch_held", "enforce_limits", "release_budget"]

_MAX_TIMER_DELAY = timedelta(days=1)
"""Longest delay of a timer. A timer is a stored message, and a stream that keeps messages for a week would delete a
timer that fires later. For a later deadline, the workflow arms several timers, one after another."""

_MIN_CHECK_DELAY = timedelta(seconds=0.5)
"""Delay before the first check for a missing agent. The delay is short, because a worker that starts together with the
supervisor is live after about a second."""

_MAX_CHECK_DELAY = timedelta(seconds=10)
"""Longest delay between two checks for a missing agent. The delay is not shorter, because each check is a commit."""


def enforce_limits(decision: Decision) -> None:
    """End the work that has exceeded a limit or passed a deadline: of the workflow, of a question or of an attempt."""
    state = decision.state
    if not state.reached_limit and (limit := _exceeded_limit(state)):
        return _stop_work(decision, *limit)
    if state.questions:
        expire_questions(decision)
        state = decision.state
    if decision.now >= state.deadline and not state.questions and state.phase in (Phase.PLANNING, Phase.RUNNING):
        seconds = (state.deadline - state.round_began_at).total_seconds()
        reached = f"the deadline of {seconds:g} s was reached"
        if not state.has_begun:
            missing = missing_agent(decision) or "the required agent became live too late"
            reason = f"no worker took the request: {missing}; {reached}"
            return end_workflow(decision, Phase.FAILED, explain_failure(reason, START_AGENT_ADVICE), reason)
        return _stop_work(decision, "deadline", reached)
    if state.timer_due is None or decision.now < state.timer_due:
        return None  # the armed timer is due at the earliest deadline, so no deadline has passed
    for task in tuple(state.tasks.values()):
        if task.active and task.deadline and decision.now >= task.deadline + RESULT_GRACE and not decision.ended:
            handle_attempt_failure(decision, task, _overdue_error(decision, task), f"overdue-{task.id}-{task.attempt}")
    return None


def dispatch_held(decision: Decision) -> None:
    """Start each held task that is due. Fail each held task if the deadline of the workflow has passed."""
    for task in _waiting_tasks(decision.state, TaskStatus.HELD):
        if decision.ended or (task.not_before and decision.now < task.not_before):
            continue
        if decision.now >= decision.latest_start(task.role) and not decision.state.questions:
            message = f"{task.agent} keeps failing and was sent no work; the deadline has passed"
            fail_task(decision, task, AttemptError(kind=ErrorKind.CIRCUIT, message=message, retryable=True))
        elif task.role is Role.WORK:
            start_task(decision, task.id)
        else:
            dispatch_task(decision, task.id)


def release_budget(decision: Decision) -> None:
    """Give returned budget to the tasks that wait for budget. If no attempt can return more budget, end the work."""
    for each in _waiting_tasks(decision.state, TaskStatus.AWAITING_BUDGET):
        if not decision.ended:
            _resume(decision, each.id)
        if not decision.ended and decision.state.tasks[each.id].status is TaskStatus.AWAITING_BUDGET:
            if decision.shortages[each.id].limit == "tasks":
                continue  # only a team needs a share of tasks, and the next task might be for an agent
            break  # the following tasks need the same budget
    while not decision.ended and (waiting := _waiting_tasks(decision.state, TaskStatus.AWAITING_BUDGET)):
        state, shortage = decision.state, decision.shortages[waiting[0].id]
        if any(task.active and (task.budget or task.role is Role.PLAN) for task in state.tasks.values()):
            return  # a running attempt might return budget, and a new plan might replace tasks that have not begun
        if shortage.limit == "tasks" and (
            state.questions or any(task.active or task.held for task in state.tasks.values())
        ):
            return  # only a team needs a share of tasks: finish the work of the agents first
        _end_without_budget(decision, waiting[0], shortage)


def arm_timer(decision: Decision) -> None:
    """Arm the workflow's only timer, if no timer is armed, the timer has fired, or a new deadline is earlier."""
    state = decision.state
    fired = state.timer in decision.fired_timers
    set_now = [due for entry in decision.entries if (due := _deadline_set_by(entry)) is not None]
    if not fired and state.timer_due is not None and all(state.timer_due <= deadline for deadline in set_now):
        return
    deadlines = [task.deadline + RESULT_GRACE for task in state.tasks.values() if task.active and task.deadline]
    deadlines += [task.not_before for task in _waiting_tasks(state, TaskStatus.HELD) if task.not_before]
    deadlines += [pending.expires_at for pending in state.questions.values()]
    if state.phase in (Phase.PLANNING, Phase.RUNNING) and not state.questions:
        deadlines.append(state.deadline)
    missing = "" if state.has_begun else missing_agent(decision)
    if missing:
        deadlines.append(_next_check(decision))
    due = min(*deadlines, decision.now + _MAX_TIMER_DELAY)
    if fired or state.timer_due is None or due < state.timer_due:
        name = state.next_timer
        decision.add(TimerArmed(at=decision.now, name=name, due=max(due, decision.now), reason=missing))


def _exceeded_limit(state: State) -> tuple[str, str] | None:
    """Return the exceeded limit and a sentence about the limit; None if no limit is exceeded."""
    for name, (used, bound) in usage_bounds(state).items():
        if used > bound:
            return name, f"the limit of {bound:.10g} {name} was passed: {used:.10g} used"
    if state.child_plan_usage.tasks and (tasks := plan_usage(state).tasks) > (most := quota(state).tasks):
        return "tasks", f"the limit of {most} tasks was passed: {tasks} planned"
    return None


def _stop_work(decision: Decision, limit: str, detail: str) -> None:
    """Abandon all open tasks and finish the workflow from the results that exist."""
    open_tasks = [task for task in decision.state.tasks.values() if not task.settled]
    reasons = {task.id: _missing_agent_reason(decision, task) for task in open_tasks}
    at_deadline = limit == "deadline"
    gone = [task.agent for task in open_tasks if at_deadline and _is_agent_gone(decision, task)]
    details = dict.fromkeys([detail, *(reason for reason in reasons.values() if reason and at_deadline)])
    state = decision.add(
        LimitReached(at=decision.now, limit=limit, detail="; ".join(details), missing_agents=tuple(dict.fromkeys(gone)))
    )
    if state.phase is Phase.SYNTHESIZING:
        return
    for task in open_tasks:
        reason = f"{detail}; {reasons[task.id]}" if reasons[task.id] else detail
        abandon_task(decision, task, reason, cause="limit")
    finish_workflow(decision)


def _missing_agent_reason(decision: Decision, task: Task) -> str:
    """Return the reason why no agent worked on an open task; an empty text if an agent might have worked on it."""
    if task.held and not task.agent:
        return f"no agent with the skill {task.skill} was alive"
    if task.held:
        return f"{task.agent} kept failing and was sent no work"
    return agent_gone(task.agent) if _is_agent_gone(decision, task) else ""


def _is_agent_gone(decision: Decision, task: Task) -> bool:
    return task.active and decision.card(task.agent) is None


def _overdue_error(decision: Decision, task: Task) -> AttemptError:
    waited = (decision.now - (task.not_before or task.since or decision.now)).total_seconds()
    if decision.card(task.agent) is None:
        message = f"{agent_gone(task.agent)}; the task waited {waited:.0f} s"
        return AttemptError(kind=ErrorKind.NO_WORKER, message=message)
    message = (
        f"{task.agent} gave no result for {waited:.0f} s, until the attempt's deadline had passed: no worker took the "
        "handoff, or the worker that took it died or hangs; look in the log of its workers"
    )
    return AttemptError(kind=ErrorKind.TIMEOUT, message=message, retryable=True)


def _waiting_tasks(state: State, status: TaskStatus) -> Sequence[Task]:
    """Return the tasks in `status` (`held` or `awaiting_budget`) that may continue now.

    While a planner writes a new plan, tasks of the current plan that have not begun are left out, because the new plan
    might replace them.
    """
    waiting = [task for task in state.tasks.values() if task.status is status]
    if not waiting:  # the usual case
        return waiting
    running = state.phase is Phase.RUNNING
    return [task for task in waiting if running or task.attempt or task.role is not Role.WORK]


def _resume(decision: Decision, task_id: str) -> None:
    """Move a task out of `awaiting_budget`, if there is budget for its next attempt now."""
    task = decision.state.tasks[task_id]
    if task.not_before is not None and task.not_before > decision.now:
        retry = Retry(task.agent, task.not_before - decision.now, "budget is available again")
        return schedule_retry(decision, task, last_error(task), retry)
    return start_task(decision, task_id) if task.role is Role.WORK else dispatch_task(decision, task_id)


def _end_without_budget(decision: Decision, task: Task, shortage: BudgetExhausted) -> None:
    """End the work that `shortage` stops. If no budget is left for a synthesis, the raw results are the answer."""
    state = decision.state
    if state.phase is not Phase.SYNTHESIZING:
        return _stop_work(decision, shortage.limit, shortage.detail)
    if not state.reached_limit:  # otherwise an earlier limit is recorded already
        state = decision.add(LimitReached(at=decision.now, limit=shortage.limit, detail=shortage.detail))
    abandon_task(decision, task, shortage.detail, cause="limit")
    if task.role is Role.JUDGE:
        return request_synthesis(decision)
    return end_workflow(decision, Phase.PARTIAL, raw_results(decision), state.reached_limit)


def _deadline_set_by(entry: Entry) -> datetime | None:
    """Return the deadline that `entry` sets; None if the entry sets no deadline."""
    match entry.kind:
        case "task_dispatched" | "retry_scheduled":
            return entry.deadline + RESULT_GRACE
        case "question_asked":
            return entry.expires_at
        case "task_held":
            return entry.until
        case _:
            return None


def _next_check(decision: Decision) -> datetime:
    """Return the time of the next check for a missing agent.

    The delay is the time since the start of the round, within bounds. So the checks become less frequent.
    """
    waited = decision.now - decision.state.round_began_at
    return decision.now + min(max(waited, _MIN_CHECK_DELAY), _MAX_CHECK_DELAY)
