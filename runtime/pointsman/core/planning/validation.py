"""Validate the answer of a planner or a classifier before any task is dispatched.

Each problem is one sentence from which a planner can repair the plan. All problems are reported together.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

from pointsman_schemas.plan import Plan, PlannedTask, Selection
from pointsman_schemas.plan_checks import find_graph_faults
from pointsman_schemas.strict_json import problems_of
from pointsman_schemas.team import Limits
from pointsman_schemas.unknown_fields import find_unknown_fields

__all__ = ["MAX_RAW_CHARS", "check_plan", "raw_text", "read_plan", "read_selection", "readable_tasks"]

MAX_RAW_CHARS = 4_000
"""Largest length of a refused plan in its log entry, in characters. A longer plan is cut, because its beginning usually
shows the fault, and longer texts would fill the log."""

_MAX_PROBLEMS = 20
"""Largest number of reported problems. More problems would only fill the log and the prompt of the planner."""

ModelT = TypeVar("ModelT", bound=BaseModel)


def read_plan(output: JsonValue, *, strict: bool = False) -> Plan | tuple[str, ...]:
    """Return the plan in a planner's answer. If the answer is not a plan, return the problems of the answer.

    Args:
        output: The answer.
        strict: True to refuse each unknown field, for a plan that a person wrote. By default, an unknown field is
            refused only if a missing field has a similar name: with a misspelled `depends_on`, for example, the plan
            would lose the order of its tasks.

    Returns:
        The plan, or its problems.
    """
    read = _parse_output(Plan, output, "a JSON object with goal, tasks and final_instruction")
    unknown = find_unknown_fields(Plan, output) if isinstance(output, dict) else []
    misnamed = tuple(f"{each.path} {each.message}" for each in unknown if strict or each.meant)
    if isinstance(read, Plan):
        return misnamed or read
    return (*misnamed, *read)


def readable_tasks(output: JsonValue) -> Plan:
    """Return a plan with the valid tasks of an answer, to report the problems of these tasks, too.

    Invalid tasks, and dependencies on invalid tasks, are left out.
    """
    found = output.get("tasks") if isinstance(output, dict) else None
    tasks: list[PlannedTask] = []
    unread: set[object] = set()
    for each in found if isinstance(found, list) else []:
        try:
            tasks.append(PlannedTask.model_validate(each))
        except ValidationError:
            name = each.get("id") if isinstance(each, dict) else None
            unread.add(name.strip() if isinstance(name, str) else None)
    kept = (
        task.model_copy(
            update={
                "depends_on": tuple(name for name in task.depends_on if name not in unread),
                "optional_dependencies": tuple(name for name in task.optional_dependencies if name not in unread),
            }
        )
        for task in tasks
    )
    return Plan(tasks=tuple(kept))


def read_selection(output: JsonValue) -> Selection | tuple[str, ...]:
    """Return the selection in a classifier's answer. If the answer is not a selection, return its problems."""
    return _parse_output(Selection, output, "a JSON object with agents, each with agent and confidence")


def _parse_output(model: type[ModelT], output: JsonValue, expected: str) -> ModelT | tuple[str, ...]:
    if not isinstance(output, dict):
        return (f"the answer is {_with_article(output)}; expected {expected}",)
    try:
        return model.model_validate(output)
    except ValidationError as error:
        first, *more = problems_of(error)[:_MAX_PROBLEMS]
        return (f"the answer does not fit: {first}; expected {expected}", *more)


def check_plan(
    plan: Plan,
    agents: Collection[str],
    limits: Limits,
    existing: Mapping[str, bool] = {},
    skills: Collection[str] = (),
    *,
    allow_expressions: bool = False,
) -> tuple[str, ...]:
    """Return the problems of a planner's plan, as sentences; no sentence if the plan may run.

    Args:
        plan: The plan.
        agents: The names of the agents that the plan may use.
        limits: The limits. `tasks` bounds the number of tasks, and `depth` bounds the longest chain of dependencies.
        existing: The started tasks of the workflow, by id. The value is True if a new task may depend on the started
            task.
        skills: The skills of `agents`.
        allow_expressions: True if tasks may have `when`, `for_each` and `input_from`, as in the fixed plan of a team.

    Returns:
        The problems.
    """
    if not plan.tasks:
        said = plan.cannot or (plan.done and any(existing.values()))
        return () if said else ("the plan has no tasks; give at least one, or say in `cannot` why there is none",)
    problems = find_graph_faults(
        plan,
        limits.tasks,
        limits.depth,
        existing,
        check_agent=lambda task: _agent_problems(task, agents, skills),
    )
    if not allow_expressions:
        problems += [
            f"task {task.id!r} has `when`, `for_each` or `input_from`, which a planner may not use"
            for task in plan.tasks
            if task.has_expressions
        ]
    if (more := len(problems) - _MAX_PROBLEMS) > 0:
        problems[_MAX_PROBLEMS:] = [f"and {more} more problems"]
    return tuple(problems)


def _agent_problems(task: PlannedTask, agents: Collection[str], skills: Collection[str]) -> list[str]:
    if task.skill and not task.agent:
        if task.skill in skills:
            return []
        known = f"which is not one of: {', '.join(sorted(skills))}" if skills else "but no live agent has a skill"
        return [f"task {task.id!r} asks for the skill {task.skill!r}, {known}"]
    if task.agent in agents:
        return []
    known = f"which is not one of: {', '.join(sorted(agents))}" if agents else "but no agent is alive"
    return [f"task {task.id!r} names the agent {task.agent!r}, {known}"]


def raw_text(output: JsonValue) -> str:
    """Return an answer as text, cut to `MAX_RAW_CHARS` characters."""
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
