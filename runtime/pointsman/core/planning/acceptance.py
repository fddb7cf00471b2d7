"""Accept, reject, keep or replace a plan, and route a request without a planner."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.core.budget.team_quota import may_plan, replans_left, tasks_left
from pointsman.core.completion.caller_messages import ASK_FOR_LESS, could_not, not_served
from pointsman.core.completion.outcome import end
from pointsman.core.decision import Draft
from pointsman.core.model.lifecycle import Phase, TaskStatus
from pointsman.core.model.state import State, Task
from pointsman.core.planning.role_tasks import ask_classifier, ask_planner, menu
from pointsman.core.tasks.agent_selection import addressed
from pointsman.core.tasks.approval_requests import ask_about_plan
from pointsman.core.tasks.dispatch import free_ids
from pointsman.core.tasks.handoff_input import input_of
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, ErrorKind
from pointsman_schemas.ids import as_token
from pointsman_schemas.log import LimitReached, PlanAccepted, PlanRejected, TaskFailed
from pointsman_schemas.plan import Plan, PlannedTask, SelectedAgent
from pointsman_schemas.role_io import PlannerInput
from pointsman_schemas.strategies import Adaptive, Router, Supervisor

__all__ = ["accept_plan", "keep_plan", "last_planner", "plan_again", "reject_plan", "route_to_fallback", "too_many"]


_SAID = 500  # characters of a request that are an intent, too: longer ones would be in the log twice


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
