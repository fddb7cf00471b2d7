"""Validate a value by a JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pointsman_schemas.strict_json import JsonValue

__all__ = ["value_problem"]

_MAX_PROBLEM_CHARS = 300
"""Longest description of a problem in characters. It quotes the value, which may be long."""


def value_problem(schema: Mapping[str, JsonValue], value: JsonValue) -> str:
    """Return the first problem of `value` with its path.

    Args:
        schema: The schema. References to other documents are not read.
        value: The value.

    Returns:
        The problem; an empty text if the value is valid, or if the schema cannot be used.
    """
    from jsonschema import Draft202012Validator, SchemaError  # slow to load, and few processes need it
    from jsonschema.exceptions import UnknownType, best_match
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    validator = Draft202012Validator(dict(schema), registry=Registry())
    try:
        validator.check_schema(dict(schema))
        worst = best_match(validator.iter_errors(value))
    except (SchemaError, UnknownType, Unresolvable, RecursionError, re.error):
        return ""
    return "" if worst is None else f"{worst.json_path}: {worst.message}"[:_MAX_PROBLEM_CHARS]
