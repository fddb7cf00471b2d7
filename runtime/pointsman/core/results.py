"""Apply a result: ignore it, accept it, send it to review, or handle the failed attempt."""

from __future__ import annotations

from typing import assert_never

from pointsman.core.attempts.failures import handle_attempt_failure, retry_refined_task
from pointsman.core.attempts.refinement import refined_intent, refined_task
from pointsman.core.attempts.review import check_failure, output_check, parse_review, request_review, review_error
from pointsman.core.completion.synthesis import apply_synthesis, request_synthesis
from pointsman.core.decision import Decision
from pointsman.core.model.inputs import ResultReceived
from pointsman.core.model.lifecycle import TaskStatus
from pointsman.core.model.state import State, Task, reviewed_stage
from pointsman.core.planning.acceptance import request_replan
from pointsman.core.planning.planner import apply_plan, planner_questions
from pointsman.core.planning.router import apply_selection
from pointsman.core.strategies.choreography import add_reactions
from pointsman.core.tasks.dispatch import start_ready_tasks
from pointsman.core.tasks.questions import ask_questions, questions_over_limit
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, ErrorKind, QuestionRequest
from pointsman_schemas.files import find_file_fault
from pointsman_schemas.ids import attempt_token
from pointsman_schemas.log import AttemptFailed, IgnoreCause, ResultIgnored, TaskRefined, TaskSucceeded
from pointsman_schemas.strategies import Choreography

__all__ = ["has_token", "late_result", "on_result"]


def has_token(state: State, received: ResultReceived) -> bool:
    """Return True if a result has the token of its attempt. Only the agent that received the handoff has this token."""
    return received.token == attempt_token(state.secret, received.result.task_id, received.result.attempt)


_ASKING_ROLES = (Role.WORK, Role.PLAN)
"""The roles whose agents are allowed to ask a person. The other roles need only the results of the workflow, so their
questions are not asked."""


def on_result(decision: Decision, received: ResultReceived) -> None:
    """Apply one result. It counts once, and only if it comes from the agent of the task's current attempt.

    A result without the token of the handoff changes nothing, because its sender has not received the handoff.
    """
    state, result = decision.state, received.result
    if not has_token(state, received):
        return None
    if result.workflow_id != state.workflow_id:
        return _ignore_result(
            decision, received, "other_workflow", f"the result belongs to the workflow {result.workflow_id}"
        )
    task = state.tasks.get(result.task_id)
    if task is None:
        return _ignore_result(decision, received, "unknown_task", "the workflow has no such task")
    if task.event_id == received.event_id:
        # A redelivery adds no entry, so a replay cannot restore it. If the code below started a task for it, a replay
        # could not repeat that start.
        return None
    if task.status is TaskStatus.WAITING:  # the plan came in the same batch as this result, so start the task first
        start_ready_tasks(decision)
        task = decision.state.tasks[result.task_id]
    if task.agent != result.agent:
        return _ignore_result(decision, received, "other_agent", f"the task was handed to {task.agent}")
    if task.attempt != result.attempt or not task.active:
        return _ignore_result(
            decision, received, "stale_attempt", f"attempt {task.attempt} of the task is {task.status}"
        )
    if result.status == "succeeded":
        return _on_success(decision, task, received)
    if result.questions and result.status == "failed" and task.role in _ASKING_ROLES:
        return _on_questions(decision, task, received, result.questions)
    kind = ErrorKind.REFUSED if result.status == "refused" else ErrorKind.HANDLER
    error = result.error or AttemptError(kind=kind, message="the agent gave no reason")
    return handle_attempt_failure(decision, task, error, received.event_id, result)


def late_result(state: State, received: ResultReceived) -> str:
    """Return a sentence about a result that would have counted if it had arrived before the end of its workflow.

    Args:
        state: The state of the ended workflow.
        received: The result.

    Returns:
        The sentence; an empty text if the result would not have counted, or if the workflow was cancelled.
    """
    result, task = received.result, state.tasks.get(received.result.task_id)
    if task is None or task.status is not TaskStatus.ABANDONED or task.abandon_cause == "cancelled":
        return ""
    if result.status != "succeeded" or state.outcome is None:
        return ""
    if (task.agent, task.attempt, state.workflow_id) != (result.agent, result.attempt, result.workflow_id):
        return ""
    if not has_token(state, received):
        return ""
    return (
        f"the result of attempt {result.attempt} at {task.id} by {result.agent} came after the workflow had ended as "
        f"{state.phase}, at {state.outcome.ended_at.isoformat()}: the answer does not include the result"
    )


