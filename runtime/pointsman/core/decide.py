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

from pointsman.core.approvals.responses import answered
from pointsman.core.attempts.failures import attempt_failed, try_refined
from pointsman.core.attempts.held import release
from pointsman.core.attempts.refinement import refined_task, words_of
from pointsman.core.attempts.review import ask_for_review, insufficient, judge_of, objection, read_review
from pointsman.core.completion.caller_messages import could_not
from pointsman.core.completion.outcome import end
from pointsman.core.completion.synthesis import synthesized, write_answer
from pointsman.core.decision import Draft
from pointsman.core.limits import arm_timer, check_limits, ration
from pointsman.core.model.inputs import (
    EARLY,
    Circumstances,
    ControlReceived,
    Input,
    RequestReceived,
    RequestRefused,
    ResultReceived,
    TimerFired,
)
from pointsman.core.model.lifecycle import SETTLED, Phase, TaskStatus
from pointsman.core.model.state import State, Task, reviewed_by
from pointsman.core.planning.acceptance import plan_again
from pointsman.core.planning.planner import planned
from pointsman.core.planning.router import classified
from pointsman.core.strategies.adaptive import next_step
from pointsman.core.strategies.choreography import react
from pointsman.core.strategies.registry import begin, finish
from pointsman.core.tasks.approval_requests import ask_about_calls
from pointsman.core.tasks.dispatch import start
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

__all__ = ["consider", "decide"]


def decide(state: State | None, inputs: Iterable[Input], around: Circumstances) -> tuple[Entry, ...]:
    """The entries that `inputs`, taken together and in order, add to the log; none when they change nothing."""
    return tuple(consider(state, inputs, around).entries)


def consider(state: State | None, inputs: Iterable[Input], around: Circumstances) -> Draft:
    """What `decide` decides, together with the state it leads to: the one that folding the entries gives."""
    draft = Draft(state, around)
    # What is said of a workflow may be read before the request that it begins with.
    inputs = sorted(inputs, key=lambda each: not isinstance(each, RequestReceived | RequestRefused))
    for each in inputs:
        if draft.state is not None and draft.state.ended:
            break
        match each:
            case RequestReceived() | RequestRefused():
                _requested(draft, each, unwanted=_is_cancelled(inputs))
            case _ if draft.state is None:
                continue
            case ResultReceived():
                _result(draft, each)
            case ControlReceived():
                _control(draft, each)
            case TimerFired():
                draft.fired.add(each.name)
            case _:
                assert_never(each)
    if draft.state is not None and not draft.state.ended:
        _told_the_time(draft)
        check_limits(draft)
        if not draft.open().begun and not draft.open().ended:
            begin(draft)
        release(draft)
        _advance(draft)
        ration(draft)
        arm_timer(draft)
    return draft


def _is_cancelled(inputs: Iterable[Input]) -> bool:
    return any(isinstance(each, ControlReceived) and each.control.action == "cancel" for each in inputs)


def _told_the_time(draft: Draft) -> None:
    """The armed timer has fired, so it is time, by the broker's clock, though the clock here lags a little: armed again
    for the same moment it would fire at once, over and over. One that comes earlier is somebody's mistake, or the
    broker's clock has been set: it is armed again and nothing else."""
    state = draft.open()
    if state.timer in draft.fired and state.timer_due and draft.now < state.timer_due <= draft.now + EARLY:
        draft.around = replace(draft.around, now=state.timer_due)


