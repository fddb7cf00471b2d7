"""Workflows that have ended lately, known by their ids alone."""

from __future__ import annotations

from collections import OrderedDict

from pointsman.ports import Clock

__all__ = ["Ended"]

_KEPT = 10_000
_SECONDS = 3600.0
"""Stale timers come sooner, and no log ages out before. The same request again then begins anew, and its inputs are
dealt with."""


class Ended:
    """Remembered so that their stale timers cost no reading of the log: so many of them, and for so long."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at: OrderedDict[str, float] = OrderedDict()  # by the clock's `monotonic`, the oldest first

    def __contains__(self, workflow: str) -> bool:
        return workflow in self._at

    def __len__(self) -> int:
        return len(self._at)

    def add(self, workflow: str) -> None:
        self._at[workflow] = self._clock.monotonic()
        self._at.move_to_end(workflow)
        while len(self._at) > _KEPT:
            self._at.popitem(last=False)

    def discard(self, workflow: str) -> None:
        """It has begun anew."""
        self._at.pop(workflow, None)

    def forget_old(self) -> None:
        while self._at and next(iter(self._at.values())) < self._clock.monotonic() - _SECONDS:
            self._at.popitem(last=False)
