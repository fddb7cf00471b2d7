"""Define a message of the outbox: one event with its subject and id."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from pointsman_schemas.events import Event

__all__ = ["Message"]


class Message(NamedTuple):
    """One event to publish.

    Attributes:
        subject: The subject.
        event: The event.
        id: The CloudEvents id. The id is the same each time that the message is published.
        at: The time of the event.
        commit: The number of the commit that led to the event.
        span_id: The span of the event in the workflow's trace.
        schedule: The subject on which the broker stores a delayed message; None for an immediate message.
        due: The time at which the broker publishes a delayed message.
    """

    subject: str
    event: Event
    id: str
    at: datetime
    commit: int
    span_id: str
    schedule: str | None = None
    due: datetime | None = None
