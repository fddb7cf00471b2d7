"""Watch all time limits with one sleeping asyncio task.

A sleeping asyncio task for each limit would be a waste, because most work ends long before its limit.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Generic, TypeVar

from pointsman.ports.clock import Clock

__all__ = ["TimeoutScheduler"]

T = TypeVar("T")

_ROUNDING_S = 1e-6  # seconds by which an item may expire early, because no sleep is as short as a rounding error


class TimeoutScheduler(Generic[T]):
    """Calls a function for each item that is not cancelled within its time.

    Args:
        clock: Clock that measures the time.
        expired: Function to call with each expired item.
    """

    def __init__(self, clock: Clock, expired: Callable[[T], None]) -> None:
        self._clock = clock
        self._expired = expired
        self._due: dict[T, float] = {}  # deadline of each item, in seconds of the clock's `monotonic`
        self._wakes_at = math.inf  # time at which the sleeper wakes; the cancellation of an item does not change it
        self._sleeper: asyncio.Task[None] | None = None

    def watch(self, thing: T, seconds: float) -> None:
        """Expire `thing` after `seconds`, unless `thing` is cancelled earlier."""
        until = self._due[thing] = self._clock.monotonic() + seconds
        if until < self._wakes_at:
            self.close()
            self._wakes_at = until
            self._sleeper = asyncio.get_running_loop().create_task(self._sleep())

    def cancel(self, thing: T) -> None:
        self._due.pop(thing, None)

    def close(self) -> None:
        """Stop all expiries until the next call of `watch`."""
        if self._sleeper is not None:
            self._sleeper.cancel()
        self._sleeper, self._wakes_at = None, math.inf

    async def _sleep(self) -> None:
        while self._due:
            self._wakes_at = min(self._due.values())
            if (left := self._wakes_at - self._clock.monotonic()) > _ROUNDING_S:
                await self._clock.sleep(left)
            now = self._clock.monotonic() + _ROUNDING_S
            for thing in [thing for thing, until in self._due.items() if until <= now]:
                del self._due[thing]
                self._expired(thing)
        self._sleeper, self._wakes_at = None, math.inf
