"""What inputs mean: the entries they add to a workflow's log.

`decide` handles each input, then lets the workflow advance as far as it can: tasks whose dependencies are settled are
dispatched or skipped, a finished plan is synthesized, a workflow with nothing left to do ends. It never waits and never
asks; whatever must be found out is a task for an agent like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import assert_never

from pydantic import JsonValue

from pointsman.core.evolve import evolve
from pointsman.core.inputs import (
    Circumstances,
    ControlReceived,
    Input,
    RequestReceived,
    RequestRefused,
    ResultReceived,
    TimerFired,
)
from pointsman.core.outcome import could_not, outcome_of
from pointsman.core.plans import check_plan, raw_text, read_plan, read_selection
from pointsman.core.retry import next_try
from pointsman.core.state import State, Task, report
from pointsman.core.transitions import Phase, TaskStatus
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, ErrorKind, Result
from pointsman_schemas.ids import span_id_for
from pointsman_schemas.log import (
    AttemptFailed,
    Entry,
    LimitReached,
    PlanAccepted,
    PlanRejected,
    ResultIgnored,
    RetryScheduled,
    TaskAbandoned,
    TaskAdded,
    TaskDispatched,
    TaskFailed,
    TaskReopened,
    TaskSkipped,
    TaskSucceeded,
    TimerArmed,
    WorkflowEnded,
    WorkflowStarted,
)
from pointsman_schemas.plan import Plan, PlannedTask, SelectedAgent, Selection
from pointsman_schemas.roles import ClassifierInput, MenuItem, PlannerInput, SynthesizerInput
from pointsman_schemas.strict_json import compact
from pointsman_schemas.team import Router, Supervisor

__all__ = ["decide"]

_LATE = timedelta(seconds=1)
"""How long past a task's deadline its result is waited for: the agent ends its own work then, and says so."""

_LAST_WORD = timedelta(seconds=30)
"""What a synthesizer gets at most once the workflow's deadline has passed: an answer from what there is is owed."""

_BARE_KEPT = 262_144
"""Bytes of results that an answer repeats as they are: a quarter of the broker's default bound for one message."""


def decide(state: State | None, inputs: Iterable[Input], around: Circumstances) -> tuple[Entry, ...]:
    """The entries that `inputs`, taken together and in order, add to the log; none when they change nothing."""
    draft = _Draft(state, around)
    for each in inputs:
        if draft.state is not None and draft.state.ended:
            break
        match each:
            case RequestReceived() | RequestRefused():
                _requested(draft, each)
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
        _limits(draft)
        _advance(draft)
        _arm_timer(draft)
    return tuple(draft.entries)


@dataclass(slots=True)
class _Draft:
    """The entries decided so far and the state they lead to."""

    current: State | None
    around: Circumstances
    entries: list[Entry] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    """Tasks of the plan that may now start or be skipped, to be looked at by `_advance`."""
    fired: set[str] = field(default_factory=set)

    @property
    def state(self) -> State | None:
        return self.current

    @property
    def now(self) -> datetime:
        return self.around.now

    def open(self) -> State:
        """The state of a workflow that has begun."""
        assert self.current is not None
        return self.current

    def add(self, entry: Entry) -> State:
        self.entries.append(entry)
        self.current = evolve(self.current, entry)
        return self.current


# A request


def _requested(draft: _Draft, received: RequestReceived | RequestRefused) -> None:
    if draft.state is not None:
        return None  # the same request again
    admission = received.admission
    team = admission.team
    request = received.request if isinstance(received, RequestReceived) else None
    seconds = request.deadline if request and request.deadline else team.limits.deadline
    state = draft.add(
        WorkflowStarted(
            at=draft.now,
            workflow_id=admission.workflow_id,
            team=team.name,
            request_id=admission.request_id,
            correlation_id=admission.correlation_id,
            input=request.input if request else "",
            metadata=request.metadata if request else {},
            agents=team.agents,
            strategy=team.strategy,
            limits=team.limits,
            deadline=draft.now + timedelta(seconds=min(seconds, team.limits.deadline)),
            budget=request.budget if request else None,
            reply_to=request.reply_to if request else None,
            trace=admission.trace,
        )
    )
    if isinstance(received, RequestRefused):
        reason = f"the request could not be read: {received.error.message}"
        return _end(draft, Phase.FAILED, could_not(reason, "Correct the request and publish it again."), reason)
    match state.strategy:
        case Supervisor() as strategy:
            _ask_planner(draft, strategy)
        case Router() as strategy:
            _ask_classifier(draft, strategy)
        case _:
            assert_never(state.strategy)
    return None


