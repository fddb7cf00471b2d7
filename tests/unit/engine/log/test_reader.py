"""Readers of a workflow and of a bucket continue in a stream that was created again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from support.broker import TIMEOUT_S
from support.history import TEAM, WORKFLOW, completed, store

from pointsman.bus.memory.bus import MemoryBus
from pointsman.bus.memory.streams import Stream
from pointsman.engine.log import bucket_follower
from pointsman.engine.log.reader import follow_workflow
from pointsman.errors import BusUnavailableError
from pointsman.ports.key_value import KeyValueEntry
from pointsman_schemas.subjects import Subjects


async def test_a_workflow_is_followed_in_a_log_that_was_created_again() -> None:
    bus, entries = MemoryBus(), completed()
    for entry in entries[:3]:
        await store(bus, entry)

    async with aclosing(follow_workflow(bus, Subjects(), WORKFLOW, team=TEAM)) as messages, asyncio.timeout(TIMEOUT_S):
        before = [(await anext(messages)).sequence for _ in range(3)]
        coming = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0.01)
        bus.broker._streams["log"] = Stream()
        await store(bus, entries[0])
        after = (await coming).sequence

    assert (before, after) == ([1, 2, 3], 1)


async def test_a_bucket_that_was_created_again_is_followed_from_its_newest_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket_follower, "_RETRY_PAUSE_S", 0.0)
    begun: list[int] = []

    class Bucket:
        async def follow(self, after: int = 0) -> AsyncIterator[KeyValueEntry]:
            begun.append(after)
            if len(begun) > 1:
                await asyncio.Event().wait()
            for revision in (5, 1):  # the bucket is created again between the two changes
                yield KeyValueEntry("key", b"value", revision)
            raise BusUnavailableError("the broker is away")

    following = asyncio.ensure_future(bucket_follower.follow_bucket(Bucket(), lambda entry: None, content="test"))  # type: ignore[arg-type]
    async with asyncio.timeout(TIMEOUT_S):
        while len(begun) < 2:
            await asyncio.sleep(0.001)
    following.cancel()
    await asyncio.wait({following})

    assert begun == [0, 1]
