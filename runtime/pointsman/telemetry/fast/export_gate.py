"""The way into a queue of the SDK, and out of it to an exporter: what has no room stays out, and what is lost counts.

The SDK's own queue drops what does not fit, and tells nobody. It never has to: all that it holds came in here. Before
an exporter that fails nothing is let in, queued or encoded, but for one item now and then that finds out whether the
collector is back. An exporter that is stuck has not failed yet: what it may come back for is kept, as far as there is
room.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from pointsman.telemetry import metrics, semconv
from pointsman.telemetry.logs import get_logger

__all__ = ["ExportGate"]

_EXPORT_TIMEOUT_S: Final = 2.0  # seconds an export may take: a collector that is busy answers in one, or gives 503
_RETRY_PAUSE_S: Final = (
    5.0  # seconds from a try that failed to the next one's item: as long as the standard has a batch wait
)

_log = get_logger(__name__)


class ExportGate:
    """Before the queue of `signal`, which has `room`, and between it and `exporter`. Any thread may come."""

    def __init__(
        self, signal: str, exporter: Any, room: int, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.capacity = room
        self.offered = 0
        self.exported = 0
        self._signal = signal
        self._exporter = exporter
        self._monotonic = monotonic
        self._has_failed = False  # the last that was sent: the collector is taken to be away
        self._retried_at = 0.0  # when, by `monotonic`: before that nothing is let in, and then one
        self._export_started: float | None = None  # the export that is under way, by `monotonic`
        self._rejected = 0  # since the last delivery
        self._was_full = False
        self._closed = False
        self._series = metrics.labels({semconv.SIGNAL: signal})
        self._reset()
        if hasattr(os, "register_at_fork"):
            empty = weakref.WeakMethod(self._reset)
            os.register_at_fork(after_in_child=lambda: (found := empty()) and found())

    def _reset(self) -> None:
        """Nobody is inside: at the beginning, and in a forked process, where the SDK empties its queue as well."""
        self._in_flight = 0
        self._export_started = None
        self._lock = threading.RLock()  # a collected generator may end its span while it is held

    @property
    def lost(self) -> int:
        """How many of those offered were not delivered, those that wait among them."""
        return self.offered - self.exported

    def is_open(self) -> bool:
        """Whether one that is ready would be let in now. Ask before making it, and `reject` what is not made."""
        return self._in_flight < (self._limit() if self._has_failed else self.capacity)

    def collector_down(self) -> bool:
        """Whether what begins now would be made for nobody: the collector is away, and has its next try already or is
        not to be tried yet; or it holds on to a batch, and all has been filled meanwhile. A queue that is full before
        one that answers may have room when it ends."""
        return (self._has_failed or (self._export_started is not None and self._is_stuck())) and not self.is_open()

    def reject(self) -> None:
        """One more is lost: it found no room, or was not even made, as it would have found none."""
        self._dropped(1, offered=1)
        if not self._was_full and not self._has_failed:
            self._was_full = True
            _log.warning("telemetry_queue_full", signal=self._signal, room=self.capacity, hint="the collector is slow")

    def try_enter(self) -> bool:
        """Whether there is room for one more, who is then taken to go in."""
        with self._lock:
            if admitted := self.is_open():
                self.offered += 1
                self._in_flight += 1
        if not admitted:
            self.reject()
        return admitted

    def export(self, batch: Sequence[Any]) -> Any:
        """What the exporter says to `batch`; None, which the SDK does not look at, when it was not asked.

        Raises what the exporter raises. That counts as a failure unless it is a ValueError or a TypeError: those are of
        a batch that cannot be encoded, where what a collector does is an OSError.
        """
        with self._lock:
            self._in_flight -= len(batch)
        if self._has_failed and self._monotonic() < self._retried_at:
            self._dropped(len(batch))
            return None
        delivered: int | None = None
        at_fault = True
        self._export_started = self._monotonic()
        try:
            result = self._exporter.export(batch)
            if result.name == "SUCCESS":
                delivered = len(batch) - getattr(self._exporter, "left_out", 0)
            return result
        except (TypeError, ValueError) as error:
            at_fault = isinstance(error, OSError)  # some of an HTTP client's are both
            raise
        finally:
            self._export_started = None
            if lost := len(batch) - (delivered or 0):
                self._dropped(lost)
            if delivered is not None:
                self._delivered(delivered)
            elif at_fault:
                self._failed()

    def shutdown(self) -> None:
        """May be called twice: by the SDK, and by whoever gives up."""
        if not self._closed:
            self._closed = True
            self._exporter.shutdown()

    def _limit(self) -> int:
        """How many may be inside after a failure."""
        return int(self._monotonic() >= self._retried_at)

    def _is_stuck(self) -> bool:
        began = self._export_started  # another thread ends it
        return began is not None and self._monotonic() - began > _EXPORT_TIMEOUT_S

    def _failed(self) -> None:
        self._retried_at = self._monotonic() + _RETRY_PAUSE_S
        was_away, self._has_failed = self._has_failed, True
        if not was_away:
            _log.warning(
                "telemetry_collector_down",
                signal=self._signal,
                hint=f"it is tried again {_RETRY_PAUSE_S:g} s after each failure; what is lost meanwhile is counted in"
                f" {semconv.TELEMETRY_DROPPED}",
            )

    def _delivered(self, amount: int) -> None:
        with self._lock:
            self.exported += amount
            missed, self._rejected = self._rejected, 0
        was_away, self._has_failed = self._has_failed, False
        if was_away:
            _log.warning("telemetry_collector_up", signal=self._signal, lost=missed)

    def _dropped(self, amount: int, *, offered: int = 0) -> None:
        with self._lock:
            self.offered += offered
            self._rejected += amount
        metrics.count_series(semconv.TELEMETRY_DROPPED, amount, self._series)
