"""Folding: the state after an entry. It decides nothing and refuses only what can never be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import assert_never

from pointsman.core.model.lifecycle import PHASE_MOVES, SETTLED, TASK_MOVES, Phase, TaskStatus
from pointsman.core.model.state import Pending, State, Task, changed, reviewed_by
from pointsman.errors import InvariantError
from pointsman_schemas.card import Role
from pointsman_schemas.events import ErrorKind, Planned, Result, Usage, Verdict
from pointsman_schemas.log import (
    ApprovalDecided,
    ApprovalRequested,
    AttemptFailed,
    Commit,
    Entry,
    PlanAccepted,
    ReviewAsked,
    TaskAdded,
    TaskReopened,
    TaskSucceeded,
    WorkflowStarted,
)

__all__ = [
    "apply",
    "approval_decided",
    "approval_requested",
    "evolve",
    "fold",
    "unanswered",
    "without_approvals",
    "without_plan",
]


def fold(entries: Iterable[Entry], state: State | None = None) -> State | None:
    """The state after `entries`, starting from `state` or from nothing."""
    for entry in entries:
        state = evolve(state, entry)
    return state


def apply(state: State | None, commit: Commit) -> State:
    """The state after one commit.

    Raises:
        InvariantError: the commit is not the next one, or its entries do not follow from the state.
    """
    expected = state.commits + 1 if state else 1
    if commit.number != expected:
        raise InvariantError(f"commit {commit.number} follows commit {expected - 1}; expected {expected}")
    after = fold(commit.entries, state)
    if after is None:
        raise InvariantError(f"commit {commit.number} holds no entries")
    return changed(after, commits=commit.number)


def evolve(state: State | None, entry: Entry) -> State:
    """The state after `entry`.

    Raises:
        InvariantError: the entry cannot follow: it comes after the terminal one, names a task there is not, or makes a
            move the tables in `transitions` do not have.
    """
    if entry.kind == "workflow_started":
        if state is not None:
            raise InvariantError(f"{state.workflow_id} started twice")
        return _started(entry)
    if state is None:
        raise InvariantError(f"{entry.kind} comes before workflow_started")
    if state.ended:
        raise InvariantError(f"{entry.kind} comes after {state.workflow_id} ended as {state.phase}")
    match entry.kind:  # and not `entry`: to try the classes of models one after the other costs forty times as much
        case "task_added":
            return _task_added(state, entry)
        case "plan_accepted":
            return _plan_accepted(state, entry)
        case "plan_rejected":
            return changed(state, rejections=state.rejections + 1)
        case "task_dispatched":
            task = _task(state, entry.task_id)
            return _with_task(
                state,
                task.id,
                TaskStatus.RUNNING,
                agent=entry.agent,
                attempt=entry.attempt,
                since=entry.at,
                started_at=task.started_at or entry.at,
                deadline=entry.deadline,
                span_id=entry.span_id,
                commit=state.commits + 1,
                not_before=None,
                fallback=entry.fallback,
                team=entry.team,
                detoured=task.detoured or entry.instead_of is not None,
                allowance=entry.allowance,
            )
        case "allowance_awaited":
            task = _task(state, entry.task_id)
            return _with_task(
                state,
                task.id,
                TaskStatus.AWAITING_BUDGET,
                agent=entry.agent,
                not_before=entry.not_before,
                fallback=task.fallback if entry.agent == task.agent else None,
                team=task.team and entry.agent == task.agent,
            )
        case "task_succeeded":
            return _finished(state, entry, TaskStatus.SUCCEEDED)
        case "attempt_failed":
            return _attempt_failed(state, entry)
        case "retry_scheduled":
            task = _task(state, entry.task_id)
            return _with_task(
                state,
                task.id,
                TaskStatus.BACKING_OFF,
                agent=entry.agent,
                attempt=entry.attempt,
                since=entry.at,
                not_before=entry.not_before,
                deadline=entry.deadline,
                commit=state.commits + 1,
                fallback=task.fallback if entry.agent == task.agent else None,
                team=entry.team,
                allowance=entry.allowance,
            )
        case "task_held":
            return _with_task(state, entry.task_id, TaskStatus.HELD, not_before=entry.until, detoured=True)
        case "refinement_asked":
            return _with_task(state, entry.task_id, TaskStatus.REFINING, refined_by=entry.by)
        case "task_refined":
            task = _task(state, entry.task_id)
            refined = changed(task, intent=entry.intent or task.intent)
            return changed(state, tasks={**state.tasks, task.id: refined})
        case "review_asked":
            return _finished(state, entry, TaskStatus.IN_REVIEW)
        case "task_failed":
            return _with_task(state, entry.task_id, TaskStatus.FAILED, error=entry.error, ended_at=entry.at)
        case "task_skipped":
            return _with_task(state, entry.task_id, TaskStatus.SKIPPED, cause=entry.reason, ended_at=entry.at)
        case "task_abandoned":
            state = without_approvals(state, entry.at, entry.task_id)
            task = _task(state, entry.task_id)
            team = entry.team or task.team
            if task.live:
                state = changed(state, below=_planned_below(state, task, None))
            return _with_task(
                state, entry.task_id, TaskStatus.ABANDONED, cause=entry.reason, ended_at=entry.at, team=team
            )
        case "task_reopened":
            return _task_reopened(state, entry)
        case "result_ignored":
            return changed(state, ignored=state.ignored | {entry.event_id})
        case "approval_requested":
            asked = approval_requested(state, entry)
            if entry.task_id is None:
                return asked
            task = _task(state, entry.task_id)
            if task.status is TaskStatus.AWAITING_APPROVAL:
                return asked  # the second call of the same attempt
            # To ask about a tool is no failure: the attempt that asked does not count against the task's.
            asking = (task.attempt,) if entry.about == "tool" else ()
            return _with_task(
                asked,
                task.id,
                TaskStatus.AWAITING_APPROVAL,
                agent=entry.agent or task.agent,
                cap=task.cap + len(asking),
                asked_in=(*task.asked_in, *asking),
            )
        case "approval_decided":
            return approval_decided(state, entry)
        case "control_ignored":
            return changed(state, ignored=state.ignored | {entry.event_id})
        case "timer_armed":
            return changed(state, timer=entry.name, timer_due=entry.due, timers=state.timers + 1)
        case "limit_reached":
            return changed(without_plan(state, entry.at), limit=state.limit or entry.detail)
        case "workflow_ended":
            state = without_approvals(state, entry.at)
            return changed(_moved(state, Phase(entry.outcome.status)), outcome=entry.outcome)
        case _:
            assert_never(entry)


def _started(entry: WorkflowStarted) -> State:
    return State(
        workflow_id=entry.workflow_id,
        team=entry.team,
        request_id=entry.request_id,
        request_digest=entry.request_digest,
        correlation_id=entry.correlation_id,
        input=entry.input,
        metadata=entry.metadata,
        agents=entry.agents,
        strategy=entry.strategy,
        limits=entry.limits,
        started_at=entry.at,
        deadline=entry.deadline,
        budget=entry.budget,
        reply_to=entry.reply_to,
        trace=entry.trace,
        parent=entry.parent,
        depth=entry.depth,
        approve_plan=entry.approve_plan,
        refiner=entry.refiner,
        judge=entry.judge,
    )


_PHASE_OF_ROLE = {
    Role.PLAN: Phase.PLANNING,
    Role.CLASSIFY: Phase.PLANNING,
    Role.SYNTHESIZE: Phase.SYNTHESIZING,
    Role.JUDGE: Phase.SYNTHESIZING,
}


def _task_added(state: State, entry: TaskAdded) -> State:
    if entry.task_id in state.tasks:
        raise InvariantError(f"task {entry.task_id} of {state.workflow_id} was added twice")
    task = Task(entry.task_id, entry.role, entry.agent, entry.intent, entry.input, state.limits.attempts)
    plans = 1 if entry.role is Role.PLAN else 0
    phase = _PHASE_OF_ROLE.get(entry.role, state.phase)
    return changed(
        state if reviewed_by(state, task) else _moved(state, phase),
        tasks={**state.tasks, task.id: task},
        revision=state.revision + plans,
        told=sum(1 for task in state.work() if task.settled) if plans else state.told,
        replans=state.replans + (plans if state.phase is Phase.RUNNING else 0),
    )


def _plan_accepted(state: State, entry: PlanAccepted) -> State:
    """Tasks of an earlier plan that never started give way to the new plan's; reactions to an event do not to those to
    the next. What a person did not allow, or nobody could be sent, has failed all the same, unless the new plan has
    another task of that name."""
    named = {planned.id for planned in entry.plan.tasks}
    kept = {
        task.id: task
        for task in state.tasks.values()
        if entry.event
        or task.attempt
        or task.role is not Role.WORK
        or (task.status is TaskStatus.FAILED and task.id not in named)
    }
    added = {
        planned.id: Task(
            id=planned.id,
            role=Role.WORK,
            agent=planned.agent,
            skill=planned.skill,
            intent=planned.intent,
            input=planned.input,
            cap=state.limits.attempts,
            depends_on=tuple(dict.fromkeys((*planned.depends_on, *planned.optional_dependencies))),
            optional=frozenset(planned.optional_dependencies) - set(planned.depends_on),
            event=entry.event,
            needs_approval=planned.approval == "required",
        )
        for planned in entry.plan.tasks
    }
    if clash := kept.keys() & added.keys():
        raise InvariantError(f"plan {entry.revision} of {state.workflow_id} names tasks that exist: {sorted(clash)}")
    tasks = {**kept, **added}
    for gone in state.tasks.keys() - kept.keys():
        state = without_approvals(state, entry.at, gone)
    return changed(
        _moved(state, Phase.RUNNING),
        plan=entry.plan,
        revision=max(state.revision, entry.revision),
        tasks=tasks,
        dependants=_dependants(tasks),
        open_work=sum(1 for task in tasks.values() if task.role is Role.WORK and not task.settled),
        rejections=0,
    )


def _dependants(tasks: dict[str, Task]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for task in tasks.values():
        for dependency in task.depends_on:
            found.setdefault(dependency, []).append(task.id)
    return {task_id: tuple(waiting) for task_id, waiting in found.items()}


def _finished(state: State, entry: TaskSucceeded | ReviewAsked, status: TaskStatus) -> State:
    """Its agent has done the task. What that took was counted before if a judge has looked at it since."""
    task, result = _task(state, entry.task_id), entry.result
    ended_at = entry.at if status is TaskStatus.SUCCEEDED else None
    if task.status is TaskStatus.IN_REVIEW:
        return _with_task(state, task.id, status, error=None, ended_at=ended_at)
    return _with_task(
        changed(state, below=_planned_below(state, task, entry.result)),
        task.id,
        status,
        state.usage + result.usage,
        result=result,
        event_id=entry.event_id,
        error=None,
        ended_at=ended_at,
        usage=task.usage + result.usage,
        busy=task.busy + _seconds(result),
    )


def _attempt_failed(state: State, entry: AttemptFailed) -> State:
    task = _task(state, entry.task_id)
    reviewed = task.status is TaskStatus.IN_REVIEW
    sent_back = task.sent_back or (reviewed and entry.error.kind == ErrorKind.INSUFFICIENT)
    tried = changed(task, error=entry.error, event_id=entry.event_id, result=None, sent_back=sent_back)
    if entry.result is not None and not reviewed:
        tried = changed(tried, usage=task.usage + entry.result.usage, busy=task.busy + _seconds(entry.result))
        state = changed(state, usage=state.usage + entry.result.usage)
    below = state.below if reviewed else _planned_below(state, task, entry.result)
    return changed(state, below=below, tasks={**state.tasks, task.id: tried})


def _planned_below(state: State, task: Task, result: Result | None) -> Planned:
    """What the teams have planned once the attempt at `task` is over. What was given to one that has not said how much
    of it was used, as no team of an earlier release does, may all have been."""
    if result is not None and (result.planned is not None or not task.team):
        return state.below + result.planned if result.planned is not None else state.below
    if task.allowance is None or task.allowance.tasks is None:
        return state.below
    return state.below + Planned(tasks=task.allowance.tasks, replans=task.allowance.replans or 0)


def _task_reopened(state: State, entry: TaskReopened) -> State:
    """The failed task may have one more attempt, and what was skipped for its sake waits for it again."""
    task = _task(state, entry.task_id)
    if task.status is not TaskStatus.FAILED:
        raise InvariantError(f"task {task.id} of {state.workflow_id} is {task.status}; only a failed one reopens")
    tasks = {**state.tasks, task.id: changed(task, cap=task.attempt + 1)}
    waiting = list(state.dependants.get(task.id, ()))
    reopened = 1 if task.role is Role.WORK else 0
    while waiting:
        dependant = tasks[waiting.pop()]
        if dependant.status is TaskStatus.SKIPPED:
            tasks[dependant.id] = changed(dependant, status=TaskStatus.WAITING, cause="", ended_at=None)
            waiting.extend(state.dependants.get(dependant.id, ()))
            reopened += 1
    ignored = state.ignored | {entry.event_id}
    return changed(state, tasks=tasks, open_work=state.open_work + reopened, ignored=ignored)


def _with_task(
    state: State, task_id: str, status: TaskStatus, all_used: Usage | None = None, **changes: object
) -> State:
    """One task changed; `all_used` is what the workflow has used by then, when that changes with it."""
    task = _task(state, task_id)
    if status not in TASK_MOVES[task.status]:
        raise InvariantError(f"task {task_id} of {state.workflow_id} cannot go from {task.status} to {status}")
    moved = changed(task, status=status, **changes)
    settles = 1 if task.role is Role.WORK and status in SETTLED and not task.settled else 0
    return changed(
        state,
        tasks={**state.tasks, task_id: moved},
        open_work=state.open_work - settles,
        usage=state.usage if all_used is None else all_used,
    )


def _task(state: State, task_id: str) -> Task:
    if (task := state.tasks.get(task_id)) is None:
        raise InvariantError(f"{state.workflow_id} has no task {task_id}")
    return task


def _moved(state: State, phase: Phase) -> State:
    if phase is state.phase:
        return state
    if phase not in PHASE_MOVES[state.phase]:
        raise InvariantError(f"{state.workflow_id} cannot go from {state.phase} to {phase}")
    return changed(state, phase=phase)


def _seconds(result: Result) -> float:
    return max(0.0, (result.ended_at - result.started_at).total_seconds())


def approval_requested(state: State, entry: ApprovalRequested) -> State:
    """`state` with one more thing that a person is asked."""
    pending = Pending(
        id=entry.approval,
        about=entry.about,
        asked_at=entry.at,
        expires_at=entry.expires_at,
        task_id=entry.task_id,
        tool=entry.tool,
        input=entry.input,
        plan=entry.plan,
        revision=entry.revision,
    )
    return changed(
        state,
        approvals={**state.approvals, pending.id: pending},
        asked=state.asked + 1,
        asking_since=state.asking_since or entry.at,
    )


def approval_decided(state: State, entry: ApprovalDecided) -> State:
    """`state` with the answer. Raises `InvariantError` when nobody was asked."""
    if (pending := state.approvals.get(entry.approval)) is None:
        raise InvariantError(f"{state.workflow_id} does not wait for the approval {entry.approval}")
    answered = changed(_without(state, {pending.id}, entry.at), ignored=state.ignored | {entry.event_id})
    if pending.task_id is None:
        return answered
    task = answered.tasks[pending.task_id]
    return changed(answered, tasks={**answered.tasks, task.id: _answered(task, pending, entry)})


def without_approvals(state: State, at: datetime, task_id: str | None = None) -> State:
    """`state` with nothing left to ask: of one task, or at all."""
    if not state.approvals:
        return state
    gone = {each.id for each in state.approvals.values() if task_id is None or each.task_id == task_id}
    return _without(state, gone, at) if gone else state


def without_plan(state: State, at: datetime) -> State:
    """`state` with no plan to ask about. What is asked about tasks stays, for as long as they do."""
    gone = {each.id for each in state.approvals.values() if each.about == "plan"}
    return _without(state, gone, at) if gone else state


def _answered(task: Task, pending: Pending, entry: ApprovalDecided) -> Task:
    if pending.about == "task":
        edited = {} if entry.input is None else {"input": entry.input}
        return changed(task, approved=entry.verdict == "approved", **edited)
    arguments = pending.input if isinstance(pending.input, dict) else {}
    verdict = Verdict(
        tool=pending.tool,
        arguments=arguments,
        verdict=entry.verdict,
        input=entry.input if isinstance(entry.input, dict) else None,
        reason=entry.reason,
        by=entry.by,
    )
    return changed(task, verdicts=(*task.verdicts, verdict))


def _without(state: State, gone: set[str], at: datetime) -> State:
    kept = {name: each for name, each in state.approvals.items() if name not in gone}
    if kept or state.asking_since is None:
        return changed(state, approvals=kept)
    given_back = max(at, state.asking_since) - state.asking_since
    return changed(state, approvals=kept, asking_since=None, deadline=state.deadline + given_back)


def unanswered(log: Sequence[Entry]) -> set[str]:
    """The approvals that a workflow waits for, by its whole log."""
    if not any(isinstance(entry, ApprovalRequested) for entry in log):  # most ask for none, and folding takes time
        return set()
    state = fold(log)
    return set(state.approvals) if state else set()