def _on_success(decision: Decision, task: Task, received: ResultReceived) -> None:
    state = decision.state
    if task.role is Role.PLAN and (asked := planner_questions(state, task, received.result.output)):
        return _on_questions(decision, task, received, asked)
    if (stage := reviewed_stage(state, task)) is not None:
        return _on_review(decision, stage, task, received)
    limits = state.limits
    if fault := find_file_fault(received.result.files, limits.files, limits.file_bytes, limits.file_types):
        error = AttemptError(kind=ErrorKind.INVALID_OUTPUT, message=fault)
        return handle_attempt_failure(decision, task, error, received.event_id, received.result)
    check = output_check(state, task)
    if problem := check_failure(check, received.result.output):
        return _on_insufficient_result(decision, task, received, problem)
    if (judge := check.judge) is not None:
        return request_review(decision, task, judge, received)
    return _complete_task(decision, task, received)


def _on_questions(
    decision: Decision, task: Task, received: ResultReceived, questions: tuple[QuestionRequest, ...]
) -> None:
    """Ask the questions of an agent. If the limit of questions does not allow them, fail the attempt."""
    if over := questions_over_limit(decision.state, questions):
        error = AttemptError(kind=ErrorKind.LIMIT, message=over)
        return handle_attempt_failure(decision, task, error, received.event_id, received.result)
    tools = ", ".join(dict.fromkeys(each.tool for each in questions if each.about == "tool"))
    message = f"a person must allow the use of {tools}" if tools else "a person must answer a question"
    decision.add(
        AttemptFailed(
            at=decision.now,
            task_id=task.id,
            attempt=task.attempt,
            event_id=received.event_id,
            error=AttemptError(kind=ErrorKind.NEEDS_ANSWER, message=message),
            result=received.result,
        )
    )
    return ask_questions(decision, task, questions)


def _ignore_result(decision: Decision, received: ResultReceived, cause: IgnoreCause, reason: str) -> None:
    if received.event_id in decision.state.ignored_events:
        return
    result = received.result
    decision.add(
        ResultIgnored(
            at=decision.now,
            event_id=received.event_id,
            task_id=result.task_id,
            attempt=result.attempt,
            agent=result.agent,
            cause=cause,
            workflow_id=result.workflow_id if cause == "other_workflow" else "",
            reason=reason,
        )
    )


def _on_insufficient_result(decision: Decision, task: Task, received: ResultReceived, problem: str) -> None:
    error = AttemptError(kind=ErrorKind.INSUFFICIENT, message=problem, retryable=True)
    handle_attempt_failure(decision, task, error, received.event_id, received.result)


def _accept_result(decision: Decision, task: Task, received: ResultReceived) -> None:
    decision.add(
        TaskSucceeded(
            at=decision.now,
            task_id=task.id,
            attempt=task.attempt,
            event_id=received.event_id,
            result=received.result,
        )
    )


def _complete_task(decision: Decision, task: Task, received: ResultReceived) -> None:
    _accept_result(decision, task, received)
    match task.role:
        case Role.WORK:
            decision.ready.extend(decision.state.dependants.get(task.id, ()))
            if isinstance(strategy := decision.state.strategy, Choreography):
                return add_reactions(decision, strategy, task, received.result.events)
            if hint := received.result.replan_hint:
                request_replan(decision, f"{task.agent} suggests a new plan: {hint}")
        case Role.PLAN:
            apply_plan(decision, task, received.result)
        case Role.CLASSIFY:
            apply_selection(decision, task, received.result)
        case Role.REFINE:
            if (waiting := refined_task(decision.state, task)) is not None:
                decision.add(TaskRefined(at=decision.now, task_id=waiting.id, intent=refined_intent(received.result)))
                retry_refined_task(decision, decision.state.tasks[waiting.id])
        case Role.JUDGE:
            request_synthesis(decision)
        case Role.SUMMARIZE:
            pass  # `_begin` starts the workflow, after all inputs of this decision are applied
        case Role.SYNTHESIZE:
            apply_synthesis(decision, received.result)
        case _:
            assert_never(task.role)
    return None


def _on_review(decision: Decision, stage: Task, judge: Task, received: ResultReceived) -> None:
    """Apply a judge's review of a stage: accept the stage's result, or fail the stage's attempt."""
    review = parse_review(received.result.output)
    if isinstance(review, str):
        return _on_insufficient_result(decision, judge, received, review)
    _accept_result(decision, judge, received)
    assert stage.result is not None
    if (error := review_error(stage, judge, review)) is not None:
        return handle_attempt_failure(decision, stage, error, stage.event_id, stage.result)
    return _complete_task(decision, stage, ResultReceived(stage.event_id, stage.result, ""))
