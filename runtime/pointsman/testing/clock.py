"""A clock that moves only when a test moves it. Sleepers wake in the order of their times."""

from __future__ import annotations

import asyncio
import heapq
from datetime import UTC, datetime, timedelta
from itertools import count

from pointsman.ports.clock import Clock

__all__ = ["VirtualClock"]

_SETTLE_TURNS = 50  # number of turns of the loop after a sleep; more than any chain of awaits in the tests needs


class VirtualClock(Clock):
    """A clock that a test moves. `monotonic` begins at 0.

    Args:
        start: The first `now`. Default: the beginning of 2030, UTC.
    """

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed = 0.0
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), sleeper))
        await sleeper

    async def advance(self, seconds: float) -> None:
        """Move time forward. Each sleeper wakes at its own time and works before the next sleeper wakes.

        Args:
            seconds: The time to move, in seconds.
        """
        end = self._elapsed + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, sleeper = heapq.heappop(self._sleepers)
            if sleeper.done():
                continue
            self._elapsed = max(self._elapsed, due)
            sleeper.set_result(None)
            await self.settle()
        self._elapsed = end
        await self.settle()

    async def settle(self) -> None:
        """Run all work that can run at the present time."""
        for _ in range(_SETTLE_TURNS):
            await asyncio.sleep(0)
