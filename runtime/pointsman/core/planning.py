"""Where a plan comes from: who is asked for one, what is made of the answer, and what happens when it will not do."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.core.approvals import ask_about_plan
from pointsman.core.draft import Draft, add_role_task, end, free_id, free_ids
from pointsman.core.outcome import ASK_FOR_LESS, could_not, not_served
from pointsman.core.plans import check_plan, raw_text, read_plan, read_selection
from pointsman.core.routing import addressed, allowed
from pointsman.core.state import State, Task, input_of
from pointsman.core.transitions import Phase, TaskStatus
from pointsman.core.tree import may_plan, replans_left, tasks_left
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, ErrorKind, Result
from pointsman_schemas.ids import as_token
from pointsman_schemas.log import LimitReached, PlanAccepted, PlanRejected, TaskFailed
from pointsman_schemas.plan import Plan, PlannedTask, SelectedAgent, Selection
from pointsman_schemas.roles import ClassifierInput, MenuItem, PlannerInput
from pointsman_schemas.strategies import Adaptive, Router, Supervisor

__all__ = [
    "accept_plan",
    "ask_classifier",
    "ask_planner",
    "classified",
    "keep_plan",
    "last_planner",
    "menu",
    "plan_again",
    "planned",
    "problems_of",
    "reject_plan",
    "route_to_fallback",
    "too_many",
]

_SAID = 500  # characters of a request that are an intent, too: longer ones would be in the log twice
_NOT_WELL = "It keeps failing, and work for it waits: choose another agent where one will do."
_FAILED = "the plan repeats tasks that have failed for good; choose other agents or another way"
_REPEATED = "the plan repeats tasks that were tried before; choose other agents or another way, or say `done`"


def ask_planner(
    draft: Draft,
    strategy: Supervisor | Adaptive,
    *,
    problems: tuple[str, ...] = (),
    reason: str = "",
    only: Sequence[str] | None = None,
) -> None:
    """Have the planner write a plan, knowing all that has happened and, again, what was wrong with its last."""
    state = draft.open()
    work = list(state.work())
    asked_again = state.replans + (1 if state.phase is Phase.RUNNING else 0)  # this time included
    asked = PlannerInput(
        request=state.input,
        agents=menu(draft, only),
        agents_used=tuple(dict.fromkeys(task.agent for task in work if task.attempt)),
        problems=problems,
        replan_reason=reason,
        max_tasks=tasks_left(state),
        instructions=strategy.instructions,
        adaptive=isinstance(strategy, Adaptive),
        plans_left=strategy.plans - 1 - asked_again if isinstance(strategy, Adaptive) else None,
    )
    name = free_id(state, f"plan-{state.revision + 1}")
    add_role_task(draft, name, Role.PLAN, strategy.planner, "Plan the request", asked)


def ask_classifier(draft: Draft, strategy: Router, number: int = 1) -> None:
    """Have the router's classifier choose among the live agents."""
    state = draft.open()
    asked = ClassifierInput(request=state.input, agents=menu(draft), threshold=strategy.threshold)
    name = free_id(state, f"classify-{number}")
    add_role_task(draft, name, Role.CLASSIFY, strategy.classifier, "Choose who can serve the request", asked)


def planned(draft: Draft, task: Task, result: Result) -> None:
    """Take the planner's answer as the plan, or send it back with everything that is wrong with it."""
    state = draft.open()
    plan = read_plan(result.output)
    problems = plan if isinstance(plan, tuple) else ()
    if isinstance(plan, Plan):
        problems = problems_of(draft, plan)
        if not problems and _same_again(plan, state):
            problems = (_REPEATED if isinstance(state.strategy, Adaptive) else _FAILED,)
        if not problems:
            return accept_plan(draft, plan)
    return reject_plan(draft, task, problems, raw_text(result.output))


def problems_of(draft: Draft, plan: Plan) -> tuple[str, ...]:
    """Everything that is wrong with `plan` here and now."""
    state = draft.open()
    items = menu(draft)
    names, skills = {item.name for item in items}, {skill for item in items for skill in item.skills}
    started = {
        each.id: each.role is Role.WORK and (not each.settled or each.status is TaskStatus.SUCCEEDED)
        for each in state.tasks.values()
        if each.attempt or each.role is not Role.WORK
    }
    limits = state.limits.model_copy(update={"tasks": tasks_left(state)})
    return check_plan(plan, names, limits, started, skills)


