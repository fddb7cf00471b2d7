"""Write values as parts and as metadata of A2A objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a2a.types.a2a_pb2 import Part
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct, Value
from pydantic import JsonValue

__all__ = ["META", "metadata_of", "parts_of", "struct_of"]

META = "io.pointsman/"
"""The prefix of Pointsman's own keys in metadata."""

_URL_FIELDS = frozenset({"url", "mediaType", "filename"})


def parts_of(value: JsonValue) -> list[Part]:
    """Return a value as the parts of a message or of an artifact.

    Args:
        value: The value. An object with only `url`, `mediaType` and optionally `filename` is a file.

    Returns:
        The parts; none for null and an empty text.
    """
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return [Part(text=value, media_type="text/plain")]
    if isinstance(value, dict) and {"url", "mediaType"} <= value.keys() <= _URL_FIELDS:
        fields = {name: value[name] for name in value if isinstance(value[name], str)}
        if len(fields) == len(value):
            return [ParseDict(fields, Part())]
    data: Any = value
    return [Part(data=ParseDict(data, Value()), media_type="application/json")]


def struct_of(fields: Mapping[str, Any]) -> Struct:
    """Return metadata under Pointsman's own prefix, without values that are None.

    Args:
        fields: The metadata.
    """
    given = {f"{META}{name}": value for name, value in fields.items() if value is not None}
    return ParseDict(given, Struct())


def metadata_of(holder: Any, name: str) -> Any:
    """Return a value of metadata under Pointsman's own prefix.

    Args:
        holder: The task, message or artifact with the metadata.
        name: The name without the prefix.

    Returns:
        The value; None for a missing name.
    """
    key = f"{META}{name}"
    return holder.metadata[key] if key in holder.metadata.fields else None
