"""What lay in a team's inbox when its supervisor began, of which a predecessor may have died: then it is ready."""

from __future__ import annotations

from collections.abc import Iterable

from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock

__all__ = ["StartupBacklog"]

_REDELIVERY_FACTOR = 2
"""Ack deadlines in which all that somebody died over comes once more."""


class StartupBacklog:
    """What is left in `inbox`, the team's durable consumer, of what lay there at the beginning. What somebody died over
    comes again, and is then dealt with, or a dead letter. A timer that the engine trips over comes again for ever, so
    nothing is waited for when all has had to come once more and still nothing moves. Methods raise
    `BusUnavailableError`."""

    def __init__(self, bus: Bus, clock: Clock, inbox: str, ack_wait: float) -> None:
        self._bus = bus
        self._clock = clock
        self._inbox = inbox
        self._ack_wait = ack_wait
        self._newest: int | None = None  # nobody knows yet
        self._settled = 0
        self._last_progress = self._last_answered = 0.0  # when, by the clock's `monotonic`

    def __bool__(self) -> bool:
        return self._newest != 0

    async def measure(self, inputs: str) -> None:
        """Find out what lies on the subjects `inputs`."""
        newest = await self._bus.last("work", inputs)
        self._newest = newest.sequence if newest is not None else 0
        await self.refresh()

    async def refresh(self, in_hand: Iterable[int] = ()) -> None:
        """See whether it has been dealt with. What is `in_hand` here, by sequence, is being dealt with."""
        newest, asked = self._newest, self._clock.monotonic()
        if not newest:
            return
        depth = await self._bus.depth(self._inbox, "work")
        if depth is None:  # it was deleted, and is made again
            return
        if depth.settled_through >= newest or depth.pending + depth.in_flight == 0:
            self._newest = 0
            return
        away = asked - self._last_answered > self._ack_wait  # or the broker was, and nothing has come meanwhile
        if (
            away
            or depth.pending
            or depth.settled_through != self._settled
            or any(sequence <= newest for sequence in in_hand)
        ):
            self._last_progress = asked
        elif asked - self._last_progress > _REDELIVERY_FACTOR * self._ack_wait:
            self._newest = 0
        self._settled, self._last_answered = depth.settled_through, asked
