"""Check a value against its declared type, and convert the value to JSON data.

Pydantic checks the fields of a model only when it makes an instance. The instance might have been changed later, made
by `model_construct`, or copied with an update. So the fields of an instance are checked again before it is written.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import (
    CoreSchema,
    PydanticCustomError,
    PydanticSerializationError,
    SchemaValidator,
    core_schema,
)

__all__ = ["TypeWriter", "find_unwritable", "replace_surrogates", "writer_of"]

T = TypeVar("T")

_SCHEMA_KEYS: Final = (
    "schema",
    "items_schema",
    "keys_schema",
    "values_schema",
    "extras_schema",
    "extras_keys_schema",
    "lax_schema",
    "strict_schema",
    "json_schema",
    "python_schema",
    "arguments_schema",
    "choices",
    "steps",
    "fields",
    "definitions",
)
"""Keys of a core schema whose value is a schema, a list of schemas, or a mapping of schemas."""

_MAX_DEPTH: Final = 200
"""Depth to which texts are searched. A deeper value cannot be written as JSON, so its texts do not matter."""

_INSTANCES: Final = frozenset({"model", "dataclass"})
_UNREADABLE_KEYS: Final = frozenset({"tuple", "named-tuple"})
"""Types that pydantic writes as the key of an object, but cannot read from a key."""
_UNWRITABLE_KEYS: Final = frozenset(
    {"list", "set", "frozenset", "dict", "model", "dataclass", "typed-dict", "definition-ref"}
)
_CUSTOM_SERIALIZATIONS: Final = frozenset({"function-plain", "function-wrap", "to-string", "format"})
_WRAPPERS: Final = frozenset(
    {"nullable", "default", "function-before", "function-after", "function-wrap", "custom-error"}
)


class TypeWriter(Generic[T]):
    """Check and write values of one type.

    Args:
        adapter: The type.
    """

    __slots__ = ("_adapter", "_check")

    def __init__(self, adapter: TypeAdapter[T]) -> None:
        self._adapter = adapter
        schema = adapter.core_schema
        has_checks = any(each["type"] in {*_INSTANCES, "any", "datetime"} for each in _subschemas(schema))
        # False excludes the prebuilt validator of the model's class, which would not check an instance again.
        self._check = SchemaValidator(_check_schema(schema), None, False) if has_checks else None

    def check(self, value: T) -> None:
        """Check the current fields of an instance of the type.

        Args:
            value: The instance.

        Raises:
            ValidationError: The instance is not valid.
        """
        if self._check is not None:
            self._check.validate_python(value)

    def write(self, value: object) -> Any:
        """Check a value against the type, and convert the value to data for JSON.

        Args:
            value: A value of the type, or data that pydantic converts to the type.

        Returns:
            The data. The size of its integers, its depth and its floats are not checked.

        Raises:
            ValidationError: The value is not valid for the type.
            ValueError: Pydantic cannot write the value: it contains itself, or a part has no form in JSON.
        """
        valid = self._adapter.validate_python(value)
        if self._check is None:
            return self._adapter.dump_python(valid, mode="json", by_alias=True, warnings=False)
        checked = self._check.validate_python(valid)
        try:
            return self._adapter.dump_python(valid, mode="json", by_alias=True, warnings="error")
        except PydanticSerializationError:
            # A field can contain a value that is valid only after a conversion. So write the checked copy, which
            # contains the converted value.
            return self._adapter.dump_python(checked, mode="json", by_alias=True, warnings=False)


_writers: WeakKeyDictionary[type, TypeWriter[Any]] = WeakKeyDictionary()


def writer_of(kind: type) -> TypeWriter[Any]:
    """Return the writer of a class. Each class has only one writer, which is made at the first call.

    Args:
        kind: A model, or a dataclass of pydantic.

    Returns:
        The writer.
    """
    if (found := _writers.get(kind)) is None:
        found = _writers[kind] = TypeWriter(TypeAdapter(kind))
    return found


def find_unwritable(schema: CoreSchema, *, output: bool) -> str:
    """Find a part of a type whose values JSON cannot represent.

    Args:
        schema: The core schema of the type.
        output: True for a type that is written, False for a type that is read.

    Returns:
        The part and the remedy; an empty text if JSON can represent all values.
    """
    return _find_unwritable(cast(dict[str, Any], schema), {}, output)


def _find_unwritable(schema: Mapping[str, Any], config: Mapping[str, Any], output: bool) -> str:
    if output and schema.get("serialization", {}).get("type") in _CUSTOM_SERIALIZATIONS:
        return ""
    kind = schema["type"]
    if kind in _INSTANCES or kind == "typed-dict":
        config = schema.get("config", {})
    if kind == "dict":
        keys = _unwrapped(schema.get("keys_schema", {"type": "any"}))["type"]
        if keys in _UNWRITABLE_KEYS or (not output and keys in _UNREADABLE_KEYS):
            return f"a dict with keys of type {keys}: the keys of a JSON object are text, so use a list of pairs"
    if kind == "bytes" and output and config.get("ser_json_bytes", "utf8") == "utf8":
        return (
            "bytes, but JSON can represent only UTF-8 text: return text, such as base64.b64encode(data).decode(), or a "
            "model with ConfigDict(ser_json_bytes='base64', val_json_bytes='base64')"
        )
    if kind in ("is-instance", "is-subclass", "callable") and output:
        name = getattr(schema.get("cls"), "__name__", kind)
        what = f"a subclass of {name}" if kind == "is-subclass" else f"an instance of {name}"
        return f"{what}, which pydantic cannot write: give the type a PlainSerializer, or return a model"
    if output and kind in ("json-or-python", "lax-or-strict"):  # a value to write is a Python object, never JSON text
        key = "python_schema" if kind == "json-or-python" else "strict_schema"
        return _find_unwritable(schema[key], config, output)
    found = (_find_unwritable(each, config, output) for each in _children(schema))
    return next(filter(None, found), "")


def _unwrapped(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while schema["type"] in _WRAPPERS:
        schema = schema["schema"]
    return schema


def _children(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for key in _SCHEMA_KEYS:
        held = schema.get(key)
        for each in held.values() if isinstance(held, dict) and "type" not in held else _as_list(held):
            inner = each[0] if isinstance(each, tuple) else each  # a choice of a union may have a label
            if isinstance(inner, dict) and "type" in inner:
                yield inner


def _as_list(held: object) -> list[Any]:
    return held if isinstance(held, list) else [held]


def _subschemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield schema
    for each in _children(schema):
        yield from _subschemas(each)


def _check_schema(schema: Any, *, in_model: bool = False) -> Any:
    """Return a schema that checks an instance again, field by field.

    Validator functions that run before pydantic's own check are omitted. They expect the original data, and the
    instance has their results already. Functions that run after pydantic's check are kept, because they check an
    invariant.
    """
    kind = schema["type"]
    if kind == "any":
        return core_schema.no_info_plain_validator_function(_check_any)
    if kind == "function-before":
        return _check_schema(schema["schema"], in_model=in_model)
    if kind == "function-plain" or (kind == "function-wrap" and not _holds_instance(schema)):
        return core_schema.any_schema()
    if kind == "function-wrap":
        return _check_schema(schema["schema"], in_model=in_model)
    changed = dict(schema)
    changed.pop("validation_alias", None)
    if kind in _INSTANCES:
        in_model = True
        changed["revalidate_instances"] = "always"
        changed.pop("post_init", None)
        changed.pop("custom_init", None)
        if "config" in changed:
            changed["config"] = _without_extra_check(changed["config"])
    if kind == "datetime" and not in_model:
        changed.setdefault("tz_constraint", "aware")
    if changed.get("extra_behavior") == "forbid":
        changed["extra_behavior"] = "ignore"  # an instance also stores its cached properties, which are not fields
    if kind == "dataclass-args":
        changed["collect_init_only"] = False
        changed["fields"] = [{**each, "init": True} for each in schema["fields"] if not each.get("init_only")]
    for key in _SCHEMA_KEYS:
        if key in changed:
            changed[key] = _check_held(changed[key], in_model)
    if kind == "function-after" and not _holds_instance(schema):
        return core_schema.no_info_wrap_validator_function(_allow_other_type, cast("core_schema.CoreSchema", changed))
    return changed


def _check_held(held: Any, in_model: bool) -> Any:
    if isinstance(held, dict):
        if isinstance(held.get("type"), str):
            return _check_schema(held, in_model=in_model)
        return {key: _check_held(each, in_model) for key, each in held.items()}
    if isinstance(held, list):
        return [_check_held(each, in_model) for each in held]
    if isinstance(held, tuple):
        return (_check_held(held[0], in_model), *held[1:])
    return held


def _without_extra_check(config: Mapping[str, Any]) -> dict[str, Any]:
    forbids = config.get("extra_fields_behavior") == "forbid"
    return {**config, "extra_fields_behavior": "ignore"} if forbids else dict(config)


def _holds_instance(schema: Mapping[str, Any]) -> bool:
    inner = schema["schema"]
    while inner["type"] in _WRAPPERS:
        inner = inner["schema"]
    return inner["type"] in {*_INSTANCES, "definition-ref"}


def _check_any(given: object) -> object:
    """Check the models in a value of any type. Refuse NaN and infinity, because pydantic would write null."""
    rest = [given]
    seen: set[int] = set()
    while rest:
        value = rest.pop()
        match value:
            case float(number) if not math.isfinite(number):
                raise PydanticCustomError(
                    "finite_number", "{number} cannot be carried by JSON", {"number": str(number)}
                )
            case (list() | tuple() | dict()) as held if id(held) not in seen:
                seen.add(id(held))
                rest.extend(held.values() if isinstance(held, dict) else held)
            case _ if isinstance(value, BaseModel) or hasattr(type(value), "__pydantic_validator__"):
                writer_of(type(value)).check(value)
            case _:
                pass
    return given


def _allow_other_type(value: Any, check: core_schema.ValidatorFunctionWrapHandler) -> Any:
    """Check a value. Accept a value of another type, because a function that runs after the check can return one."""
    try:
        return check(value)
    except ValidationError as error:
        if all(not each["loc"] and each["type"].endswith("_type") for each in error.errors(include_url=False)):
            return value
        raise


def replace_surrogates(value: Any) -> Any:
    """Replace each half of a surrogate pair by a question mark, because UTF-8 cannot represent the half.

    Args:
        value: Any value. Texts are searched in lists, tuples, sets, mappings, models and dataclasses.

    Returns:
        The value itself if no text has such a half; otherwise a copy.
    """
    return _replace(value, frozenset())


def _replace(value: Any, above: frozenset[int]) -> Any:
    if isinstance(value, str):
        if type(value) is not str or value.isascii():
            return value
        replaced = value.encode("utf-8", "replace").decode()
        return value if replaced == value else replaced
    if not isinstance(value, Mapping | list | tuple | set | frozenset | deque | BaseModel) and not is_dataclass(value):
        return value
    if id(value) in above or len(above) > _MAX_DEPTH or isinstance(value, type):  # not JSON, so the writer refuses it
        return value
    above = above | {id(value)}
    if isinstance(value, Mapping):
        pairs = {_replace(key, above): _replace(item, above) for key, item in value.items()}
        changed = any(new is not old for new, old in zip(pairs, value, strict=False)) or any(
            pairs.get(key) is not item for key, item in value.items()
        )
        return pairs if changed else value
    if isinstance(value, BaseModel):
        held = {name: _replace(item, above) for name, item in value.__dict__.items()}
        held = {name: item for name, item in held.items() if item is not value.__dict__[name]}
        extra = {name: _replace(item, above) for name, item in (value.__pydantic_extra__ or {}).items()}
        extra = {name: item for name, item in extra.items() if item is not (value.__pydantic_extra__ or {})[name]}
        return value.model_copy(update={**held, **extra}) if held or extra else value
    if is_dataclass(value):
        given = {each.name: getattr(value, each.name, None) for each in fields(value)}
        held = {name: _replace(item, above) for name, item in given.items()}
        if all(held[name] is given[name] for name in given):
            return value
        other = copy.copy(value)
        for name, item in held.items():
            object.__setattr__(other, name, item)
        return other
    items = [_replace(item, above) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
