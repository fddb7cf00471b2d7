"""What lay in a team's inbox when its supervisor began, of which a predecessor may have died: then it is ready."""

from __future__ import annotations

from pointsman.ports import Bus, Clock

__all__ = ["Backlog"]

_COMES_AGAIN = 2
"""Ack deadlines after which all that somebody died over has come once more."""


class Backlog:
    """What is left in `inbox`, the team's durable consumer, of what lay there at the beginning. What somebody died over
    comes again, and is then dealt with, or a dead letter. A timer that the engine trips over comes again for ever, so
    nothing is waited for longer than everything has had to come once more. Methods raise `BusUnavailable`."""

    def __init__(self, bus: Bus, clock: Clock, inbox: str, ack_wait: float) -> None:
        self._bus = bus
        self._clock = clock
        self._inbox = inbox
        self._until = clock.monotonic() + _COMES_AGAIN * ack_wait
        self._newest = 0

    def __bool__(self) -> bool:
        return self._newest > 0

    async def begin(self, inputs: str) -> None:
        """Find out what lies on the subjects `inputs`."""
        newest = await self._bus.last("work", inputs)
        self._newest = newest.sequence if newest is not None else 0
        await self.look()

    async def look(self) -> None:
        """See whether it has been dealt with."""
        if not self:
            return
        depth = await self._bus.depth(self._inbox, "work")
        if depth is None:  # it was deleted, and is made again
            return
        in_flight = depth.in_flight if self._clock.monotonic() < self._until else 0
        if depth.settled >= self._newest or depth.pending + in_flight == 0:
            self._newest = 0
