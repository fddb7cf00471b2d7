"""What a state owes the bus: one event, where it goes, and the id it keeps however often it is sent."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from pointsman_schemas.events import Event

__all__ = ["Message"]


class Message(NamedTuple):
    """One event to send. With `schedule` and `due` the broker is to publish it on `subject` at that time.

    `id` is the event's CloudEvents id, the same however often it is sent. `span_id` is the span it belongs to, in the
    workflow's trace. `commit` is the number of the commit it follows from.
    """

    subject: str
    event: Event
    id: str
    at: datetime
    commit: int
    span_id: str
    schedule: str | None = None
    due: datetime | None = None