def accept_plan(draft: Draft, plan: Plan, *, revision: int | None = None, approved: bool = False) -> None:
    """The plan is right: once it is `approved`, where the team wants that, its tasks are the workflow's, and those that
    wait for nothing start. One that is no planner's may have more tasks than there may be, which ends the workflow."""
    state = draft.open()
    if not plan.tasks:
        if isinstance(state.strategy, Adaptive) and state.plan is not None:
            done = plan.model_copy(update={"done": True})
            draft.add(PlanAccepted(at=draft.now, revision=state.revision, plan=done))
            return None
        if state.plan is not None:
            return keep_plan(draft)
        if route_to_fallback(draft):
            return None
        return end(
            draft,
            Phase.FAILED,
            could_not(plan.cannot, "Please ask for something else."),
            plan.cannot,
        )
    number = revision or max(state.revision, 1)
    if not approved:
        if len(plan.tasks) > (left := tasks_left(state)):
            return too_many(draft, len(plan.tasks), left)
        plan = addressed(draft, plan)
        if state.approve_plan:
            return ask_about_plan(draft, plan, number)
    draft.add(PlanAccepted(at=draft.now, revision=number, plan=plan))
    draft.moved.extend(task.id for task in plan.tasks)
    return None


def too_many(draft: Draft, wanted: int, left: int) -> None:
    """End the workflow: nothing can be left out of what is to be done, and there may not be as many tasks."""
    detail = f"the limit of {may_plan(draft.open()).tasks} tasks leaves {left}, and serving the request takes {wanted}"
    draft.add(LimitReached(at=draft.now, limit="tasks", detail=detail))
    end(draft, Phase.FAILED, could_not(detail, ASK_FOR_LESS), detail)


def reject_plan(draft: Draft, task: Task, problems: tuple[str, ...], raw: str) -> None:
    """Send the plan back to whoever wrote it, unless that was done often enough."""
    number = max(draft.open().revision, 1)
    state = draft.add(PlanRejected(at=draft.now, revision=number, problems=problems, raw=raw))
    if state.rejections <= state.limits.plan_repairs:
        match state.strategy:
            case Supervisor() | Adaptive() as strategy:
                return ask_planner(draft, strategy, problems=problems)
            case Router(escalate=Supervisor() as strategy) if task.role is Role.PLAN:
                return ask_planner(draft, strategy, problems=problems, only=_shown(state, task))
            case Router() as strategy:
                return ask_classifier(draft, strategy, state.rejections + 1)
    reason = f"no valid plan after {state.rejections} tries: {'; '.join(problems)}"
    if state.plan is not None:
        return keep_plan(draft, reason)
    if state.rejections == state.limits.plan_repairs + 1 and route_to_fallback(draft):
        return None
    error = AttemptError(kind=ErrorKind.BAD_PLAN, message=reason)
    draft.add(TaskFailed(at=draft.now, task_id=task.id, error=error, attempts=task.attempt))
    return end(draft, Phase.FAILED, not_served(state.workflow_id, [error]), reason)


def keep_plan(draft: Draft, reason: str = "") -> None:
    """No better plan could be had: what has not started of the present one goes on, and is skipped if it must be. An
    adaptive workflow ends after that, for `reason`: nobody says what would come next."""
    state = draft.open()
    if isinstance(state.strategy, Adaptive) and not state.limit:
        state = draft.add(LimitReached(at=draft.now, limit="planning", detail=reason))
    left = tuple(
        PlannedTask(
            id=task.id,
            agent=task.agent,
            skill=task.skill,
            intent=task.intent,
            input=task.input,
            depends_on=tuple(name for name in task.depends_on if name not in task.optional),
            optional_dependencies=tuple(name for name in task.depends_on if name in task.optional),
            approval="required" if task.needs_approval and not task.approved else None,
        )
        for task in state.work()
        if not task.attempt and task.status is not TaskStatus.FAILED
    )
    plan = (state.plan or Plan()).model_copy(update={"tasks": left})
    draft.add(PlanAccepted(at=draft.now, revision=state.revision, plan=plan))
    draft.moved.extend(task.id for task in left)


def plan_again(draft: Draft, reason: str) -> bool:
    """Ask for another plan, if the limits allow one and none is being made."""
    state = draft.open()
    if not (state.phase is Phase.RUNNING and replans_left(state) and tasks_left(state)):
        return False
    match state.strategy:
        case Supervisor() as strategy:
            ask_planner(draft, strategy, reason=reason)
        case Router(escalate=Supervisor() as strategy) if (planner := last_planner(state)) is not None:
            ask_planner(draft, strategy, reason=reason, only=_shown(state, planner))
        case _:
            return False
    return True


