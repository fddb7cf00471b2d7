"""Clock anchored to the broker's time at start and advanced monotonically.

If a person or NTP sets this machine's clock, the broker clock does not jump. If the clocks of two machines differ, the
processes on these machines still agree on deadlines.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock

__all__ = ["BrokerClock"]

_MAX_READINGS = 3
_SHORT_ROUND_TRIP_S = 0.1  # seconds; after an answer within this time, the broker's time is not read again


class BrokerClock:
    """A clock with the broker's time. Before the first synchronisation, the time is read from `clock`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._zero: datetime | None = None  # the time at which `monotonic` was 0

    async def synchronize(self, bus: Bus) -> None:
        """Read the broker's time. After a slow answer, read again and use the fastest answer.

        The result differs from the broker's time by at most half of the time between request and answer.

        Raises:
            BusUnavailableError: The broker did not answer.
        """
        shortest = float("inf")
        for _ in range(_MAX_READINGS):
            asked = self._clock.monotonic()
            time = await bus.time()
            answered = self._clock.monotonic()
            if answered - asked < shortest:
                shortest = answered - asked
                self._zero = time - timedelta(seconds=(asked + answered) / 2)
            if shortest <= _SHORT_ROUND_TRIP_S:
                return

    def now(self) -> datetime:
        if self._zero is None:
            return self._clock.now()
        return self._zero + timedelta(seconds=self._clock.monotonic())

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
