"""Write JSON Schemas in the form that every provider accepts. The root is an object with properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import JsonValue

__all__ = ["WRAPPED", "object_schema", "tool_parameters", "unwrapped", "without_keywords"]

WRAPPED: Final = "value"
"""The name of the property that contains an answer that is not an object, such as a list or a union."""

_MAX_REFERENCES: Final = 20
_COMBINED: Final = ("anyOf", "oneOf", "allOf")
_SUBSCHEMAS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SUBSCHEMA_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_SUBSCHEMA: Final = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")


def object_schema(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a schema whose root is an object, for a structured answer.

    Providers refuse a reference, a list, a union or a plain value at the root. A reference at the root, as in the
    schema of a recursive model, is replaced by its definition. If the root is still not an object, the schema becomes
    the property `value` of an object. `unwrapped` returns the answer without this object.

    Args:
        schema: The JSON Schema of the answer. A schema with an object as its root is returned with `properties`.
    """
    root = _dereferenced(schema)
    if _is_object(root):
        return root if "properties" in root else {**root, "properties": {}}
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    inner = {name: value for name, value in schema.items() if name not in definitions}
    return {
        "type": "object",
        "properties": {WRAPPED: inner},
        "required": [WRAPPED],
        "additionalProperties": False,
        **definitions,
    }


def unwrapped(schema: Mapping[str, JsonValue], value: JsonValue) -> JsonValue:
    """Return the answer for `schema` from an answer for `object_schema(schema)`."""
    if _is_object(_dereferenced(schema)) or not isinstance(value, dict) or value.keys() != {WRAPPED}:
        return value
    return value[WRAPPED]


def tool_parameters(schema: Mapping[str, JsonValue] | None) -> dict[str, JsonValue]:
    """Return the schema of a tool's arguments as an object with `properties`.

    A union at the root, which providers refuse, becomes one object with the properties of all its members. A list
    without `items` gets `items`. The tool itself checks the arguments by its own schema.

    Args:
        schema: The schema as the tool's source gives it; None for a tool without arguments.
    """
    root = _dereferenced(schema if isinstance(schema, Mapping) else {})
    members = [
        _dereferenced({**each, **_definitions(root)})
        for name in _COMBINED
        for each in _as_list(root.get(name))
        if isinstance(each, dict)
    ]
    properties = dict(_as_object(root.get("properties")))
    required = [name for name in _as_list(root.get("required")) if isinstance(name, str)]
    if members:
        for member in members:
            for name, described in _as_object(member.get("properties")).items():
                known = properties.get(name, described)
                properties[name] = described if known == described else {"anyOf": [known, described]}
        is_all = not (root.get("anyOf") or root.get("oneOf"))
        needed = [{name for name in _as_list(member.get("required")) if isinstance(name, str)} for member in members]
        in_every = set.union(*needed) if is_all else set.intersection(*needed)
        required += [name for name in properties if name in in_every and name not in required]
    found = {name: value for name, value in root.items() if name not in (*_COMBINED, "type", "properties", "required")}
    written: dict[str, JsonValue] = {"type": "object", "properties": properties}
    if required:
        written["required"] = [*required]
    written |= found
    return _with_items(written) if _lacks_items(written) else written


def without_keywords(schema: JsonValue, keywords: Sequence[str]) -> JsonValue:
    """Return a schema without `keywords` that a server refuses. Properties with the name of a keyword stay."""
    if not isinstance(schema, dict):
        return schema
    found: dict[str, JsonValue] = {}
    for name, value in schema.items():
        if name in keywords:
            if name == "const":
                found["enum"] = [value]
            continue
        found[name] = _mapped(name, value, keywords)
    return found


def _mapped(name: str, value: JsonValue, keywords: Sequence[str]) -> JsonValue:
    if name in _SUBSCHEMAS and isinstance(value, dict):
        return {key: without_keywords(each, keywords) for key, each in value.items()}
    if name in _SUBSCHEMA_LISTS and isinstance(value, list):
        return [without_keywords(each, keywords) for each in value]
    return without_keywords(value, keywords) if name in _SUBSCHEMA else value


def _dereferenced(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the schema with a reference at the root replaced by its definition. `$defs` stays."""
    found = dict(schema)
    for _ in range(_MAX_REFERENCES):
        reference = found.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        target: JsonValue = dict(schema)
        for part in reference.removeprefix("#/").split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            target = target.get(name) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            break
        beside = {name: value for name, value in found.items() if name not in ("$ref", "$defs", "definitions")}
        found = {**target, **beside, **_definitions(schema)}
    return found


def _definitions(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {name: schema[name] for name in ("$defs", "definitions") if name in schema}


def _is_object(schema: Mapping[str, JsonValue]) -> bool:
    return schema.get("type") == "object" and not any(schema.get(name) for name in _COMBINED)


def _lacks_items(schema: JsonValue) -> bool:
    if isinstance(schema, list):
        return any(map(_lacks_items, schema))
    if not isinstance(schema, dict):
        return False
    return _is_bare_list(schema) or any(map(_lacks_items, schema.values()))


def _with_items(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    written = {name: _each_with_items(name, value) for name, value in schema.items()}
    return {**written, "items": {}} if _is_bare_list(schema) else written


def _each_with_items(name: str, value: JsonValue) -> JsonValue:
    if name in _SUBSCHEMAS and isinstance(value, dict):
        return {key: _with_items(each) if isinstance(each, dict) else each for key, each in value.items()}
    if name in _SUBSCHEMA_LISTS and isinstance(value, list):
        return [_with_items(each) if isinstance(each, dict) else each for each in value]
    return _with_items(value) if name in _SUBSCHEMA and isinstance(value, dict) else value


def _is_bare_list(schema: Mapping[str, JsonValue]) -> bool:
    kind = schema.get("type")
    is_list = kind == "array" or (isinstance(kind, list) and "array" in kind)
    return is_list and "items" not in schema and "prefixItems" not in schema


def _as_list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _as_object(value: JsonValue) -> dict[str, JsonValue]:
    return value if isinstance(value, dict) else {}
