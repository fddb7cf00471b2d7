"""Whoever watches a bus breaks nothing: what a watcher raises is logged, and what it was told of goes on.

A message that was stored would seem not to be, else, and be dealt with as if its sending had failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

from pointsman.ports import Hop, Server, Watcher
from pointsman.structured import structlog

__all__ = ["ContainedWatcher"]

_Told = ParamSpec("_Told")
_log = structlog.get_logger(__name__)


class ContainedWatcher:
    """`watcher`, without its errors."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def sent(self, subject: str, server: Server | None, seconds: float, error: str | None) -> None:
        _contained(self._watcher.sent, subject, server, seconds, error)

    def received(self, subject: str, server: Server | None, consumer: str, amount: int) -> None:
        _contained(self._watcher.received, subject, server, consumer, amount)

    def passed(self, hop: Hop) -> None:
        _contained(self._watcher.passed, hop)


def _contained(tell: Callable[_Told, None], *told: _Told.args, **more: _Told.kwargs) -> None:
    try:
        tell(*told, **more)
    except Exception:
        _log.exception("watcher_failed", hint="the message it was told of is not affected")
