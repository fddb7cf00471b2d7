"""What a failed attempt leads to: another one, or the end of its task and of what needs it."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_never

from pointsman.core.attempts.refinement import ask_refiner, may_be_refined, refined_task
from pointsman.core.attempts.retry import Retry, next_try
from pointsman.core.budget.reservation import Shortage, allot
from pointsman.core.completion.caller_messages import not_served
from pointsman.core.completion.outcome import end
from pointsman.core.completion.synthesis import bare_results, write_answer
from pointsman.core.decision import Draft
from pointsman.core.model.lifecycle import Phase
from pointsman.core.model.state import Task, reviewed_by
from pointsman.core.planning.acceptance import keep_plan, route_to_fallback
from pointsman.core.tasks.agent_selection import choose, free
from pointsman.core.tasks.approval_requests import ask_about_task
from pointsman.core.tasks.dispatch import (
    await_allowance,
    dispatch,
    hold,
    must_be_approved,
    note_sent,
    start,
    task_deadline,
)
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, ErrorKind, Result
from pointsman_schemas.log import AttemptFailed, RetryScheduled, TaskFailed, TaskRefined

__all__ = ["attempt_failed", "resume", "task_failed", "try_refined"]


def attempt_failed(draft: Draft, task: Task, error: AttemptError, event_id: str, result: Result | None = None) -> None:
    """Try again, or let the task fail for good."""
    state = draft.add(
        AttemptFailed(
            at=draft.now, task_id=task.id, attempt=task.attempt, event_id=event_id, error=error, result=result
        )
    )
    retry = next_try(state.workflow_id, task, error, state.limits, draft.around)
    if retry is None or draft.now + retry.delay >= draft.horizon(task.role):
        return task_failed(draft, task, error)
    return _again(draft, task, error, retry, refine=True)


def resume(draft: Draft, task_id: str) -> None:
    """Go on with a task that waits until there is something for it to use, if now there is."""
    task = draft.open().tasks[task_id]
    if task.not_before is not None and task.not_before > draft.now:
        retry = Retry(task.agent, task.not_before - draft.now, "there is budget for it again")
        return _again(draft, task, _last_error(task), retry)
    return start(draft, task_id) if task.role is Role.WORK else dispatch(draft, task_id)


def try_refined(draft: Draft, task: Task) -> None:
    """Go on with a task for which better words were asked for."""
    error, state = _last_error(task), draft.open()
    retry = next_try(state.workflow_id, task, error, state.limits, draft.around)
    if retry is None or draft.now + retry.delay >= draft.horizon(task.role):
        return task_failed(draft, task, error)
    return _again(draft, task, error, retry)


def _last_error(task: Task) -> AttemptError:
    return task.error or AttemptError(kind=ErrorKind.HANDLER, message="no cause is known")


def _again(draft: Draft, task: Task, error: AttemptError, retry: Retry, *, refine: bool = False) -> None:
    """Make another attempt as `retry` says, or by who may be sent it instead, once a person has allowed that where one
    must; with `refine`, in better words if they are to be had."""
    if (rerouted := _rerouted(draft, task, error, retry)) is None:
        return None
    if rerouted.agent != task.agent and must_be_approved(draft, task, rerouted.agent):
        return ask_about_task(draft, task, rerouted.agent)
    if refine and (rerouted.agent == task.agent or task.skill) and may_be_refined(draft, task):
        return ask_refiner(draft, task, error)
    return _try_again(draft, task, rerouted)


def _rerouted(draft: Draft, task: Task, error: AttemptError, retry: Retry) -> Retry | None:
    """`retry`, or another in its place: while its agent keeps failing, or when another has the skill, too. None when
    there is none now: the task is held, or, if it was its last, has failed."""
    if not draft.around.circuits and not task.skill:
        return retry
    if retry.agent != task.agent:
        if free(draft, retry.agent, task):
            return retry
        said = f"{error.message}; its fallback {retry.agent} keeps failing, too, and is sent no work"
        task_failed(draft, task, error.model_copy(update={"message": said}))
        return None
    choice = choose(draft, task)
    if choice.until is not None:
        hold(draft, task, choice.until)
        return None
    if choice.agent == task.agent:
        return retry
    why = (
        f"{choice.agent} has the skill, too" if task.skill else f"{task.agent} keeps failing, {choice.agent} stands in"
    )
    return Retry(choice.agent, timedelta(), f"{retry.reason}; {why}")


def _try_again(draft: Draft, task: Task, retry: Retry) -> None:
    not_before = draft.now + retry.delay
    task = draft.open().tasks[task.id]
    allowance = allot(draft.open(), task, retry.agent, draft.around)
    if isinstance(allowance, Shortage):
        return await_allowance(draft, task, retry.agent, allowance, not_before)
    deadline = task_deadline(draft, task.role, retry.agent, not_before)
    note_sent(draft, retry.agent, task, deadline)
    draft.add(
        RetryScheduled(
            at=draft.now,
            task_id=task.id,
            attempt=task.attempt + 1,
            agent=retry.agent,
            not_before=not_before,
            deadline=deadline,
            reason=retry.reason,
            team=_is_team(draft, task, retry.agent),
            allowance=allowance,
        )
    )
    return None


def task_failed(draft: Draft, task: Task, error: AttemptError) -> None:
    """The task has failed for good: what needs it is looked at, or the workflow ends."""
    state = draft.add(TaskFailed(at=draft.now, task_id=task.id, error=error, attempts=task.attempt))
    match task.role:
        case Role.WORK:
            draft.moved.extend(state.dependants.get(task.id, ()))
        case Role.PLAN | Role.CLASSIFY:
            reason = f"{task.agent} could not {task.role}: {error.message}"
            if state.plan is not None:
                return keep_plan(draft, reason)  # it was to be a plan after the first: go on with the one there is
            if route_to_fallback(draft):
                return None
            end(draft, Phase.FAILED, not_served(state.workflow_id, [error]), reason)
        case Role.REFINE:
            if (waiting := refined_task(state, task)) is not None:
                draft.add(TaskRefined(at=draft.now, task_id=waiting.id))
                try_refined(draft, draft.open().tasks[waiting.id])
        case Role.JUDGE:
            if (stage := reviewed_by(state, task)) is not None:
                message = f"{task.agent} could not judge it: {error.message}"
                # Not of the judge's kind: the stage was neither refused nor found wanting.
                return task_failed(draft, stage, AttemptError(kind=ErrorKind.HANDLER, message=message))
            write_answer(draft)
        case Role.SYNTHESIZE:
            reason = f"{task.agent} could not write the answer ({error.message}); these are the tasks' own results"
            end(draft, Phase.FAILED if _turned_down(error) else Phase.PARTIAL, bare_results(draft), reason)
        case _:
            assert_never(task.role)
    return None


def _turned_down(error: AttemptError) -> bool:
    """Whether the agent, or its model's provider, said no for good: nobody was away and nothing went wrong."""
    ours = error.kind in tuple(ErrorKind) and error.kind != ErrorKind.REFUSED
    return not (ours or error.retryable)


def _is_team(draft: Draft, task: Task, agent: str) -> bool:
    """What the agent says of itself; of one that says nothing now, what it said when it got the task."""
    card = draft.around.card(agent)
    return card.team if card else task.team and agent == task.agent
