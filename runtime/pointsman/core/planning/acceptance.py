"""Accept, reject, keep or replace a plan, and route a request without a planner."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.core.budget.team_quota import quota, remaining_replans, remaining_tasks
from pointsman.core.completion.caller_messages import RAISE_LIMIT_ADVICE, explain_failure, generic_failure
from pointsman.core.completion.outcome import end_workflow
from pointsman.core.decision import Decision
from pointsman.core.model.lifecycle import Phase, TaskStatus
from pointsman.core.model.state import State, Task, unused_ids
from pointsman.core.planning.role_tasks import available_cards, request_classification, request_plan
from pointsman.core.tasks.agent_selection import resolve_skills
from pointsman.core.tasks.handoff_input import handoff_input
from pointsman.core.tasks.questions import request_plan_approval
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, ErrorKind
from pointsman_schemas.ids import as_token
from pointsman_schemas.log import LimitReached, PlanAccepted, PlanRejected, TaskFailed
from pointsman_schemas.plan import Plan, PlannedTask, SelectedAgent
from pointsman_schemas.retry import RetryPolicy
from pointsman_schemas.role_io import PlannerInput
from pointsman_schemas.strategies import Adaptive, Fixed, Pipeline, PlanAndExecute, Router

__all__ = [
    "accept_plan",
    "end_over_task_quota",
    "keep_current_plan",
    "newest_planner",
    "reject_plan",
    "request_replan",
    "route_request",
    "route_to_fallback",
]


_MAX_REQUEST_INTENT_CHARS = 500
"""Longest request that is used as the intent of its task, in characters. A longer request is not used, because the log
would store the whole text twice."""


def accept_plan(decision: Decision, plan: Plan, *, revision: int | None = None, approved: bool = False) -> None:
    """Accept a valid plan: add its tasks to the workflow, and start the tasks without dependencies.

    A team with `approve_plan` requests an approval first. A plan above the quota of tasks ends the workflow. The quota
    is checked here for plans from other sources than a planner. A planner's plan was checked before.

    Args:
        decision: The decision in progress.
        plan: The plan.
        revision: The number of the plan; by default the number of the newest requested plan.
        approved: True if a person has allowed the plan.
    """
    state = decision.state
    if not plan.tasks:
        if isinstance(state.strategy, Adaptive) and state.plan is not None:
            done = plan.model_copy(update={"done": True})
            decision.add(PlanAccepted(at=decision.now, revision=state.revision, plan=done))
            _check_waiting(decision)
            return None
        if state.plan is not None:
            return keep_current_plan(decision)
        if route_to_fallback(decision):
            return None
        return end_workflow(
            decision,
            Phase.FAILED,
            explain_failure(plan.cannot, "Please ask for something else."),
            plan.cannot,
        )
    number = revision or max(state.revision, 1)
    if not isinstance(state.strategy, Pipeline | Fixed):
        plan = _bound_retries(plan, state.retry)
    if not approved:
        if len(plan.tasks) > (left := remaining_tasks(state)):
            return end_over_task_quota(decision, len(plan.tasks), left)
        plan = resolve_skills(decision, plan)
        if state.approve_plan:
            return request_plan_approval(decision, plan, number)
    decision.add(PlanAccepted(at=decision.now, revision=number, plan=plan))
    _check_waiting(decision)
    return None


def _bound_retries(plan: Plan, policy: RetryPolicy) -> Plan:
    """Return `plan` with bounded retries. No task has more attempts, or retries more kinds of errors, than `policy`."""
    if all(task.retry is None for task in plan.tasks):
        return plan
    tasks = (
        task if task.retry is None else task.model_copy(update={"retry": task.retry.within(policy)})
        for task in plan.tasks
    )
    return plan.model_copy(update={"tasks": tuple(tasks)})


def end_over_task_quota(decision: Decision, wanted: int, left: int) -> None:
    """End the workflow: the request needs more tasks than the quota leaves, and no task can be omitted."""
    detail = f"the limit of {quota(decision.state).tasks} tasks leaves {left}, and serving the request takes {wanted}"
    decision.add(LimitReached(at=decision.now, limit="tasks", detail=detail))
    end_workflow(decision, Phase.FAILED, explain_failure(detail, RAISE_LIMIT_ADVICE), detail)


def reject_plan(decision: Decision, task: Task, problems: tuple[str, ...], raw: str) -> None:
    """Return the plan to its planner or classifier for repair. Fail the workflow if no repair is left."""
    number = max(decision.state.revision, 1)
    state = decision.add(PlanRejected(at=decision.now, revision=number, problems=problems, raw=raw))
    if state.rejections <= state.limits.plan_repairs:
        match state.strategy:
            case PlanAndExecute() | Adaptive() as strategy:
                return request_plan(decision, strategy, problems=problems)
            case Router(escalate=PlanAndExecute() as strategy) if task.role is Role.PLAN:
                return request_plan(decision, strategy, problems=problems, only=_offered_agents(state, task))
            case Router() as strategy:
                return request_classification(decision, strategy, state.rejections + 1)
    reason = f"no valid plan after {state.rejections} tries: {'; '.join(problems)}"
    if state.plan is not None:
        return keep_current_plan(decision, reason)
    if state.rejections == state.limits.plan_repairs + 1 and route_to_fallback(decision):
        return None
    error = AttemptError(kind=ErrorKind.BAD_PLAN, message=reason)
    decision.add(TaskFailed(at=decision.now, task_id=task.id, error=error, attempts=task.attempt))
    return end_workflow(decision, Phase.FAILED, generic_failure(state.workflow_id, [error]), reason)


def keep_current_plan(decision: Decision, reason: str = "") -> None:
    """Continue with the tasks of the current plan that have not started, because no new plan is available.

    An adaptive workflow ends after these tasks, with `reason`, because no further tasks are planned.
    """
    state = decision.state
    if isinstance(state.strategy, Adaptive) and not state.reached_limit:
        state = decision.add(LimitReached(at=decision.now, limit="planning", detail=reason))
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
            retry=task.retry,
        )
        for task in state.plan_tasks()
        if not task.attempt and task.status is not TaskStatus.FAILED
    )
    plan = (state.plan or Plan()).model_copy(update={"tasks": left})
    decision.add(PlanAccepted(at=decision.now, revision=state.revision, plan=plan))
    _check_waiting(decision)


def _check_waiting(decision: Decision) -> None:
    """Mark all waiting tasks for a check: those of the new plan, and those that a resumed workflow keeps beside it."""
    waiting = (task.id for task in decision.state.plan_tasks() if task.status is TaskStatus.WAITING)
    decision.ready.extend(waiting)


def request_replan(decision: Decision, reason: str) -> bool:
    """Request a new plan, if the limits allow one and no planner is at work. Return True if a plan was requested."""
    state = decision.state
    if not (state.phase is Phase.RUNNING and remaining_replans(state) and remaining_tasks(state)):
        return False
    match state.strategy:
        case PlanAndExecute() as strategy:
            request_plan(decision, strategy, reason=reason)
        case Router(escalate=PlanAndExecute() as strategy) if (planner := newest_planner(state)) is not None:
            request_plan(decision, strategy, reason=reason, only=_offered_agents(state, planner))
        case _:
            return False
    return True


def newest_planner(state: State) -> Task | None:
    """Return the newest task of a planner; None if there is no such task."""
    return next((task for task in reversed(tuple(state.tasks.values())) if task.role is Role.PLAN), None)


def _offered_agents(state: State, planner: Task) -> list[str]:
    """Return the names of the agents in the input of a planner's task."""
    return [item.name for item in PlannerInput.model_validate(handoff_input(state, planner)).agents]


