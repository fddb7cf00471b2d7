"""Name the streams of a namespace, and find the stream of a subject."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pointsman.ports.bus import StreamKind
from pointsman_schemas.subjects import Subjects

__all__ = ["SCHEDULING_STREAMS", "STORED_KINDS", "StoredKind", "stream_kind_of", "stream_names"]

SCHEDULING_STREAMS: frozenset[StreamKind] = frozenset({"work", "handoffs"})
"""The streams with schedules, messages with a time to live, and rollup. Only supervisors write to these streams."""


class StoredKind(NamedTuple):
    """The stream and the form of one kind of subject.

    Attributes:
        stream: The stream that stores the messages.
        tokens: The number of tokens after the kind.
    """

    stream: StreamKind
    tokens: int


STORED_KINDS: Mapping[str, StoredKind] = {
    "request": StoredKind("requests", 2),
    "control": StoredKind("controls", 5),
    "audit": StoredKind("controls", 3),
    "result": StoredKind("results", 6),
    "step": StoredKind("results", 6),
    "event": StoredKind("results", 4),
    "handoff": StoredKind("handoffs", 5),
    "timer": StoredKind("work", 3),
    "schedule": StoredKind("work", 4),
    "log": StoredKind("log", 2),
    "outcome": StoredKind("log", 2),
    "question": StoredKind("log", 3),
    "message": StoredKind("log", 4),
    "thread": StoredKind("log", 3),
    "cron": StoredKind("log", 3),
    "dead": StoredKind("dead", 3),
    "delivery": StoredKind("deliveries", 4),
    "receipt": StoredKind("deliveries", 3),
    "limit": StoredKind("limits", 1),
    "circuits": StoredKind("limits", 0),
}
"""The kinds of subjects that a stream stores, by the token after the namespace."""


def stream_names(subjects: Subjects, *, apart: bool) -> Mapping[StreamKind, str]:
    """Return the name of each stream at the broker. If `apart` is True, handoffs have a separate stream.

    Otherwise the stream `work` stores the handoffs.
    """
    return {
        "requests": subjects.request_stream,
        "controls": subjects.control_stream,
        "results": subjects.result_stream,
        "work": subjects.work_stream,
        "handoffs": subjects.handoff_stream if apart else subjects.work_stream,
        "log": subjects.log_stream,
        "dead": subjects.dead_letter_stream,
        "deliveries": subjects.delivery_stream,
        "limits": subjects.limits_stream,
        "artifacts": f"OBJ_{subjects.artifacts_bucket}",
    }


def stream_kind_of(subjects: Subjects, subject: str) -> StreamKind | None:
    """Return the kind of the stream that stores `subject`; None if no stream stores it."""
    name = subjects.kind_of(subject)
    if (stored := STORED_KINDS.get(name)) is None:
        return None
    rest = subject.split(".")[2:]
    if len(rest) != stored.tokens:
        return None
    return "handoffs" if name == "schedule" and rest[2] == "handoff" else stored.stream
