"""Read and write strict JSON.

NaN, Infinity, lone surrogates, duplicate keys and deep nesting are refused. Integers keep all digits.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, TypeAlias, TypeVar
from uuid import UUID

import jiter
import pydantic
from pydantic import BaseModel, GetCoreSchemaHandler, ValidationError
from pydantic_core import ErrorDetails, SchemaValidator, core_schema, from_json, to_json, to_jsonable_python

from pointsman_schemas.errors import NotJsonError, UndecodableEventError
from pointsman_schemas.ids import TOKEN_PATTERN
from pointsman_schemas.typed_values import replace_surrogates, writer_of

__all__ = [
    "MAX_DEPTH",
    "JsonValue",
    "as_json_value",
    "dump",
    "first_fault_validator",
    "parse",
    "parse_json",
    "stop_at_first_fault",
]

MAX_DEPTH = 128
"""Deepest nesting of a written value. The depth is lower than the JSON parser's limit of 200, so that a reader can read
each written value, even as a part of an event."""

_PARSER_MAX_DEPTH = 200  # pydantic-core's own limit
_MAX_INTEGER_BITS = 14_284  # 4,300 digits, the limit of the JSON parser, in bits

# Numbers that can overflow to infinity, such as 1e999. The parsers refuse NaN, but accept these numbers. So if a body
# matches the pattern, each value of the body is checked. Only a number with an exponent of three digits, or with at
# least 209 digits, can overflow.
_NON_FINITE_PATTERN = re.compile(rb"[\s,:\[]-?[0-9](?:[0-9.]*[eE]\+?[0-9]{3}|[0-9.]{199})")
# The constants of a first test, which is ten times faster than the pattern. This test excludes most bodies, so the
# pattern is rarely searched.
_DIGIT_CLASSES = bytes.maketrans(b"123456789.E", b"0000000000e")
_LONG_DIGITS = b"0" * 200

# An escaped backslash, a whole surrogate pair, or half a pair. The group contains only half a pair, which is replaced.
_ESCAPE = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)

_MANY_FAULTS_BYTES = 16_384  # size of a body above which only the first invalid member of a list is reported
_MAX_PROBLEMS = 1_000
_OWN_TEXT = "Value error, "  # pydantic writes this before the text of a validator's ValueError

ModelT = TypeVar("ModelT", bound=BaseModel)


class _Unchecked:
    """Validate a value that comes from Python. Do not validate a value that was parsed from bytes: it is JSON already.

    This type is faster than pydantic's `JsonValue`, which calls Python for each node of a value it reads or writes.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.json_or_python_schema(
            json_schema=core_schema.any_schema(),
            python_schema=handler(source),
            serialization=core_schema.simple_ser_schema("any"),
        )


JsonValue: TypeAlias = Annotated[pydantic.JsonValue, _Unchecked()]
"""The type of a field that may have any JSON value."""


def parse(model: type[ModelT], body: bytes) -> ModelT:
    """Parse a body directly from its bytes.

    Args:
        model: The class of the body.
        body: The bytes.

    Returns:
        An instance of `model`.

    Raises:
        UndecodableEventError: The body is not strict JSON, is nested too deep, or is not valid for the model. The
            message names the first three invalid fields.
    """
    if _may_not_be_finite(body):
        parse_json(body)
    depth: int = getattr(model, "max_depth", _PARSER_MAX_DEPTH)
    if body.count(b"[") + body.count(b"{") > depth:
        _check_depth(body, depth)
    try:
        if len(body) > _MANY_FAULTS_BYTES:
            made: ModelT = first_fault_validator(model).validate_json(body)
        else:
            made = model.model_validate_json(body)
    except ValidationError as error:
        raise UndecodableEventError(f"not a valid {model.__name__}: {describe(error)}") from None
    _parse_body(body)  # refuses duplicate keys, because pydantic uses the last value and other readers use the first
    return made


@lru_cache(1_000)
def first_fault_validator(model: type[BaseModel]) -> SchemaValidator:
    """Return a validator of a model that stops at the first invalid member of a list.

    The model's own validator collects the errors of all members. In a body of a megabyte, a million members can be
    invalid, and their errors would take minutes and gigabytes.

    Args:
        model: The class.

    Returns:
        The validator.
    """
    model.model_rebuild()  # builds a schema that was deferred
    schema = deepcopy(model.__pydantic_core_schema__)
    stop_at_first_fault(schema)
    return SchemaValidator(schema, _use_prebuilt=False)


def stop_at_first_fault(schema: Any) -> None:
    """Change a schema of pydantic-core, so that the validation of a list stops at the first invalid member.

    Args:
        schema: The schema, or a part of one.
    """
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if part.get("type") in ("list", "tuple", "set", "frozenset"):
                part["fail_fast"] = True
            waiting.extend(part.values())
        elif isinstance(part, list | tuple):
            waiting.extend(part)


