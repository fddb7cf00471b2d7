"""The memory broker uses the given clock, so minutes pass at once in a test, and nothing happens early."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from pointsman.bus.memory.bus import MemoryBroker, MemoryBus
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.testing.clock import VirtualClock
from pointsman_schemas.card import AgentCard


async def test_a_message_is_delivered_again_when_its_deadline_passes() -> None:
    clock = VirtualClock()
    bus = MemoryBus(clock=clock)
    consumer = await bus.consumer("writer", "work", "pointsman.handoff.writer.>", ack_wait=30)
    await bus.publish("pointsman.handoff.writer.crew.w.t.1", b"", {})
    [first] = await consumer.take(1)
    again = asyncio.create_task(consumer.take(1))

    await clock.advance(20)
    await first.in_progress()
    await clock.advance(29.9)
    assert not again.done()
    await clock.advance(0.1)

    assert [delivery.delivered for delivery in again.result()] == [2]


async def test_schedules_fire_in_order_and_at_their_time() -> None:
    clock = VirtualClock()
    bus = MemoryBus(clock=clock)
    start = clock.now()
    for name, seconds in (("late", 60), ("early", 20)):
        await bus.schedule(f"pointsman.schedule.team.w.timer.{name}", start + timedelta(seconds=seconds),
                           f"pointsman.timer.team.w.{name}", name.encode(), {})  # fmt: skip

    await clock.advance(3600)

    fired = [(stored.body, stored.at - start) async for stored in bus.read("work", "pointsman.timer.>")]
    assert fired == [(b"early", timedelta(seconds=20)), (b"late", timedelta(seconds=60))]


async def test_a_message_id_may_come_again_after_the_window() -> None:
    clock = VirtualClock()
    bus = MemoryBus(clock=clock)
    await bus.publish("pointsman.log.t.w", b"", {}, message_id="m")

    await clock.advance(119)
    within = await bus.publish("pointsman.log.t.w", b"", {}, message_id="m")
    await clock.advance(2)
    after = await bus.publish("pointsman.log.t.w", b"", {}, message_id="m")

    assert (within, after) == (1, 2)


async def test_a_card_is_gone_after_three_heartbeats() -> None:
    clock = VirtualClock()
    bus = MemoryBroker(clock=clock, heartbeat=5).connect()
    await bus.registry.announce(AgentCard(name="writer", instance="a", description=""))

    await clock.advance(14.9)
    before = await bus.registry.cards()
    await clock.advance(0.1)

    assert [card.name for card in before] == ["writer"]
    assert await bus.registry.cards() == []


async def test_waiting_leaves_no_tasks_behind() -> None:
    clock = VirtualClock()
    bus = MemoryBus(clock=clock)
    consumer = await bus.consumer("writer", "work", "pointsman.handoff.writer.>", ack_wait=30)
    await bus.publish("pointsman.handoff.writer.crew.w.t.1", b"", {})
    await consumer.take(1)
    waiting = asyncio.create_task(consumer.take(1))
    await clock.settle()

    waiting.cancel()
    await clock.settle()

    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_caller_that_is_cancelled_while_its_subscription_ends_does_not_continue() -> None:
    bus, heard, released, continued = MemoryBus(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hold(stored: StoredMessage) -> None:
        heard.set()
        try:
            await asyncio.Event().wait()
        finally:
            await released.wait()

    async def subscribe() -> None:
        async with await bus.listen("pointsman.live.>", hold):
            await bus.broadcast("pointsman.live.w.a", b"1", {})
            await heard.wait()
        continued.set()

    subscribing = asyncio.create_task(subscribe())
    await heard.wait()
    for _ in range(5):  # until the end of the block waits for the listener
        await asyncio.sleep(0)
    subscribing.cancel()
    await asyncio.sleep(0)
    released.set()
    await asyncio.wait({subscribing})

    assert subscribing.cancelled()
    assert not continued.is_set()


def test_it_is_a_bus() -> None:
    bus: Bus = MemoryBus()

    assert bus.connected
