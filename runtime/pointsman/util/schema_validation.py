"""Validate a value by a JSON Schema, in a limited number of steps.

Schemas come from agents and MCP servers, and values from callers and models. Validation runs in the event loop of a
process that serves others, so no pair of a schema and a value may block the loop.

| Attack | Defence |
|---|---|
| references that double at each level, large values under many keywords | at most `MAX_STEPS` keywords are evaluated |
| `uniqueItems` and thousands of objects, of which the library compares each pair | a set of keys is compared instead |
| a regular expression that backtracks | the engine of Rust, which takes linear time |

The limit is a number of steps and not a time. So a validation has the same result at any time and in any process. The
replay of a log needs this, because decisions depend on the results of validations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sized
from contextvars import ContextVar
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

from pointsman_schemas.json_schema import json_schema_problem
from pointsman_schemas.strict_json import JsonValue

__all__ = ["MAX_STEPS", "value_problem"]

MAX_STEPS = 300_000
"""Largest number of keywords that one validation evaluates. So many take a few seconds."""
_MAX_PROBLEM_CHARS = 300
"""Longest description of a problem, in characters. Longer ones are cut, because they quote the value."""
_REFERENCE_STEPS = 10  # a reference takes as long as this number of other keywords

_left: ContextVar[int] = ContextVar("validation_steps_left")

_Keyword = Callable[[Any, Any, Any, Any], Any]


class _TooManyStepsError(Exception):
    """The validation has taken `MAX_STEPS`."""


def value_problem(schema: Mapping[str, JsonValue], value: JsonValue) -> str:
    """Return the first problem of `value` with its path.

    Args:
        schema: The schema. References to other documents are not read. Regular expressions with look-around or
            back-references are not checked.
        value: The value.

    Returns:
        The problem; an empty text if the value is valid, or if the schema cannot be used.
    """
    from jsonschema import SchemaError  # slow to load, and few processes need it
    from jsonschema.exceptions import UnknownType, best_match
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    names = _keywords(schema)
    if json_schema_problem(dict(schema)) or {"unevaluatedProperties", "patternProperties"} <= names:
        return ""  # not checked: here the library uses Python's own regular expressions, which may backtrack
    validator = _validator_class()(dict(schema), registry=Registry())
    token = _left.set(MAX_STEPS)
    try:
        validator.check_schema(dict(schema))
        worst = best_match(validator.iter_errors(value))
    except _TooManyStepsError:
        return f"$: the validation takes more than {MAX_STEPS} steps; send a smaller value, or simplify the schema"
    except (SchemaError, UnknownType, Unresolvable, RecursionError, re.error):
        return ""
    finally:
        _left.reset(token)
    return "" if worst is None else f"{worst.json_path}: {worst.message}"[:_MAX_PROBLEM_CHARS]


@cache
def _validator_class() -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    own: dict[str, _Keyword] = {
        "pattern": _pattern,
        "multipleOf": _multiple_of,
        "patternProperties": _pattern_properties,
        "uniqueItems": _unique_items,
    }
    known: Mapping[str, _Keyword] = {**Draft202012Validator.VALIDATORS, **own}
    counted = {name: _counted(name, keyword) for name, keyword in known.items()}
    counted["additionalProperties"] = _counted("additionalProperties", _additional(known["additionalProperties"]))
    return extend(Draft202012Validator, counted)  # type: ignore[no-untyped-call]  # the library has no types


def _spend(steps: int) -> None:
    left = _left.get() - steps
    if left < 0:
        raise _TooManyStepsError
    _left.set(left)


def _counted(name: str, keyword: _Keyword) -> _Keyword:
    """Return a keyword that counts its steps before it is evaluated."""

    def evaluate(validator: Any, given: Any, instance: Any, schema: Any) -> Iterator[Any]:
        size = len(instance) if isinstance(instance, list | dict) else 0
        steps = 1 + (len(given) if isinstance(given, Sized) and not isinstance(given, str) else 0)
        if name in ("$ref", "$dynamicRef"):
            steps = _REFERENCE_STEPS
        elif name == "patternProperties":
            steps *= 1 + size
        elif name.startswith("unevaluated"):
            steps += size * size // 64  # the library compares each name with a list of names
        elif name in ("additionalProperties", "uniqueItems"):
            steps += size
        _spend(steps)
        yield from keyword(validator, given, instance, schema) or ()

    return evaluate


@lru_cache(1_000)
def _search(pattern: str) -> Callable[[str], bool]:
    """Return a function that searches a text for a pattern in linear time. An unsupported pattern fits every text."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        found = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return lambda text: True
    return found.isinstance_python


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and not _search(pattern)(instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[Any]:
    for pattern, subschema in patterns.items() if isinstance(instance, dict) else ():
        fits = _search(pattern)
        for name, value in instance.items():
            if fits(name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional(keyword: _Keyword) -> _Keyword:
    """Return the keyword `additionalProperties` for names that fit none of `patternProperties`."""

    def evaluate(validator: Any, given: Any, instance: Any, schema: Any) -> Iterator[Any]:
        patterns = schema.get("patternProperties", {})
        if patterns and isinstance(instance, dict):
            searches = [_search(each) for each in patterns]
            _spend(len(searches) * len(instance))
            instance = {name: value for name, value in instance.items() if not any(fits(name) for fits in searches)}
            schema = {name: value for name, value in schema.items() if name != "patternProperties"}
        yield from keyword(validator, given, instance, schema) or ()

    return evaluate


def _multiple_of(validator: Any, factor: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    # The library divides floats: 0.3 is not a multiple of 0.1, and an integer of more than 308 digits raises an error.
    if validator.is_type(instance, "number") and Fraction(str(instance)) % Fraction(str(factor)):
        yield ValidationError(f"{instance!r} is not a multiple of {factor!r}")


def _unique_items(validator: Any, unique: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if unique and isinstance(instance, list) and len({_key(each) for each in instance}) < len(instance):
        yield ValidationError(f"{instance!r:.200} has non-unique elements")


def _key(value: JsonValue) -> object:
    """Return a key that can be in a set. Equal values have equal keys. In JSON, 1 equals 1.0 and differs from true."""
    match value:
        case bool() | None:
            return ("constant", value)
        case list():
            return ("list", tuple(_key(each) for each in value))
        case dict():
            return ("object", frozenset((name, _key(each)) for name, each in value.items()))
        case _:
            return value


def _keywords(schema: object) -> set[str]:
    """Return the names of all fields of a schema."""
    found, waiting = set[str](), [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            found.update(part)
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return found
