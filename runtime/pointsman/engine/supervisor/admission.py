"""Limit the workflows of a team that one supervisor runs at a time. Further requests wait in their queue."""

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

_RECHECK_INTERVAL_S = 5.0  # seconds between two checks for outcomes that this process did not receive


class AdmissionControl:
    """Slots for the running workflows of a team. A slot is freed when the workflow's outcome is observed.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        clock: The clock.
        team: The team.
        size: The number of slots.
    """

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
        """Return the number of free slots."""
        return self._max_running - len(self._admitted)

    def admit(self, workflow: str) -> None:
        """Take a slot for a workflow."""
        self._admitted.add(workflow)

    def release(self, workflow: str) -> None:
        """Free the slot of a workflow."""
        self._admitted.discard(workflow)
        self._slot_freed.set()

    async def wait_for_slot(self) -> None:
        """Wait until a slot is freed, or until the next check for `missed_outcomes` is due."""
        self._slot_freed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_RECHECK_INTERVAL_S):
                await self._slot_freed.wait()

    async def missed_outcomes(self) -> Sequence[StoredMessage]:
        """Read the stored outcomes of the admitted workflows, because this process may have missed some.

        Returns:
            The outcomes. Empty if the last check was less than `_RECHECK_INTERVAL_S` ago, or if the broker is
            unavailable.
        """
        if self._clock.monotonic() - self._last_check < _RECHECK_INTERVAL_S:
            return ()
        self._last_check = self._clock.monotonic()
        admitted = sorted(self._admitted)
        with suppress(BusUnavailableError):
            subjects = (self._subjects.outcome(self._team, workflow) for workflow in admitted)
            outcomes = await gather_batched(self._bus.last("log", subject) for subject in subjects)
            return [outcome for outcome in outcomes if outcome and is_outcome(outcome)]
        return ()
