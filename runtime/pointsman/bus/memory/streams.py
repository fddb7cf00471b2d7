"""State of a `MemoryBroker`: messages in streams, and the deliveries of each durable consumer. No call waits."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from pointsman.bus.validation import DUPLICATE_WINDOW_S, matches
from pointsman.ports.bus import StoredMessage

__all__ = ["Durable", "Stream"]


class Stream:
    """Messages by sequence and by subject, and the ids of recent messages. Times are monotonic seconds.

    Args:
        duplicate_window: Seconds for which the stream remembers a message id; default 120.
    """

    def __init__(self, duplicate_window: float = DUPLICATE_WINDOW_S) -> None:
        self._duplicate_window = duplicate_window
        self.end = 0
        self._messages: dict[int, StoredMessage] = {}
        self._by_subject: dict[str, list[int]] = {}
        self._message_ids: dict[str, tuple[int, float]] = {}

    def copy(self) -> Stream:
        """Return a copy of the present state."""
        other = Stream(self._duplicate_window)
        other.end = self.end
        other._messages = dict(self._messages)
        other._by_subject = {subject: list(sequences) for subject, sequences in self._by_subject.items()}
        other._message_ids = dict(self._message_ids)
        return other

    def subjects(self, pattern: str) -> list[str]:
        return sorted(subject for subject in self._by_subject if matches(pattern, subject))

    def append(
        self,
        subject: str,
        body: bytes,
        headers: Mapping[str, str],
        at: datetime,
        message_id: str | None,
        now: float,
        scheduled_by: str = "",
    ) -> StoredMessage:
        self.end += 1
        stored = StoredMessage(subject, bytes(body), dict(headers), self.end, at, scheduled_by)
        self._messages[self.end] = stored
        self._by_subject.setdefault(subject, []).append(self.end)
        if message_id is not None:
            self._message_ids[message_id] = self.end, now + self._duplicate_window
        return stored

    def recent(self, message_id: str, now: float) -> int:
        sequence, until = self._message_ids.get(message_id, (0, 0.0))
        return sequence if now < until else 0

    def last_sequence_of(self, subject: str) -> int:
        return sequences[-1] if (sequences := self._by_subject.get(subject)) else 0

    def get(self, sequence: int) -> StoredMessage | None:
        return self._messages.get(sequence)

    def select(self, subject: str, after: int = 0) -> list[StoredMessage]:
        if (sequences := self._by_subject.get(subject)) is not None:
            return [self._messages[sequence] for sequence in sequences if sequence > after]
        return [
            stored for stored in self._messages.values() if stored.sequence > after and matches(subject, stored.subject)
        ]

    def remove(self, sequence: int) -> StoredMessage | None:
        stored = self._messages.pop(sequence, None)
        if stored is not None:
            left = self._by_subject[stored.subject]
            left.remove(sequence)
            if not left:
                del self._by_subject[stored.subject]
        return stored


class PullingConsumer(Protocol):
    """Consumer that shares a durable consumer and waits for deliveries."""

    rank: int

    @property
    def bound(self) -> bool: ...


@dataclass(slots=True, eq=False)
class Durable:
    """Durable consumer: messages `ready` for delivery, deadlines of messages in flight, delivery counts."""

    name: str
    subject: str
    ack_wait: float
    max_in_flight: int
    ack_waits: tuple[float, ...] = ()
    ready: deque[int] = field(default_factory=deque)
    era: int = 0
    """Number of resets of the consumer. A delivery from before the last reset settles no message."""
    counts: dict[int, int] = field(default_factory=dict)
    pulling: list[PullingConsumer] = field(default_factory=list)
    """Consumers that wait for deliveries."""
    _deadlines: dict[int, float] = field(default_factory=dict)
    _due: list[tuple[float, int]] = field(default_factory=list)

    @property
    def in_flight(self) -> int:
        return len(self._deadlines)

    @property
    def unsettled(self) -> list[int]:
        return sorted({*self.ready, *self._deadlines})

    def restore_pending(self, ready: Iterable[int]) -> None:
        """Reset the consumer: `ready` waits for delivery, and nothing is in flight."""
        self.era += 1
        self.ready = deque(ready)
        self.counts.clear()
        self._deadlines.clear()
        self._due.clear()

    def next_delivery(self, now: float) -> int | None:
        if not self.ready or len(self._deadlines) >= self.max_in_flight:
            return None
        sequence = self.ready.popleft()
        self.counts[sequence] = self.counts.get(sequence, 0) + 1
        self._schedule_redelivery(sequence, now + self.ack_wait)
        return sequence

    def is_unsettled(self, sequence: int) -> bool:
        """Return True if the message was delivered but not settled, so it is in flight or waits for redelivery."""
        return sequence in self.counts

    def settle(self, sequence: int) -> None:
        if self._deadlines.pop(sequence, None) is None and sequence in self.ready:
            self.ready.remove(sequence)
        self.counts.pop(sequence, None)

    def delay(self, sequence: int, moment: float) -> None:
        if sequence in self._deadlines:
            self._schedule_redelivery(sequence, moment)

    def _schedule_redelivery(self, sequence: int, moment: float) -> None:
        self._deadlines[sequence] = moment
        heapq.heappush(self._due, (moment, sequence))

    def expire_deadlines(self, now: float) -> None:
        back: list[int] = []
        while self._due and self._due[0][0] <= now:
            moment, sequence = heapq.heappop(self._due)
            if self._deadlines.get(sequence) == moment:
                del self._deadlines[sequence]
                back.append(sequence)
        self.ready.extendleft(reversed(back))

    def next_due(self) -> float | None:
        while self._due and self._deadlines.get(self._due[0][1]) != self._due[0][0]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None
