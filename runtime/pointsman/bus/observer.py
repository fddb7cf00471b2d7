"""Whoever watches a bus breaks nothing: what a watcher raises is logged, and what it was told of goes on.

A message that was stored would seem not to be, else, and be dealt with as if its sending had failed.
"""

from __future__ import annotations

from pointsman.ports.bus import Hop, Server, Watcher
from pointsman.util.lazy_import import structlog

__all__ = ["ContainedWatcher"]

_log = structlog.get_logger(__name__)


class ContainedWatcher:
    """`watcher`, without its errors."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def sent(self, subject: str, server: Server | None, seconds: float, error: str | None) -> None:
        try:
            self._watcher.sent(subject, server, seconds, error)
        except Exception:
            _say()

    def received(self, subject: str, server: Server | None, consumer: str, amount: int) -> None:
        try:
            self._watcher.received(subject, server, consumer, amount)
        except Exception:
            _say()

    def passed(self, hop: Hop) -> None:
        try:
            self._watcher.passed(hop)
        except Exception:
            _say()


def _say() -> None:
    _log.exception("watcher_failed", hint="the message it was told of is not affected")