def route_to_fallback(decision: Decision) -> bool:
    """Route the request to the fallback of the strategy, if that agent is live. Return True if the agent is live."""
    strategy = decision.state.strategy
    fallback = strategy.fallback if isinstance(strategy, Router | PlanAndExecute) else None
    if fallback is None or not available_cards(decision, [fallback]):
        return False
    route_request(decision, [SelectedAgent(agent=fallback, confidence=0.0)])
    return True


def route_request(decision: Decision, chosen: Sequence[SelectedAgent], unserved: str = "") -> None:
    """Give the request to the selected agents. If there are several and `escalate` is set, request a plan instead."""
    state = decision.state
    chosen = list({(each.agent or None, each.agent or each.skill): each for each in reversed(chosen)}.values())[::-1]
    if len(chosen) > 1 and isinstance(state.strategy, Router) and state.strategy.escalate is not None:
        agents, skills = {each.agent for each in chosen}, {each.skill for each in chosen if not each.agent}
        able = [
            card.name for card in available_cards(decision) if card.name in agents or skills.intersection(card.skills)
        ]
        return request_plan(decision, state.strategy.escalate, only=able)
    ids = unused_ids(state, (each.agent or as_token(each.skill) for each in chosen))
    text = state.input.strip() if isinstance(state.input, str) else ""
    whole = text if 0 < len(text) <= _MAX_REQUEST_INTENT_CHARS else "Serve the request"
    tasks = tuple(
        PlannedTask(id=task_id, agent=each.agent, skill=each.skill, intent=each.intent or whole)
        for task_id, each in zip(ids, chosen, strict=True)
    )
    instruction = f'Tell the caller that no agent here can help with: "{unserved}".' if unserved else ""
    return accept_plan(decision, Plan(goal="Serve the request", tasks=tasks, final_instruction=instruction), revision=1)
