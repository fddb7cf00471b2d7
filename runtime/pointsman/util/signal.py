"""Wake the tasks that wait for a change."""

from __future__ import annotations

import asyncio

__all__ = ["Signal"]


class Signal:
    """Counts changes, and wakes the tasks that wait for the next change."""

    def __init__(self) -> None:
        self.changes = 0
        self._changed_event = asyncio.Event()

    async def wait_for_change(self, seen: int) -> None:
        """Wait until `changes` differs from `seen`."""
        while self.changes == seen:
            await self._changed_event.wait()

    def notify(self) -> None:
        """Wake all callers of `wait_for_change`."""
        self.changes += 1
        news, self._changed_event = self._changed_event, asyncio.Event()
        news.set()
