"""Remove the thinking of a model from its answer, if a server writes both into one text."""

from __future__ import annotations

import re
from typing import Final

from pointsman.llm.json_extraction import parse_strict_json

__all__ = ["ThinkingFilter", "without_thinking"]

_TAGS: Final = "think|thinking|thought|reasoning"
_BLOCK: Final = re.compile(rf"<({_TAGS})>.*?</\1>\s*", re.DOTALL | re.IGNORECASE)
_UNCLOSED: Final = re.compile(rf"\A\s*<({_TAGS})>.*\Z", re.DOTALL | re.IGNORECASE)
# For answers with only the closing tag: the prompt template of some models writes the opening tag into the prompt.
_UNOPENED: Final = re.compile(rf"\A.*?</({_TAGS})>\s*", re.DOTALL | re.IGNORECASE)
_OPENING: Final = re.compile(rf"<({_TAGS})>", re.IGNORECASE)
_CLOSING: Final = re.compile(rf"</({_TAGS})>\s*", re.IGNORECASE)
_PARTIAL: Final = re.compile(r"</?[a-z]{0,9}\Z", re.IGNORECASE)
"""Matches the last characters of a piece, if they may be the start of a tag."""


def without_thinking(text: str) -> str:
    """Return the text of an answer without the thinking in `<think>...</think>` and similar tags.

    If the whole text is JSON, it is returned unchanged, because tags in its strings are data.
    """
    if "<" not in text or parse_strict_json(text) is not None:
        return text
    found = _BLOCK.sub("", text)
    if not _OPENING.search(text) and _CLOSING.search(text):
        found = _UNOPENED.sub("", text)
    return _UNCLOSED.sub("", found)


class ThinkingFilter:
    """Filter the pieces of a streamed text. Text between the tags is left out."""

    def __init__(self) -> None:
        self._held = ""
        self._inside = False

    def feed(self, piece: str) -> str:
        """Return the part of the text that can be shown now.

        Args:
            piece: The next piece of the stream.

        Returns:
            Text outside of the tags. If the last characters may be the start of a tag, they are held until the next
            piece.
        """
        text, shown = self._held + piece, ""
        self._held = ""
        while text:
            found = (_CLOSING if self._inside else _OPENING).search(text)
            if found is None:
                break
            shown += "" if self._inside else text[: found.start()]
            text = text[found.end() :]
            self._inside = not self._inside
        if (partial := _PARTIAL.search(text)) is not None:
            self._held = text[partial.start() :]
            text = text[: partial.start()]
        return shown + ("" if self._inside else text)

    def flush(self) -> str:
        """Return the rest of the text at the end of the stream."""
        held, self._held = self._held, ""
        return "" if self._inside else held
