"""Decide on the inputs of a workflow: compute the entries that the inputs add to the workflow's log.

`decide` applies each input, then advances the workflow as far as possible: it dispatches or skips tasks whose
dependencies are settled, requests the synthesis of a finished plan, and ends a workflow that has no work left. `decide`
never waits for a model: a decision that needs a model becomes a task for an agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import assert_never

from pointsman.core.completion.caller_messages import explain_failure
from pointsman.core.completion.outcome import end_workflow
from pointsman.core.decision import Decision, DecisionContext
from pointsman.core.limits import arm_timer, dispatch_held, enforce_limits, release_budget
from pointsman.core.model.inputs import (
    CLOCK_SKEW,
    ControlReceived,
    Input,
    RequestReceived,
    RequestRefused,
    ResultReceived,
    TimerFired,
)
from pointsman.core.model.lifecycle import Phase, TaskStatus
from pointsman.core.model.state import State
from pointsman.core.planning.acceptance import request_replan
from pointsman.core.questions.answers import apply_answer
from pointsman.core.results import on_result
from pointsman.core.resume import resume_workflow
from pointsman.core.strategies.adaptive import plan_next_step
from pointsman.core.strategies.registry import finish_workflow, start_workflow
from pointsman.core.tasks.dispatch import start_ready_tasks, start_task
from pointsman.core.user_messages import record_message
from pointsman_schemas.card import Role
from pointsman_schemas.events import ErrorKind
from pointsman_schemas.files import find_file_fault
from pointsman_schemas.log import (
    Entry,
    TaskReopened,
    WorkflowCancellation,
    WorkflowStarted,
)

__all__ = ["decide", "make_decision"]

_AGAIN: Mapping[tuple[str, bool], str] = {
    (ErrorKind.THREAD, True): "again later",
    (ErrorKind.THREAD, False): "in another thread",
    (ErrorKind.DAILY_LIMIT, False): "again after midnight (UTC)",
}
"""The time or place at which to send a refused but valid request again, by the kind and `retryable` of the error."""


def decide(state: State | None, inputs: Iterable[Input], context: DecisionContext) -> tuple[Entry, ...]:
    """Return the log entries that `inputs` lead to; no entries if the inputs change nothing.

    Args:
        state: The workflow's state; None before its first commit.
        inputs: Inputs of one workflow, in the order of their arrival.
        context: The time, the live agents and the limits of this decision.

    Returns:
        The entries of one commit, in order.
    """
    return tuple(make_decision(state, inputs, context).entries)


def make_decision(state: State | None, inputs: Iterable[Input], context: DecisionContext) -> Decision:
    """Decide as `decide` does, and return the decision: its entries, and the state after these entries."""
    decision = Decision(state, context)
    inputs = sorted(inputs, key=_precedence)
    for each in inputs:
        if not decision.ended or _is_resume(each):
            _apply_input(decision, each, inputs)
    if decision.current is not None:
        for step in _PASSES:
            if decision.ended:
                break
            step(decision)
    return decision


def _precedence(each: Input) -> int:
    """Return the sort key of an input in its batch.

    The request comes first, because other inputs can arrive before it. A resume comes second. If it came after an input
    that ends the round, one commit would end this round and begin the next round, and the outcome of the ended round
    would not be published.
    """
    if isinstance(each, RequestReceived | RequestRefused):
        return 0
    return 1 if _is_resume(each) else 2


def _apply_input(decision: Decision, received: Input, together: Iterable[Input]) -> None:
    match received:
        case RequestReceived() | RequestRefused():
            _on_request(decision, received, cancelled=_has_cancellation(together))
        case _ if decision.current is None:
            pass  # only a request starts a workflow, so an input without a workflow has no effect
        case ResultReceived():
            on_result(decision, received)
        case ControlReceived():
            _on_control(decision, received)
        case TimerFired():
            decision.fired_timers.add(received.name)
        case _:
            assert_never(received)


def _is_resume(each: Input) -> bool:
    return isinstance(each, ControlReceived) and each.control.action == "resume"


def _has_cancellation(inputs: Iterable[Input]) -> bool:
    return any(isinstance(each, ControlReceived) and each.control.action == "cancel" for each in inputs)


def _on_request(decision: Decision, received: RequestReceived | RequestRefused, *, cancelled: bool) -> None:
    if decision.current is not None:
        return None  # a redelivered request
    admission = received.admission
    team = admission.team
    request = received.request if isinstance(received, RequestReceived) else None
    seconds = request.deadline if request and request.deadline else team.limits.deadline
    decision.add(
        WorkflowStarted(
            at=decision.now,
            workflow_id=admission.workflow_id,
            team=team.name,
            request_id=admission.request_id,
            request_digest=admission.digest,
            correlation_id=admission.correlation_id,
            caller=admission.caller,
            secret=admission.secret,
            input=request.input if request else "",
            metadata=request.metadata if request else {},
            files=request.files if request else (),
            ignored_fields=received.ignored_fields if isinstance(received, RequestReceived) else (),
            agents=team.agents,
            strategy=team.strategy,
            limits=team.limits,
            retry=team.retry,
            approve_plan=team.approve_plan,
            refiner=team.refiner,
            judge=team.judge,
            deadline=decision.now + timedelta(seconds=min(seconds, team.limits.deadline)),
            budget=request.budget if request else None,
            reply_to=received.request.reply_to if isinstance(received, RequestReceived) else received.reply_to,
            trace=admission.trace,
            parent=admission.parent,
            depth=admission.depth,
            thread=admission.thread,
            summarizer=team.threads.summarizer if admission.thread else None,
            history=admission.history,
            messages=admission.messages,
        )
    )
    if isinstance(received, RequestRefused):
        what = "the task was refused" if admission.parent else "the request could not be read"
        reason, advice = f"{what}: {received.error.message}", "Correct the request and publish it again under a new id."
        if again := _AGAIN.get((received.error.kind, received.error.retryable)):
            reason, advice = received.error.message, f"Send the request {again}, under a new id."
        return end_workflow(
            decision,
            Phase.FAILED,
            explain_failure(reason, advice),
            reason,
            refusal=received.error,
        )
    if cancelled:
        return None
    limits = team.limits
    if request and (fault := find_file_fault(request.files, limits.files, limits.file_bytes, limits.file_types)):
        advice = "Correct the files and publish the request again under a new id."
        return end_workflow(decision, Phase.FAILED, explain_failure(fault, advice), fault)
    return start_workflow(decision)


def _on_control(decision: Decision, received: ControlReceived) -> None:
    control, state = received.control, decision.state
    match control.action:
        case "cancel":
            why = f": {control.reason}" if control.reason else ""
            cancellation = WorkflowCancellation(by=received.actor, reason=control.reason)
            reason = f"cancelled by {received.actor}{why}"
            end_workflow(decision, Phase.CANCELLED, None, reason, cancellation=cancellation)
        case "replay":
            task = state.tasks.get(control.task_id or "")
            fresh = received.event_id not in state.ignored_events and state.phase is not Phase.SYNTHESIZING
            replayable = task is not None and task.role is Role.WORK and not task.has_items
            if fresh and task and replayable and task.status is TaskStatus.FAILED:
                decision.add(
                    TaskReopened(at=decision.now, event_id=received.event_id, task_id=task.id, by=received.actor)
                )
                start_task(decision, task.id)
        case "approve" | "reject" | "answer":
            apply_answer(decision, received)
        case "resume":
            resume_workflow(decision, received)
        case "tell":
            record_message(decision, received)
        case _:
            assert_never(control.action)


def _align_clock(decision: Decision) -> None:
    """Advance `now` to the due time of the fired timer, if the supervisor's clock lags by at most `CLOCK_SKEW`.

    Without this step, the timer would be armed again for the same time and fire again at once, in a loop. A timer that
    fires early by more than `CLOCK_SKEW` is forged, or the broker's clock was set. Such a timer is ignored and armed
    again.
    """
    state = decision.state
    if (
        state.timer in decision.fired_timers
        and state.timer_due
        and decision.now < state.timer_due <= decision.now + CLOCK_SKEW
    ):
        decision.context = replace(decision.context, now=state.timer_due)


def _begin(decision: Decision) -> None:
    """Start a workflow that has waited for an agent, if the agent is live now."""
    if not decision.state.has_begun:
        start_workflow(decision)


def _advance_plan(decision: Decision) -> None:
    """Dispatch or skip the tasks that are ready; finish the workflow when its plan is done."""
    if decision.state.phase is Phase.RUNNING and plan_next_step(decision):
        return
    start_ready_tasks(decision)
    state = decision.state
    if state.phase is Phase.RUNNING and state.open_tasks == 0:
        failed = next((task for task in state.plan_tasks() if task.status is TaskStatus.FAILED), None)
        if failed and not state.reached_limit and request_replan(decision, f"{failed.agent} could not do {failed.id}"):
            return
        if not plan_next_step(decision):
            finish_workflow(decision)


_PASSES = (_align_clock, enforce_limits, _begin, dispatch_held, _advance_plan, release_budget, arm_timer)
"""The passes after the inputs, in order. Each pass runs unless the workflow has ended."""
