"""The broker of a world, a memory broker that records removed messages, and a connection for outsiders."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from datetime import datetime
from typing import Any, cast

from pointsman.bus.memory.bus import MemoryBroker, MemoryBus
from pointsman.bus.validation import ROLLUP_HEADER, matches
from pointsman.ports.bus import StoredMessage, StreamKind
from pointsman.testing.simulation import SimulatedClock

__all__ = ["OutsideBus", "SimulatedBroker"]


class SimulatedBroker(MemoryBroker):
    """A memory broker that records removed dead letters, withdrawn handoffs and trimmed messages."""

    def __init__(self, namespace: str, clock: SimulatedClock, max_body: int, *, unsynced_handoffs: bool) -> None:
        super().__init__(namespace, clock, heartbeat=4.0, max_body=max_body, unsynced_handoffs=unsynced_handoffs)
        self.removed: list[StoredMessage] = []
        self._cancelled: set[tuple[int, datetime]] = set()
        self._trimmed: dict[StreamKind, list[StoredMessage]] = {}
        self._unread: set[tuple[int, datetime]] = set()
        self._removed_at: dict[tuple[StreamKind, int], datetime] = {}

    def all_messages(self, kind: StreamKind, subject: str) -> list[StoredMessage]:
        """Return the stored and the trimmed messages of `subject`, with their bodies."""
        trimmed = [
            stored for stored in self._trimmed.get(self.separate_stream(kind), ()) if matches(subject, stored.subject)
        ]
        return [*trimmed, *(self._whole(stored) for stored in self.stream(kind).select(subject))]

    def _whole(self, stored: StoredMessage) -> StoredMessage:
        return stored if stored.body else _now(self.connect().resolve(stored))

    def was_cancelled(self, handoff: StoredMessage) -> bool:
        """Return True if this handoff was replaced by a rollup, or trimmed after the end of its workflow."""
        return (handoff.sequence, handoff.at) in self._cancelled

    def was_trimmed_unread(self, handoff: StoredMessage) -> bool:
        """Return True if this handoff was trimmed before its first delivery."""
        return (handoff.sequence, handoff.at) in self._unread

    def was_trimmed(self, subject: str) -> bool:
        """Return True if a message of `subject` was trimmed, so the broker accepts a second message there."""
        return any(stored.subject == subject for trimmed in self._trimmed.values() for stored in trimmed)

    def removed_at(self, logged: StoredMessage) -> datetime | None:
        """Return the time when the message was removed from the log."""
        return self._removed_at.get(("log", logged.sequence))

    def store(self, subject: str, body: bytes, wire: Mapping[str, str]) -> int:
        replaced = self.stream(self.stream_of(subject)).select(subject) if ROLLUP_HEADER in wire else []
        sequence = super().store(subject, body, wire)
        self._cancelled |= {(stored.sequence, stored.at) for stored in replaced}
        return sequence

    def purge(self, kind: StreamKind, subject: str) -> None:
        if kind == "handoffs":
            self._cancelled |= {(stored.sequence, stored.at) for stored in self.stream(kind).select(subject)}
        super().purge(kind, subject)

    def trim(self, kind: StreamKind, subject: str, last: int) -> None:
        over = [stored for stored in self.stream(kind).select(subject) if stored.sequence <= last]
        if self.separate_stream("handoffs") == self.separate_stream(kind):
            takers = [
                (durable.subject, frozenset(durable.unsettled))
                for (of, _), durable in self._durables.items()
                if of == self.separate_stream(kind)
            ]
            ended = {stored.subject.split(".")[-1] for stored in self.all_messages("log", "*.outcome.*.*")}
            left = [
                each
                for each in over
                if matches("*.handoff.>", each.subject)
                and all(each.sequence in unsettled for subject, unsettled in takers if matches(subject, each.subject))
            ]
            self._unread |= {(each.sequence, each.at) for each in left}
            self._cancelled |= {(each.sequence, each.at) for each in left if each.subject.split(".")[4] in ended}
        if kind != "artifacts":
            self._trimmed.setdefault(self.separate_stream(kind), []).extend(map(self._whole, over))
            self._removed_at |= {(self.separate_stream(kind), stored.sequence): self.clock.now() for stored in over}
        super().trim(kind, subject, last)

    def delete(self, kind: StreamKind, sequence: int) -> bool:
        if kind == "dead" and (stored := self.stream(kind).get(sequence)) is not None:
            self.removed.append(self._whole(stored))
        return super().delete(kind, sequence)


def _now(reading: Coroutine[Any, Any, StoredMessage]) -> StoredMessage:
    """Return the result of a coroutine that never suspends."""
    try:
        reading.send(None)
    except StopIteration as done:
        return cast(StoredMessage, done.value)
    raise AssertionError("a read of the memory broker suspended; expected an immediate result")


class OutsideBus(MemoryBus):
    """A connection of an outsider. Its messages count as foreign."""

    def __init__(self, broker: SimulatedBroker, foreign: set[tuple[StreamKind, int]]) -> None:
        super().__init__(broker=broker)
        self._foreign = foreign

    async def publish(self, subject: str, body: bytes, headers: Mapping[str, str], **more: Any) -> int:
        sequence = await super().publish(subject, body, headers, **more)
        self._foreign.add((self.broker.stream_of(subject), sequence))
        return sequence
