"""Requests under way: every answer comes to one inbox, and the last token of its subject says whose it is.

All requests wait equally long, so the oldest is always the first to be given up, and one timer serves them all. An
answer that comes later finds nobody.
"""

from __future__ import annotations

import asyncio

from pointsman.bus.wire import Arrival

__all__ = ["Abandoned", "Replies"]


class Abandoned(Exception):
    """No answer will come: the connection was lost."""


class Replies:
    """The answers that one connection waits for, each for `timeout` seconds. `inbox` is where they come."""

    def __init__(self, inbox: str, timeout: float) -> None:
        self._prefix = f"{inbox}."
        self._timeout = timeout
        self._waiting: dict[str, tuple[asyncio.Future[Arrival], float]] = {}  # by reply subject, oldest first
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def subject(self) -> str:
        """What to listen to."""
        return f"{self._prefix}*"

    def expect(self) -> tuple[str, asyncio.Future[Arrival]]:
        """Where the next request's answer is to go, and its future: it ends with a `TimeoutError` when none comes."""
        loop = asyncio.get_running_loop()
        self._count += 1
        reply, answer = f"{self._prefix}{self._count}", loop.create_future()
        self._waiting[reply] = answer, loop.time() + self._timeout
        if self._timer is None:
            self._timer = loop.call_later(self._timeout, self._give_up)
        return reply, answer

    def forget(self, reply: str) -> None:
        """Nobody waits for that answer any more."""
        self._waiting.pop(reply, None)

    def arrived(self, message: Arrival) -> None:
        answer, _ = self._waiting.pop(message.subject, (None, 0.0))
        if answer is not None and not answer.done():
            answer.set_result(message)

    def abandon(self) -> None:
        """End all that wait with `Abandoned`."""
        for answer, _ in self._waiting.values():
            if not answer.done():
                _end(answer, Abandoned())
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for reply, (answer, until) in list(self._waiting.items()):
            if until > now:
                self._timer = loop.call_at(until, self._give_up)
                return
            del self._waiting[reply]
            if not answer.done():
                _end(answer, TimeoutError())


def _end(answer: asyncio.Future[Arrival], error: Exception) -> None:
    """Whoever asked may have given up before waiting: that is no error nobody looked at, as asyncio would log."""
    answer.set_exception(error)
    answer.exception()
