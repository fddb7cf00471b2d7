"""Fold the entries of a log into a state.

Folding makes no decision, and refuses only an entry that cannot follow the earlier entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import assert_never

from pointsman.core.model.lifecycle import PHASE_MOVES, SETTLED, TASK_MOVES, Phase, TaskStatus
from pointsman.core.model.state import (
    NO_PLAN_USAGE,
    NO_USAGE,
    OpenQuestion,
    State,
    Task,
    copy_with,
    reviewed_stage,
)
from pointsman.errors import InvariantError
from pointsman_schemas.card import Role
from pointsman_schemas.events import Answer, ErrorKind, PlanUsage, Result, UserMessage
from pointsman_schemas.log import (
    AttemptFailed,
    Commit,
    Entry,
    PlanAccepted,
    QuestionAnswered,
    QuestionAsked,
    ReviewRequested,
    TaskAdded,
    TaskExpanded,
    TaskReopened,
    TaskSucceeded,
    WorkflowResumed,
    WorkflowStarted,
)
from pointsman_schemas.retry import RetryPolicy

__all__ = [
    "apply_commit",
    "evolve",
    "fold_entries",
    "open_questions",
]


def fold_entries(entries: Iterable[Entry], state: State | None = None) -> State | None:
    """Apply `entries` to `state` and return the new state. If `state` is None, the entries start a workflow."""
    for entry in entries:
        state = evolve(state, entry)
    return state


def open_questions(log: Sequence[Entry]) -> set[str]:
    """Return the ids of the open questions of a workflow, from its whole log."""
    if not any(isinstance(entry, QuestionAsked) for entry in log):
        return set()  # most logs have no question, so most logs need not be folded
    state = fold_entries(log)
    return set(state.questions) if state else set()


def apply_commit(state: State | None, commit: Commit) -> State:
    """Return the state after one commit.

    Args:
        state: The state before the commit; None before the first commit.
        commit: The commit.

    Returns:
        The state.

    Raises:
        InvariantError: The commit is not the next commit, or its entries do not follow from the state.
    """
    expected = state.commits + 1 if state else 1
    if commit.number != expected:
        raise InvariantError(f"commit {commit.number} follows commit {expected - 1}; expected {expected}")
    after = fold_entries(commit.entries, state)
    if after is None:
        raise InvariantError(f"commit {commit.number} holds no entries")
    return copy_with(after, commits=commit.number)


def evolve(state: State | None, entry: Entry) -> State:
    """Return the state after `entry`.

    Args:
        state: The state before the entry; None before the first entry.
        entry: The entry.

    Returns:
        The state.

    Raises:
        InvariantError: The entry cannot follow: the workflow has ended, the task does not exist, or the tables in
            `lifecycle` do not have the move.
    """
    if entry.kind == "workflow_started":
        if state is not None:
            raise InvariantError(f"{state.workflow_id} started twice")
        return _on_workflow_started(entry)
    if state is None:
        raise InvariantError(f"{entry.kind} comes before workflow_started")
    if entry.kind == "workflow_resumed":
        return _on_workflow_resumed(state, entry)
    if state.ended:
        raise InvariantError(f"{entry.kind} comes after {state.workflow_id} ended as {state.phase}")
    match entry.kind:  # by kind, because matching the classes of the models takes forty times as long
        case "task_added":
            return _on_task_added(state, entry)
        case "plan_accepted":
            return _on_plan_accepted(state, entry)
        case "plan_rejected":
            return copy_with(state, rejections=state.rejections + 1)
        case "task_dispatched":
            task = _task(state, entry.task_id)
            return _update_task(
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
                rerouted=task.rerouted or entry.fallback_for is not None,
                budget=entry.budget,
                messages=len(state.messages),
            )
        case "budget_awaited":
            task = _task(state, entry.task_id)
            return _update_task(
                state,
                task.id,
                TaskStatus.AWAITING_BUDGET,
                agent=entry.agent,
                not_before=entry.not_before,
                fallback=task.fallback if entry.agent == task.agent else None,
                team=task.team and entry.agent == task.agent,
            )
        case "task_succeeded":
            return _finish_task(state, entry, TaskStatus.SUCCEEDED)
        case "attempt_failed":
            return _on_attempt_failed(state, entry)
        case "retry_scheduled":
            task = _task(state, entry.task_id)
            return _update_task(
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
                budget=entry.budget,
                messages=len(state.messages),
            )
        case "task_held":
            return _update_task(state, entry.task_id, TaskStatus.HELD, not_before=entry.until, rerouted=True)
        case "refinement_requested":
            return _update_task(state, entry.task_id, TaskStatus.REFINING, refined_by=entry.refiner_task)
        case "task_refined":
            task = _task(state, entry.task_id)
            refined = copy_with(task, intent=entry.intent or task.intent)
            return copy_with(state, tasks={**state.tasks, task.id: refined})
        case "review_requested":
            return _finish_task(state, entry, TaskStatus.IN_REVIEW)
        case "task_failed":
            return _update_task(state, entry.task_id, TaskStatus.FAILED, error=entry.error, ended_at=entry.at)
        case "task_expanded":
            return _on_task_expanded(state, entry)
        case "items_gathered":
            return _update_task(
                state,
                entry.task_id,
                TaskStatus.SUCCEEDED,
                result=_gathered_result(state, _task(state, entry.task_id), entry.at),
                error=None,
                ended_at=entry.at,
            )
        case "task_skipped":
            return _update_task(
                state,
                entry.task_id,
                TaskStatus.SKIPPED,
                reason=entry.reason,
                ended_at=entry.at,
                intentionally_skipped=entry.intended,
            )
        case "task_abandoned":
            state = _drop_questions(state, entry.at, entry.task_id)
            task = _task(state, entry.task_id)
            team = entry.team or task.team
            if task.active:
                state = copy_with(state, child_plan_usage=_child_plan_usage(state, task, None))
            return _update_task(
                state,
                entry.task_id,
                TaskStatus.ABANDONED,
                reason=entry.reason,
                abandon_cause=entry.cause,
                ended_at=entry.at,
                team=team,
            )
        case "task_reopened":
            return _on_task_reopened(state, entry)
        case "result_ignored":
            return copy_with(state, ignored_events=state.ignored_events | {entry.event_id})
        case "question_asked":
            asked = _add_question(state, entry)
            if entry.task_id is None:
                return asked
            task = _task(state, entry.task_id)
            if task.status is TaskStatus.AWAITING_ANSWER:
                return asked  # an earlier question of the attempt has moved the task already
            # An attempt that ends with a question is not a failure, so the task may have one more attempt. A question
            # about the approval of the task ends no attempt, because it is asked before the attempt.
            asking = () if entry.about == "task" else (task.attempt,)
            return _update_task(
                asked,
                task.id,
                TaskStatus.AWAITING_ANSWER,
                agent=entry.agent or task.agent,
                max_attempts=task.max_attempts + len(asking),
                asking_attempts=(*task.asking_attempts, *asking),
            )
        case "question_answered":
            return _resolve_question(state, entry)
        case "message_received":
            message = UserMessage(number=entry.number, text=entry.text, by=entry.by, at=entry.at)
            return copy_with(
                state,
                messages=(*state.messages, message),
                ignored_events=state.ignored_events | {entry.event_id},
            )
        case "control_ignored":
            return copy_with(state, ignored_events=state.ignored_events | {entry.event_id})
        case "timer_armed":
            return copy_with(state, timer=entry.name, timer_due=entry.due, timers=state.timers + 1)
        case "limit_reached":
            if state.reached_limit:
                return _drop_plan_question(state, entry.at)
            return copy_with(
                _drop_plan_question(state, entry.at), reached_limit=entry.detail, missing_agents=entry.missing_agents
            )
        case "workflow_ended":
            state = _drop_questions(state, entry.at)
            return copy_with(
                _change_phase(state, Phase(entry.outcome.status)),
                outcome=entry.outcome,
                start_pending=False,
                refused=entry.refusal is not None,
            )
        case _:
            assert_never(entry)


def _on_workflow_started(entry: WorkflowStarted) -> State:
    return State(
        workflow_id=entry.workflow_id,
        team=entry.team,
        request_id=entry.request_id,
        request_digest=entry.request_digest,
        correlation_id=entry.correlation_id,
        input=entry.input,
        metadata=entry.metadata,
        files=entry.files,
        ignored_fields=entry.ignored_fields,
        agents=entry.agents,
        strategy=entry.strategy,
        limits=entry.limits,
        retry=entry.retry,
        started_at=entry.at,
        deadline=entry.deadline,
        budget=entry.budget,
        reply_to=entry.reply_to,
        trace=entry.trace,
        caller=entry.caller,
        secret=entry.secret,
        parent=entry.parent,
        depth=entry.depth,
        thread=entry.thread,
        summarizer=entry.summarizer,
        history=entry.history,
        messages=entry.messages,
        approve_plan=entry.approve_plan,
        refiner=entry.refiner,
        judge=entry.judge,
        time_limit=entry.deadline - entry.at,
    )


def _on_workflow_resumed(state: State, entry: WorkflowResumed) -> State:
    """Return the state of a new round, in which the tasks of the entry wait again.

    The usage counts from zero, because the limits apply to each round separately.

    Raises:
        InvariantError: The workflow cannot be resumed, the round is not the next round, or a task cannot be done again.
    """
    if entry.round != state.round + 1:
        raise InvariantError(f"{state.workflow_id} is in round {state.round}; round {entry.round} cannot follow")
    phase = Phase.RUNNING if state.plan is not None else Phase.PLANNING
    tasks = dict(state.tasks)
    for task_id in entry.tasks:
        task = _task(state, task_id)
        if (TaskStatus.EXPANDED if task.items else TaskStatus.WAITING) not in TASK_MOVES[task.status]:
            raise InvariantError(f"task {task_id} of {state.workflow_id} is {task.status} and cannot be done again")
        tasks[task_id] = _renewed(task, state.retry_policy(task))
    settled = sum(1 for task in tasks.values() if task.role is Role.WORK and task.settled)
    return copy_with(
        _change_phase(state, phase),
        tasks=tasks,
        open_tasks=len(entry.tasks),
        # An adaptive planner is called when there are results that the planner has not received. If no task is done
        # again, no new result follows, so 0 makes the workflow call the planner at once.
        results_seen_by_planner=min(state.results_seen_by_planner, settled) if entry.tasks else 0,
        start_pending=phase is Phase.PLANNING,
        round=entry.round,
        round_started_at=entry.at,
        deadline=entry.deadline,
        earlier_usage=state.earlier_usage + state.usage,
        usage=NO_USAGE,
        child_plan_usage=NO_PLAN_USAGE,
        rejections=0,
        replans=0,
        reached_limit="",
        missing_agents=(),
        timer="",
        timer_due=None,
        outcome=None,
        ignored_events=state.ignored_events | {entry.event_id},
    )


def _renewed(task: Task, policy: RetryPolicy) -> Task:
    """Return a copy of `task` that is done again from its beginning. Its usage and its attempt numbers continue.

    A task with `for_each` waits for its items again. The items that succeeded keep their results, because their tasks
    are not done again.
    """
    return Task(
        id=task.id,
        role=task.role,
        agent=task.agent,
        intent=task.intent,
        input=task.input,
        max_attempts=task.attempt + policy.attempts,
        retry=task.retry,
        skill=task.skill,
        depends_on=task.depends_on,
        optional=task.optional,
        attempt=task.attempt,
        event=task.event,
        status=TaskStatus.EXPANDED if task.items else TaskStatus.WAITING,
        definition=task.definition,
        item_of=task.item_of,
        item_index=task.item_index,
        items=task.items,
        needs_approval=task.needs_approval,
        event_id=task.event_id,
        error=task.error,
        usage=task.usage,
        work_seconds=task.work_seconds,
    )


_PHASE_OF_ROLE = {
    Role.PLAN: Phase.PLANNING,
    Role.CLASSIFY: Phase.PLANNING,
    Role.SUMMARIZE: Phase.PLANNING,
    Role.SYNTHESIZE: Phase.SYNTHESIZING,
    Role.JUDGE: Phase.SYNTHESIZING,
}


def _on_task_added(state: State, entry: TaskAdded) -> State:
    if entry.task_id in state.tasks:
        raise InvariantError(f"task {entry.task_id} of {state.workflow_id} was added twice")
    task = Task(entry.task_id, entry.role, entry.agent, entry.intent, entry.input, state.retry.attempts)
    plans = 1 if entry.role is Role.PLAN else 0
    phase = _PHASE_OF_ROLE.get(entry.role, state.phase)
    return copy_with(
        state if reviewed_stage(state, task) else _change_phase(state, phase),
        start_pending=False,
        tasks={**state.tasks, task.id: task},
        revision=state.revision + plans,
        results_seen_by_planner=sum(1 for task in state.plan_tasks() if task.settled)
        if plans
        else state.results_seen_by_planner,
        messages_seen_by_planner=len(state.messages) if plans else state.messages_seen_by_planner,
        replans=state.replans + (plans if state.phase is Phase.RUNNING else 0),
    )


def _on_plan_accepted(state: State, entry: PlanAccepted) -> State:
    """Return the state with the tasks of a new plan, which replace the tasks that have not started.

    A plan of reactions to a domain event replaces no task. A task that failed before its first attempt, because a
    person rejected the task or an agent was missing, also stays, unless the new plan has a task with the same id.

    Raises:
        InvariantError: The plan has a task with the id of a task that stays.
    """
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
            max_attempts=(planned.retry or state.retry).attempts,
            retry=planned.retry,
            depends_on=tuple(dict.fromkeys((*planned.depends_on, *planned.optional_dependencies))),
            optional=frozenset(planned.optional_dependencies) - set(planned.depends_on),
            event=entry.event,
            needs_approval=planned.approval == "required",
            definition=planned if planned.has_expressions else None,
        )
        for planned in entry.plan.tasks
    }
    if clash := kept.keys() & added.keys():
        raise InvariantError(f"plan {entry.revision} of {state.workflow_id} names tasks that exist: {sorted(clash)}")
    tasks = {**kept, **added}
    for gone in state.tasks.keys() - kept.keys():
        state = _drop_questions(state, entry.at, gone)
    return copy_with(
        _change_phase(state, Phase.RUNNING),
        start_pending=False,
        plan=entry.plan,
        revision=max(state.revision, entry.revision),
        tasks=tasks,
        dependants=_dependants(tasks),
        open_tasks=sum(1 for task in tasks.values() if task.role is Role.WORK and not task.settled),
        rejections=0,
    )


def _on_task_expanded(state: State, entry: TaskExpanded) -> State:
    """Return the state with one new task for each item of the list."""
    whole = _task(state, entry.task_id)
    for_each = whole.definition.for_each if whole.definition else None
    # The items do not depend on the task that made the list, because the handoff of each item would then contain the
    # whole list.
    source = for_each.items.partition(".")[0] if for_each else ""
    items = {
        name: Task(
            id=name,
            role=Role.WORK,
            agent=whole.agent,
            skill=whole.skill,
            intent=whole.intent,
            input=whole.input,
            max_attempts=(whole.retry or state.retry).attempts,
            retry=whole.retry,
            depends_on=tuple(each for each in whole.depends_on if each != source),
            optional=whole.optional - {source},
            needs_approval=whole.needs_approval,
            definition=whole.definition,
            item_of=whole.id,
            item_index=index,
        )
        for index, name in enumerate(entry.items)
    }
    if clash := state.tasks.keys() & items.keys():
        raise InvariantError(f"{whole.id} of {state.workflow_id} has items that exist: {sorted(clash)}")
    state = _update_task(state, whole.id, TaskStatus.EXPANDED, items=entry.items, started_at=entry.at)
    return copy_with(
        state,
        tasks={**state.tasks, **items},
        dependants={**state.dependants, **dict.fromkeys(items, (whole.id,))},
        open_tasks=state.open_tasks + len(items),
    )


def _gathered_result(state: State, task: Task, at: datetime) -> Result:
    """Return the result of a task with `for_each`: the outputs of its items, in order, with null for a failed item."""
    items = [state.tasks[name] for name in task.items]
    results = [each.result if each.status is TaskStatus.SUCCEEDED else None for each in items]
    return Result(
        workflow_id=state.workflow_id,
        task_id=task.id,
        attempt=1,
        agent=task.agent or next((each.agent for each in items if each.agent), state.team),
        status="succeeded",
        output=[result.output if result else None for result in results],
        files=tuple(dict.fromkeys(file for result in results if result for file in result.files)),
        started_at=task.started_at or at,
        ended_at=at,
    )


def _dependants(tasks: dict[str, Task]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for task in tasks.values():
        if task.item_of:
            found.setdefault(task.id, []).append(task.item_of)
        for dependency in task.depends_on if not task.item_of else ():
            found.setdefault(dependency, []).append(task.id)
    return {task_id: tuple(waiting) for task_id, waiting in found.items()}


def _finish_task(state: State, entry: TaskSucceeded | ReviewRequested, status: TaskStatus) -> State:
    """Apply a result to its task. If the task is in review, the result was applied before, so no usage is added."""
    task, result = _task(state, entry.task_id), entry.result
    ended_at = entry.at if status is TaskStatus.SUCCEEDED else None
    if task.status is TaskStatus.IN_REVIEW:
        return _update_task(state, task.id, status, error=None, ended_at=ended_at)
    read = max(state.messages_read, min(result.messages_read, len(state.messages)))
    changes: dict[str, object] = {
        "usage": state.usage + result.usage,
        "child_plan_usage": _child_plan_usage(state, task, result),
        "messages_read": read,
    }
    return _update_task(
        state,
        task.id,
        status,
        changes,
        result=result,
        event_id=entry.event_id,
        error=None,
        ended_at=ended_at,
        usage=task.usage + result.usage,
        work_seconds=task.work_seconds + _work_seconds(result),
    )


def _on_attempt_failed(state: State, entry: AttemptFailed) -> State:
    task = _task(state, entry.task_id)
    reviewed = task.status is TaskStatus.IN_REVIEW
    sent_back = task.returned_by_review or (reviewed and entry.error.kind == ErrorKind.INSUFFICIENT)
    tried = copy_with(task, error=entry.error, event_id=entry.event_id, result=None, returned_by_review=sent_back)
    if entry.result is not None and not reviewed:
        tried = copy_with(
            tried, usage=task.usage + entry.result.usage, work_seconds=task.work_seconds + _work_seconds(entry.result)
        )
        state = copy_with(state, usage=state.usage + entry.result.usage)
    below = state.child_plan_usage if reviewed else _child_plan_usage(state, task, entry.result)
    return copy_with(state, child_plan_usage=below, tasks={**state.tasks, task.id: tried})


def _child_plan_usage(state: State, task: Task, result: Result | None) -> PlanUsage:
    """Return the plan usage of child teams after an attempt at `task` has ended.

    If the attempt has no result, or the result of a team has no `plan_usage`, the whole budget of the attempt counts as
    used.
    """
    if result is not None and (result.plan_usage is not None or not task.team):
        return state.child_plan_usage + result.plan_usage if result.plan_usage is not None else state.child_plan_usage
    if task.budget is None or task.budget.tasks is None:
        return state.child_plan_usage
    return state.child_plan_usage + PlanUsage(tasks=task.budget.tasks, replans=task.budget.replans or 0)


def _on_task_reopened(state: State, entry: TaskReopened) -> State:
    """Give a failed task one more attempt. Tasks that were skipped because of the failure wait again."""
    task = _task(state, entry.task_id)
    if task.status is not TaskStatus.FAILED:
        raise InvariantError(f"task {task.id} of {state.workflow_id} is {task.status}; only a failed one reopens")
    tasks = {**state.tasks, task.id: copy_with(task, max_attempts=task.attempt + 1)}
    waiting = list(state.dependants.get(task.id, ()))
    reopened = 1 if task.role is Role.WORK else 0
    while waiting:
        dependant = tasks[waiting.pop()]
        if dependant.items and dependant.status is TaskStatus.FAILED:  # a list that succeeded without it is complete
            tasks[dependant.id] = copy_with(dependant, status=TaskStatus.EXPANDED, error=None, ended_at=None)
            waiting.extend(state.dependants.get(dependant.id, ()))
            reopened += 1
        elif dependant.status is TaskStatus.SKIPPED:
            tasks[dependant.id] = copy_with(
                dependant, status=TaskStatus.WAITING, reason="", ended_at=None, intentionally_skipped=False
            )
            waiting.extend(state.dependants.get(dependant.id, ()))
            reopened += 1
    ignored = state.ignored_events | {entry.event_id}
    return copy_with(state, tasks=tasks, open_tasks=state.open_tasks + reopened, ignored_events=ignored)


def _update_task(
    state: State, task_id: str, status: TaskStatus, of_state: Mapping[str, object] = {}, **changes: object
) -> State:
    """Return the state with one changed task. `changes` are for the task, and `of_state` is for the state."""
    task = _task(state, task_id)
    if status not in TASK_MOVES[task.status]:
        raise InvariantError(f"task {task_id} of {state.workflow_id} cannot go from {task.status} to {status}")
    moved = copy_with(task, status=status, **changes)
    settles = 1 if task.role is Role.WORK and status in SETTLED and not task.settled else 0
    return copy_with(
        state,
        tasks={**state.tasks, task_id: moved},
        open_tasks=state.open_tasks - settles,
        **of_state,
    )


def _task(state: State, task_id: str) -> Task:
    try:
        return state.tasks[task_id]
    except KeyError:
        raise InvariantError(f"{state.workflow_id} has no task {task_id}") from None


def _change_phase(state: State, phase: Phase) -> State:
    if phase is state.phase:
        return state
    if phase not in PHASE_MOVES[state.phase]:
        raise InvariantError(f"{state.workflow_id} cannot go from {state.phase} to {phase}")
    return copy_with(state, phase=phase)


def _work_seconds(result: Result) -> float:
    return max(0.0, (result.ended_at - result.started_at).total_seconds())


def _add_question(state: State, entry: QuestionAsked) -> State:
    """Return `state` with one more open question."""
    pending = OpenQuestion(
        id=entry.question,
        about=entry.about,
        asked_at=entry.at,
        expires_at=entry.expires_at,
        task_id=entry.task_id,
        tool=entry.tool,
        input=entry.input,
        key=entry.key,
        text=entry.text,
        input_schema=entry.input_schema,
        has_default=entry.has_default,
        default=entry.default,
        plan=entry.plan,
        revision=entry.revision,
    )
    return copy_with(
        state,
        questions={**state.questions, pending.id: pending},
        questions_asked=state.questions_asked + 1,
        information_questions=state.information_questions + (entry.about == "information"),
        start_pending=False,
        answer_wait_since=state.answer_wait_since or entry.at,
    )


def _resolve_question(state: State, entry: QuestionAnswered) -> State:
    """Return `state` with the answer to a question.

    Raises:
        InvariantError: The state has no such question.
    """
    if (pending := state.questions.get(entry.question)) is None:
        raise InvariantError(f"{state.workflow_id} does not wait for an answer to {entry.question}")
    answered = copy_with(
        _remove_questions(state, {pending.id}, entry.at), ignored_events=state.ignored_events | {entry.event_id}
    )
    if pending.task_id is None:
        return answered
    task = answered.tasks[pending.task_id]
    return copy_with(answered, tasks={**answered.tasks, task.id: _apply_answer(task, pending, entry)})


def _drop_questions(state: State, at: datetime, task_id: str | None = None) -> State:
    """Return `state` without the questions of one task. By default, remove all questions."""
    if not state.questions:
        return state
    gone = {each.id for each in state.questions.values() if task_id is None or each.task_id == task_id}
    return _remove_questions(state, gone, at) if gone else state


def _drop_plan_question(state: State, at: datetime) -> State:
    """Return `state` without the question about a plan. The questions of tasks stay."""
    gone = {each.id for each in state.questions.values() if each.about == "plan"}
    return _remove_questions(state, gone, at) if gone else state


def _apply_answer(task: Task, pending: OpenQuestion, entry: QuestionAnswered) -> Task:
    if pending.about == "task":
        edited = {} if entry.input is None else {"input": entry.input, "definition": None}
        return copy_with(task, approved=entry.verdict == "approved", **edited)
    answer = Answer(
        tool=pending.tool,
        arguments=pending.input if isinstance(pending.input, dict) else {},
        key=pending.key,
        text=pending.text,
        verdict=entry.verdict,
        input=entry.input,
        reason=entry.reason,
        by=entry.by,
    )
    return copy_with(task, answers=(*task.answers, answer))


def _remove_questions(state: State, gone: set[str], at: datetime) -> State:
    kept = {name: each for name, each in state.questions.items() if name not in gone}
    if kept or state.answer_wait_since is None:
        return copy_with(state, questions=kept)
    given_back = max(at, state.answer_wait_since) - state.answer_wait_since
    return copy_with(state, questions=kept, answer_wait_since=None, deadline=state.deadline + given_back)
