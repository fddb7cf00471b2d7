"""Find the arguments of a tool or an agent in text and data, by the JSON Schema of the arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import JsonValue

from pointsman_schemas.strict_json import compact_json

__all__ = ["Sources", "extract_arguments", "missing_arguments", "required_properties"]

_EMAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]*\w")
_URL = re.compile(r"https?://[^\s<>\"']+")
_DATE = re.compile(r"\b\d{4}-\d{2}-\d{2}\b")
_MONEY = re.compile(r"[$€£]\s?(\d+(?:[.,]\d{1,2})?)|\b(\d+(?:\.\d{1,2})?)\s?(?:dollars|euros|pounds|USD|EUR|GBP)\b")
_NUMBER = re.compile(r"(?<![\w-])-?\d+(?:\.\d+)?(?![\w-])")
_FORMATS = {"email": _EMAIL, "uri": _URL, "date": _DATE}
_MISSING: Final[Any] = object()


@dataclass(frozen=True, slots=True)
class Sources:
    """The places in which values are searched: the texts of the task, and the data of the task and of its tools.

    A pattern is searched only in the texts. The data is searched for a key with the name of the argument, and the first
    value with this key is used. If several data have a list under this key, the lists are joined, without duplicates.
    """

    texts: Sequence[str]
    data: Sequence[JsonValue] = ()


def extract_arguments(schema: Mapping[str, JsonValue], sources: Sources) -> dict[str, JsonValue] | None:
    """Return the arguments that were found; None if a required argument is missing."""
    found = _find_arguments(schema, sources)
    return None if _missing_names(schema, found) else found


def missing_arguments(schema: Mapping[str, JsonValue], sources: Sources) -> list[str]:
    """Return the required arguments that were not found, each with its description or its choices in the schema."""
    described = {name: _resolve_schema(each, schema) for name, each in _properties(schema).items()}
    return [
        _describe_argument(name, described[name]) for name in _missing_names(schema, _find_arguments(schema, sources))
    ]


def required_properties(schema: Mapping[str, JsonValue]) -> frozenset[str]:
    """Return the names of the properties that a schema requires."""
    names = schema.get("required")
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


def _find_arguments(schema: Mapping[str, JsonValue], sources: Sources) -> dict[str, JsonValue]:
    required = required_properties(schema)
    values = {
        name: _find_value(name, _resolve_schema(described, schema), sources, required=name in required)
        for name, described in _properties(schema).items()
    }
    return {name: value for name, value in values.items() if value is not _MISSING}


def _missing_names(schema: Mapping[str, JsonValue], found: Mapping[str, JsonValue]) -> list[str]:
    return [name for name in _properties(schema) if name in required_properties(schema) and name not in found]


def _describe_argument(name: str, schema: Mapping[str, JsonValue]) -> str:
    choices = schema.get("enum")
    hint = schema.get("description") or (", ".join(map(str, choices)) if isinstance(choices, list) else "")
    return f"{name} ({hint})" if hint else name


def _find_value(name: str, schema: Mapping[str, JsonValue], sources: Sources, *, required: bool) -> Any:
    kind, text = schema.get("type"), "\n".join(sources.texts)
    if isinstance(enum := schema.get("enum"), list):
        choice = next((option for option in enum if re.search(rf"\b{re.escape(str(option))}\b", text, re.I)), _MISSING)
        return choice if choice is not _MISSING else _by_key(name, schema, sources)
    if (pattern := _pattern(name, schema)) is not None:
        if (match := pattern.search(text)) is not None:
            return match[0]
        return _by_key(name, schema, sources)
    if (keyed := _by_key(name, schema, sources)) is not _MISSING:
        return keyed
    if kind in ("number", "integer"):
        return _number(text, integer=kind == "integer")
    if kind == "string" and required and sources.texts:
        return sources.texts[0]
    return _MISSING


def _pattern(name: str, schema: Mapping[str, JsonValue]) -> re.Pattern[str] | None:
    if isinstance(given := schema.get("pattern"), str):
        try:
            return re.compile(rf"(?<![\w-])(?:{given.removeprefix('^').removesuffix('$')})(?![\w-])")
        except re.error:
            return None
    if schema.get("type") != "string":
        return None
    if (known := _FORMATS.get(str(schema.get("format", "")))) is not None:
        return known
    if "email" in name.lower():
        return _EMAIL
    examples = schema.get("examples")
    if isinstance(examples, list) and examples and all(_is_code(example) for example in examples):
        return re.compile("|".join(rf"(?<![\w-]){_pattern_of(str(example))}(?![\w-])" for example in examples))
    return None


def _is_code(example: JsonValue) -> bool:
    return isinstance(example, str) and " " not in example and any(char.isdigit() for char in example)


def _pattern_of(example: str) -> str:
    """Return a pattern for texts that equal `example`, or differ only in the digits."""
    return re.sub(r"\d+", lambda digits: rf"\d{{{len(digits[0])}}}", re.escape(example))


def _by_key(name: str, schema: Mapping[str, JsonValue], sources: Sources) -> Any:
    found = [value for data in sources.data if (value := _first_match(name, schema, data)) is not _MISSING]
    if len(found) > 1 and all(isinstance(value, list) for value in found):
        return list({compact_json(item): item for value in found for item in value}.values())
    return found[0] if found else _MISSING


def _first_match(name: str, schema: Mapping[str, JsonValue], data: JsonValue) -> Any:
    fitting = (value for key, value in _items(data) if _plain_name(key) == _plain_name(name) and _fits(value, schema))
    return next(fitting, _MISSING)


def _items(data: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    """Yield every key and value in `data`, outer keys first."""
    waiting: list[JsonValue] = [data]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, dict):
            yield from value.items()
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _fits(value: JsonValue, schema: Mapping[str, JsonValue]) -> bool:
    if isinstance(pattern := schema.get("pattern"), str):
        return isinstance(value, str) and re.search(pattern, value) is not None
    if isinstance(enum := schema.get("enum"), list):
        return value in enum
    match schema.get("type"):
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
    return value is not None


def _number(text: str, *, integer: bool) -> Any:
    if not integer and (money := _MONEY.search(text)) is not None:
        return float((money[1] or money[2]).replace(",", "."))
    number = _NUMBER.search(text)
    if number is None:
        return _MISSING
    value = float(number[0])
    if not math.isfinite(value):
        return _MISSING
    return int(value) if integer else value


def _properties(schema: Mapping[str, JsonValue]) -> Mapping[str, Mapping[str, JsonValue]]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: value for name, value in properties.items() if isinstance(value, dict)}


def _resolve_schema(schema: Mapping[str, JsonValue], root: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """Return a schema with its reference replaced by the definition. A schema of X or null becomes the schema of X."""
    if isinstance(reference := schema.get("$ref"), str):
        definitions, name = root.get("$defs"), reference.rpartition("/")[2]
        target = definitions.get(name) if isinstance(definitions, dict) else None
        return target if isinstance(target, dict) else {}
    if isinstance(options := schema.get("anyOf"), list):
        real = [option for option in options if isinstance(option, dict) and option.get("type") != "null"]
        if len(real) == 1:
            return {**_resolve_schema(real[0], root), **{key: value for key, value in schema.items() if key != "anyOf"}}
    return schema


def _plain_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
