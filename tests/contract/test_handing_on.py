"""A forwarded delivery is settled by its receiver. A delivery without a receiver is redelivered."""

from __future__ import annotations

import pytest
from support.place import BrokerNamespace, depth_is, take_one, until

from pointsman.ports.bus import Bus, Consumer, Delivery


@pytest.fixture
async def consumer(place: BrokerNamespace, bus: Bus) -> Consumer:
    return await bus.consumer("writer", "work", place.handoffs, ack_wait=30)


@pytest.mark.parametrize("body", [b"small", b"x" * 1_500_000], ids=["small", "kept apart"])
async def test_forwarded_message_arrives_unchanged_and_its_receiver_settles_it(
    place: BrokerNamespace, bus: Bus, consumer: Consumer, body: bytes
) -> None:
    other, received = await place.connect(), list[Delivery]()
    await bus.publish(place.handoff(1), body, {"ce-id": "a"})

    async with (
        await bus.receive_forwarded("one", received.append),
        await other.receive_forwarded("two", received.append),
    ):
        await other.depth("writer", "work")  # the answer shows that the broker has the subscription of "two"
        [delivery] = await take_one(consumer)
        handed = await delivery.forward("two")
        await until(lambda: len(received) > 0)
        await received[0].ack()
        await until(lambda: depth_is(bus, 0, 0))

    assert handed
    assert received[0].message == delivery.message
    assert received[0].delivered == 1


async def test_message_forwarded_to_no_receiver_is_redelivered(
    place: BrokerNamespace, bus: Bus, consumer: Consumer
) -> None:
    await bus.publish(place.handoff(1), b"1", {})

    async with await bus.receive_forwarded("one", lambda delivery: None):
        [delivery] = await take_one(consumer)
        if not await delivery.forward("gone"):
            await delivery.nak()
        [again] = await take_one(consumer)
        kept = not await again.forward("gone")
        await again.ack()
        await until(lambda: depth_is(bus, 0, 0))

    assert again.delivered == 2
    assert kept


async def test_message_forwarded_to_a_leaving_receiver_arrives_or_is_redelivered(
    place: BrokerNamespace, bus: Bus, consumer: Consumer
) -> None:
    other, received = await place.connect(), list[Delivery]()
    for number in range(20):
        await bus.publish(place.handoff(number), b"1", {})
    taken = list[Delivery]()
    while len(taken) < 20:
        taken += await take_one(consumer, 20 - len(taken))

    async with await bus.receive_forwarded("one", received.append):
        async with await other.receive_forwarded("two", received.append):
            handed = [await delivery.forward("two") for delivery in taken]
        seen = {delivery.message.sequence for delivery in received}
        while len(seen) < 20:
            seen |= {delivery.message.sequence for delivery in await take_one(consumer, 20)}

    assert all(handed)
