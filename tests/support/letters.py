"""Dead letters for tests of the commands and pages that show dead letters."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

from pointsman.client.client import Client
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import AttemptError, DeadLetter
from pointsman_schemas.strict_json import dump

__all__ = ["store_dead_letter"]

_AT = datetime(2026, 1, 31, tzinfo=UTC)


async def store_dead_letter(
    client: Client, name: str, cause: str, workflow: str = "wf_1", message: str = "?", body: bytes = b"?"
) -> None:
    letter = DeadLetter(
        id=name, origin="a", cause=AttemptError(kind=cause, message=message), attempts=1, workflow_id=workflow,
        at=_AT, subject="s", body=base64.b64encode(body).decode(),
    )  # fmt: skip
    envelope = Envelope(id=name, type=DeadLetter.event_type, source="test", time=_AT)
    await client.bus.publish(client.subjects.dead_letter("a", workflow, name), dump(letter), encode(envelope))
