"""Put the pieces of texts that models write in order, each once, if pieces were missed or repeated."""

from __future__ import annotations

from typing import NamedTuple

from pointsman_schemas.events import Delta

__all__ = ["StreamedTexts"]

_MAX_TEXTS = 1_000
"""Texts whose lengths are kept: more tasks do not write at a time."""


class _Text(NamedTuple):
    attempt: int
    call: str
    length: int


class StreamedTexts:
    """The texts of one workflow, as one reader receives them."""

    def __init__(self) -> None:
        self._texts: dict[str, _Text] = {}

    def add(self, delta: Delta) -> Delta | None:
        """Add a piece that has arrived.

        Args:
            delta: The piece, which may be repeated, or follow a piece that was missed.

        Returns:
            The part of the piece that is new and follows the text so far; None if there is no such part. A piece at the
            offset 0 begins a text, also if the task has written a text before.
        """
        if not delta.call:  # its agent repeats no piece
            return delta
        text = self._texts.pop(delta.task_id, _Text(delta.attempt, delta.call, 0))
        if delta.attempt < text.attempt:  # of a worker that has lost the task
            self._texts[delta.task_id] = text
            return None
        if (delta.attempt, delta.call) != (text.attempt, text.call):
            text = _Text(delta.attempt, delta.call, 0)
        new = delta.text[text.length - delta.offset :] if delta.offset <= text.length else ""
        self._texts[delta.task_id] = text._replace(length=text.length + len(new))
        if len(self._texts) > _MAX_TEXTS:
            del self._texts[next(iter(self._texts))]
        return delta.model_copy(update={"text": new, "offset": text.length}) if new else None
