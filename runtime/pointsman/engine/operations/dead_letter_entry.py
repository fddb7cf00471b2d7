"""A stored dead letter: its message in the dead-letter stream, and the body of its event."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from pydantic import JsonValue

from pointsman.engine.log.reader import imported_from
from pointsman.errors import ContractError, UndecodableEventError
from pointsman.ports.bus import StoredMessage
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import DeadLetter
from pointsman_schemas.strict_json import parse, parse_json

__all__ = ["DeadLetterEntry", "read_dead_letter"]

_MAX_SHOWN_CHARS = 100_000  # largest number of characters that `decoded` returns of a body that is not JSON


@dataclass(frozen=True, slots=True)
class DeadLetterEntry:
    """A dead letter in its stream.

    Attributes:
        sequence: The sequence in the dead-letter stream.
        subject: The subject of the dead letter.
        content: The dead letter.
    """

    sequence: int
    subject: str
    content: DeadLetter
    imported_from: str | None = None
    """The namespace from which the letter was imported; None for a letter of this namespace."""

    @property
    def body(self) -> bytes:
        """The original event's body. Raises `UndecodableEventError` if the body of the letter is not base64."""
        try:
            return base64.b64decode(self.content.body, validate=True)
        except (binascii.Error, ValueError) as error:
            raise UndecodableEventError(f"the body of dead letter {self.content.id} is not base64: {error}") from None

    @property
    def decoded(self) -> JsonValue:
        """The body in a readable form: JSON data, or text if the body is not JSON."""
        body = self.body
        try:
            return parse_json(body)
        except ContractError:
            return body.decode("utf-8", "replace")[:_MAX_SHOWN_CHARS]


def read_dead_letter(stored: StoredMessage) -> DeadLetterEntry:
    """Return the letter of a message of the dead-letter stream.

    Raises:
        ContractError: The message is not a dead letter.
        UndecodableEventError: The message is not the letter that its subject names.
    """
    _, body = decode(stored.headers, stored.body)
    content = parse(DeadLetter, body)
    named, said = stored.subject.rsplit(".", 3)[1:], [content.origin, content.workflow_id or "none", content.id]
    if named != said:
        raise UndecodableEventError(
            f"the dead letter has origin, workflow and id {said}, but its subject has {named}; publish the same values"
        )
    return DeadLetterEntry(stored.sequence, stored.subject, content, imported_from(stored))
