"""Admission: no more workflows of a team run than its supervisor has room for; requests wait in their queue for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from pointsman.engine.log.reader import gather_batched, is_outcome
from pointsman.errors import BusUnavailableError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.ports.clock import Clock
from pointsman_schemas.subjects import Subjects

__all__ = ["AdmissionControl"]

_RECHECK_INTERVAL_S = 5.0  # seconds between two looks for workflows that were admitted here and whose end was not heard


class AdmissionControl:
    """Room for `size` workflows of `team` at a time. Whose end is heard gives its place back."""

    def __init__(self, bus: Bus, subjects: Subjects, clock: Clock, team: str, size: int) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._team = team
        self._max_running = size
        self._admitted: set[str] = set()
        self._slot_freed = asyncio.Event()
        self._last_check = 0.0

    @property
    def free_slots(self) -> int:
        return self._max_running - len(self._admitted)

    def admit(self, workflow: str) -> None:
        self._admitted.add(workflow)

    def release(self, workflow: str) -> None:
        self._admitted.discard(workflow)
        self._slot_freed.set()

    async def wait_for_slot(self) -> None:
        """Return when a place was given back, or it is time to look for `missed_outcomes`."""
        self._slot_freed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_RECHECK_INTERVAL_S):
                await self._slot_freed.wait()

    async def missed_outcomes(self) -> Sequence[StoredMessage]:
        """The outcomes of those that were admitted, should nobody here have heard of them. It is looked for rarely."""
        if self._clock.monotonic() - self._last_check < _RECHECK_INTERVAL_S:
            return ()
        self._last_check = self._clock.monotonic()
        admitted = sorted(self._admitted)
        with suppress(BusUnavailableError):
            subjects = (self._subjects.outcome(self._team, workflow) for workflow in admitted)
            outcomes = await gather_batched(self._bus.last("log", subject) for subject in subjects)
            return [outcome for outcome in outcomes if outcome and is_outcome(outcome)]
        return ()
