"""Write dead letters. An event that cannot be processed is stored as a dead letter, and acknowledged afterwards."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from hashlib import sha256

from pointsman.bus.stream_names import stream_kind_of
from pointsman.bus.validation import printable
from pointsman.errors import ConflictError, OversizeEventError
from pointsman.ports.bus import Bus, StoredMessage, StreamKind
from pointsman.ports.clock import Clock
from pointsman.telemetry import metrics, semconv
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import AttemptError, DeadLetter
from pointsman_schemas.ids import dead_letter_id
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

__all__ = ["dead_letter", "dead_letter_id_of", "store_dead_letter", "stream_of"]

_KEPT_FRACTION = 4
"""The body of a truncated letter has at most the maximum size of an event divided by this number. The rest is room for
the other fields."""


async def dead_letter(
    bus: Bus,
    subjects: Subjects,
    clock: Clock,
    stored: StoredMessage,
    *,
    origin: str,
    cause: AttemptError,
    attempts: int,
    team: str | None = None,
    workflow: str | None = None,
    task: str | None = None,
) -> DeadLetter:
    """Store `stored` as a dead letter of `origin`. A repeated call for the same message stores no second letter.

    Returns:
        The dead letter.

    Raises:
        BusUnavailableError: The letter might not be stored, so the caller must not acknowledge the original.
    """
    name = dead_letter_id_of(bus, subjects, stored, workflow)
    # Two copies of one request make one letter. Two requests with the same id but different bodies make two letters. So
    # the id of the letter is computed from the body.
    if subjects.kind_of(stored.subject) == "request":
        name = dead_letter_id(workflow or "none", cause.message, sha256(stored.body).hexdigest())
    letter = DeadLetter(
        id=name,
        origin=origin,
        workflow_id=workflow,
        team=team,
        task_id=task,
        cause=cause,
        attempts=attempts,
        subject=printable(stored.subject),
        headers={name: printable(value) for name, value in stored.headers.items()},
        body=base64.b64encode(stored.body).decode("ascii"),
        stream=bus.stream_name(stream_of(subjects, stored.subject)),
        sequence=stored.sequence,
        at=clock.now(),
    )
    envelope = Envelope(
        id=name,
        type=DeadLetter.event_type,
        source=subjects.source("team" if team else "agent", origin),
        time=letter.at,
        subject=workflow,
    )
    await store_dead_letter(bus, subjects.dead_letter(origin, workflow, name), letter, encode(envelope))
    return letter


def stream_of(subjects: Subjects, subject: str) -> StreamKind:
    """Return the kind of the stream that stores the events on `subject`."""
    return stream_kind_of(subjects, subject) or "work"


def dead_letter_id_of(bus: Bus, subjects: Subjects, stored: StoredMessage, workflow: str | None) -> str:
    """Compute the id of the dead letter of `stored`. Every process computes the same id."""
    home = stream_of(subjects, stored.subject)
    stream = bus.stream_name(home)
    if bus.handoffs_unsynced and home == "handoffs":  # the broker may reuse sequences, so use the content
        return dead_letter_id(workflow or "none", stream, stored.subject, sha256(stored.body).hexdigest())
    return dead_letter_id(workflow or "none", stream, stored.sequence)


async def store_dead_letter(bus: Bus, subject: str, letter: DeadLetter, headers: Mapping[str, str]) -> None:
    """Store `letter`, truncated if necessary, and count the letter. A letter that is already stored stays unchanged."""
    try:
        try:
            await bus.publish(subject, dump(letter), headers, expect=0)
        except OversizeEventError:
            await bus.publish(subject, dump(_truncate(letter, bus.max_body)), headers, expect=0)
    except ConflictError:
        return  # the letter was stored and counted before a crash
    metrics.count(semconv.DEAD_LETTERS, attributes={semconv.ORIGIN: letter.origin})


def _truncate(letter: DeadLetter, bound: int) -> DeadLetter:
    kept = bound // _KEPT_FRACTION // 4 * 4  # a cut between groups of four leaves base64 that can be decoded
    known = {name: value for name, value in letter.headers.items() if name.lower().startswith("ce-")}
    headers = known if sum(len(value) for value in known.values()) < kept else {}
    return letter.model_copy(update={"body": letter.body[:kept], "headers": headers, "truncated": True})
