"""The time that deadlines are kept by: the broker's, as it was when this process asked, and what has passed since.

So no step of this machine's clock fires or holds up anything, and processes on machines that disagree do not.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock

__all__ = ["BrokerClock"]


class BrokerClock:
    """`clock` with another idea of now. Until it has been set, that is the clock's own."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._zero: datetime | None = None  # when `monotonic` was 0

    async def synchronize(self, bus: Bus) -> None:
        """Take the broker's time. Raises `BusUnavailableError`."""
        self._zero = await bus.time() - timedelta(seconds=self._clock.monotonic())

    def now(self) -> datetime:
        if self._zero is None:
            return self._clock.now()
        return self._zero + timedelta(seconds=self._clock.monotonic())

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
