"""Read the text of one field of a JSON object while a model writes the object."""

from __future__ import annotations

import json
from collections.abc import Callable

__all__ = ["JsonTextField"]

_ESCAPE_CHARS = 6
"""Number of characters of the longest escape, such as `\\u00e9`."""


class JsonTextField:
    """Passes on the text of one top-level field of a JSON object, in pieces.

    Text before the object is skipped. If the value of the field is not text, or the whole text is not JSON, nothing is
    passed on.

    Args:
        name: The name of the field.
        receive: Called with each piece of the field's text.
    """

    def __init__(self, name: str, receive: Callable[[str], None]) -> None:
        self._name = name
        self._receive = receive
        self._depth = 0
        self._key: list[str] | None = None
        """The characters of the present string, if this string could be a key of the object; otherwise None."""
        self._last_key = ""
        self._expects_value = False
        self._in_string = False
        self._in_field = False
        self._escape = ""
        self._half = ""
        """The first half of a surrogate pair."""

    def feed(self, text: str) -> None:
        """Read the next piece of the object.

        Args:
            text: The piece.
        """
        found = "".join(map(self._next, text))
        if found:
            self._receive(found)

    def _next(self, char: str) -> str:
        """Read one character. Return the text that it adds to the field."""
        if self._in_string:
            return self._next_of_string(char)
        match char:
            case "{" | "[":
                self._depth += 1
                self._expects_value = False
            case "}" | "]":
                self._depth -= 1
            case ":":
                self._expects_value = self._depth == 1
            case ",":
                self._expects_value = False
            case '"' if self._depth:
                self._in_string = True
                self._in_field = self._expects_value and self._last_key == self._name
                self._key = [] if self._depth == 1 and not self._expects_value else None
            case _:
                pass
        return ""

    def _next_of_string(self, char: str) -> str:
        if self._escape or char == "\\":
            return self._next_of_escape(char)
        if char == '"':
            self._in_string, self._expects_value = False, False
            if self._key is not None:
                self._last_key, self._key = "".join(self._key), None
            return ""
        return self._take(char)

    def _next_of_escape(self, char: str) -> str:
        self._escape += char
        unicode = self._escape.startswith("\\u")
        if len(self._escape) < (_ESCAPE_CHARS if unicode else 2):
            return ""
        escape, self._escape = self._half + self._escape, ""
        self._half = ""
        try:
            decoded: str = json.loads(f'"{escape}"')
        except ValueError:
            return ""
        if len(decoded) == 1 and "\ud800" <= decoded <= "\udbff":
            self._half = escape
            return ""
        return self._take(decoded)

    def _take(self, text: str) -> str:
        if self._key is not None:
            self._key.append(text)
        return text if self._in_field else ""
