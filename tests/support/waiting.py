"""Waiting for what must become true, and no longer than it may take."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["until"]


async def until(what: Callable[[], Awaitable[Any] | Any], *, seconds: float = 10.0) -> Any:
    """The first true value of `what()`. Raises `TimeoutError` after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            answer = what()
            if answer := await answer if isinstance(answer, Awaitable) else answer:
                return answer
            await asyncio.sleep(0.01)