def _menu(draft: _Draft, only: Sequence[str] | None = None) -> tuple[MenuItem, ...]:
    """The live agents this workflow may use, one item a name."""
    state = draft.open()
    items: dict[str, MenuItem] = {}
    for card in draft.around.cards:
        allowed = card.role is Role.WORK and (state.agents == "*" or card.name in state.agents)
        if allowed and card.name not in items and (only is None or card.name in only):
            items[card.name] = MenuItem(
                name=card.name,
                description=card.description,
                skills=card.skills,
                intents=card.intents,
                examples=card.examples,
                input_schema=card.input_schema,
            )
    return tuple(items.values())


def _ask_planner(
    draft: _Draft,
    strategy: Supervisor,
    *,
    problems: tuple[str, ...] = (),
    reason: str = "",
    only: Sequence[str] | None = None,
) -> None:
    state = draft.open()
    work = list(state.work())
    asked = PlannerInput(
        request=state.input,
        metadata=state.metadata,
        agents=_menu(draft, only),
        agents_used=tuple(dict.fromkeys(task.agent for task in work if task.attempt)),
        results=tuple(report(task) for task in work if task.settled),
        problems=problems,
        replan_reason=reason,
        max_tasks=state.limits.tasks,
        instructions=strategy.instructions,
    )
    name = _free_id(state, f"plan-{state.revision + 1}")
    _add_role_task(draft, name, Role.PLAN, strategy.planner, "Plan the request", asked)


def _ask_classifier(draft: _Draft, strategy: Router, number: int = 1) -> None:
    state = draft.open()
    asked = ClassifierInput(
        request=state.input, metadata=state.metadata, agents=_menu(draft), threshold=strategy.threshold
    )
    name = _free_id(state, f"classify-{number}")
    _add_role_task(draft, name, Role.CLASSIFY, strategy.classifier, "Choose who can serve the request", asked)


def _add_role_task(
    draft: _Draft,
    task_id: str,
    role: Role,
    agent: str,
    intent: str,
    asked: PlannerInput | ClassifierInput | SynthesizerInput,
) -> None:
    given: JsonValue = asked.model_dump(mode="json", exclude_defaults=True)
    draft.add(TaskAdded(at=draft.now, task_id=task_id, role=role, agent=agent, intent=intent, input=given))
    _dispatch(draft, task_id)


def _free_id(state: State, wanted: str) -> str:
    """`wanted`, or the first of `wanted-2`, `wanted-3`, ... that no task of a plan has taken."""
    number, name = 1, wanted
    while name in state.tasks:
        number += 1
        name = f"{wanted}-{number}"
    return name


# A result


def _result(draft: _Draft, received: ResultReceived) -> None:
    state, result = draft.open(), received.result
    if result.workflow_id != state.workflow_id:
        return _ignore(draft, received, f"it belongs to the workflow {result.workflow_id}")
    task = state.tasks.get(result.task_id)
    if task is None:
        return _ignore(draft, received, "the workflow has no such task")
    if task.event_id == received.event_id:
        return None  # a redelivery of what was counted already
    if task.agent != result.agent:
        return _ignore(draft, received, f"the task was handed to {task.agent}")
    if task.attempt != result.attempt or not task.live:
        return _ignore(draft, received, f"attempt {task.attempt} of the task is {task.status}")
    if result.status == "succeeded":
        return _succeeded(draft, task, received)
    kind = ErrorKind.REFUSED if result.status == "refused" else ErrorKind.HANDLER
    error = result.error or AttemptError(kind=kind, message="the agent gave no reason")
    return _attempt_failed(draft, task, error, received.event_id, result)


def _ignore(draft: _Draft, received: ResultReceived, reason: str) -> None:
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


def _succeeded(draft: _Draft, task: Task, received: ResultReceived) -> None:
    draft.add(
        TaskSucceeded(
            at=draft.now,
            task_id=task.id,
            attempt=task.attempt,
            event_id=received.event_id,
            result=received.result,
        )
    )
    match task.role:
        case Role.WORK:
            draft.moved.extend(draft.open().dependants.get(task.id, ()))
            if hint := received.result.replan_hint:
                _plan_again(draft, f"{task.agent} suggests it: {hint}")
        case Role.PLAN:
            _planned(draft, task, received.result)
        case Role.CLASSIFY:
            _classified(draft, task, received.result)
        case Role.SYNTHESIZE:
            _synthesized(draft, received.result)
        case _:
            assert_never(task.role)