def _requested(draft: Draft, received: RequestReceived | RequestRefused, *, unwanted: bool) -> None:
    if draft.state is not None:
        return None  # the same request again
    admission = received.admission
    team = admission.team
    request = received.request if isinstance(received, RequestReceived) else None
    seconds = request.deadline if request and request.deadline else team.limits.deadline
    draft.add(
        WorkflowStarted(
            at=draft.now,
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
            deadline=draft.now + timedelta(seconds=min(seconds, team.limits.deadline)),
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
        return end(
            draft, Phase.FAILED, could_not(reason, "Correct the request and publish it again under a new id."), reason
        )
    return None if unwanted else begin(draft)


def _result(draft: Draft, received: ResultReceived) -> None:
    state, result = draft.open(), received.result
    if result.workflow_id != state.workflow_id:
        return _ignore(draft, received, f"it belongs to the workflow {result.workflow_id}")
    task = state.tasks.get(result.task_id)
    if task is not None and task.status is TaskStatus.WAITING:  # its plan came with it: its handoff is still in a queue
        _start_what_can(draft)
        task = draft.open().tasks[result.task_id]
    if task is None:
        return _ignore(draft, received, "the workflow has no such task")
    if task.event_id == received.event_id:
        return None  # a redelivery of what was counted already
    if task.agent != result.agent:
        return _ignore(draft, received, f"the task was handed to {task.agent}")
    if task.attempt != result.attempt or not task.live:
        return _ignore(draft, received, f"attempt {task.attempt} of the task is {task.status}")
    if result.status == "succeeded":
        if (stage := reviewed_by(state, task)) is not None:
            return _reviewed(draft, stage, task, received)
        if lacks := insufficient(state, task, result.output):
            return _lacking(draft, task, received, lacks)
        if (judge := judge_of(state, task)) is not None:
            return ask_for_review(draft, task, judge, received)
        return _succeeded(draft, task, received)
    if result.approvals and result.status == "failed" and task.role is Role.WORK:
        return _asks_for_approval(draft, task, received)
    kind = ErrorKind.REFUSED if result.status == "refused" else ErrorKind.HANDLER
    error = result.error or AttemptError(kind=kind, message="the agent gave no reason")
    return attempt_failed(draft, task, error, received.event_id, result)


def _asks_for_approval(draft: Draft, task: Task, received: ResultReceived) -> None:
    tools = ", ".join(dict.fromkeys(call.tool for call in received.result.approvals))
    error = AttemptError(kind=ErrorKind.NEEDS_APPROVAL, message=f"a person must allow the use of {tools}")
    draft.add(
        AttemptFailed(
            at=draft.now,
            task_id=task.id,
            attempt=task.attempt,
            event_id=received.event_id,
            error=error,
            result=received.result,
        )
    )
    ask_about_calls(draft, task, received.result.approvals)


def _ignore(draft: Draft, received: ResultReceived, reason: str) -> None:
    if received.event_id in draft.open().ignored:
        return
    result = received.result
    draft.add(
        ResultIgnored(
            at=draft.now,
            event_id=received.event_id,
            task_id=result.task_id,
            attempt=result.attempt,
            agent=result.agent,
            reason=reason,
        )
    )


def _lacking(draft: Draft, task: Task, received: ResultReceived, lacks: str) -> None:
    error = AttemptError(kind=ErrorKind.INSUFFICIENT, message=lacks, retryable=True)
    attempt_failed(draft, task, error, received.event_id, received.result)


def _accept(draft: Draft, task: Task, received: ResultReceived) -> None:
    draft.add(
        TaskSucceeded(
            at=draft.now,
            task_id=task.id,
            attempt=task.attempt,
            event_id=received.event_id,
            result=received.result,
        )
    )


def _succeeded(draft: Draft, task: Task, received: ResultReceived) -> None:
    _accept(draft, task, received)
    match task.role:
        case Role.WORK:
            draft.moved.extend(draft.open().dependants.get(task.id, ()))
            if isinstance(strategy := draft.open().strategy, Choreography):
                return react(draft, strategy, task, received.result.events)
            if hint := received.result.replan_hint:
                plan_again(draft, f"{task.agent} suggests it: {hint}")
        case Role.PLAN:
            planned(draft, task, received.result)
        case Role.CLASSIFY:
            classified(draft, task, received.result)
        case Role.REFINE:
            if (waiting := refined_task(draft.open(), task)) is not None:
                draft.add(TaskRefined(at=draft.now, task_id=waiting.id, intent=words_of(received.result)))
                try_refined(draft, draft.open().tasks[waiting.id])
        case Role.JUDGE:
            write_answer(draft)
        case Role.SYNTHESIZE:
            synthesized(draft, received.result)
        case _:
            assert_never(task.role)
    return None


def _reviewed(draft: Draft, stage: Task, judge: Task, received: ResultReceived) -> None:
    """A judge has looked at what the stage made: it counts now, or is what an attempt came to that has failed."""
    review = read_review(received.result.output)
    if isinstance(review, str):
        return _lacking(draft, judge, received, review)
    _accept(draft, judge, received)
    assert stage.result is not None
    if (error := objection(stage, judge, review)) is not None:
        return attempt_failed(draft, stage, error, stage.event_id, stage.result)
    return _succeeded(draft, stage, ResultReceived(stage.event_id, stage.result))


def _control(draft: Draft, received: ControlReceived) -> None:
    control, state = received.control, draft.open()
    match control.action:
        case "cancel":
            by = f" by {control.by}" if control.by else ""
            why = f": {control.reason}" if control.reason else ""
            end(draft, Phase.CANCELLED, None, f"cancelled{by}{why}")
        case "replay":
            task = state.tasks.get(control.task_id or "")
            fresh = received.event_id not in state.ignored and state.phase is not Phase.SYNTHESIZING
            if fresh and task and task.role is Role.WORK and task.status is TaskStatus.FAILED:
                draft.add(TaskReopened(at=draft.now, event_id=received.event_id, task_id=task.id, by=control.by))
                start(draft, task.id)
        case "approve" | "reject":
            answered(draft, received)
        case _:
            assert_never(control.action)


def _advance(draft: Draft) -> None:
    """Dispatch or skip what can be; when the plan is done, finish."""
    if draft.open().phase is Phase.RUNNING and next_step(draft):
        return
    _start_what_can(draft)
    state = draft.open()
    if state.phase is Phase.RUNNING and state.open_work == 0:
        failed = next((task for task in state.work() if task.status is TaskStatus.FAILED), None)
        if failed and not state.limit and plan_again(draft, f"{failed.agent} could not do {failed.id}"):
            return
        if not next_step(draft):
            finish(draft)


def _start_what_can(draft: Draft) -> None:
    draft.moved = list(dict.fromkeys(draft.moved))  # what waits for many that came together is looked at once
    while draft.moved and draft.open().phase is Phase.RUNNING:
        _start_or_skip(draft, draft.moved.pop(0))


def _start_or_skip(draft: Draft, task_id: str) -> None:
    state = draft.open()
    task = state.tasks.get(task_id)
    if task is None or task.status is not TaskStatus.WAITING:
        return  # it has started, is settled, or has given way to a new plan
    for name in task.depends_on:
        dependency = state.tasks[name]
        if dependency.status not in SETTLED:  # `settled`, without a call for each of very many
            return
        if dependency.status is not TaskStatus.SUCCEEDED and name not in task.optional:
            cause = dependency.cause or (dependency.error.message if dependency.error else dependency.status.value)
            reason = f"it needs {name}, which {_did(dependency)}: {cause}"
            draft.add(TaskSkipped(at=draft.now, task_id=task_id, cause=name, reason=reason))
            draft.moved.extend(state.dependants.get(task_id, ()))
            return
    start(draft, task_id)


def _did(task: Task) -> str:
    return {TaskStatus.FAILED: "failed", TaskStatus.SKIPPED: "was skipped"}.get(task.status, "was abandoned")
