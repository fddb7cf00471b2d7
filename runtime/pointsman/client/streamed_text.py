"""Filter the pieces of text that models write, so that a reader receives each part of a text once and in order."""

from __future__ import annotations

from typing import NamedTuple

from pointsman_schemas.events import Delta

__all__ = ["StreamedTexts"]

_MAX_TEXTS = 1_000
"""Largest number of texts whose lengths are stored. In practice, fewer tasks write text at the same time."""


class _Text(NamedTuple):
    attempt: int
    call: str
    length: int


class StreamedTexts:
    """The texts of one workflow, for one reader."""

    def __init__(self) -> None:
        # The key is the task and the agent. The task alone is not enough, because an agent can name the task of another
        # agent in its pieces. The agent's name is reliable: it is in the subject, and the broker checks the subject.
        self._texts: dict[tuple[str, str], _Text] = {}

    def add(self, delta: Delta) -> Delta | None:
        """Add a piece that has arrived.

        Args:
            delta: The piece. It might be a repetition, or the piece before it might be missing.

        Returns:
            The part of the piece that is new and follows the text so far; None if there is no such part. If the offset
            of the returned piece is 0, the piece starts a new text, even if the task has already written a text.
        """
        if not delta.call:  # an agent without call ids repeats no piece, so the piece is returned unchanged
            return delta
        key = delta.task_id, delta.agent
        text = self._texts.pop(key, _Text(delta.attempt, delta.call, 0))
        if delta.attempt < text.attempt:  # a later attempt writes already, so this piece is dropped
            self._texts[key] = text
            return None
        if (delta.attempt, delta.call) != (text.attempt, text.call):
            text = _Text(delta.attempt, delta.call, 0)
        new = delta.text[text.length - delta.offset :] if delta.offset <= text.length else ""
        self._texts[key] = text._replace(length=text.length + len(new))
        if len(self._texts) > _MAX_TEXTS:
            del self._texts[next(iter(self._texts))]
        return delta.model_copy(update={"text": new, "offset": text.length}) if new else None
