"""Only `advance` moves a virtual clock. It wakes sleepers in order."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from pointsman.testing.clock import VirtualClock


async def test_time_moves_only_by_advance() -> None:
    clock = VirtualClock(datetime(2030, 1, 1, tzinfo=UTC))
    sleeping = asyncio.create_task(clock.sleep(1))

    await clock.advance(0.999)
    assert not sleeping.done()
    await clock.advance(0.001)

    assert sleeping.done()
    assert clock.monotonic() == 1.0
    assert clock.now() == datetime(2030, 1, 1, 0, 0, 1, tzinfo=UTC)


async def test_sleepers_wake_at_their_own_moment_and_in_order() -> None:
    clock = VirtualClock()
    woken: list[tuple[str, float]] = []

    async def sleep(name: str, *naps: float) -> None:
        for nap in naps:
            await clock.sleep(nap)
            woken.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as group:
        group.create_task(sleep("a", 2, 2))
        group.create_task(sleep("b", 1, 1, 1))
        await clock.advance(10)

    assert woken == [("b", 1), ("a", 2), ("b", 2), ("b", 3), ("a", 4)]


async def test_a_cancelled_sleeper_is_passed_over() -> None:
    clock = VirtualClock()
    sleeping = asyncio.create_task(clock.sleep(1))
    await clock.settle()

    sleeping.cancel()
    await clock.advance(2)

    assert sleeping.cancelled()
    assert clock.now() - timedelta(seconds=2) == datetime(2030, 1, 1, tzinfo=UTC)