def _attempt_failed(
    draft: _Draft, task: Task, error: AttemptError, event_id: str, result: Result | None = None
) -> None:
    state = draft.add(
        AttemptFailed(
            at=draft.now, task_id=task.id, attempt=task.attempt, event_id=event_id, error=error, result=result
        )
    )
    retry = next_try(state.workflow_id, task, error, state.limits, draft.around)
    if retry is None or draft.now + retry.delay >= _horizon(state, task):
        return _task_failed(draft, task, error)
    not_before = draft.now + retry.delay
    draft.add(
        RetryScheduled(
            at=draft.now,
            task_id=task.id,
            attempt=task.attempt + 1,
            agent=retry.agent,
            not_before=not_before,
            deadline=_task_deadline(draft, task.role, retry.agent, not_before),
            reason=retry.reason,
        )
    )
    return None


def _task_failed(draft: _Draft, task: Task, error: AttemptError) -> None:
    state = draft.add(TaskFailed(at=draft.now, task_id=task.id, error=error, attempts=task.attempt))
    match task.role:
        case Role.WORK:
            draft.moved.extend(state.dependants.get(task.id, ()))
        case Role.PLAN | Role.CLASSIFY:
            if state.plan is not None:
                return _keep_plan(draft)  # it was to be a plan after the first: go on with the one there is
            if task.role is Role.CLASSIFY and _route_to_fallback(draft):
                return None
            reason = f"{task.agent} could not {task.role}: {error.message}"
            next_step = (
                f"Look at the dead letter of {task.id}, or check that {task.agent} runs and can reach its model."
            )
            _end(draft, Phase.FAILED, could_not(reason, next_step), reason)
        case Role.SYNTHESIZE:
            reason = f"{task.agent} could not write the answer ({error.message}); these are the tasks' own results"
            _end(draft, Phase.PARTIAL, _bare_results(state), reason)
        case _:
            assert_never(task.role)
    return None


# A plan


def _planned(draft: _Draft, task: Task, result: Result) -> None:
    state = draft.open()
    plan = read_plan(result.output)
    problems = plan if isinstance(plan, tuple) else ()
    if isinstance(plan, Plan):
        plan = _with_inputs(plan, state)
        names = {item.name for item in _menu(draft)}
        started = {
            each.id: each.role is Role.WORK and (not each.settled or each.status is TaskStatus.SUCCEEDED)
            for each in state.tasks.values()
            if each.attempt
        }
        problems = check_plan(plan, names, state.limits, started)
        if not problems and _same_again(plan, state):
            problems = ("the plan repeats tasks that have failed for good; choose other agents or another way",)
        if not problems:
            return _accept_plan(draft, plan)
    return _reject_plan(draft, task, problems, raw_text(result.output))


def _accept_plan(draft: _Draft, plan: Plan, *, revision: int | None = None) -> None:
    state = draft.open()
    if not plan.tasks:
        if state.plan is not None:
            return _keep_plan(draft)
        return _end(
            draft,
            Phase.FAILED,
            could_not(plan.cannot, "Start an agent that can, or ask for something else."),
            plan.cannot,
        )
    draft.add(PlanAccepted(at=draft.now, revision=revision or max(state.revision, 1), plan=plan))
    draft.moved.extend(task.id for task in plan.tasks)
    return None


def _reject_plan(draft: _Draft, task: Task, problems: tuple[str, ...], raw: str) -> None:
    before = draft.open()
    state = draft.add(PlanRejected(at=draft.now, revision=max(before.revision, 1), problems=problems, raw=raw))
    if state.rejections <= state.limits.plan_repairs:
        match state.strategy:
            case Supervisor() as strategy:
                return _ask_planner(draft, strategy, problems=problems)
            case Router(escalate=Supervisor() as strategy) if task.role is Role.PLAN:
                shown = PlannerInput.model_validate(task.input).agents
                return _ask_planner(draft, strategy, problems=problems, only=[item.name for item in shown])
            case Router() as strategy:
                return _ask_classifier(draft, strategy, state.rejections + 1)
    if state.plan is not None:
        return _keep_plan(draft)
    reason = f"no valid plan after {state.rejections} tries: {'; '.join(problems)}"
    return _end(
        draft,
        Phase.FAILED,
        could_not(reason, f"Look at the dead letter of {task.id} and at {task.agent}'s prompt."),
        reason,
    )


