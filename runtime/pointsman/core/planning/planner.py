"""Apply the answer of a planner: accept its plan, or return the plan with the list of its problems."""

from __future__ import annotations

from pointsman.core.budget.team_quota import remaining_tasks
from pointsman.core.decision import Decision
from pointsman.core.model.lifecycle import TaskStatus
from pointsman.core.model.state import State, Task
from pointsman.core.planning.acceptance import accept_plan, reject_plan
from pointsman.core.planning.role_tasks import available_cards, may_ask
from pointsman.core.planning.validation import check_plan, raw_text, read_plan, readable_tasks
from pointsman_schemas.card import Role
from pointsman_schemas.events import QuestionRequest, Result
from pointsman_schemas.plan import Plan
from pointsman_schemas.strategies import Adaptive, Fixed
from pointsman_schemas.strict_json import JsonValue

__all__ = ["apply_plan", "plan_problems", "planner_questions"]

_REPEATS_FAILED_MESSAGE = "the plan repeats tasks that have failed permanently; choose other agents or another way"
_REPEATS_TRIED_MESSAGE = (
    "the plan repeats tasks that were tried before; choose other agents or another way, or say `done`"
)
_NO_QUESTIONS_MESSAGE = "the plan asks questions, but this planner may ask no further question; plan without answers"


def apply_plan(decision: Decision, task: Task, result: Result) -> None:
    """Accept the planner's answer as the plan, or return the answer with the list of its problems."""
    state = decision.state
    plan = read_plan(result.output)
    if isinstance(plan, tuple):
        readable = readable_tasks(result.output)
        problems = (*plan, *plan_problems(decision, readable)) if readable.tasks else plan
    else:
        problems = plan_problems(decision, plan)
        if not problems and _is_repetition(plan, state):
            problems = (_REPEATS_TRIED_MESSAGE if isinstance(state.strategy, Adaptive) else _REPEATS_FAILED_MESSAGE,)
        if not problems:
            return accept_plan(decision, plan)
    return reject_plan(decision, task, problems, raw_text(result.output))


def planner_questions(state: State, task: Task, output: JsonValue) -> tuple[QuestionRequest, ...]:
    """Return the questions that the planner asks before it plans; no questions if the planner may not ask."""
    if not isinstance(output, dict) or not output.get("questions") or not may_ask(state):
        return ()
    plan = read_plan(output)
    if not isinstance(plan, Plan):
        return ()
    return tuple(
        QuestionRequest(
            about="information",
            key=f"plan-{task.attempt}-{number}",
            text=each.question,
            input_schema={"type": "string", "enum": list(each.choices)} if each.choices else {"type": "string"},
        )
        for number, each in enumerate(plan.questions, 1)
    )


def plan_problems(decision: Decision, plan: Plan) -> tuple[str, ...]:
    """Return the problems of `plan`, which is checked against the live agents and the current state."""
    state = decision.state
    if plan.questions:
        return (_NO_QUESTIONS_MESSAGE,)
    cards = available_cards(decision)
    names, skills = {card.name for card in cards}, {skill for card in cards for skill in card.skills}
    started = {
        each.id: each.role is Role.WORK and (not each.settled or each.status is TaskStatus.SUCCEEDED)
        for each in state.tasks.values()
        if each.attempt or each.role is not Role.WORK
    }
    limits = state.limits.model_copy(update={"tasks": remaining_tasks(state)})
    expressions = isinstance(state.strategy, Fixed)
    return check_plan(plan, names, limits, started, skills, allow_expressions=expressions)


def _is_repetition(plan: Plan, state: State) -> bool:
    """Return True if each task of the plan has failed before; with an adaptive planner, if each was tried before."""
    adaptive = isinstance(state.strategy, Adaptive)
    tried = {
        (task.skill or task.agent, task.intent)
        for task in state.plan_tasks()
        if task.status is TaskStatus.FAILED or (adaptive and task.attempt)
    }
    return bool(tried and plan.tasks) and all((task.agent or task.skill, task.intent) in tried for task in plan.tasks)
