"""Admit items to a queue of the SDK, pass batches from the queue to an exporter, and count the items that are lost.

The SDK's own queue drops items silently when the queue is full. So this gate admits an item only if there is room, and
counts the items that it rejects. While an exporter fails, the gate admits one item at intervals, to check if the
collector is available again. Other items are neither queued nor encoded. An exporter that hangs has not failed yet and
may continue, so the gate then admits items while the queue has room.
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

# An export that takes more than this time counts as hanging. Even a busy collector answers within one second, at least
# with status 503.
_EXPORT_TIMEOUT_S: Final = 2.0
_RETRY_PAUSE_S: Final = 5.0  # pause after a failed export; as long as OpenTelemetry's default pause between two batches

_log = get_logger(__name__)


class ExportGate:
    """Gate in front of a queue and its exporter. Thread-safe.

    `signal` names the queue, and `room` is the number of items that fit into the queue.
    """

    def __init__(
        self, signal: str, exporter: Any, room: int, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.capacity = room
        self.offered = 0
        self.exported = 0
        self._signal = signal
        self._exporter = exporter
        self._monotonic = monotonic
        self._has_failed = False  # True if the last export failed, so the collector seems unavailable
        self._retried_at = 0.0  # after a failure: time by `monotonic` from which one item is admitted
        self._export_started: float | None = None  # start of the running export, by `monotonic`
        self._rejected = 0  # number of lost items since the last delivery
        self._was_full = False
        self._closed = False
        self._series = metrics.labels({semconv.SIGNAL: signal})
        self._reset()
        if hasattr(os, "register_at_fork"):
            empty = weakref.WeakMethod(self._reset)
            os.register_at_fork(after_in_child=lambda: (found := empty()) and found())

    def _reset(self) -> None:
        """Set the gate to empty.

        This is done at the start, and in a forked process, where the SDK empties its queue, too.
        """
        self._in_flight = 0
        self._export_started = None
        # Reentrant, because a generator's finalizer may end a span while this thread holds the lock.
        self._lock = threading.RLock()

    @property
    def lost(self) -> int:
        """Number of offered items that were not delivered, including queued items."""
        return self.offered - self.exported

    def is_open(self) -> bool:
        """Return True if an item would be admitted now. Call this before you make an item. If False, call `reject`."""
        return self._in_flight < (self._limit() if self._has_failed else self.capacity)

    def collector_down(self) -> bool:
        """Return True if a span that begins now would probably be lost.

        A span would be lost in two cases. In the first case, the last export failed, and either the next try is not
        due, or the one item for this try is already queued. In the second case, an export hangs, and the queue is full.
        A full queue alone is not enough, because the queue may have room when the span ends.

        Returns:
            True if there is no need to make the span.
        """
        return (self._has_failed or (self._export_started is not None and self._is_stuck())) and not self.is_open()

    def reject(self) -> None:
        """Count an item that was not made or not queued, because the gate was closed."""
        self._dropped(1, offered=1)
        if not self._was_full and not self._has_failed:
            self._was_full = True
            _log.warning("telemetry_queue_full", signal=self._signal, room=self.capacity, hint="the collector is slow")

    def try_enter(self) -> bool:
        """Admit one item and return True if there is room. Otherwise return False."""
        with self._lock:
            if admitted := self.is_open():
                self.offered += 1
                self._in_flight += 1
        if not admitted:
            self.reject()
        return admitted

    def export(self, batch: Sequence[Any]) -> Any:
        """Pass a batch to the exporter. Drop the batch if the collector is unavailable and the next try is not due.

        An exception of the exporter is raised again.

        Args:
            batch: The items.

        Returns:
            The result of the exporter; None, which the SDK ignores, if the exporter was not called.

        Raises:
            TypeError: The batch cannot be encoded. This is not a failure of the collector, which would be an OSError.
            ValueError: The batch cannot be encoded, as for `TypeError`.
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
            at_fault = isinstance(error, OSError)  # some errors of HTTP clients are both an OSError and a ValueError
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
        """Shut down the exporter once. Called by the SDK, and by a `close` that reaches its timeout."""
        if not self._closed:
            self._closed = True
            self._exporter.shutdown()

    def _limit(self) -> int:
        """Return the number of items that may be queued after a failure: 1 if the next try is due, otherwise 0."""
        return int(self._monotonic() >= self._retried_at)

    def _is_stuck(self) -> bool:
        began = self._export_started  # read once, because another thread resets it
        return began is not None and self._monotonic() - began > _EXPORT_TIMEOUT_S

    def _failed(self) -> None:
        self._retried_at = self._monotonic() + _RETRY_PAUSE_S
        was_down, self._has_failed = self._has_failed, True
        if not was_down:
            _log.warning(
                "telemetry_collector_down",
                signal=self._signal,
                hint=f"the collector is tried again {_RETRY_PAUSE_S:g} s after each failure; the metric"
                f" {semconv.TELEMETRY_DROPPED} counts the items that are lost meanwhile",
            )

    def _delivered(self, amount: int) -> None:
        with self._lock:
            self.exported += amount
            missed, self._rejected = self._rejected, 0
        was_down, self._has_failed = self._has_failed, False
        if was_down:
            _log.warning("telemetry_collector_up", signal=self._signal, lost=missed)

    def _dropped(self, amount: int, *, offered: int = 0) -> None:
        with self._lock:
            self.offered += offered
            self._rejected += amount
        metrics.count_series(semconv.TELEMETRY_DROPPED, amount, self._series)
