"""Workflows that have ended lately, known by their ids alone."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timedelta

from pointsman.ports.clock import Clock

__all__ = ["EndedWorkflows"]

_MAX_ENTRIES = 10_000
_MAX_AGE = timedelta(hours=1)
"""Stale timers come sooner."""


class EndedWorkflows:
    """Remembered so that their stale timers cost no reading of the log: so many of them, and for so long, but for half
    the time at most that logs are kept, `retention`. The same request may begin anew after that, and its inputs are to
    be dealt with."""

    def __init__(self, clock: Clock, retention: timedelta) -> None:
        self._clock = clock
        self._max_age = min(_MAX_AGE, retention / 2)
        self._ended_at: OrderedDict[str, datetime] = OrderedDict()

    def __contains__(self, workflow: str) -> bool:
        at = self._ended_at.get(workflow)
        return at is not None and self._clock.now() - at < self._max_age

    def add(self, workflow: str, at: datetime) -> None:
        """It ended `at` that time."""
        self._ended_at[workflow] = at
        self._ended_at.move_to_end(workflow)
        while len(self._ended_at) > _MAX_ENTRIES:
            self._ended_at.popitem(last=False)

    def discard(self, workflow: str) -> None:
        """It has begun anew."""
        self._ended_at.pop(workflow, None)

    def evict(self) -> None:
        while self._ended_at and next(iter(self._ended_at)) not in self:
            self._ended_at.popitem(last=False)