def parse_json(body: bytes) -> JsonValue:
    """Parse a body as plain JSON data.

    Args:
        body: The bytes.

    Returns:
        The value.

    Raises:
        UndecodableEventError: The body is not strict JSON.
    """
    value = _parse_body(body)
    if _may_not_be_finite(body):
        try:
            as_json_value(value)
        except NotJsonError as error:
            raise UndecodableEventError(f"not strict JSON: {error}") from None
    return value


def _parse_body(body: bytes) -> JsonValue:
    """Parse with jiter, the parser of pydantic-core. It detects duplicate keys, in a fifth of the model's time."""
    try:
        value: JsonValue = jiter.from_json(body, allow_inf_nan=False, catch_duplicate_keys=True, cache_mode="none")
    except ValueError as error:
        raise UndecodableEventError(
            f"not JSON: {_shorten(str(error), 200)}; send one UTF-8 encoded JSON value"
        ) from None
    return value


def _may_not_be_finite(body: bytes) -> bool:
    form = body.translate(_DIGIT_CLASSES)
    if b"0e000" not in form and b"0e+000" not in form and _LONG_DIGITS not in form:
        return False
    bare = body[:1].isdigit() or body[:1] == b"-"  # a body that is only a number, which the pattern does not match
    return bare or _NON_FINITE_PATTERN.search(body) is not None


def _check_depth(body: bytes, depth: int) -> None:
    """Wrap the body in lists. If the body is nested too deep, the wrapped body exceeds the limit of the parser."""
    if (spare := _PARSER_MAX_DEPTH - depth) > 0:
        try:
            from_json(b"[" * spare + body + b"]" * spare)
        except ValueError as error:
            if "recursion limit" in str(error):
                raise UndecodableEventError(f"nested deeper than {depth} levels; flatten it") from None


def dump(model: BaseModel) -> bytes:
    """Serialize a model. Fields that are None are omitted.

    Args:
        model: The body.

    Returns:
        UTF-8 JSON.
    """
    return model.__pydantic_serializer__.to_json(model, exclude_none=True)


def describe(error: ValidationError) -> str:
    """Describe the first three problems in one line. Omit the invalid values, because they may be secret or large."""
    problems = problems_of(error)
    more = len(problems) - 3
    shown = f"{_MAX_PROBLEMS} or more" if len(problems) == _MAX_PROBLEMS else f"{more} more"
    return "; ".join(problems[:3]) + (f"; and {shown}" if more > 0 else "")


def problems_of(error: ValidationError) -> list[str]:
    """Return the first problems with their paths. Omit the invalid values, because they may be secret or large."""
    found = error.errors(include_url=False, include_input=False)[:_MAX_PROBLEMS]
    # If members of a list are invalid, pydantic also reports that the list is too short. That report is left out.
    unfit = {problem["loc"][:length] for problem in found for length in range(len(problem["loc"]))}
    return [
        f"{'.'.join(str(part) for part in problem['loc'])[:120] or 'body'}: {_problem_text(problem)[:300]}"
        for problem in found
        if problem["type"] != "too_short" or problem["loc"] not in unfit
    ]


def _problem_text(problem: ErrorDetails) -> str:
    """Return the problem in plain words."""
    if problem["type"] == "string_pattern_mismatch" and problem.get("ctx", {}).get("pattern") == TOKEN_PATTERN:
        return "a name is expected, of 1 to 64 letters, digits, - and _"
    if problem["type"] in ("tuple_type", "list_type"):
        return "a list is expected"
    if problem["type"] == "too_short" and problem.get("ctx", {}).get("min_length") == 1:
        return "at least one is expected"
    return "an object is expected" if "valid dictionary" in problem["msg"] else problem["msg"].removeprefix(_OWN_TEXT)


def as_json_value(value: Any, path: str = "$", *, repair_text: bool = False) -> JsonValue:
    """Convert a Python value to plain JSON data.

    Models and dataclasses become objects. Sets become lists, sorted by the JSON text of the members. Other types, such
    as `Decimal`, `timedelta` or `Path`, are converted by pydantic. The fields of a model are checked again, because
    they might have been changed after the model was made.

    Args:
        value: Any value.
        path: The path to the value, for error messages.
        repair_text: True to replace each half of a surrogate pair by a question mark. By default, such a text is
            refused.

    Returns:
        The data.

    Raises:
        NotJsonError: A part of the value cannot be converted to strict JSON. The message has the path of the part, but
            not the content.
    """
    try:
        return _as_json_value(value, path, 0)
    except NotJsonError:
        if not repair_text or (repaired := replace_surrogates(value)) is value:
            raise
    return _as_json_value(repaired, path, 0)


