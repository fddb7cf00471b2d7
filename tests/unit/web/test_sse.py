"""Batches contain each message once. Polls of a value end with their last watcher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from support.broker import TIMEOUT_S

from pointsman.web.sse import Polled, batches


async def test_a_message_that_arrives_during_an_empty_batch_is_in_the_next_batch() -> None:
    arrived: asyncio.Queue[int] = asyncio.Queue()

    async def messages() -> AsyncGenerator[int, None]:
        while True:
            yield await arrived.get()

    grouped = batches(messages(), lambda: 0.0, lambda: 0.01)
    assert await anext(grouped) == []
    await arrived.put(1)
    await asyncio.sleep(0.05)  # the page is being sent
    await arrived.put(2)
    read: list[int] = []
    async with asyncio.timeout(TIMEOUT_S):
        while 2 not in read:
            read += await anext(grouped)
    await grouped.aclose()

    assert read == [1, 2]


async def test_a_poll_ends_with_its_last_watcher_also_after_a_refresh() -> None:
    polled_once = asyncio.Event()

    async def read() -> int:
        polled_once.set()
        return 1

    polled: Polled[int] = Polled(read, TIMEOUT_S)

    async def watch() -> None:
        async with polled.watch():
            await polled_once.wait()
            await asyncio.sleep(0)
            polled.refresh()
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    ended, _ = await asyncio.wait({watching}, timeout=TIMEOUT_S)
    watching.cancel()

    assert ended
