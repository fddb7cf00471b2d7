"""The JSON in what a model wrote: as it stands, or taken out of fences, a byte order mark and prose around it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import JsonValue

from pointsman_schemas.errors import UndecodableEventError
from pointsman_schemas.strict_json import parse_json

__all__ = ["find_json", "parse_strict_json"]

_TOKEN_PATTERN = re.compile(r'"(?:\\.|[^"\\])*+"?|[{}]', re.DOTALL)
"""A brace in a text in quotes is none; one without an end is taken to the end, lest each quote in it be tried anew."""
_MAX_CANDIDATES = 50  # places in a text where JSON might begin; a text with more braces than that holds no answer


def parse_strict_json(text: str) -> JsonValue:
    """`text` as one strict JSON value, None when it is not."""
    try:
        return parse_json(text.encode("utf-8", "replace"))
    except UndecodableEventError:
        return None


def find_json(text: str) -> tuple[JsonValue, ...]:
    """The JSON objects in `text`, in order; the whole of it when it is JSON by itself.

    So fenced, byte-order-marked and chatty answers are read. What stands inside an object is not found again.
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
    """Where the object that begins at `start` ends, sound or not: the parts of a broken one are not answers."""
    depth = 0
    for piece in _TOKEN_PATTERN.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(piece[0], 0)
        if depth == 0:
            return piece.end()
    return len(text)
