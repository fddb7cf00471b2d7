"""One sleeper for all that must end in time: most of it ends by itself long before, and a timer each costs a task."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Generic, TypeVar

from pointsman.ports.clock import Clock

__all__ = ["TimeoutScheduler"]

T = TypeVar("T")

_ROUNDING_S = 1e-6  # seconds to a deadline that count as none: what is left of it by rounding could not be slept for


class TimeoutScheduler(Generic[T]):
    """Calls `expired` with each thing that is still watched when its time is over."""

    def __init__(self, clock: Clock, expired: Callable[[T], None]) -> None:
        self._clock = clock
        self._expired = expired
        self._due: dict[T, float] = {}  # until when, by the clock's `monotonic`
        self._wakes_at = math.inf  # when the sleeper does: it is left asleep when what it slept for is forgotten
        self._sleeper: asyncio.Task[None] | None = None

    def watch(self, thing: T, seconds: float) -> None:
        """Its time is over in `seconds`, unless it is forgotten before."""
        until = self._due[thing] = self._clock.monotonic() + seconds
        if until < self._wakes_at:
            self.close()
            self._wakes_at = until
            self._sleeper = asyncio.get_running_loop().create_task(self._sleep())

    def cancel(self, thing: T) -> None:
        self._due.pop(thing, None)

    def close(self) -> None:
        """Nothing expires any more, until something is watched again."""
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
