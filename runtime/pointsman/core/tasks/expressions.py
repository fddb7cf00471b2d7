"""Evaluate the expressions of a fixed plan against the request and the results: conditions, lists and input fields."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import JsonValue

from pointsman.core.model.lifecycle import TaskStatus
from pointsman.core.model.state import State, Task
from pointsman_schemas.expressions import ITEM, REQUEST, Path, evaluate, parse_condition, parse_path, read_path
from pointsman_schemas.strict_json import compact_json

__all__ = ["expression_input", "false_condition", "value_at"]

_MAX_SHOWN_CHARS = 80  # largest number of characters of a value in a reason


def false_condition(state: State, task: Task) -> str | None:
    """Return the reason for which the condition of `task` is false; None if the condition is true or missing."""
    if task.definition is None or not task.definition.when:
        return None
    condition = parse_condition(task.definition.when)
    if evaluate(condition, _lookup(state)):
        return None
    values = ", ".join(f"{'.'.join(path)} is {_shown(_value_at(state, path))}" for path in condition.paths)
    return f"its condition is false: {task.definition.when}" + (f" ({values})" if values else "")


def value_at(state: State, text: str) -> JsonValue:
    """Return the value at a path of the request or of a result; None if there is no such value."""
    return _value_at(state, parse_path(text))


def expression_input(state: State, task: Task) -> JsonValue:
    """Return the input of a task that does one item of a list, or that takes fields from the request or from results.

    With `input_from`, the input has the fields that `input_from` names, in addition to the input in the plan. Without
    `input_from`, the item is the input. If the plan also has an input for the task, the fields of the item are added to
    it. An item that is not an object is added as the field `item`.
    """
    definition = task.definition
    assert definition is not None
    item = _item(state, task)
    if definition.input_from:
        fields = {name: _field(state, parse_path(text), item) for name, text in definition.input_from.items()}
        return {**(task.input if isinstance(task.input, dict) else {}), **fields}
    if not isinstance(task.input, dict):
        return item if task.input is None else task.input
    return {**task.input, **(item if isinstance(item, dict) else {ITEM: item})}


def _item(state: State, task: Task) -> JsonValue:
    if not task.item_of or task.definition is None or task.definition.for_each is None:
        return None
    items = value_at(state, task.definition.for_each.items)
    return items[task.item_index] if isinstance(items, list) else None


def _field(state: State, path: Path, item: JsonValue) -> JsonValue:
    return read_path(item, path[1:]) if path[0] == ITEM else _value_at(state, path)


def _lookup(state: State) -> Callable[[Path], JsonValue]:
    return lambda path: _value_at(state, path)


def _value_at(state: State, path: Path) -> JsonValue:
    if path[0] == REQUEST:
        return read_path(state.input, path[1:])
    task = state.tasks.get(path[0])
    if task is None or task.result is None or task.status is not TaskStatus.SUCCEEDED:
        return None
    return read_path(task.result.output, path[1:])


def _shown(value: JsonValue) -> str:
    text = compact_json(value).decode()
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "..."
