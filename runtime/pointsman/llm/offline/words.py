"""Convert values to text, find the text in values, and add or remove the note of the offline model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from pointsman_schemas.role_io import RequestInput

__all__ = ["OFFLINE_NOTE", "as_text", "request_as_text", "shorten", "strings", "text_key", "without_note"]

OFFLINE_NOTE: Final = "(Written by the offline model: put together from the results, no language model was called.)"
_TEXT_KEYS = ("summary", "answer", "message", "text", "result", "output")


def strings(value: JsonValue) -> list[str]:
    """Return every text in a value, at any depth and in order. Keys are left out."""
    match value:
        case str():
            return [value]
        case dict():
            return [text for part in value.values() for text in strings(part)]
        case list():
            return [text for part in value for text in strings(part)]
    return []


def request_as_text(request: RequestInput) -> str:
    """Return a request as one text."""
    return request if isinstance(request, str) else ". ".join(strings(request))


def as_text(value: JsonValue) -> str:
    """Return a value as text. The text of an object is the value of a key such as `summary`, or all keys and values."""
    match value:
        case None:
            return ""
        case str():
            return value.strip()
        case dict():
            if isinstance(text := value.get(text_key(value)), str):
                return text.strip()
            return "; ".join(f"{key.replace('_', ' ')}: {as_text(part)}" for key, part in value.items())
        case list():
            return ", ".join(as_text(part) for part in value) or "none"
        case bool():
            return "yes" if value else "no"
    return str(value)


def text_key(value: Mapping[str, JsonValue]) -> str:
    """Return the key whose value is the text of an object, such as `summary`; empty if the object has no such key."""
    return next((key for key in _TEXT_KEYS if isinstance(text := value.get(key), str) and text.strip()), "")


def without_note(text: str) -> str:
    """Return a text without the note of the offline model."""
    return text.replace(OFFLINE_NOTE, "").strip()


def shorten(text: str) -> str:
    """Return a text in one line. A text of more than 200 characters is cut, and three dots are added."""
    text = " ".join(text.split())
    return text if len(text) <= 200 else text[:200] + "..."
