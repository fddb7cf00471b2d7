"""The way into a queue of the SDK, and out of it to an exporter: what has no room stays out, and what is lost counts.

The SDK's own queue drops what does not fit, and tells nobody. It never has to: all that it holds came in here. Before
an exporter that fails nothing is let in, queued or encoded, but for one item every few seconds that finds out whether
the collector is back: a collector that is away costs next to nothing.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from pointsman.telemetry import metrics, names
from pointsman.telemetry.logs import get_logger

__all__ = ["Door"]

_FAILURES: Final = 2  # one may be for the batch, as one that is too large; two in a row are for the collector
_PAUSE: Final = 5.0  # seconds between two tries of a collector that is away: as long as the standard has a batch wait

_log = get_logger(__name__)


class Door:
    """Before the queue of `signal`, which has `room`, and between it and `exporter`. Any thread may come."""

    def __init__(
        self, signal: str, exporter: Any, room: int, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.room = room
        self.offered = 0
        self.delivered = 0
        self._signal = signal
        self._exporter = exporter
        self._monotonic = monotonic
        self._failures = 0  # in a row
        self._tried_again = 0.0  # when, by `monotonic`: before that nothing is let in, and then one
        self._lost_before = 0
        self._was_full = False
        self._closed = False
        self._empty()
        if hasattr(os, "register_at_fork"):
            empty = weakref.WeakMethod(self._empty)
            os.register_at_fork(after_in_child=lambda: (found := empty()) and found())

    def _empty(self) -> None:
        """Nobody is inside: at the beginning, and in a forked process, where the SDK empties its queue as well."""
        self._inside = 0
        self._lock = threading.RLock()  # a collected generator may end its span while it is held

    @property
    def lost(self) -> int:
        """How many of those offered were not delivered, those that wait among them."""
        return self.offered - self.delivered

    def is_open(self) -> bool:
        """Whether one more would be let in now. Ask before making what has a price, and `refuse` what is not made."""
        return self._inside < self._limit()

    def refuse(self) -> None:
        """One was not even made, because nobody would have been let in."""
        with self._lock:
            self.offered += 1
        self._turned_away()

    def admits(self) -> bool:
        """Whether there is room for one more, who is then taken to go in."""
        with self._lock:
            self.offered += 1
            admitted = self._inside < self._limit()
            self._inside += admitted
        if not admitted:
            self._turned_away()
        return admitted

    def export(self, batch: Sequence[Any]) -> Any:
        """What the exporter says to `batch`; None, which the SDK does not look at, when it was not asked."""
        with self._lock:
            self._inside -= len(batch)
        if self._is_away() and self._monotonic() < self._tried_again:
            self._dropped(len(batch))
            return None
        delivered = False
        try:
            result = self._exporter.export(batch)
            delivered = result.name == "SUCCESS"
            return result
        finally:
            if delivered:
                self.delivered += len(batch)
                self._came_back()
            else:
                self._dropped(len(batch))
                self._failed()

    def shutdown(self) -> None:
        """May be called twice: by the SDK, and by whoever gives up."""
        if not self._closed:
            self._closed = True
            self._exporter.shutdown()

    def _limit(self) -> int:
        """How many may be inside."""
        if not self._is_away():
            return self.room
        return int(self._monotonic() >= self._tried_again)

    def _is_away(self) -> bool:
        return self._failures >= _FAILURES

    def _failed(self) -> None:
        self._failures += 1
        self._tried_again = self._monotonic() + _PAUSE
        if self._failures == _FAILURES:
            self._lost_before = self.lost
            _log.warning(
                "telemetry_collector_away",
                signal=self._signal,
                hint=f"it is tried every {_PAUSE:g} s; what is lost meanwhile is counted in {names.TELEMETRY_DROPPED}",
            )

    def _came_back(self) -> None:
        was_away, self._failures = self._is_away(), 0
        if was_away:
            _log.warning("telemetry_collector_back", signal=self._signal, lost=self.lost - self._lost_before)

    def _turned_away(self) -> None:
        self._dropped(1)
        if not self._was_full and not self._is_away():
            self._was_full = True
            _log.warning("telemetry_queue_full", signal=self._signal, room=self.room, hint="the collector is slow")

    def _dropped(self, amount: int) -> None:
        metrics.count(names.TELEMETRY_DROPPED, amount, {names.SIGNAL: self._signal})
