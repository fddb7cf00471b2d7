"""Handle a failed attempt: schedule the next attempt, or fail the task and skip the tasks that depend on it."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_never

from pointsman.core.attempts.refinement import can_refine, refined_task, request_refinement
from pointsman.core.attempts.retry import Retry, next_attempt
from pointsman.core.budget.reservation import BudgetExhausted
from pointsman.core.completion.caller_messages import generic_failure
from pointsman.core.completion.outcome import end_workflow
from pointsman.core.completion.synthesis import raw_results, request_synthesis
from pointsman.core.decision import Decision
from pointsman.core.model.lifecycle import Phase
from pointsman.core.model.state import Task, reviewed_stage
from pointsman.core.planning.acceptance import keep_current_plan, route_to_fallback
from pointsman.core.tasks.agent_selection import can_dispatch, select_agent
from pointsman.core.tasks.dispatch import (
    await_budget,
    hold_task,
    needs_approval,
    record_dispatch,
    reserve_budget,
    task_deadline,
)
from pointsman.core.tasks.questions import request_task_approval
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, ErrorKind, Result
from pointsman_schemas.log import AttemptFailed, RetryScheduled, TaskFailed, TaskRefined

__all__ = ["fail_task", "handle_attempt_failure", "last_error", "retry_refined_task", "schedule_retry"]


def handle_attempt_failure(
    decision: Decision, task: Task, error: AttemptError, event_id: str, result: Result | None = None
) -> None:
    """Record a failed attempt and schedule the next attempt, or fail the task permanently."""
    decision.add(
        AttemptFailed(
            at=decision.now, task_id=task.id, attempt=task.attempt, event_id=event_id, error=error, result=result
        )
    )
    retry = next_attempt(decision, task, error)
    if retry is None or decision.now + retry.delay >= decision.latest_start(task.role):
        return fail_task(decision, task, error)
    return schedule_retry(decision, task, error, retry, refine=True)


def retry_refined_task(decision: Decision, task: Task) -> None:
    """Schedule the next attempt at a task after its refiner has ended, even if the refiner wrote no new intent."""
    error = last_error(task)
    retry = next_attempt(decision, task, error)
    if retry is None or decision.now + retry.delay >= decision.latest_start(task.role):
        return fail_task(decision, task, error)
    return schedule_retry(decision, task, error, retry)


def last_error(task: Task) -> AttemptError:
    """Return the error of the task's last attempt."""
    return task.error or AttemptError(kind=ErrorKind.HANDLER, message="no cause is known")


def schedule_retry(decision: Decision, task: Task, error: AttemptError, retry: Retry, *, refine: bool = False) -> None:
    """Schedule the next attempt at a task, or request the approval or the refinement that the attempt needs first.

    Args:
        decision: The decision in progress.
        task: The task.
        error: The error of the failed attempt.
        retry: The proposed next attempt. A different agent can still replace the agent of the proposal.
        refine: True if a refiner may rewrite the intent of the task first.
    """
    if (rerouted := _reroute(decision, task, error, retry)) is None:
        return None
    if rerouted.agent != task.agent and needs_approval(decision, task, rerouted.agent):
        return request_task_approval(decision, task, rerouted.agent)
    if refine and (rerouted.agent == task.agent or task.skill) and can_refine(decision, task):
        return request_refinement(decision, task, error)
    return _dispatch_retry(decision, task, rerouted)


def _reroute(decision: Decision, task: Task, error: AttemptError, retry: Retry) -> Retry | None:
    """Return `retry`, or a retry by a different agent: by the fallback, or by another agent with the task's skill.

    Return None if no attempt follows now: the task is held, or the task has failed because no work is sent to its
    fallback.
    """
    if not decision.context.circuits and not task.skill:
        return retry
    if retry.agent != task.agent:
        if can_dispatch(decision, retry.agent, task):
            return retry
        said = f"{error.message}; the fallback {retry.agent} keeps failing, too, so no work is sent to it"
        fail_task(decision, task, error.model_copy(update={"message": said}))
        return None
    choice = select_agent(decision, task)
    if choice.until is not None:
        hold_task(decision, task, choice.until)
        return None
    if choice.agent == task.agent:
        return retry
    why = (
        f"{choice.agent} has the skill, too"
        if task.skill
        else f"{task.agent} keeps failing; {choice.agent} is its fallback"
    )
    return Retry(choice.agent, timedelta(), f"{retry.reason}; {why}")


def _dispatch_retry(decision: Decision, task: Task, retry: Retry) -> None:
    not_before = decision.now + retry.delay
    task = decision.state.tasks[task.id]
    card = decision.card(retry.agent)
    budget = reserve_budget(decision, task, card)
    if isinstance(budget, BudgetExhausted):
        return await_budget(decision, task, retry.agent, budget, not_before)
    deadline = task_deadline(decision, task.role, card, not_before)
    record_dispatch(decision, retry.agent, task, deadline)
    decision.add(
        RetryScheduled(
            at=decision.now,
            task_id=task.id,
            attempt=task.attempt + 1,
            agent=retry.agent,
            not_before=not_before,
            deadline=deadline,
            reason=retry.reason,
            team=_is_team(decision, task, retry.agent),
            budget=budget,
        )
    )
    return None


def fail_task(decision: Decision, task: Task, error: AttemptError) -> None:
    """Fail a task permanently. The role of the task decides how the workflow continues, or whether it ends."""
    state = decision.add(TaskFailed(at=decision.now, task_id=task.id, error=error, attempts=task.attempt))
    match task.role:
        case Role.WORK:
            decision.ready.extend(state.dependants.get(task.id, ()))
        case Role.PLAN | Role.CLASSIFY:
            reason = f"{task.agent} could not {task.role}: {error.message}"
            if state.plan is not None:
                return keep_current_plan(decision, reason)  # without a new plan, the current plan continues
            if route_to_fallback(decision):
                return None
            end_workflow(decision, Phase.FAILED, generic_failure(state.workflow_id, [error]), reason)
        case Role.REFINE:
            if (waiting := refined_task(state, task)) is not None:
                decision.add(TaskRefined(at=decision.now, task_id=waiting.id))
                retry_refined_task(decision, decision.state.tasks[waiting.id])
        case Role.JUDGE:
            if (stage := reviewed_stage(state, task)) is not None:
                message = f"{task.agent} could not review the stage: {error.message}"
                # The kind is not `rejected`: the judge failed, so the stage was not reviewed.
                return fail_task(decision, stage, AttemptError(kind=ErrorKind.HANDLER, message=message))
            request_synthesis(decision)
        case Role.SUMMARIZE:
            pass  # the workflow starts anyway, with the summary that the thread already has
        case Role.SYNTHESIZE:
            reason = f"{task.agent} could not write the answer ({error.message}); these are the tasks' own results"
            end_workflow(decision, Phase.FAILED if _is_refusal(error) else Phase.PARTIAL, raw_results(decision), reason)
        case _:
            assert_never(task.role)
    return None


def _is_refusal(error: AttemptError) -> bool:
    """Return True if the agent, or the provider of its model, refused the task permanently.

    `ErrorKind` has the kinds that Pointsman sets. Any other kind was set by the agent or the provider, so it also means
    a refusal, unless the error is retryable.
    """
    ours = error.kind in tuple(ErrorKind) and error.kind != ErrorKind.REFUSED
    return not (ours or error.retryable)


def _is_team(decision: Decision, task: Task, agent: str) -> bool:
    """Return True if `agent` is a team. If no instance is live, return the value of the last dispatch."""
    card = decision.card(agent)
    return card.team if card else task.team and agent == task.agent
