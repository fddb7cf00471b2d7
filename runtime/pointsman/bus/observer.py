"""Observer wrapper that logs and swallows observer errors.

Without it, a message that was stored would look as if its publish had failed.
"""

from __future__ import annotations

from pointsman.ports.bus import BusObserver, Server, TraceHop
from pointsman.util.lazy_import import structlog

__all__ = ["SafeObserver"]

_log = structlog.get_logger(__name__)


class SafeObserver:
    """`observer`, without its errors."""

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
    _log.exception("bus_observer_failed", hint="the message it was told of is not affected")
