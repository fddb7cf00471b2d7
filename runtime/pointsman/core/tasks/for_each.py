"""Expand a task with `for_each`: add one task for each item of a list, and collect the results as a list in order.

The tasks of the items are normal tasks, with attempts, deadlines, approvals, budgets and dead letters. The task with
`for_each` has no attempt. It stays in the status `expanded` until the tasks of its items are settled.
"""

from __future__ import annotations

import math

from pointsman.core.budget.team_quota import committed, quota
from pointsman.core.decision import Decision
from pointsman.core.model.lifecycle import TaskStatus
from pointsman.core.model.state import Task, unused_ids
from pointsman.core.tasks.expressions import value_at
from pointsman_schemas.events import AttemptError, ErrorKind
from pointsman_schemas.log import ItemsGathered, TaskExpanded, TaskFailed
from pointsman_schemas.plan import ForEach
from pointsman_schemas.strict_json import JsonValue

__all__ = ["expand_task", "gather_items"]

_MAX_PREFIX_CHARS = 58
"""The id of an item's task begins with the id of the `for_each` task, cut to this number of characters. An id has at
most 64 characters, and the other six are for a hyphen and a number of at most five digits."""


def expand_task(decision: Decision, task: Task, for_each: ForEach) -> None:
    """Add a task for each item. Fail the task if the value of `for_each.items` is not a list, or has too many items."""
    items = value_at(decision.state, for_each.items)
    if not isinstance(items, list):
        message = f"{for_each.items} is {_type_name(items)}; a list was expected"
        return _fail(decision, task, AttemptError(kind=ErrorKind.INVALID_INPUT, message=message))
    if len(items) > for_each.max_items:
        message = f"{for_each.items} has {len(items)} items; at most {for_each.max_items} are allowed (`max_items`)"
        return _fail(decision, task, AttemptError(kind=ErrorKind.LIMIT, message=message))
    bound, used = quota(decision.state).tasks, committed(decision.state).tasks
    if len(items) > (left := max(bound - used, 0)):
        message = f"{for_each.items} has {len(items)} items; the limit of {bound} tasks leaves {left}"
        return _fail(decision, task, AttemptError(kind=ErrorKind.LIMIT, message=message))
    prefix = task.id[:_MAX_PREFIX_CHARS]
    ids = unused_ids(decision.state, (f"{prefix}-{number}" for number in range(1, len(items) + 1)))
    state = decision.add(TaskExpanded(at=decision.now, task_id=task.id, items=tuple(ids)))
    decision.ready.extend(ids)
    return None if ids else gather_items(decision, state.tasks[task.id])


def gather_items(decision: Decision, task: Task) -> None:
    """Settle a task with `for_each` as soon as the tasks of all its items are settled."""
    tasks = decision.state.tasks
    items = [tasks[name] for name in task.items]
    if not all(each.settled for each in items):
        return None
    definition = task.definition
    ratio = definition.for_each.min_success_ratio if definition and definition.for_each else 1.0
    missing = [each for each in items if each.status is not TaskStatus.SUCCEEDED]
    needed = math.ceil(round(ratio * len(items), 6))  # rounded first, because 0.56 * 25 is 14.000000000000002
    if (done := len(items) - len(missing)) < needed:
        cause = next((each.error.message for each in missing if each.error), "")
        message = (
            f"{done} of {len(items)} items succeeded; at least {needed} are required{': ' if cause else ''}{cause}"
        )
        return _fail(decision, task, AttemptError(kind=ErrorKind.ITEMS, message=message))
    gathered = ItemsGathered(at=decision.now, task_id=task.id, missing=tuple(each.id for each in missing))
    decision.ready.extend(decision.add(gathered).dependants.get(task.id, ()))
    return None


def _fail(decision: Decision, task: Task, error: AttemptError) -> None:
    state = decision.add(TaskFailed(at=decision.now, task_id=task.id, error=error, attempts=0))
    decision.ready.extend(state.dependants.get(task.id, ()))


def _type_name(value: JsonValue) -> str:
    match value:
        case None:
            return "missing"
        case str():
            return "a text"
        case dict():
            return "an object"
        case _:
            return "a number" if not isinstance(value, bool) else "true or false"