def _keep_plan(draft: _Draft) -> None:
    """No better plan could be had: what has not started of the present one goes on, and is skipped if it must be."""
    state = draft.open()
    left = tuple(
        PlannedTask(
            id=task.id,
            agent=task.agent,
            intent=task.intent,
            input=task.input,
            depends_on=tuple(name for name in task.depends_on if name not in task.optional),
            optional_dependencies=tuple(name for name in task.depends_on if name in task.optional),
        )
        for task in state.work()
        if not task.attempt
    )
    plan = (state.plan or Plan()).model_copy(update={"tasks": left})
    draft.add(PlanAccepted(at=draft.now, revision=state.revision, plan=plan))
    draft.moved.extend(task.id for task in left)


def _with_inputs(plan: Plan, state: State) -> Plan:
    """A task without an input of its own gets the request's."""
    given: JsonValue = state.input if isinstance(state.input, dict) else {"request": state.input}
    return plan.model_copy(
        update={
            "tasks": tuple(
                task if task.input is not None else task.model_copy(update={"input": given}) for task in plan.tasks
            )
        }
    )


def _same_again(plan: Plan, state: State) -> bool:
    failed = {(task.agent, task.intent) for task in state.work() if task.status is TaskStatus.FAILED}
    return bool(failed and plan.tasks) and all((task.agent, task.intent) in failed for task in plan.tasks)


def _plan_again(draft: _Draft, reason: str) -> bool:
    """Ask for another plan, if the limits allow one and none is being made."""
    state = draft.open()
    match state.strategy:
        case Supervisor() as strategy if state.phase is Phase.RUNNING and state.replans < state.limits.replans:
            _ask_planner(draft, strategy, reason=reason)
            return True
    return False


# A classification


def _classified(draft: _Draft, task: Task, result: Result) -> None:
    state = draft.open()
    assert isinstance(state.strategy, Router)
    strategy = state.strategy
    names = {item.name for item in _menu(draft)}
    selection = read_selection(result.output)
    if not isinstance(selection, Selection):
        if _route_to_fallback(draft):
            return None
        return _reject_plan(draft, task, selection, raw_text(result.output))
    sure = [chosen for chosen in selection.agents if chosen.confidence >= strategy.threshold and chosen.agent in names]
    if sure:
        return _route(draft, sure)
    if _route_to_fallback(draft):
        return None
    reason = "no agent is sure enough to serve the request"
    question = selection.question or could_not(reason, "Say more precisely what you need.")
    return _end(draft, Phase.FAILED, question, reason)


def _route_to_fallback(draft: _Draft) -> bool:
    """Hand the request to the router's fallback, if it has one that is alive."""
    state = draft.open()
    fallback = state.strategy.fallback if isinstance(state.strategy, Router) else None
    if fallback is None or not _menu(draft, [fallback]):
        return False
    _route(draft, [SelectedAgent(agent=fallback, confidence=0.0)])
    return True


def _route(draft: _Draft, chosen: Sequence[SelectedAgent]) -> None:
    state = draft.open()
    assert isinstance(state.strategy, Router)
    chosen = list({each.agent: each for each in reversed(chosen)}.values())[::-1]
    if len(chosen) > 1 and state.strategy.escalate is not None:
        return _ask_planner(draft, state.strategy.escalate, only=[each.agent for each in chosen])
    tasks = tuple(
        PlannedTask(id=_free_id(state, each.agent), agent=each.agent, intent=each.intent or "Serve the request")
        for each in chosen
    )
    return _accept_plan(draft, _with_inputs(Plan(goal="Serve the request", tasks=tasks), state), revision=1)


# Moving on


def _advance(draft: _Draft) -> None:
    """Dispatch or skip what can be; when the plan is done, finish."""
    while draft.moved and draft.open().phase is Phase.RUNNING:
        _start_or_skip(draft, draft.moved.pop(0))
    state = draft.open()
    if state.phase is Phase.RUNNING and state.open_work == 0:
        failed = next((task for task in state.work() if task.status is TaskStatus.FAILED), None)
        if failed and not state.limit and _plan_again(draft, f"{failed.agent} could not do {failed.id}"):
            return
        _finish(draft)


