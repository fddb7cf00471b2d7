"""Find the JSON in the text of a model: alone, between fences, after a byte order mark, or within prose."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import JsonValue

from pointsman_schemas.errors import UndecodableEventError
from pointsman_schemas.strict_json import parse_json

__all__ = ["find_json", "parse_strict_json"]

_TOKEN_PATTERN = re.compile(r'"(?:\\.|[^"\\])*+"?|[{}]', re.DOTALL)
"""A whole string literal, or one brace. A literal is one token, so its braces do not count. An unterminated literal
extends to the end of the text, so that the search takes linear time."""
_MAX_CANDIDATES = 50  # number of objects that are tried in one text; further objects are ignored


def parse_strict_json(text: str) -> JsonValue:
    """Return a text as one strict JSON value, or None if it is not strict JSON."""
    try:
        return parse_json(text.encode("utf-8", "replace"))
    except UndecodableEventError:
        return None


def find_json(text: str) -> tuple[JsonValue, ...]:
    """Return the JSON objects in a text.

    Args:
        text: The text of a model.

    Returns:
        The value, if the whole text is JSON. Otherwise, the objects that are not inside another object, in their order.
    """
    text = text.strip().removeprefix("\ufeff")
    if (value := parse_strict_json(text)) is not None:
        return (value,)
    return tuple(_objects(text))


def _objects(text: str) -> Iterator[JsonValue]:
    at = 0
    for _ in range(_MAX_CANDIDATES):
        if (at := text.find("{", at)) < 0:
            return
        end = _object_end(text, at)
        if (value := parse_strict_json(text[at:end])) is not None:
            yield value
        at = end


def _object_end(text: str, start: int) -> int:
    """Return the end of the object that begins at `start`; if the object is not closed, the end of the text."""
    depth = 0
    for piece in _TOKEN_PATTERN.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(piece[0], 0)
        if depth == 0:
            return piece.end()
    return len(text)
