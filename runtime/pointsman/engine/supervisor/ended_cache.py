"""Workflows that have ended lately, known by their ids alone."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timedelta

from pointsman.ports.clock import Clock

__all__ = ["Ended"]

_KEPT = 10_000
_LONG = timedelta(hours=1)
"""Stale timers come sooner."""


class Ended:
    """Remembered so that their stale timers cost no reading of the log: so many of them, and for so long, but for half
    the time at most that logs are kept, `retention`. The same request may begin anew after that, and its inputs are to
    be dealt with."""

    def __init__(self, clock: Clock, retention: timedelta) -> None:
        self._clock = clock
        self._for = min(_LONG, retention / 2)
        self._at: OrderedDict[str, datetime] = OrderedDict()

    def __contains__(self, workflow: str) -> bool:
        at = self._at.get(workflow)
        return at is not None and self._clock.now() - at < self._for

    def add(self, workflow: str, at: datetime) -> None:
        """It ended `at` that time."""
        self._at[workflow] = at
        self._at.move_to_end(workflow)
        while len(self._at) > _KEPT:
            self._at.popitem(last=False)

    def discard(self, workflow: str) -> None:
        """It has begun anew."""
        self._at.pop(workflow, None)

    def forget_old(self) -> None:
        while self._at and next(iter(self._at)) not in self:
            self._at.popitem(last=False)
