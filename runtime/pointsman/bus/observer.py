"""Wrap an observer to log and swallow its errors.

Without the wrapper, an error of the observer would look like a failed publish, although the message was stored.
"""

from __future__ import annotations

from pointsman.ports.bus import BusObserver, Server, TraceHop
from pointsman.util.lazy_import import structlog

__all__ = ["SafeObserver"]

_log = structlog.get_logger(__name__)


class SafeObserver:
    """Calls `observer`, and logs its errors instead of raising them."""

    def __init__(self, observer: BusObserver) -> None:
        self._observer = observer

    def on_published(self, subject: str, server: Server | None, seconds: float, error: str | None) -> None:
        try:
            self._observer.on_published(subject, server, seconds, error)
        except Exception:
            _log_error()

    def on_received(self, subject: str, server: Server | None, consumer: str, amount: int) -> None:
        try:
            self._observer.on_received(subject, server, consumer, amount)
        except Exception:
            _log_error()

    def on_hop(self, hop: TraceHop) -> None:
        try:
            self._observer.on_hop(hop)
        except Exception:
            _log_error()


def _log_error() -> None:
    _log.exception("bus_observer_failed", hint="the observed message is not affected")
