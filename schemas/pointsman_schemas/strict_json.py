"""JSON in and out is strict: no NaN or Infinity, no lone surrogates, no key twice in an object, bounded depth, every
digit of an integer kept."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar
from uuid import UUID

import jiter
import pydantic
from pydantic import BaseModel, GetCoreSchemaHandler, ValidationError
from pydantic_core import core_schema, from_json, to_json

from pointsman_schemas.errors import NotJson, UndecodableEvent
from pointsman_schemas.ids import TOKEN_PATTERN

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["MAX_DEPTH", "JsonValue", "as_json_value", "dump", "parse", "parse_json"]

MAX_DEPTH = 128
"""Nesting that a value may have: below the JSON parser's own bound of 200, so what we send can always be read."""

_PARSER_DEPTH = 200  # pydantic-core's own bound
_INTEGER_BITS = 14_284  # the 4,300 digits that the JSON parser reads of an integer, in bits

# What may be a number that overflows to infinity: no parser here refuses it, as they do NaN. It takes an exponent of
# three digits, or 209 digits and one of two. A body that matches is looked at closely; few do.
_NOT_FINITE = re.compile(rb"[\s,:\[]-?[0-9](?:[0-9.]*[eE]\+?[0-9]{3}|[0-9.]{199})")
# Most bodies hold nothing of that form even within their texts, which this tells ten times faster than the pattern.
_FORM = bytes.maketrans(b"123456789.E", b"0000000000e")
_LONG = b"0" * 200

ModelT = TypeVar("ModelT", bound=BaseModel)


class _AsItIs:
    """What was read from bytes is JSON already, and is written as what it is; only what Python made is looked through.
    pydantic alone calls back into Python for each node of a value, both ways."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.json_or_python_schema(
            json_schema=core_schema.any_schema(),
            python_schema=handler(source),
            serialization=core_schema.simple_ser_schema("any"),
        )


JsonValue: TypeAlias = Annotated[pydantic.JsonValue, _AsItIs()]
"""Any JSON value, as a field of a model."""


def parse(model: type[ModelT], body: bytes) -> ModelT:
    """`body` as a `model`, read once, straight from the bytes.

    Raises:
        UndecodableEvent: not strict JSON, nested too deep, or not of the model's shape. The message names the first
            three fields.
    """
    if _may_not_be_finite(body):
        parse_json(body)
    depth: int = getattr(model, "max_depth", _PARSER_DEPTH)
    if body.count(b"[") + body.count(b"{") > depth:
        _check_depth(body, depth)
    try:
        made = model.model_validate_json(body)
    except ValidationError as error:
        raise UndecodableEvent(f"not a valid {model.__name__}: {describe(error)}") from None
    _read(body)  # pydantic takes the last of a repeated key; others take the first, and would see another event
    return made


def parse_json(body: bytes) -> JsonValue:
    """`body` as plain JSON data. Raises `UndecodableEvent` when it is not strict JSON."""
    value = _read(body)
    if _may_not_be_finite(body):
        try:
            as_json_value(value)
        except NotJson as error:
            raise UndecodableEvent(f"not strict JSON: {error}") from None
    return value


def _read(body: bytes) -> JsonValue:
    """By pydantic-core's own parser, which on its own can tell repeated keys: a fifth of what a model costs."""
    try:
        value: JsonValue = jiter.from_json(body, allow_inf_nan=False, catch_duplicate_keys=True, cache_mode="none")
    except ValueError as error:
        raise UndecodableEvent(f"not JSON: {_shown(str(error), 200)}; send one UTF-8 encoded JSON value") from None
    return value


def _may_not_be_finite(body: bytes) -> bool:
    form = body.translate(_FORM)
    if b"0e000" not in form and b"0e+000" not in form and _LONG not in form:
        return False
    bare = body[:1].isdigit() or body[:1] == b"-"  # a number alone: nothing before it that the pattern seeks
    return bare or _NOT_FINITE.search(body) is not None


def _check_depth(body: bytes, depth: int) -> None:
    """Let the parser count: wrapped in enough lists, a body that is too deep runs into the parser's own bound."""
    if (spare := _PARSER_DEPTH - depth) > 0:
        try:
            from_json(b"[" * spare + body + b"]" * spare)
        except ValueError as error:
            if "recursion limit" in str(error):
                raise UndecodableEvent(f"nested deeper than {depth} levels; flatten it") from None


