"""Stream the text of an answer while a synthesizer writes the text. Each client gets each character once.

Text is not stored, so a gateway does not have the text that a client received from another gateway. But the position of
each event contains the length and the digest of the text up to this event. A client that connects again sends the
position of its last event. With the length and the digest, any gateway can continue the text, and at the end can send
the part of the stored answer that is still missing.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any, NamedTuple

from pointsman.gateway.streams import Position
from pointsman_schemas.card import Role
from pointsman_schemas.events import Delta

__all__ = ["AnswerText", "Place", "TextPiece"]

_PLACE = re.compile(r"([0-9.]{3,28})(?:-([0-9]{1,9})-([0-9a-f]{16}))?")


class Place(NamedTuple):
    """The place of an event in the stream of a task, with the length and the digest of the answer so far.

    Attributes:
        position: The position of the newest entry of the log.
        length: Number of characters of the answer that were streamed.
        digest: The digest of these characters; empty for no character.
    """

    position: Position
    length: int = 0
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """Read a place.

        Args:
            text: The text, such as `42.0` or `42.0-120-9f86d081884c7d65`.

        Returns:
            The place; None for any other text.
        """
        found = _PLACE.fullmatch(text.strip())
        position = Position.parse(found[1]) if found else None
        if found is None or position is None:
            return None
        return cls(position, int(found[2] or 0), found[3] or "")


class TextPiece(NamedTuple):
    """A piece of the answer.

    Attributes:
        text: The text.
        append: True if the text continues the earlier text, False if the text replaces the earlier text.
    """

    text: str
    append: bool


class AnswerText:
    """The part of an answer that one client has.

    Args:
        place: The place of the newest event that the client has. Default: the client has no text.
    """

    def __init__(self, place: Place | None = None) -> None:
        self._length = place.length if place else 0
        self._digest = place.digest if place else ""
        self._hash = sha256()
        self._call: tuple[str, int, str] | None = None
        self._unverified: str | None = "" if self._length else None
        """The text that this gateway has received so far.

        When this text is at least as long as the client's text, its beginning is compared with the client's text. None
        after the comparison, and if the client has no text.
        """

    @property
    def mark(self) -> str:
        """The length and the digest as a text for the position of an event; empty if the client has no text."""
        return f"-{self._length}-{self._digest}" if self._length else ""

    def add(self, delta: Delta) -> TextPiece | None:
        """Add a piece that the synthesizer wrote.

        Args:
            delta: The next piece. Pieces come in order, without repetitions.

        Returns:
            The part that the client does not have; None if there is no such part.
        """
        call = (delta.task_id, delta.attempt, delta.call)
        if delta.role is not Role.SYNTHESIZE or not delta.call or not (delta.offset == 0 or call == self._call):
            return None
        again = delta.offset == 0 and self._call is not None
        self._call = call
        if again:  # the model call failed and is repeated, so the text begins again
            self._unverified = None
            return self._begin(delta.text)
        if self._unverified is None:
            return self._go_on(delta.text) if self._length else self._begin(delta.text)
        text = self._unverified + delta.text
        if len(text) < self._length:
            self._unverified = text
            return None
        self._unverified = None
        if not self._has(text):
            return self._begin(text)
        known = self._length
        self._hash = sha256(text[:known].encode())
        return self._go_on(text[known:]) if text[known:] else None

    def end(self, answer: str) -> TextPiece:
        """Return the last piece.

        Args:
            answer: The stored answer.

        Returns:
            The rest of the answer, or the whole answer if the client has a different text.
        """
        length, has = self._length, self._length > 0 and self._has(answer)
        self._length, self._digest, self._unverified = 0, "", None
        return TextPiece(answer[length:], True) if has else TextPiece(answer, False)

    def _has(self, text: str) -> bool:
        """Return True if a text begins with the text that the client has."""
        return len(text) >= self._length and _digest(sha256(text[: self._length].encode())) == self._digest

    def _begin(self, text: str) -> TextPiece:
        self._hash, self._length = sha256(), 0
        return self._go_on(text)._replace(append=False)

    def _go_on(self, text: str) -> TextPiece:
        self._hash.update(text.encode())
        self._length += len(text)
        self._digest = _digest(self._hash)
        return TextPiece(text, True)


def _digest(hash: Any) -> str:
    return str(hash.hexdigest()[:16])
