"""Wait for a condition, with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pointsman.testing.clock import VirtualClock

__all__ = ["in_time", "until"]

T = TypeVar("T")


async def until(what: Callable[[], Awaitable[Any] | Any], *, seconds: float = 20.0) -> Any:
    """Return the first true value of `what()`. Raises `TimeoutError` after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            answer = what()
            if answer := await answer if isinstance(answer, Awaitable) else answer:
                return answer
            await asyncio.sleep(0.01)


async def in_time(clock: VirtualClock, awaited: Awaitable[T], step: float = 0.05, *, seconds: float = 20.0) -> T:
    """Await `awaited` while time passes on `clock` in steps of `step` seconds. Return its result.

    Raises `TimeoutError` after `seconds` of real time.
    """
    waiting = asyncio.ensure_future(awaited)
    async with asyncio.timeout(seconds):
        while not waiting.done():
            await clock.advance(step)
            await asyncio.sleep(0.001)  # handlers run in other threads
    return waiting.result()
