"""What inputs mean: the entries they add to a workflow's log.

`decide` handles each input, then lets the workflow advance as far as it can: tasks whose dependencies are settled are
dispatched or skipped, a finished plan is synthesized, a workflow with nothing left to do ends. It never waits and never
asks; whatever must be found out is a task for an agent like any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import assert_never

from pointsman.core.approvals.responses import apply_answer
from pointsman.core.attempts.failures import handle_attempt_failure, retry_refined_task
from pointsman.core.attempts.held import dispatch_held
from pointsman.core.attempts.refinement import refined_intent, refined_task
from pointsman.core.attempts.review import check_failure, parse_review, request_review, review_error, stage_judge
from pointsman.core.completion.caller_messages import explain_failure
from pointsman.core.completion.outcome import end_workflow
from pointsman.core.completion.synthesis import apply_synthesis, request_synthesis
from pointsman.core.decision import Decision
from pointsman.core.limits import arm_timer, enforce_limits, release_budget
from pointsman.core.model.inputs import (
    CLOCK_SKEW,
    ControlReceived,
    DecisionContext,
    Input,
    RequestReceived,
    RequestRefused,
    ResultReceived,
    TimerFired,
)
from pointsman.core.model.lifecycle import SETTLED, Phase, TaskStatus
from pointsman.core.model.state import State, Task, reviewed_stage
from pointsman.core.planning.acceptance import request_replan
from pointsman.core.planning.planner import apply_plan
from pointsman.core.planning.router import apply_selection
from pointsman.core.strategies.adaptive import plan_next_step
from pointsman.core.strategies.choreography import add_reactions
from pointsman.core.strategies.registry import finish_workflow, start_workflow
from pointsman.core.tasks.approval_requests import request_tool_approvals
from pointsman.core.tasks.dispatch import start_task
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, ErrorKind
from pointsman_schemas.log import (
    AttemptFailed,
    Entry,
    ResultIgnored,
    TaskRefined,
    TaskReopened,
    TaskSkipped,
    TaskSucceeded,
    WorkflowStarted,
)
from pointsman_schemas.strategies import Choreography

__all__ = ["decide", "make_decision"]


def decide(state: State | None, inputs: Iterable[Input], context: DecisionContext) -> tuple[Entry, ...]:
    """The entries that `inputs`, taken together and in order, add to the log; none when they change nothing."""
    return tuple(make_decision(state, inputs, context).entries)


def make_decision(state: State | None, inputs: Iterable[Input], context: DecisionContext) -> Decision:
    """What `decide` decides, together with the state it leads to: the one that folding the entries gives."""
    decision = Decision(state, context)
    # What is said of a workflow may be read before the request that it begins with.
    inputs = sorted(inputs, key=lambda each: not isinstance(each, RequestReceived | RequestRefused))
    for each in inputs:
        if decision.current is not None and decision.current.ended:
            break
        match each:
            case RequestReceived() | RequestRefused():
                _on_request(decision, each, unwanted=_has_cancellation(inputs))
            case _ if decision.current is None:
                continue
            case ResultReceived():
                _on_result(decision, each)
            case ControlReceived():
                _on_control(decision, each)
            case TimerFired():
                decision.fired_timers.add(each.name)
            case _:
                assert_never(each)
    if decision.current is not None and not decision.current.ended:
        _align_clock_with_timer(decision)
        enforce_limits(decision)
        if not decision.state.has_begun and not decision.state.ended:
            start_workflow(decision)
        dispatch_held(decision)
        _advance_plan(decision)
        release_budget(decision)
        arm_timer(decision)
    return decision


def _has_cancellation(inputs: Iterable[Input]) -> bool:
    return any(isinstance(each, ControlReceived) and each.control.action == "cancel" for each in inputs)


def _align_clock_with_timer(decision: Decision) -> None:
    """The armed timer has fired, so it is time, by the broker's clock, though the clock here lags a little: armed again
    for the same moment it would fire at once, over and over. One that comes earlier is somebody's mistake, or the
    broker's clock has been set: it is armed again and nothing else."""
    state = decision.state
    if (
        state.timer in decision.fired_timers
        and state.timer_due
        and decision.now < state.timer_due <= decision.now + CLOCK_SKEW
    ):
        decision.context = replace(decision.context, now=state.timer_due)


def _on_request(decision: Decision, received: RequestReceived | RequestRefused, *, unwanted: bool) -> None:
    if decision.current is not None:
        return None  # the same request again
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
            input=request.input if request else "",
            metadata=request.metadata if request else {},
            agents=team.agents,
            strategy=team.strategy,
            limits=team.limits,
            approve_plan=team.approve_plan,
            refiner=team.refiner,
            judge=team.judge,
            deadline=decision.now + timedelta(seconds=min(seconds, team.limits.deadline)),
            budget=request.budget if request else None,
            reply_to=request.reply_to if request else None,
            trace=admission.trace,
            parent=admission.parent,
            depth=admission.depth,
        )
    )
    if isinstance(received, RequestRefused):
        what = "the task was refused" if admission.parent else "the request could not be read"
        reason = f"{what}: {received.error.message}"
        return end_workflow(
            decision,
            Phase.FAILED,
            explain_failure(reason, "Correct the request and publish it again under a new id."),
            reason,
        )
    return None if unwanted else start_workflow(decision)


