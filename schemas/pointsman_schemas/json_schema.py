"""Check that a value is a JSON Schema, because planners, tools and people use the schemas on agents' cards.

The rules come from the meta-schema of draft 2020-12. They are written in Python here, because loading a validator of
JSON Schema would take 0.1 s of CPU time in every process that reads cards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from pointsman_schemas.strict_json import JsonValue

__all__ = ["JsonSchema", "json_schema_problem"]

_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_MAX_SHOWN_CHARS = 80  # number of characters of a rejected value that an error message shows

_Problems: TypeAlias = Iterator[tuple[str, str]]


def json_schema_problem(schema: JsonValue) -> str:
    """Find the first problem of a JSON Schema.

    Args:
        schema: The value that must be a schema.

    Returns:
        The problem with its path, such as "properties.age.type is 'int'; expected one of ..."; empty for a valid
        schema.
    """
    path, problem = next(_schema(schema, ""), ("", ""))
    return f"{path or 'the schema'} {problem}" if problem else ""


def _schema(value: object, path: str) -> _Problems:
    if isinstance(value, bool):
        return
    if not isinstance(value, Mapping):
        yield path, f"is {_shown(value)}; expected a JSON Schema, which is an object, true or false"
        return
    for keyword, content in value.items():
        if (check := _KEYWORDS.get(keyword)) is not None:
            yield from check(content, f"{path}.{keyword}" if path else str(keyword))


def _schemas(value: object, path: str) -> _Problems:
    if not isinstance(value, list | tuple) or not value:
        yield path, f"is {_shown(value)}; expected a list of one or more schemas"
        return
    for index, each in enumerate(value):
        yield from _schema(each, f"{path}[{index}]")


def _named(check: Callable[[object, str], _Problems]) -> Callable[[object, str], _Problems]:
    def named(value: object, path: str) -> _Problems:
        if not isinstance(value, Mapping):
            yield path, f"is {_shown(value)}; expected an object"
            return
        for name, each in value.items():
            yield from check(each, f"{path}.{name}")

    return named


def _type(value: object, path: str) -> _Problems:
    names = value if isinstance(value, list | tuple) else (value,)
    wrong = [name for name in names if name not in _TYPES]
    if wrong or not names:
        yield path, f"is {_shown(wrong[0] if wrong else value)}; expected one of {', '.join(_TYPES)}"
    elif len(set(names)) < len(names):
        yield path, f"is {_shown(value)}; expected each type once"


def _names(value: object, path: str) -> _Problems:
    texts = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    if not texts or (isinstance(value, list | tuple) and len(set(value)) < len(value)):
        yield path, f"is {_shown(value)}; expected a list of different names"


def _dependency(value: object, path: str) -> _Problems:
    return _names(value, path) if isinstance(value, list | tuple) else _schema(value, path)


def _text(value: object, path: str) -> _Problems:
    if not isinstance(value, str):
        yield path, f"is {_shown(value)}; expected text"


def _pattern(form: str, expected: str) -> Callable[[object, str], _Problems]:
    def matching(value: object, path: str) -> _Problems:
        if not isinstance(value, str) or not re.search(form, value):
            yield path, f"is {_shown(value)}; expected {expected}"

    return matching


def _flag(value: object, path: str) -> _Problems:
    if not isinstance(value, bool):
        yield path, f"is {_shown(value)}; expected true or false"


def _list(value: object, path: str) -> _Problems:
    if not isinstance(value, list | tuple):
        yield path, f"is {_shown(value)}; expected a list"


def _number(value: object, path: str) -> _Problems:
    if not _is_number(value):
        yield path, f"is {_shown(value)}; expected a number"


def _positive(value: object, path: str) -> _Problems:
    if not _is_number(value) or not value > 0:  # type: ignore[operator]  # a number
        yield path, f"is {_shown(value)}; expected a number above 0"


def _count(value: object, path: str) -> _Problems:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if not _is_number(value) or not whole or not value >= 0:  # type: ignore[operator]  # a number
        yield path, f"is {_shown(value)}; expected a whole number, 0 or more"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "..."


_KEYWORDS: Mapping[str, Callable[[object, str], _Problems]] = {
    **dict.fromkeys(
        (
            "additionalProperties",
            "contains",
            "contentSchema",
            "else",
            "if",
            "items",
            "not",
            "propertyNames",
            "then",
            "unevaluatedItems",
            "unevaluatedProperties",
        ),
        _schema,
    ),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _schemas),
    **dict.fromkeys(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"), _named(_schema)),
    **dict.fromkeys(
        (
            "$comment",
            "$dynamicRef",
            "$recursiveRef",
            "$ref",
            "$schema",
            "contentEncoding",
            "contentMediaType",
            "description",
            "format",
            "pattern",
            "title",
        ),
        _text,
    ),
    **dict.fromkeys(
        ("$anchor", "$dynamicAnchor", "$recursiveAnchor"),
        _pattern(r"^[A-Za-z_][-A-Za-z0-9._]*$", "an anchor of letters, digits, -, . and _"),
    ),
    **dict.fromkeys(("deprecated", "readOnly", "uniqueItems", "writeOnly"), _flag),
    **dict.fromkeys(("enum", "examples"), _list),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"), _number),
    **dict.fromkeys(
        (
            "maxContains",
            "maxItems",
            "maxLength",
            "maxProperties",
            "minContains",
            "minItems",
            "minLength",
            "minProperties",
        ),
        _count,
    ),
    "$id": _pattern(r"^[^#]*#?$", "a URI without a fragment"),
    "$vocabulary": _named(_flag),
    "dependencies": _named(_dependency),
    "dependentRequired": _named(_names),
    "multipleOf": _positive,
    "required": _names,
    "type": _type,
}


def _checked(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if problem := json_schema_problem(schema):
        raise ValueError(f"not a JSON Schema: {problem}")
    return schema


JsonSchema: TypeAlias = Annotated[dict[str, JsonValue], AfterValidator(_checked)]
"""A JSON Schema in the form of an object; an empty object accepts every value."""
