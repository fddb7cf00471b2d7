"""An event nobody can process becomes a dead letter that holds all of it, and only then is it settled."""

from __future__ import annotations

import base64

from pointsman.core.outbox import dead_letter_id
from pointsman.errors import Conflict, OversizeEvent
from pointsman.ports import Bus, Clock, Stored
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import AttemptError, DeadLetter
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

__all__ = ["bury"]

_KEPT_WHEN_HUGE = 65_536
"""Bytes of a body that are kept when all of it, in base64, would not fit into a message. The original stays in its
stream at the `stream` and `sequence` that the letter names."""


async def bury(
    bus: Bus,
    subjects: Subjects,
    clock: Clock,
    stored: Stored,
    *,
    origin: str,
    cause: AttemptError,
    attempts: int,
    team: str | None = None,
    workflow: str | None = None,
    task: str | None = None,
) -> DeadLetter:
    """Store `stored` as a dead letter of `origin`, once however often it is called for the same message.

    Raises:
        BusUnavailable: it is not known to be stored: do not settle the original.
    """
    name = dead_letter_id(workflow or "none", subjects.work_stream, stored.sequence)
    letter = DeadLetter(
        id=name,
        origin=origin,
        workflow_id=workflow,
        team=team,
        task_id=task,
        cause=cause,
        attempts=attempts,
        subject=stored.subject,
        headers=dict(stored.headers),
        body=base64.b64encode(stored.body).decode("ascii"),
        stream=subjects.work_stream,
        sequence=stored.sequence,
        at=clock.now(),
    )
    headers = encode(
        Envelope(
            id=name,
            type=DeadLetter.event_type,
            source=f"/{subjects.namespace}/{origin}",
            time=letter.at,
            subject=workflow,
        )
    )
    subject = subjects.dead(origin, workflow, name)
    try:
        try:
            await bus.publish(subject, dump(letter), headers, expect=0)
        except OversizeEvent:
            head = base64.b64encode(stored.body[:_KEPT_WHEN_HUGE]).decode("ascii")
            shortened = letter.model_copy(update={"body": head, "headers": {}})
            await bus.publish(subject, dump(shortened), headers, expect=0)
    except Conflict:
        pass  # an earlier try stored it and died before settling the original
    return letter