def _start_or_skip(draft: _Draft, task_id: str) -> None:
    state = draft.open()
    task = state.tasks.get(task_id)
    if task is None or task.status is not TaskStatus.WAITING:
        return  # it has started, is settled, or has given way to a new plan
    for name in task.depends_on:
        dependency = state.tasks[name]
        if not dependency.settled:
            return
        if dependency.status is not TaskStatus.SUCCEEDED and name not in task.optional:
            cause = dependency.cause or (dependency.error.message if dependency.error else dependency.status.value)
            reason = f"it needs {name}, which {_did(dependency)}: {cause}"
            draft.add(TaskSkipped(at=draft.now, task_id=task_id, cause=name, reason=reason))
            draft.moved.extend(state.dependants.get(task_id, ()))
            return
    _dispatch(draft, task_id)


def _did(task: Task) -> str:
    return {TaskStatus.FAILED: "failed", TaskStatus.SKIPPED: "was skipped"}.get(task.status, "was abandoned")


def _dispatch(draft: _Draft, task_id: str) -> None:
    state = draft.open()
    task = state.tasks[task_id]
    card = draft.around.card(task.agent)
    draft.add(
        TaskDispatched(
            at=draft.now,
            task_id=task_id,
            attempt=task.attempt + 1,
            agent=task.agent,
            deadline=_task_deadline(draft, task.role, task.agent, draft.now),
            span_id=span_id_for(state.workflow_id, task_id),
            fallback=card.fallback if card else None,
        )
    )


def _task_deadline(draft: _Draft, role: Role, agent: str, start: datetime) -> datetime:
    """When the attempt must be over: by its own timeout, and no later than the workflow."""
    state = draft.open()
    card = draft.around.card(agent)
    seconds = min(state.limits.task_timeout, card.timeout) if card else state.limits.task_timeout
    own = start + timedelta(seconds=seconds)
    if role is Role.SYNTHESIZE:
        return min(own, max(state.deadline, start + _LAST_WORD))
    return min(own, state.deadline)


def _horizon(state: State, task: Task) -> datetime:
    """From when on a new attempt at `task` is pointless."""
    return state.deadline + _LAST_WORD if task.role is Role.SYNTHESIZE else state.deadline


def _finish(draft: _Draft) -> None:
    """The work is done, as far as it can be: have the answer written, or end."""
    state = draft.open()
    done = [task for task in state.work() if task.status is TaskStatus.SUCCEEDED]
    if not done:
        reason = state.limit or "; ".join(_failures(state)) or "no task was finished"
        return _end(
            draft, Phase.FAILED, could_not(reason, "Look at the dead letters, mend the cause and replay them."), reason
        )
    synthesizer = state.strategy.synthesizer
    alone = isinstance(state.strategy, Router) and len(done) == 1 and len(list(state.work())) == 1
    if synthesizer is None or alone:
        return _end(draft, _verdict(state), _bare_results(state))
    plan = state.plan or Plan()
    asked = SynthesizerInput(
        request=state.input,
        goal=plan.goal,
        final_instruction=plan.final_instruction,
        gaps=outcome_of(state, Phase.PARTIAL, draft.now).gaps,
        limit=state.limit,
    )
    name = _free_id(state, "synthesis")
    return _add_role_task(draft, name, Role.SYNTHESIZE, synthesizer, "Write the answer", asked)


def _synthesized(draft: _Draft, result: Result) -> None:
    output = result.output
    answer = output["answer"] if isinstance(output, dict) and "answer" in output else output
    _end(draft, _verdict(draft.open()), answer)


def _verdict(state: State) -> Phase:
    whole = all(task.status is TaskStatus.SUCCEEDED for task in state.work())
    return Phase.COMPLETED if whole and not state.limit else Phase.PARTIAL


def _bare_results(state: State) -> JsonValue:
    """The tasks' own outputs: the one there is, or each under its task's id."""
    done = {task.id: task.result.output for task in state.work() if task.result and task.status is TaskStatus.SUCCEEDED}
    bare: JsonValue = next(iter(done.values())) if len(done) == 1 else dict(done)
    if len(compact(bare)) <= _BARE_KEPT:
        return bare
    return f"The results of {', '.join(done)} are too large for one event; read them with `pointsman show`."


def _failures(state: State) -> list[str]:
    return [
        f"{task.id}: {task.error.message}" for task in state.work() if task.error and task.status is TaskStatus.FAILED
    ]