def dump(model: BaseModel) -> bytes:
    """The JSON body of `model`, without fields that are unset or None."""
    return model.__pydantic_serializer__.to_json(model, exclude_none=True)


def describe(error: ValidationError) -> str:
    """The first three problems of `error` in one line, without the offending values: they may be secret or huge."""
    found = error.errors(include_url=False, include_input=False)
    # Of a list whose members do not fit, pydantic says that it is too short as well.
    unfit = {problem["loc"][:length] for problem in found for length in range(len(problem["loc"]))}
    problems = [problem for problem in found if problem["type"] != "too_short" or problem["loc"] not in unfit]
    shown = "; ".join(
        f"{'.'.join(str(part) for part in problem['loc'])[:120] or 'body'}: {_plainly(problem)[:300]}"
        for problem in problems[:3]
    )
    return shown + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")


def _plainly(problem: ErrorDetails) -> str:
    """What is wrong, in words for who has written it."""
    if problem["type"] == "string_pattern_mismatch" and problem.get("ctx", {}).get("pattern") == TOKEN_PATTERN:
        return "a name is expected, of 1 to 64 letters, digits, - and _"
    if problem["type"] in ("tuple_type", "list_type"):
        return "a list is expected"
    if problem["type"] == "too_short" and problem.get("ctx", {}).get("min_length") == 1:
        return "at least one is expected"
    return "an object is expected" if "valid dictionary" in problem["msg"] else problem["msg"]


def as_json_value(value: Any, path: str = "$") -> JsonValue:
    """`value` as plain JSON data: models and dataclasses become objects, dates become text.

    Raises:
        NotJson: something in it cannot be carried as strict JSON. The message gives the path, never the content.
    """
    return _as_json_value(value, path, 0)


def _as_json_value(value: Any, path: str, depth: int) -> JsonValue:
    if depth > MAX_DEPTH:
        raise NotJson(f"{_shown(path)} is nested deeper than {MAX_DEPTH} levels; flatten it or break the cycle")
    match value:
        case None | bool():
            return value
        case Enum():
            return _as_json_value(value.value, path, depth)
        case int():
            if value.bit_length() > _INTEGER_BITS:
                raise NotJson(
                    f"{_shown(path)} is an integer of more than 4,300 digits, which JSON readers refuse; use text"
                )
            return int(value)
        case str():
            return _checked_text(value, path)
        case float():
            if math.isfinite(value):
                return float(value)
            raise NotJson(f"{_shown(path)} is {value!r}, which JSON cannot carry; return null or text instead")
        case datetime() if value.tzinfo is None:
            raise NotJson(
                f"{_shown(path)} is a time without a zone; give it one, for example datetime.now(timezone.utc)"
            )
        case datetime() | date():
            return value.isoformat()
        case UUID():
            return str(value)
        case BaseModel():
            return _as_json_value(_dumped(value, path), path, depth)
        case list() | tuple():
            return [_as_json_value(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
        case Mapping():
            return {_key(key, path): _as_json_value(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {
                field.name: _as_json_value(getattr(value, field.name), f"{path}.{field.name}", depth + 1)
                for field in fields(value)
            }
    raise NotJson(
        f"{_shown(path)} is of type {type(value).__name__}, which JSON cannot carry; return text, numbers, "
        "lists, objects or a pydantic model"
    )


def _dumped(model: BaseModel, path: str) -> Any:
    """The model's own JSON form, by its aliases and serializers. NaN is still NaN in it, so that it is refused next."""
    try:
        return model.model_dump(mode="json", by_alias=True)
    except ValueError as error:  # a cycle, a lone surrogate, a field that JSON has no form for
        reason = type(error).__name__
        raise NotJson(
            f"{_shown(path)} is a {type(model).__name__} that pydantic cannot write as JSON ({reason})"
        ) from None


def _shown(text: str, most: int = 80) -> str:
    return text if len(text) <= most else text[:most] + "..."


def _key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise NotJson(f"{_shown(path)} has a key of type {type(key).__name__}; JSON keys are text")
    return _checked_text(key, path)


def _checked_text(text: str, path: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise NotJson(
            f"{_shown(path)} holds half of a surrogate pair, which UTF-8 cannot carry; repair the text"
        ) from None
    return text


def compact(value: JsonValue) -> bytes:
    """`value` as compact UTF-8 JSON bytes."""
    return to_json(value)
