"""Wait for a condition, with a time limit, and measure how long the event loop stood still."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pointsman.testing.clock import VirtualClock

__all__ = ["in_time", "measured_stalls", "quickly", "until"]

T = TypeVar("T")


async def until(what: Callable[[], Awaitable[Any] | Any], *, seconds: float = 20.0) -> Any:
    """Return the first true value of `what()`. Raises `TimeoutError` after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            answer = what()
            if answer := await answer if isinstance(answer, Awaitable) else answer:
                return answer
            await asyncio.sleep(0.01)


@contextmanager
def measured_stalls(step: float = 0.01) -> Iterator[list[float]]:
    """Yield a list of the seconds by which each wake-up of the event loop was late, measured every `step` seconds.

    A busy machine delays every process. A test that limits a time of the product adds the stalls to its limit.
    """
    loop, stalls = asyncio.get_running_loop(), [0.0]

    async def measure() -> None:
        while True:
            before = loop.time()
            await asyncio.sleep(step)
            stalls.append(loop.time() - before - step)

    measuring = asyncio.create_task(measure())
    try:
        yield stalls
    finally:
        measuring.cancel()


async def quickly(awaited: Awaitable[T], seconds: float) -> T:
    """Await `awaited`. Raises `TimeoutError` after `seconds`, not counting the time that the event loop stood still."""
    loop, waiting = asyncio.get_running_loop(), asyncio.ensure_future(awaited)
    began = loop.time()
    with measured_stalls() as stalls:
        while not waiting.done() and loop.time() - began < seconds + sum(stalls):
            await asyncio.wait({waiting}, timeout=0.02)
    return await asyncio.wait_for(waiting, 0)


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
