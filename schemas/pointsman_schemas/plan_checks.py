"""Find the faults of a plan in its ids, intents, dependencies and size. These checks need no live agents.

The runtime checks a planner's plan with these functions. A fixed plan is checked when its team is defined. Each fault
is one sentence that names the task, so that the planner can repair the plan.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

from pointsman_schemas.errors import InvalidTokenError
from pointsman_schemas.expressions import ITEM, REQUEST, Path, parse_condition, parse_path
from pointsman_schemas.ids import token
from pointsman_schemas.plan import Plan, PlannedTask

__all__ = ["find_graph_faults", "find_request_faults"]


def find_graph_faults(
    plan: Plan,
    max_tasks: int | None = None,
    max_depth: int | None = None,
    existing: Mapping[str, bool] = {},
    check_agent: Callable[[PlannedTask], list[str]] = lambda task: [],
    *,
    allow_equal_tasks: bool = False,
) -> list[str]:
    """Find the faults of a plan's tasks and of the graph of their dependencies.

    Cycles and long chains are searched only if all ids are different, because the search identifies tasks by their ids.

    Args:
        plan: The plan.
        max_tasks: Largest number of tasks; None for any number.
        max_depth: Largest number of tasks in a chain of dependencies; None for any number.
        existing: The started tasks of the workflow, by id. The value is True if a new task may depend on the started
            task.
        check_agent: Finds the faults of the agent or skill in a task. By default, agents and skills are not checked.
        allow_equal_tasks: Accept tasks that are equal except for their ids. Default: False, because such a task in a
            planner's plan is a mistake.

    Returns:
        The faults, one sentence each.
    """
    faults = []
    if max_tasks is not None and len(plan.tasks) > max_tasks:
        faults.append(f"the plan has {len(plan.tasks)} tasks; at most {max_tasks} are allowed")
    for task_id, count in Counter(task.id for task in plan.tasks).items():
        if count > 1:
            faults.append(f"the id {task_id!r} is used {count} times; every task needs its own")
    known = {task.id for task in plan.tasks}
    for task in plan.tasks:
        faults.extend(_find_id_faults(task, existing))
        faults.extend(check_agent(task))
        faults.extend(_find_intent_and_dependency_faults(task, known, existing))
        faults.extend(_find_expression_faults(task))
    if not allow_equal_tasks:
        faults.extend(_find_equal_tasks(plan))
    if len(known) == len(plan.tasks):
        faults.extend(_find_cycle_or_long_chain(plan, max_depth))
    return faults


def _find_id_faults(task: PlannedTask, existing: Mapping[str, bool]) -> list[str]:
    faults: list[str] = []
    try:
        token(task.id, "the task id")
    except InvalidTokenError as error:
        faults.append(str(error))
    if task.id in existing:
        faults.append(f"the id {task.id!r} belongs to a task that has already started; choose another")
    return faults


def _find_intent_and_dependency_faults(task: PlannedTask, known: set[str], existing: Mapping[str, bool]) -> list[str]:
    faults: list[str] = []
    if not task.intent:
        faults.append(f"task {task.id!r} has an empty intent; say in a sentence what the agent is to do")
    for dependency in (*task.depends_on, *task.optional_dependencies):
        if dependency == task.id:
            faults.append(f"task {task.id!r} depends on itself")
        elif dependency not in known and not existing.get(dependency, False):
            faults.append(f"task {task.id!r} depends on {dependency!r}, which is not a task of the plan")
    return faults


def _find_expression_faults(task: PlannedTask) -> Iterator[str]:
    """Find paths that cannot have a value when the task starts."""
    if task.input_from and task.input is not None and not isinstance(task.input, dict):
        yield f"task {task.id!r} has `input_from`, and its input is not an object that could get these fields"
    dependencies = {*task.depends_on, *task.optional_dependencies}
    for place, path in _expression_paths(task):
        root = path[0]
        if root == ITEM:
            if place != "input_from":
                yield f"task {task.id!r} names {ITEM!r} in `{place}`; only `input_from` can name the item"
            elif task.for_each is None:
                yield f"task {task.id!r} names {ITEM!r} in `input_from`, and has no `for_each`"
        elif root != REQUEST and root not in dependencies:
            yield (
                f"task {task.id!r} reads {'.'.join(path)} in `{place}`, and does not depend on {root!r}: add it to "
                "`depends_on` or `optional_dependencies`"
            )


def _expression_paths(task: PlannedTask) -> Iterator[tuple[str, Path]]:
    """List the paths that a task reads. Each path comes with the field of the task that contains the path."""
    for path in parse_condition(task.when).paths if task.when else ():
        yield "when", path
    if task.for_each is not None:
        yield "for_each", parse_path(task.for_each.items)
    for text in task.input_from.values():
        yield "input_from", parse_path(text)


def find_request_faults(plan: Plan, fields: Collection[str]) -> list[str]:
    """Find paths to fields that the request cannot have.

    Args:
        plan: The plan.
        fields: All fields of a request.

    Returns:
        The faults, one sentence each.
    """
    known = ", ".join(sorted(fields)) or "no fields"
    return [
        f"task {task.id!r} reads {'.'.join(path)} in `{place}`; the request has {known}"
        for task in plan.tasks
        for place, path in _expression_paths(task)
        if path[0] == REQUEST and len(path) > 1 and path[1] not in fields
    ]


def _find_equal_tasks(plan: Plan) -> list[str]:
    """Find tasks that are equal except for their ids."""
    alike = Counter((task.agent, task.skill, task.intent) for task in plan.tasks)
    seen: dict[str, str] = {}
    faults = []
    for task in plan.tasks:
        if alike[task.agent, task.skill, task.intent] < 2:
            continue
        same = json.dumps(task.model_dump(mode="json", exclude={"id"}), sort_keys=True)
        if same in seen:
            faults.append(f"tasks {seen[same]!r} and {task.id!r} are the same; keep one")
        seen.setdefault(same, task.id)
    return faults


def _in_cycles(needs: Mapping[str, Collection[str]], stuck: Collection[str]) -> list[str]:
    """Return the tasks of `stuck` without the tasks that are not part of a cycle and only wait for a cycle."""
    waiting = Counter(dependency for task_id in stuck for dependency in needs[task_id])
    after = [task_id for task_id in stuck if not waiting[task_id]]
    for task_id in after:
        for dependency in needs[task_id]:
            waiting[dependency] -= 1
            if waiting[dependency] == 0 and dependency in stuck:
                after.append(dependency)
    return [task_id for task_id in stuck if waiting[task_id]]


def _find_cycle_or_long_chain(plan: Plan, max_depth: int | None) -> list[str]:
    """Sort the tasks topologically (Kahn). A task that cannot be sorted is part of a cycle or depends on a cycle."""
    planned = {task.id for task in plan.tasks}
    needs = {task.id: ({*task.depends_on, *task.optional_dependencies} & planned) - {task.id} for task in plan.tasks}
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
    if stuck := dict.fromkeys(task_id for task_id in needs if open_needs[task_id]):
        return [f"these tasks wait for each other in a circle: {', '.join(_in_cycles(needs, stuck))}"]
    deepest = max(level.values(), default=0)
    if max_depth is not None and deepest > max_depth:
        return [f"the longest chain of tasks has {deepest} links; at most {max_depth} are allowed"]
    return []