def _as_json_value(value: Any, path: str, depth: int) -> JsonValue:
    if depth > MAX_DEPTH:
        raise NotJsonError(f"{_shorten(path)} is nested deeper than {MAX_DEPTH} levels; flatten it or break the cycle")
    match value:
        case None | bool():
            return value
        case Enum():
            return _as_json_value(value.value, path, depth)
        case int():
            if value.bit_length() > _MAX_INTEGER_BITS:
                raise NotJsonError(
                    f"{_shorten(path)} is an integer of more than 4,300 digits, which JSON readers refuse; use text"
                )
            return int(value)
        case str():
            return _check_text(value, path)
        case float():
            if math.isfinite(value):
                return float(value)
            raise NotJsonError(
                f"{_shorten(path)} is {value!r}, which JSON cannot represent; return null or text instead"
            )
        case Decimal() if not value.is_finite():
            raise NotJsonError(
                f"{_shorten(path)} is {value!r}, which JSON cannot represent; return null or text instead"
            )
        case datetime() if value.tzinfo is None:
            raise NotJsonError(
                f"{_shorten(path)} is a time without a zone; give it one, for example datetime.now(timezone.utc)"
            )
        case datetime() | date():
            return value.isoformat()
        case UUID():
            return str(value)
        case BaseModel():
            return _as_json_value(_dump_model(value, path), path, depth)
        case list() | tuple() | deque():
            return [_as_json_value(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
        case set() | frozenset():
            return sorted((_as_json_value(item, f"{path}[]", depth + 1) for item in value), key=compact_json)
        case Mapping():
            return _as_object(value, path, depth)
        case _ if hasattr(type(value), "__pydantic_validator__"):  # a dataclass of pydantic
            return _as_json_value(_dump_model(value, path), path, depth)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {
                field.name: _as_json_value(getattr(value, field.name), f"{path}.{field.name}", depth + 1)
                for field in fields(value)
            }
    return _as_json_value(_dump_other(value, path), path, depth)


def _as_object(value: Mapping[Any, Any], path: str, depth: int) -> dict[str, JsonValue]:
    written: dict[str, JsonValue] = {}
    for key, item in value.items():
        text = _key_text(key, path)
        if text in written:
            raise NotJsonError(
                f"{_shorten(path)} has two keys that become {_shorten(text)!r} as text; JSON keys are text"
            )
        written[text] = _as_json_value(item, f"{path}.{key}", depth + 1)
    return written


def _dump_model(model: Any, path: str) -> Any:
    """Check a model or a dataclass, and dump it with its aliases and serializers. Refuse NaN and infinity."""
    name = type(model).__name__
    try:
        return writer_of(type(model)).write(model)
    except ValidationError as error:
        raise NotJsonError(f"{_shorten(path)} is a {name} that is not valid: {describe(error)}") from None
    except Exception as error:  # a cycle, a lone surrogate, a field without a form in JSON, a failed validator
        raise NotJsonError(
            f"{_shorten(path)} is a {name} that pydantic cannot write as JSON ({type(error).__name__})"
        ) from None


def _dump_other(value: object, path: str) -> Any:
    """Return the JSON data that pydantic writes for a value of another type, such as a `Decimal` or a `Path`."""
    if not isinstance(value, Iterator | bytes | bytearray):  # an iterator would be consumed, and bytes may not be text
        try:
            written = to_jsonable_python(value, serialize_unknown=False)
        except Exception:
            written = value
        if type(written) is not type(value):
            return written
    raise NotJsonError(
        f"{_shorten(path)} is of type {type(value).__name__}, which JSON cannot represent; return text, numbers, "
        "lists, objects or a pydantic model"
    )


def _shorten(text: str, most: int = 80) -> str:
    return text if len(text) <= most else text[:most] + "..."


def _key_text(key: Any, path: str) -> str:
    """Return a key as text. A number, a time or an enum is written as pydantic writes the key of an object."""
    if isinstance(key, Enum):
        key = key.value
    if not isinstance(key, str):
        if key is None or isinstance(key, bytes | tuple | frozenset | Mapping | BaseModel) or is_dataclass(key):
            raise NotJsonError(f"{_shorten(path)} has a key of type {type(key).__name__}; JSON keys are text")
        try:
            (key,) = to_jsonable_python({key: None}, serialize_unknown=False)
        except Exception:
            raise NotJsonError(f"{_shorten(path)} has a key of type {type(key).__name__}; JSON keys are text") from None
    return _check_text(key, path)


def _check_text(text: str, path: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise NotJsonError(
            f"{_shorten(path)} holds half of a surrogate pair, which UTF-8 cannot carry; repair the text"
        ) from None
    return text


def replace_surrogate_escapes(body: bytes) -> bytes:
    """Replace each escape of half a surrogate pair in JSON by a question mark.

    A JavaScript program writes such an escape if it cuts a text between the halves of a pair.

    Args:
        body: The JSON.

    Returns:
        The body; unchanged if it has no such half.
    """
    if b"\\u" not in body:
        return body
    return _ESCAPE.sub(lambda found: b"?" if found.lastindex else found[0], body)


def compact_json(value: JsonValue) -> bytes:
    """Serialize JSON data as compact UTF-8."""
    return to_json(value)