def last_planner(state: State) -> Task | None:
    """The task of whoever was asked last for a plan."""
    return next((task for task in reversed(tuple(state.tasks.values())) if task.role is Role.PLAN), None)


def _shown(state: State, planner: Task) -> list[str]:
    """The agents that a planner was told of."""
    return [item.name for item in PlannerInput.model_validate(input_of(state, planner)).agents]


def classified(draft: Draft, task: Task, result: Result) -> None:
    """Route the request to whom the classifier is sure of."""
    state = draft.open()
    assert isinstance(state.strategy, Router)
    strategy = state.strategy
    items = menu(draft)
    names, skills = {item.name for item in items}, {skill for item in items for skill in item.skills}
    selection = read_selection(result.output)
    if not isinstance(selection, Selection):
        if route_to_fallback(draft):
            return None
        return reject_plan(draft, task, selection, raw_text(result.output))
    sure = [
        chosen
        for chosen in selection.agents
        if chosen.confidence >= strategy.threshold
        and (chosen.agent in names if chosen.agent else chosen.skill in skills)
    ]
    if sure:
        return _route(draft, sure, selection.unserved)
    if route_to_fallback(draft):
        return None
    reason = "no agent is sure enough to serve the request"
    question = selection.question or could_not(reason, "Say more precisely what you need.")
    return end(draft, Phase.FAILED, question, reason)


def route_to_fallback(draft: Draft) -> bool:
    """Hand the request to the strategy's fallback, if it has one that is alive."""
    strategy = draft.open().strategy
    fallback = strategy.fallback if isinstance(strategy, Router | Supervisor) else None
    if fallback is None or not menu(draft, [fallback]):
        return False
    _route(draft, [SelectedAgent(agent=fallback, confidence=0.0)])
    return True


def _route(draft: Draft, chosen: Sequence[SelectedAgent], unserved: str = "") -> None:
    state = draft.open()
    chosen = list({(each.agent or None, each.agent or each.skill): each for each in reversed(chosen)}.values())[::-1]
    if len(chosen) > 1 and isinstance(state.strategy, Router) and state.strategy.escalate is not None:
        agents, skills = {each.agent for each in chosen}, {each.skill for each in chosen if not each.agent}
        able = [item.name for item in menu(draft) if item.name in agents or skills.intersection(item.skills)]
        return ask_planner(draft, state.strategy.escalate, only=able)
    ids = free_ids(state, (each.agent or as_token(each.skill) for each in chosen))
    said = state.input.strip() if isinstance(state.input, str) else ""
    whole = said if 0 < len(said) <= _SAID else "Serve the request"
    tasks = tuple(
        PlannedTask(id=task_id, agent=each.agent, skill=each.skill, intent=each.intent or whole)
        for task_id, each in zip(ids, chosen, strict=True)
    )
    told = f'Tell the caller that nobody here can help with: "{unserved}".' if unserved else ""
    return accept_plan(draft, Plan(goal="Serve the request", tasks=tasks, final_instruction=told), revision=1)


def menu(draft: Draft, only: Sequence[str] | None = None) -> tuple[MenuItem, ...]:
    """The live agents this workflow may use, one item a name."""
    state = draft.open()
    items: dict[str, MenuItem] = {}
    for card in allowed(state, draft.around.cards, only or ()):
        if card.name not in items and (only is None or card.name in only):
            items[card.name] = MenuItem.model_construct(  # what a card says was validated with it
                name=card.name,
                description=card.description,
                skills=card.skills,
                intents=card.intents,
                examples=card.examples,
                input_schema=card.input_schema,
                note=_NOT_WELL if card.name in draft.around.circuits else "",
            )
    return tuple(items.values())


def _same_again(plan: Plan, state: State) -> bool:
    """What failed for good is not tried again as it was; an adaptive planner does not go in circles, either."""
    adaptive = isinstance(state.strategy, Adaptive)
    tried = {
        (task.skill or task.agent, task.intent)
        for task in state.work()
        if task.status is TaskStatus.FAILED or (adaptive and task.attempt)
    }
    return bool(tried and plan.tasks) and all((task.agent or task.skill, task.intent) in tried for task in plan.tasks)
