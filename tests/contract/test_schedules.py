"""A scheduled message is delivered once, unchanged and on time, unless it is purged before."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from support.place import BrokerNamespace, take_one, until

from pointsman.ports.bus import Bus


async def test_scheduled_message_arrives_unchanged_when_it_is_due(place: BrokerNamespace, bus: Bus) -> None:
    at = datetime.now(UTC) + timedelta(seconds=0.5)
    name, target = f"{place.ns}.schedule.w.retry", f"{place.ns}.inbox.team.w.timer.retry"

    assert await bus.schedule(name, at, target, b"body", {"ce-id": "a"})
    assert await bus.last("work", target) is None
    await until(lambda: bus.last("work", target))

    stored = await bus.last("work", target)
    assert stored is not None
    assert (stored.body, stored.headers) == (b"body", {"ce-id": "a"})
    assert stored.at >= at - timedelta(milliseconds=5)
    assert await bus.last("work", name) is None


async def test_a_schedule_in_the_past_comes_at_once(place: BrokerNamespace, bus: Bus) -> None:
    target = f"{place.ns}.inbox.team.w.timer.late"

    await bus.schedule(f"{place.ns}.schedule.w.late", datetime.now(UTC) - timedelta(days=2), target, b"", {})

    await until(lambda: bus.last("work", target), seconds=1.5)


async def test_a_repeated_schedule_comes_once_and_not_again_after_it_came(place: BrokerNamespace, bus: Bus) -> None:
    name, target = f"{place.ns}.schedule.w.once", f"{place.ns}.inbox.team.w.timer.once"
    at = datetime.now(UTC) + timedelta(seconds=0.4)

    answers = [await bus.schedule(name, at, target, b"same", {}) for _ in range(2)]
    await until(lambda: bus.last("work", target))
    answers.append(await bus.schedule(name, at, target, b"same", {}))

    with pytest.raises(TimeoutError):
        await until(lambda: _second(bus, target), seconds=0.5)
    assert answers == [True, True, False]


async def test_a_schedule_that_is_repeated_while_it_fires_comes_once(place: BrokerNamespace, bus: Bus) -> None:
    base = datetime.now(UTC) + timedelta(seconds=0.1)
    targets = [place.handoff(number) for number in range(10)]

    async def repeat(number: int) -> None:
        due = base + timedelta(seconds=0.02 * number)
        while await bus.schedule(f"{place.ns}.schedule.w.{number}", due, targets[number], b"", {}):
            await asyncio.sleep(0.001)

    await asyncio.gather(*(repeat(number) for number in range(10) for _ in range(2)))
    with pytest.raises(TimeoutError):
        await until(lambda: _second(bus, f"{place.ns}.handoff.>", of=10), seconds=0.3)


async def _second(bus: Bus, target: str, *, of: int = 1) -> bool:
    return len([stored async for stored in bus.read("work", target)]) > of


async def test_purged_schedule_does_not_fire(place: BrokerNamespace, bus: Bus) -> None:
    name, target = f"{place.ns}.schedule.w.gone", place.handoff(2)
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)
    await bus.publish(place.handoff(1), b"1", {})
    await bus.schedule(name, datetime.now(UTC) + timedelta(seconds=0.2), target, b"2", {})

    for subject in (place.handoff(1), name, f"{place.ns}.schedule.w.none"):
        await bus.purge("work", subject)
    await bus.publish(place.handoff(3), b"3", {})

    assert [each.message.body for each in await take_one(consumer)] == [b"3"]
    with pytest.raises(TimeoutError):
        await until(lambda: bus.last("work", target), seconds=0.6)
    assert await bus.publish(place.handoff(1), b"again", {}, expect=0)


async def test_a_scheduled_message_reaches_consumers(place: BrokerNamespace, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)

    await bus.schedule(
        f"{place.ns}.schedule.w.h", datetime.now(UTC) + timedelta(seconds=0.2), place.handoff(2), b"2", {}
    )

    [delivery] = await take_one(consumer)
    assert (delivery.message.body, delivery.delivered, delivery.message.headers) == (b"2", 1, {})
