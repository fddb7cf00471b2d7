"""Order the pieces of the texts that models write. Pieces may be repeated or missing."""

from __future__ import annotations

from typing import NamedTuple

from pointsman_schemas.events import Delta

__all__ = ["StreamedTexts"]

_MAX_TEXTS = 1_000
"""Largest number of texts whose lengths are stored. Fewer tasks write at the same time."""


class _Text(NamedTuple):
    attempt: int
    call: str
    length: int


class StreamedTexts:
    """The texts of one workflow, for one reader."""

    def __init__(self) -> None:
        # The key is the task and the agent. The task alone is not enough, because an agent can write the task of
        # another agent into its pieces. The agent's name is reliable, because the broker checks the subject.
        self._texts: dict[tuple[str, str], _Text] = {}

    def add(self, delta: Delta) -> Delta | None:
        """Add a piece that has arrived.

        Args:
            delta: The piece. It may be repeated, or the piece before it may be missing.

        Returns:
            The part of the piece that is new and follows the text so far; None if there is no such part. A piece at the
            offset 0 starts a new text, even if the task has already written a text.
        """
        if not delta.call:  # passed on unchanged, because an agent without call ids repeats no piece
            return delta
        key = delta.task_id, delta.agent
        text = self._texts.pop(key, _Text(delta.attempt, delta.call, 0))
        if delta.attempt < text.attempt:  # dropped, because the worker of this piece has lost the task
            self._texts[key] = text
            return None
        if (delta.attempt, delta.call) != (text.attempt, text.call):
            text = _Text(delta.attempt, delta.call, 0)
        new = delta.text[text.length - delta.offset :] if delta.offset <= text.length else ""
        self._texts[key] = text._replace(length=text.length + len(new))
        if len(self._texts) > _MAX_TEXTS:
            del self._texts[next(iter(self._texts))]
        return delta.model_copy(update={"text": new, "offset": text.length}) if new else None
