"""A delivery that is handed on is another connection's to settle; to nobody, it is nobody's and comes again."""

from __future__ import annotations

import pytest
from support.place import BrokerNamespace, depth_is, take_one, until

from pointsman.ports.bus import Bus, Consumer, Delivery


@pytest.fixture
async def consumer(place: BrokerNamespace, bus: Bus) -> Consumer:
    return await bus.consumer("writer", "work", place.handoffs, ack_wait=30)


@pytest.mark.parametrize("body", [b"small", b"x" * 1_500_000], ids=["small", "kept apart"])
async def test_what_is_handed_on_arrives_as_it_was_and_is_settled_by_its_receiver(
    place: BrokerNamespace, bus: Bus, consumer: Consumer, body: bytes
) -> None:
    other, received = await place.connect(), list[Delivery]()
    await bus.publish(place.handoff(1), body, {"ce-id": "a"})

    async with (
        await bus.receive_forwarded("one", received.append),
        await other.receive_forwarded("two", received.append),
    ):
        await other.depth("writer", "work")  # whoever has an answer has been heard: the broker knows of "two"
        [delivery] = await take_one(consumer)
        handed = await delivery.forward("two")
        await until(lambda: len(received) > 0)
        await received[0].ack()
        await until(lambda: depth_is(bus, 0, 0))

    assert handed
    assert received[0].message == delivery.message
    assert received[0].delivered == 1


async def test_what_is_handed_on_to_nobody_comes_again_and_nobody_is_not_tried_for_a_while(
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


async def test_what_was_on_its_way_when_a_receiver_left_is_received_or_comes_again(
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
