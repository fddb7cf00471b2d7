"""Track the backlog of a team's consumer at start. The supervisor is ready once the backlog is processed."""

from __future__ import annotations

from collections.abc import Iterable

from pointsman.bus.validation import matches
from pointsman.engine.process.consumers import DurableConsumer
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.ports.clock import Clock

__all__ = ["StartupBacklog"]

_REDELIVERY_FACTOR = 2
"""Number of acknowledgement deadlines after which all unsettled messages of a crashed supervisor were redelivered."""


class StartupBacklog:
    """The messages of a consumer that were in its stream at the start and are not processed yet.

    The object is true until the backlog is processed. A message that a crashed supervisor did not settle is delivered
    again, and then processed or dead-lettered. But a timer that raises an error in the engine is delivered again
    without end. So the backlog also counts as processed if every message has been delivered again and no message was
    settled. Methods may raise `BusUnavailableError`.

    Args:
        bus: The bus.
        clock: The clock.
        consumer: The team's durable consumer.
        ack_wait: The acknowledgement deadline, in seconds.
    """

    def __init__(self, bus: Bus, clock: Clock, consumer: DurableConsumer, ack_wait: float) -> None:
        self._bus = bus
        self._clock = clock
        self._consumer = consumer
        self._ack_wait = ack_wait
        self._newest: int | None = None  # None before `measure`
        self._settled = 0
        self._last_progress = self._last_answered = 0.0  # seconds of the clock's `monotonic`

    def __bool__(self) -> bool:
        return self._newest != 0

    @property
    def name(self) -> str:
        """The name of the consumer."""
        return self._consumer.name

    async def measure(self) -> None:
        """Find the newest message of the consumer in the stream. The backlog ends with this message."""
        newest = await self._bus.last(self._consumer.stream, self._consumer.subject)
        self._newest = newest.sequence if newest is not None else 0
        await self.refresh()

    async def refresh(self, in_hand: Iterable[StoredMessage] = ()) -> None:
        """Check if the backlog is processed.

        Args:
            in_hand: The messages that this process works on, from all its consumers.
        """
        newest, asked = self._newest, self._clock.monotonic()
        if not newest:
            return
        depth = await self._bus.depth(self._consumer.name, self._consumer.stream)
        if depth is None:  # the consumer was deleted, and will be created again
            return
        if depth.settled_through >= newest or depth.pending + depth.in_flight == 0:
            self._newest = 0
            return
        away = asked - self._last_answered > self._ack_wait  # do not count this time: the broker redelivered nothing
        if (
            away
            or depth.pending
            or depth.settled_through != self._settled
            or any(stored.sequence <= newest and matches(self._consumer.subject, stored.subject) for stored in in_hand)
        ):
            self._last_progress = asked
        elif asked - self._last_progress > _REDELIVERY_FACTOR * self._ack_wait:
            self._newest = 0
        self._settled, self._last_answered = depth.settled_through, asked
