"""Group messages of a stream in batches, and poll values that have no stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import Generic, TypeAlias, TypeVar

from pointsman.errors import PointsmanError
from pointsman.http.sse import KEEPALIVE_INTERVAL_S
from pointsman.telemetry import get_logger

__all__ = ["Chunks", "Polled", "batches"]

T = TypeVar("T")

Chunks: TypeAlias = AsyncGenerator[bytes, None]
"""Server-sent events, or parts of them."""

_log = get_logger(__name__)

_MAX_BATCH = 2_000  # largest number of messages in one batch


async def batches(
    messages: AsyncGenerator[T, None], pause: Callable[[], float], quiet: Callable[[], float] = lambda: inf
) -> AsyncGenerator[list[T], None]:
    """Group `messages` in lists.

    When `messages` end, the generator ends. When the generator is closed, `messages` are closed.

    Args:
        messages: The messages.
        pause: Function that returns a number of seconds. After its first message, a list waits that time for more.
        quiet: Function that returns a number of seconds. If no message arrives for that time, an empty list is yielded.
            A value below `pause()` counts as `pause()`, and a value above `KEEPALIVE_INTERVAL_S` counts as
            `KEEPALIVE_INTERVAL_S`. Default: `KEEPALIVE_INTERVAL_S`.

    Yields:
        The messages that arrived together, or an empty list.
    """
    queue: asyncio.Queue[T | None] = asyncio.Queue(_MAX_BATCH)

    async def pump() -> None:
        try:
            async for message in messages:
                await queue.put(message)
            await queue.put(None)
        finally:
            await messages.aclose()

    pumping = asyncio.create_task(pump())
    # Kept while an empty list is yielded, because a message that arrives during the yield is the result of this task.
    getting: asyncio.Task[T | None] | None = None
    try:
        while True:
            getting = getting or asyncio.create_task(queue.get())
            patience = min(KEEPALIVE_INTERVAL_S, max(quiet(), pause()))
            done, _ = await asyncio.wait({getting, pumping}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                yield []
                continue
            if getting not in done and queue.empty():
                pumping.result()  # raises the error that ended `messages`
            batch = [await getting]
            getting = None
            await asyncio.sleep(pause())
            while not queue.empty() and len(batch) < _MAX_BATCH:
                batch.append(queue.get_nowait())
            ended = None in batch
            if whole := [message for message in batch if message is not None]:
                yield whole
            if ended:
                return
    finally:
        left = [pumping, *([getting] if getting is not None else [])]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


class Polled(Generic[T]):
    """A value that is polled, because it has no stream.

    While at least one `watch` is active, the function `look` reads the value; `every` is the interval in seconds.
    """

    def __init__(self, look: Callable[[], Awaitable[T]], every: float) -> None:
        self._read = look
        self._interval = every
        self._watchers = 0
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._refresh_now = asyncio.Event()
        self.value: T | None = None

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Poll the value inside the `async with` block."""
        self._watchers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers and self._task is not None:
                task, self._task = self._task, None
                task.cancel()
                await asyncio.wait({task})

    async def changes(self) -> AsyncGenerator[T, None]:
        """Yield the current value, and then each changed value."""
        async with self.watch():
            seen: T | None = None
            while True:
                changed = self._changed
                if self.value is not None and self.value != seen:
                    seen = self.value
                    yield seen
                    continue
                await changed.wait()

    async def wait_for_change(self, seen: T | None) -> None:
        """Return when the value differs from `seen`."""
        while self.value == seen:
            await self._changed.wait()

    def refresh(self) -> None:
        """Poll now, because an action has changed the value."""
        self._refresh_now.set()

    async def _run(self) -> None:
        while True:
            self._refresh_now.clear()
            try:
                self.value = await self._read()
            # the broker is unavailable: keep the last value, because the status of the page shows the failure
            except PointsmanError as error:
                _log.debug("poll_failed", error=str(error))
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
            with suppress(TimeoutError):
                # `asyncio.wait_for` of Python 3.11 drops a cancellation that arrives together with a refresh
                async with asyncio.timeout(self._interval):
                    await self._refresh_now.wait()