def _end(draft: _Draft, phase: Phase, answer: JsonValue, reason: str = "") -> None:
    for task in draft.open().tasks.values():
        if not task.settled:
            draft.add(TaskAbandoned(at=draft.now, task_id=task.id, reason=reason or f"the workflow is {phase}"))
    outcome = outcome_of(draft.open(), phase, draft.now, answer=answer, reason=reason)
    draft.add(WorkflowEnded(at=draft.now, outcome=outcome))


# Operators


def _control(draft: _Draft, received: ControlReceived) -> None:
    control, state = received.control, draft.open()
    match control.action:
        case "cancel":
            by = f" by {control.by}" if control.by else ""
            why = f": {control.reason}" if control.reason else ""
            _end(draft, Phase.CANCELLED, None, f"cancelled{by}{why}")
        case "replay":
            task = state.tasks.get(control.task_id or "")
            fresh = received.event_id not in state.ignored and state.phase is not Phase.SYNTHESIZING
            if fresh and task and task.role is Role.WORK and task.status is TaskStatus.FAILED:
                draft.add(TaskReopened(at=draft.now, event_id=received.event_id, task_id=task.id, by=control.by))
                _dispatch(draft, task.id)
        case _:
            assert_never(control.action)


# Limits and time


def _limits(draft: _Draft) -> None:
    """End what has used too much, and what has taken too long."""
    state = draft.open()
    if not state.limit and (limit := _used_up(state)):
        return _stop_work(draft, *limit)
    if draft.now >= state.deadline and state.phase in (Phase.PLANNING, Phase.RUNNING):
        seconds = (state.deadline - state.started_at).total_seconds()
        return _stop_work(draft, "deadline", f"the deadline of {seconds:g} s was reached")
    if state.timer_due is None or draft.now < state.timer_due:
        return None  # no deadline comes before the timer that was armed for the first of them
    for task in tuple(state.tasks.values()):
        if task.live and task.deadline and draft.now >= task.deadline + _LATE and not draft.open().ended:
            _attempt_failed(draft, task, _overdue(draft, task), f"overdue-{task.id}-{task.attempt}")
    return None


def _overdue(draft: _Draft, task: Task) -> AttemptError:
    waited = (draft.now - (task.not_before or task.since or draft.now)).total_seconds()
    if draft.around.card(task.agent) is None:
        message = f"no worker took it: no agent named {task.agent} is alive; it waited {waited:.0f} s"
        return AttemptError(kind=ErrorKind.NO_WORKER, message=message)
    message = f"{task.agent} gave no result for {waited:.0f} s, until the attempt's deadline had passed"
    return AttemptError(kind=ErrorKind.TIMEOUT, message=message, retryable=True)


def _used_up(state: State) -> tuple[str, str] | None:
    budget = state.budget
    allowed = {
        "calls": (state.usage.calls, state.limits.calls, budget.calls if budget else None),
        "tokens": (state.usage.tokens, state.limits.tokens, budget.tokens if budget else None),
        "cost": (state.usage.cost, state.limits.cost, budget.cost if budget else None),
    }
    for name, (used, *bounds) in allowed.items():
        bound = min((bound for bound in bounds if bound is not None), default=None)
        if bound is not None and used > bound:
            return name, f"the limit of {bound:.10g} {name} was passed: {used:.10g} used"
    return None


def _stop_work(draft: _Draft, limit: str, detail: str) -> None:
    """No new work and no more waiting; answer from what there is."""
    state = draft.add(LimitReached(at=draft.now, limit=limit, detail=detail))
    if state.phase is Phase.SYNTHESIZING:
        return
    for task in tuple(state.tasks.values()):
        if not task.settled:
            draft.add(TaskAbandoned(at=draft.now, task_id=task.id, reason=detail))
    _finish(draft)


def _arm_timer(draft: _Draft) -> None:
    """One schedule a workflow: re-armed only when something is due before it fires, or when it has fired."""
    state = draft.open()
    if state.ended:
        return
    fired = state.timer in draft.fired
    started = (entry.deadline + _LATE for entry in draft.entries if isinstance(entry, TaskDispatched | RetryScheduled))
    if not fired and state.timer_due is not None and all(state.timer_due <= deadline for deadline in started):
        return
    deadlines = [task.deadline + _LATE for task in state.tasks.values() if task.live and task.deadline]
    if state.phase in (Phase.PLANNING, Phase.RUNNING):
        deadlines.append(state.deadline)
    due = min(deadlines)
    if fired or state.timer_due is None or due < state.timer_due:
        draft.add(TimerArmed(at=draft.now, name=f"wake-{state.timers + 1}", due=max(due, draft.now)))
