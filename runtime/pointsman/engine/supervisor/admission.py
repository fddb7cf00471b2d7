"""Admission: no more workflows of a team run than its supervisor has room for; requests wait in their queue for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from pointsman.engine.log.reader import is_outcome, side_by_side
from pointsman.errors import BusUnavailable
from pointsman.ports.bus import Bus, Stored
from pointsman.ports.clock import Clock
from pointsman_schemas.subjects import Subjects

__all__ = ["Room"]

_AGAIN = 5.0  # seconds between two looks for workflows that were admitted here and whose end was not heard


class Room:
    """Room for `size` workflows of `team` at a time. Whose end is heard gives its place back."""

    def __init__(self, bus: Bus, subjects: Subjects, clock: Clock, team: str, size: int) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._team = team
        self._size = size
        self._admitted: set[str] = set()
        self._freed = asyncio.Event()
        self._looked = 0.0

    @property
    def left(self) -> int:
        return self._size - len(self._admitted)

    def take(self, workflow: str) -> None:
        self._admitted.add(workflow)

    def give_back(self, workflow: str) -> None:
        self._admitted.discard(workflow)
        self._freed.set()

    async def wait(self) -> None:
        """Return when a place was given back, or it is time to look for `ended`."""
        self._freed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_AGAIN):
                await self._freed.wait()

    async def ended(self) -> Sequence[Stored]:
        """The outcomes of those that were admitted, should nobody here have heard of them. It is looked for rarely."""
        if self._clock.monotonic() - self._looked < _AGAIN:
            return ()
        self._looked = self._clock.monotonic()
        admitted = sorted(self._admitted)
        with suppress(BusUnavailable):
            subjects = (self._subjects.outcome(self._team, workflow) for workflow in admitted)
            outcomes = await side_by_side(self._bus.last("log", subject) for subject in subjects)
            return [outcome for outcome in outcomes if outcome and is_outcome(outcome)]
        return ()