def _on_result(decision: Decision, received: ResultReceived) -> None:
    state, result = decision.state, received.result
    if result.workflow_id != state.workflow_id:
        return _ignore_result(decision, received, f"it belongs to the workflow {result.workflow_id}")
    task = state.tasks.get(result.task_id)
    if task is not None and task.status is TaskStatus.WAITING:  # its plan came with it: its handoff is still in a queue
        _start_ready_tasks(decision)
        task = decision.state.tasks[result.task_id]
    if task is None:
        return _ignore_result(decision, received, "the workflow has no such task")
    if task.event_id == received.event_id:
        return None  # a redelivery of what was counted already
    if task.agent != result.agent:
        return _ignore_result(decision, received, f"the task was handed to {task.agent}")
    if task.attempt != result.attempt or not task.active:
        return _ignore_result(decision, received, f"attempt {task.attempt} of the task is {task.status}")
    if result.status == "succeeded":
        if (stage := reviewed_stage(state, task)) is not None:
            return _on_review(decision, stage, task, received)
        if lacks := check_failure(state, task, result.output):
            return _on_insufficient_result(decision, task, received, lacks)
        if (judge := stage_judge(state, task)) is not None:
            return request_review(decision, task, judge, received)
        return _complete_task(decision, task, received)
    if result.approvals and result.status == "failed" and task.role is Role.WORK:
        return _on_approval_requests(decision, task, received)
    kind = ErrorKind.REFUSED if result.status == "refused" else ErrorKind.HANDLER
    error = result.error or AttemptError(kind=kind, message="the agent gave no reason")
    return handle_attempt_failure(decision, task, error, received.event_id, result)


def _on_approval_requests(decision: Decision, task: Task, received: ResultReceived) -> None:
    tools = ", ".join(dict.fromkeys(call.tool for call in received.result.approvals))
    error = AttemptError(kind=ErrorKind.NEEDS_APPROVAL, message=f"a person must allow the use of {tools}")
    decision.add(
        AttemptFailed(
            at=decision.now,
            task_id=task.id,
            attempt=task.attempt,
            event_id=received.event_id,
            error=error,
            result=received.result,
        )
    )
    request_tool_approvals(decision, task, received.result.approvals)


def _ignore_result(decision: Decision, received: ResultReceived, reason: str) -> None:
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
            reason=reason,
        )
    )


def _on_insufficient_result(decision: Decision, task: Task, received: ResultReceived, lacks: str) -> None:
    error = AttemptError(kind=ErrorKind.INSUFFICIENT, message=lacks, retryable=True)
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
                request_replan(decision, f"{task.agent} suggests it: {hint}")
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
        case Role.SYNTHESIZE:
            apply_synthesis(decision, received.result)
        case _:
            assert_never(task.role)
    return None


def _on_review(decision: Decision, stage: Task, judge: Task, received: ResultReceived) -> None:
    """A judge has looked at what the stage made: it counts now, or is what an attempt came to that has failed."""
    review = parse_review(received.result.output)
    if isinstance(review, str):
        return _on_insufficient_result(decision, judge, received, review)
    _accept_result(decision, judge, received)
    assert stage.result is not None
    if (error := review_error(stage, judge, review)) is not None:
        return handle_attempt_failure(decision, stage, error, stage.event_id, stage.result)
    return _complete_task(decision, stage, ResultReceived(stage.event_id, stage.result))


def _on_control(decision: Decision, received: ControlReceived) -> None:
    control, state = received.control, decision.state
    match control.action:
        case "cancel":
            by = f" by {control.by}" if control.by else ""
            why = f": {control.reason}" if control.reason else ""
            end_workflow(decision, Phase.CANCELLED, None, f"cancelled{by}{why}")
        case "replay":
            task = state.tasks.get(control.task_id or "")
            fresh = received.event_id not in state.ignored_events and state.phase is not Phase.SYNTHESIZING
            if fresh and task and task.role is Role.WORK and task.status is TaskStatus.FAILED:
                decision.add(TaskReopened(at=decision.now, event_id=received.event_id, task_id=task.id, by=control.by))
                start_task(decision, task.id)
        case "approve" | "reject":
            apply_answer(decision, received)
        case _:
            assert_never(control.action)


def _advance_plan(decision: Decision) -> None:
    """Dispatch or skip what can be; when the plan is done, finish."""
    if decision.state.phase is Phase.RUNNING and plan_next_step(decision):
        return
    _start_ready_tasks(decision)
    state = decision.state
    if state.phase is Phase.RUNNING and state.open_tasks == 0:
        failed = next((task for task in state.plan_tasks() if task.status is TaskStatus.FAILED), None)
        if failed and not state.reached_limit and request_replan(decision, f"{failed.agent} could not do {failed.id}"):
            return
        if not plan_next_step(decision):
            finish_workflow(decision)


def _start_ready_tasks(decision: Decision) -> None:
    decision.ready = list(dict.fromkeys(decision.ready))  # what waits for many that came together is looked at once
    while decision.ready and decision.state.phase is Phase.RUNNING:
        _start_or_skip(decision, decision.ready.pop(0))


def _start_or_skip(decision: Decision, task_id: str) -> None:
    state = decision.state
    task = state.tasks.get(task_id)
    if task is None or task.status is not TaskStatus.WAITING:
        return  # it has started, is settled, or has given way to a new plan
    for name in task.depends_on:
        dependency = state.tasks[name]
        if dependency.status not in SETTLED:  # `settled`, without a call for each of very many
            return
        if dependency.status is not TaskStatus.SUCCEEDED and name not in task.optional:
            cause = dependency.reason or (dependency.error.message if dependency.error else dependency.status.value)
            reason = f"it needs {name}, which {_task_result_text(dependency)}: {cause}"
            decision.add(TaskSkipped(at=decision.now, task_id=task_id, unmet_dependency=name, reason=reason))
            decision.ready.extend(state.dependants.get(task_id, ()))
            return
    start_task(decision, task_id)


def _task_result_text(task: Task) -> str:
    return {TaskStatus.FAILED: "failed", TaskStatus.SKIPPED: "was skipped"}.get(task.status, "was abandoned")
