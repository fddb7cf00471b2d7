"""What ends work that has used too much or taken too long, who gets what comes back of a budget, and the wake-up that
makes sure somebody looks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from pointsman.core.approvals.responses import expire_approvals, first_expiry
from pointsman.core.attempts.failures import attempt_failed, resume
from pointsman.core.attempts.held import kept_back
from pointsman.core.budget.reservation import Shortage
from pointsman.core.budget.team_quota import may_plan, planned_so_far
from pointsman.core.completion.caller_messages import START_IT, could_not, gone
from pointsman.core.completion.outcome import end
from pointsman.core.completion.synthesis import bare_results, write_answer
from pointsman.core.decision import Draft
from pointsman.core.model.lifecycle import Phase, TaskStatus
from pointsman.core.model.state import State, Task, bounds
from pointsman.core.strategies.registry import finish
from pointsman.core.tasks.availability import missing, next_look
from pointsman.core.tasks.dispatch import LATE, abandon
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, ErrorKind
from pointsman_schemas.log import Entry, LimitReached, TimerArmed

__all__ = ["arm_timer", "check_limits", "ration"]

_SLEEP = timedelta(days=1)
"""No timer sleeps longer: a stream that keeps messages for a week drops one that is due later before it has fired."""


def check_limits(draft: Draft) -> None:
    """End what has used too much, and what has taken too long."""
    state = draft.open()
    if not state.limit and (limit := _used_up(state)):
        return _stop_work(draft, *limit)
    expire_approvals(draft)
    state = draft.open()
    if draft.now >= state.deadline and not state.approvals and state.phase in (Phase.PLANNING, Phase.RUNNING):
        seconds = (state.deadline - state.started_at).total_seconds()
        reached = f"the deadline of {seconds:g} s was reached"
        if not state.begun:
            nobody = missing(draft) or "whoever could came too late"
            reason = f"no worker took it: {nobody}; {reached}"
            return end(draft, Phase.FAILED, could_not(reason, START_IT), reason)
        return _stop_work(draft, "deadline", reached)
    if state.timer_due is None or draft.now < state.timer_due:
        return None  # no deadline comes before the timer that was armed for the first of them
    for task in tuple(state.tasks.values()):
        if task.live and task.deadline and draft.now >= task.deadline + LATE and not draft.open().ended:
            attempt_failed(draft, task, _overdue(draft, task), f"overdue-{task.id}-{task.attempt}")
    return None


def ration(draft: Draft) -> None:
    """Give what has come back of the budget to those that wait for it; where nothing can come any more, end."""
    for each in _hungry(draft):
        if not draft.open().ended:
            resume(draft, each.id)
        if not draft.open().ended and draft.open().tasks[each.id].status is TaskStatus.AWAITING_BUDGET:
            if draft.short[each.id].limit == "tasks":
                continue  # which only teams need
            break  # what is too little for one is too little for those behind it
    while not draft.open().ended and (hungry := _hungry(draft)):
        state, shortage = draft.open(), draft.short[hungry[0].id]
        if any(task.live and (task.allowance or task.role is Role.PLAN) for task in state.tasks.values()):
            return  # it may bring something back: a new plan takes the place of tasks that have not begun
        if shortage.limit == "tasks" and (
            state.approvals or any(task.live or task.held for task in state.tasks.values())
        ):
            return  # which only teams need: what others do is done first
        _starve(draft, hungry[0], shortage)


def _hungry(draft: Draft) -> Sequence[Task]:
    """Those that wait for budget and may have it now."""
    return kept_back(draft.open(), TaskStatus.AWAITING_BUDGET)


def _starve(draft: Draft, task: Task, shortage: Shortage) -> None:
    """End for want of what `task` needs. An answer for which nothing is left is made of the bare results."""
    state = draft.open()
    if state.phase is not Phase.SYNTHESIZING:
        return _stop_work(draft, shortage.limit, shortage.detail)
    if not state.limit:  # else what ended the work has left nothing for its answer, either
        state = draft.add(LimitReached(at=draft.now, limit=shortage.limit, detail=shortage.detail))
    abandon(draft, task, shortage.detail)
    if task.role is Role.JUDGE:
        return write_answer(draft)
    return end(draft, Phase.PARTIAL, bare_results(draft), state.limit)


def arm_timer(draft: Draft) -> None:
    """One schedule a workflow: armed again only when something is due before it fires, or when it has fired."""
    state = draft.open()
    if state.ended:
        return
    fired = state.timer in draft.fired
    started = [due for entry in draft.entries if (due := _starts(entry)) is not None]
    if not fired and state.timer_due is not None and all(state.timer_due <= deadline for deadline in started):
        return
    deadlines = [task.deadline + LATE for task in state.tasks.values() if task.live and task.deadline]
    deadlines += [task.not_before for task in kept_back(state, TaskStatus.HELD) if task.not_before]
    deadlines += first_expiry(draft)
    if state.phase in (Phase.PLANNING, Phase.RUNNING) and not state.approvals:
        deadlines.append(state.deadline)
    nobody = "" if state.begun else missing(draft)
    if nobody:
        deadlines.append(next_look(draft))
    due = min(*deadlines, draft.now + _SLEEP)
    if fired or state.timer_due is None or due < state.timer_due:
        name = f"wake-{state.timers + 1}"
        draft.add(TimerArmed(at=draft.now, name=name, due=max(due, draft.now), reason=nobody))


def _starts(entry: Entry) -> datetime | None:
    """The deadline that begins to run with `entry`."""
    match entry.kind:
        case "task_dispatched" | "retry_scheduled":
            return entry.deadline + LATE
        case "approval_requested":
            return entry.expires_at
        case "task_held":
            return entry.until
        case _:
            return None


def _overdue(draft: Draft, task: Task) -> AttemptError:
    waited = (draft.now - (task.not_before or task.since or draft.now)).total_seconds()
    if draft.around.card(task.agent) is None:
        message = f"{gone(task.agent)}; it waited {waited:.0f} s"
        return AttemptError(kind=ErrorKind.NO_WORKER, message=message)
    message = (
        f"{task.agent} gave no result for {waited:.0f} s, until the attempt's deadline had passed: nobody took it, or "
        "whoever did died or hangs; the log of its workers tells which"
    )
    return AttemptError(kind=ErrorKind.TIMEOUT, message=message, retryable=True)


def _used_up(state: State) -> tuple[str, str] | None:
    for name, (used, bound) in bounds(state).items():
        if used > bound:
            return name, f"the limit of {bound:.10g} {name} was passed: {used:.10g} used"
    if state.below.tasks and (tasks := planned_so_far(state).tasks) > (most := may_plan(state).tasks):
        return "tasks", f"the limit of {most} tasks was passed: {tasks} planned"
    return None


def _stop_work(draft: Draft, limit: str, detail: str) -> None:
    """No new work and no more waiting; answer from what there is."""
    open_tasks = [task for task in draft.open().tasks.values() if not task.settled]
    lacks = {task.id: _lacking(draft, task) for task in open_tasks}
    told = "; ".join(dict.fromkeys([detail, *(lack for lack in lacks.values() if lack and limit == "deadline")]))
    state = draft.add(LimitReached(at=draft.now, limit=limit, detail=told))
    if state.phase is Phase.SYNTHESIZING:
        return
    for task in open_tasks:
        abandon(draft, task, f"{detail}; {lack}" if (lack := lacks[task.id]) else detail)
    finish(draft)


def _lacking(draft: Draft, task: Task) -> str:
    """Who was not there to work on an open task, in words; nothing where somebody was."""
    if task.held and not task.agent:
        return f"nobody was alive who has the skill {task.skill}"
    if task.held:
        return f"{task.agent} kept failing and was sent no work"
    if task.live and draft.around.card(task.agent) is None:
        return gone(task.agent)
    return ""
