"""Check an answer against the JSON Schema of its question."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from pointsman.util.schema_validation import value_problem
from pointsman_schemas.strict_json import compact_json

__all__ = ["MAX_ANSWER_BYTES", "answer_problem"]

MAX_ANSWER_BYTES = 65_536
"""Largest size of an answer to a question for information, in bytes of JSON. The size is limited, because each later
handoff of the task contains the answer."""


def answer_problem(schema: Mapping[str, JsonValue], value: JsonValue, *, is_input: bool = False) -> str:
    """Return the first problem of `value` with its path.

    Args:
        schema: The JSON Schema.
        value: The value.
        is_input: True if `value` is the input of an agent, whose size is not limited here. If the agent expects a text,
            `value` may also be an object. Then the text in its field `request` is checked.

    Returns:
        The problem; an empty text if the value is valid, or if the schema cannot be used for a check.
    """
    if is_input:
        text = schema.get("type") == "string" and isinstance(value, dict)
        return value_problem(schema, value.get("request", value) if text and isinstance(value, dict) else value)
    if (size := len(compact_json(value))) > MAX_ANSWER_BYTES:
        return f"$: the value has {size} bytes of JSON; at most {MAX_ANSWER_BYTES} are allowed"
    return value_problem(schema, value)
