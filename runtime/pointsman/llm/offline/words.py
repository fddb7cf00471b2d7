"""What the offline model has for language: values in words, words out of values, and the note under what it writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from pointsman_schemas.role_io import RequestInput

__all__ = ["OFFLINE_NOTE", "in_words", "short", "spoken", "spoken_key", "strings", "without_note"]

OFFLINE_NOTE: Final = "(Written by the offline model: put together from the results, no language model was called.)"
_SPOKEN_KEYS = ("summary", "answer", "message", "text", "result", "output")


def strings(value: JsonValue) -> list[str]:
    """Every text in `value`, at any depth, in order; keys are not among them."""
    match value:
        case str():
            return [value]
        case dict():
            return [text for part in value.values() for text in strings(part)]
        case list():
            return [text for part in value for text in strings(part)]
    return []


def in_words(request: RequestInput) -> str:
    """A request as one text."""
    return request if isinstance(request, str) else ". ".join(strings(request))


def spoken(value: JsonValue) -> str:
    """`value` in words: the sentence a tool or an agent gave along, or else its keys and values."""
    match value:
        case None:
            return ""
        case str():
            return value.strip()
        case dict():
            if isinstance(text := value.get(spoken_key(value)), str):
                return text.strip()
            return "; ".join(f"{key.replace('_', ' ')}: {spoken(part)}" for key, part in value.items())
        case list():
            return ", ".join(spoken(part) for part in value) or "none"
        case bool():
            return "yes" if value else "no"
    return str(value)


def spoken_key(value: Mapping[str, JsonValue]) -> str:
    """The key of the sentence that goes along with an object; empty when none does."""
    return next((key for key in _SPOKEN_KEYS if isinstance(text := value.get(key), str) and text.strip()), "")


def without_note(text: str) -> str:
    """`text` without the note that the offline model signs with."""
    return text.replace(OFFLINE_NOTE, "").strip()


def short(text: str) -> str:
    """`text` in one line of 200 characters at most, and dots where it was longer."""
    text = " ".join(text.split())
    return text if len(text) <= 200 else text[:200] + "..."
