"""What a planner's or classifier's answer must be like, checked before anything is dispatched.

Every problem is one sentence a planner can act on; all of them are reported together.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

from pointsman_schemas.errors import InvalidTokenError
from pointsman_schemas.ids import token
from pointsman_schemas.plan import Plan, PlannedTask, Selection
from pointsman_schemas.strict_json import describe
from pointsman_schemas.team import Limits

__all__ = ["MAX_RAW_CHARS", "check_plan", "raw_text", "read_plan", "read_selection"]

MAX_RAW_CHARS = 4_000
"""Characters of a refused plan that its log entry keeps: enough to see what the model did, too few to fill the log."""

_MAX_PROBLEMS = (
    20  # problems: a planner that made more has not understood, and the rest would only fill its prompt and the log
)
_MIN_INTENT_CHARS = 3  # characters: shorter intents say nothing to the agent

ModelT = TypeVar("ModelT", bound=BaseModel)


def read_plan(output: JsonValue) -> Plan | tuple[str, ...]:
    """`output` as a plan, or what is wrong with its shape."""
    return _parse_output(Plan, output, "a JSON object with goal, tasks and final_instruction")


def read_selection(output: JsonValue) -> Selection | tuple[str, ...]:
    """`output` as a classifier's selection, or what is wrong with its shape."""
    return _parse_output(Selection, output, "a JSON object with agents, each with agent and confidence")


def _parse_output(model: type[ModelT], output: JsonValue, expected: str) -> ModelT | tuple[str, ...]:
    if not isinstance(output, dict):
        return (f"the answer is {_with_article(output)}; expected {expected}",)
    try:
        return model.model_validate(output)
    except ValidationError as error:
        return (f"the answer does not fit: {describe(error)}; expected {expected}",)


def check_plan(
    plan: Plan,
    agents: Collection[str],
    limits: Limits,
    existing: Mapping[str, bool] = {},
    skills: Collection[str] = (),
) -> tuple[str, ...]:
    """Everything that is wrong with `plan`; empty when it may run.

    `agents` are the names it may use, `skills` what they have. `existing` are the tasks of the workflow that have
    started, by id, with whether a new task may still wait for them.
    """
    if not plan.tasks:
        said = plan.cannot or (plan.done and any(existing.values()))
        return () if said else ("the plan has no tasks; give at least one, or say in `cannot` why there is none",)
    problems: list[str] = []
    if len(plan.tasks) > limits.tasks:
        problems.append(f"the plan has {len(plan.tasks)} tasks; at most {limits.tasks} are allowed")
    known = {task.id for task in plan.tasks}
    for task_id, count in Counter(task.id for task in plan.tasks).items():
        if count > 1:
            problems.append(f"the id {task_id!r} is used {count} times; every task needs its own")
    for task in plan.tasks:
        problems.extend(_task_problems(task, known, agents, existing, skills))
    problems.extend(_duplicate_tasks(plan))
    if not problems:
        problems.extend(_shape_problems(plan, limits))
    if (more := len(problems) - _MAX_PROBLEMS) > 0:
        problems[_MAX_PROBLEMS:] = [f"and {more} more problems of this kind"]
    return tuple(problems)


def _task_problems(
    task: PlannedTask,
    known: set[str],
    agents: Collection[str],
    existing: Mapping[str, bool],
    skills: Collection[str],
) -> list[str]:
    problems: list[str] = []
    try:
        token(task.id, "the task id")
    except InvalidTokenError as error:
        problems.append(str(error))
    if task.id in existing:
        problems.append(f"the id {task.id!r} belongs to a task that has already started; choose another")
    if task.skill and not task.agent:
        if task.skill not in skills:
            listed = ", ".join(sorted(skills)) or "none: no agent is alive that has any"
            problems.append(f"task {task.id!r} asks for the skill {task.skill!r}, which is not one of: {listed}")
    elif task.agent not in agents:
        listed = ", ".join(sorted(agents)) or "none: no agent is alive"
        problems.append(f"task {task.id!r} names the agent {task.agent!r}, which is not one of: {listed}")
    if len(task.intent) < _MIN_INTENT_CHARS:
        problems.append(f"task {task.id!r} has the intent {task.intent!r}; say in a sentence what the agent is to do")
    for dependency in (*task.depends_on, *task.optional_dependencies):
        if dependency == task.id:
            problems.append(f"task {task.id!r} depends on itself")
        elif dependency not in known and not existing.get(dependency, False):
            problems.append(f"task {task.id!r} depends on {dependency!r}, which is not a task of the plan")
    return problems


def _duplicate_tasks(plan: Plan) -> list[str]:
    """Tasks that differ in nothing but their id: the planner repeated itself."""
    alike = Counter((task.agent, task.skill, task.intent) for task in plan.tasks)
    seen: dict[str, str] = {}
    problems = []
    for task in plan.tasks:
        if alike[task.agent, task.skill, task.intent] < 2:
            continue
        same = json.dumps(task.model_dump(mode="json", exclude={"id"}), sort_keys=True)
        if same in seen:
            problems.append(f"tasks {seen[same]!r} and {task.id!r} are the same; keep one")
        seen.setdefault(same, task.id)
    return problems


def _shape_problems(plan: Plan, limits: Limits) -> list[str]:
    """Cycles, and chains that are too long. Kahn's order: whatever is left over stands on a cycle or behind one."""
    planned = {task.id for task in plan.tasks}
    needs = {task.id: {*task.depends_on, *task.optional_dependencies} & planned for task in plan.tasks}
    dependants: dict[str, list[str]] = {task_id: [] for task_id in needs}
    for task_id, dependencies in needs.items():
        for dependency in dependencies:
            dependants[dependency].append(task_id)
    level = {task_id: 1 for task_id, dependencies in needs.items() if not dependencies}
    open_needs = {task_id: len(dependencies) for task_id, dependencies in needs.items()}
    ready = list(level)
    for task_id in ready:
        for dependant in dependants[task_id]:
            level[dependant] = max(level.get(dependant, 1), level[task_id] + 1)
            open_needs[dependant] -= 1
            if open_needs[dependant] == 0:
                ready.append(dependant)
    if stuck := [task_id for task_id in needs if open_needs[task_id]]:
        return [f"these tasks wait for each other in a circle: {', '.join(stuck)}"]
    if (deepest := max(level.values())) > limits.depth:
        return [f"the longest chain of tasks has {deepest} links; at most {limits.depth} are allowed"]
    return []


def raw_text(output: JsonValue) -> str:
    """`output` as text, cut to `MAX_RAW_CHARS` characters."""
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return text if len(text) <= MAX_RAW_CHARS else text[:MAX_RAW_CHARS] + "..."


def _with_article(value: JsonValue) -> str:
    match value:
        case None:
            return "empty"
        case str():
            return "plain text"
        case list():
            return "a list"
        case _:
            return f"a {type(value).__name__}"
