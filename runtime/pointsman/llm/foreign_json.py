"""Read JSON of an external program. If a value has a wrong type, the error contains the path of the value."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pydantic import JsonValue

from pointsman.errors import ModelReplyError

__all__ = ["Field", "parse_foreign", "sanitized", "whole_number"]

_MAX_DEPTH: Final = 64
"""Largest depth of opaque data. Deeper levels become null. So the data fits into a stored step, which may be twice as
deep."""
_MAX_PARSED_DEPTH: Final = 150
"""Largest depth of a reply. The limit is needed because recursive functions read the reply."""
_MAX_COUNT: Final = 10**12
"""The largest valid number of tokens. A larger number comes from a broken counter."""
_DIGITS: Final = re.compile(r" *([0-9]{1,18}) *")
_NAMES: Final = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}


@dataclass(frozen=True, slots=True)
class Field:
    """A value in a reply of a provider, and the path that leads to the value.

    Attributes:
        value: The JSON value. None means null or a missing field.
        path: The path from the root of the reply, such as `choices[0].message.content`. Empty for the root.
    """

    value: Any
    path: str = ""

    def get(self, name: str) -> Field:
        """Return a member of an object. The value is None if the member is missing or this value is not an object."""
        value = self.value.get(name) if isinstance(self.value, dict) else None
        return Field(value, f"{self.path}.{name}" if self.path else name)

    def first(self, *names: str) -> Field:
        """Return the first of the named members that has a value; the last of them if none has a value."""
        found = [self.get(name) for name in names]
        return next((field for field in found if field.value is not None), found[-1])

    def items(self) -> Iterator[Field]:
        """Yield the items of a list that are not null. A missing list has no items.

        Raises:
            ModelReplyError: The value is not a list.
        """
        if self.value is None:
            return
        if not isinstance(self.value, list):
            raise self.error("a list")
        for place, value in enumerate(self.value):
            if value is not None:
                yield Field(value, f"{self.path}[{place}]")

    def object(self) -> Field:
        """Return this field if the value is an object.

        Raises:
            ModelReplyError: The value is not an object.
        """
        if not isinstance(self.value, dict):
            raise self.error("an object")
        return self

    def text(self, default: str | None = None) -> str:
        """Return the text.

        Args:
            default: The text of a missing field. None means that the field is required.

        Raises:
            ModelReplyError: The value is not text, or a required field is missing.
        """
        if isinstance(self.value, str):
            return self.value
        if self.value is None and default is not None:
            return default
        raise self.error("text")

    def label(self) -> str:
        """Return an id or a name as text. A number is converted to text; for any other value, the text is empty."""
        if isinstance(self.value, bool) or not isinstance(self.value, str | int | float):
            return ""
        return str(self.value)

    def count(self) -> int:
        """Return a count of tokens, from a number or a text of digits. A negative or any other value counts as 0."""
        value = whole_number(self.value) if isinstance(self.value, str) else self.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            return 0
        return int(value) if 0 <= value <= _MAX_COUNT else 0

    def error(self, expected: str) -> ModelReplyError:
        """Return the error for a value that does not have the type `expected`."""
        seen = "missing" if self.value is None else _NAMES.get(type(self.value), "of an unknown type")
        return ModelReplyError(f"{self.path or 'the body'} is {seen}; expected {expected}", path=self.path)


def whole_number(text: str) -> int | None:
    """Return the number in a text of at most 18 ASCII digits, with spaces around them; None for any other text."""
    found = _DIGITS.fullmatch(text)
    return int(found[1]) if found else None


def parse_foreign(text: str, path: str = "") -> Field:
    """Parse JSON by the lenient rules of the standard library, which accepts duplicate keys and NaN.

    Args:
        text: The JSON text. A byte order mark and white space around it are ignored.
        path: The path of the value, for errors.

    Returns:
        The root of the value.

    Raises:
        ModelReplyError: The text is not JSON, or is nested too deep.
    """
    try:
        value = json.loads(text.strip().removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        shown = " ".join(text.split())[:80]
        raise ModelReplyError(f"{path or 'the body'} is not JSON: {shown!r}", path=path) from None
    if text.count("[") + text.count("{") > _MAX_PARSED_DEPTH and _is_deeper(value, _MAX_PARSED_DEPTH):
        raise ModelReplyError(f"{path or 'the body'} is nested deeper than {_MAX_PARSED_DEPTH} levels", path=path)
    return Field(value, path)


def _is_deeper(value: object, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return bool(level)


def sanitized(value: object, depth: int = _MAX_DEPTH) -> JsonValue:
    """Return opaque data as strict JSON that can be stored and sent again.

    Numbers that JSON cannot represent become null, halves of surrogate pairs become `?`, and levels below `depth`
    become null.
    """
    match value:
        case None | bool():
            return value
        case int():
            return value if value.bit_length() < 4_096 else None
        case float():
            return value if math.isfinite(value) else None
        case str():
            return value.encode("utf-8", "replace").decode()
        case list() if depth:
            return [sanitized(each, depth - 1) for each in value]
        case dict() if depth:
            return {str(sanitized(str(key))): sanitized(each, depth - 1) for key, each in value.items()}
        case _:
            return None
