"""A reader reads a stream by subject or sequence, in order, and can follow the stream while it grows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.place import TIMEOUT_S, BrokerNamespace, take_all

from pointsman.ports.bus import Bus, StoredMessage


async def test_last_and_get_give_none_where_nothing_is(place: BrokerNamespace, bus: Bus) -> None:
    assert await bus.last("log", place.log) is None
    assert await bus.get("log", 1) is None
    assert await bus.delete("log", 1) is False


async def test_last_takes_wildcards(place: BrokerNamespace, bus: Bus) -> None:
    await bus.publish(f"{place.ns}.log.one.w", b"1", {})
    await bus.publish(f"{place.ns}.log.two.w", b"2", {})
    await bus.publish(f"{place.ns}.log.two.v", b"3", {})

    stored = await bus.last("log", f"{place.ns}.log.*.w")

    assert stored is not None
    assert stored.body == b"2"


async def test_read_gives_a_subject_in_order_from_after(place: BrokerNamespace, bus: Bus) -> None:
    sequences = [
        await bus.publish(f"{place.ns}.log.team.{'w' if n % 2 else 'v'}", b"%d" % n, {"n": str(n)}) for n in range(10)
    ]

    everything = [stored async for stored in bus.read("log", place.log)]
    rest = [stored.body async for stored in bus.read("log", f"{place.ns}.log.team.*", after=sequences[6])]

    assert [(stored.body, stored.headers) for stored in everything] == [
        (b"%d" % n, {"n": str(n)}) for n in (1, 3, 5, 7, 9)
    ]
    assert rest == [b"7", b"8", b"9"]
    assert [stored async for stored in bus.read("log", place.log, after=sequences[-1])] == []


async def test_read_sees_what_was_just_written(place: BrokerNamespace, bus: Bus) -> None:
    number = 1_300  # more than two batches
    await asyncio.gather(*(bus.publish(place.log, b"x", {}) for _ in range(number)))

    sequences = [stored.sequence async for stored in bus.read("log", place.log)]

    assert sequences == list(range(1, number + 1))


async def test_read_skips_deleted_messages(place: BrokerNamespace, bus: Bus) -> None:
    sequences = [await bus.publish(place.log, b"%d" % n, {}) for n in range(4)]

    gone = [await bus.delete("log", sequences[1]), await bus.delete("log", sequences[3])]

    assert gone == [True, True]
    assert await bus.delete("log", sequences[3]) is False
    assert [stored.body async for stored in bus.read("log", place.log)] == [b"0", b"2"]


@pytest.mark.parametrize("filter", [">", "{ns}.>", "{ns}.log.*.*"])
async def test_read_of_many_subjects_passes_a_deleted_last_message(
    filter: str, place: BrokerNamespace, bus: Bus
) -> None:
    """After the newest message of a stream is deleted, nats-server has no last message for the filter `>`."""
    for number in range(3):
        await bus.publish(f"{place.ns}.log.team.w{number}", b"%d" % number, {})
    await bus.delete("log", 3)

    found = [stored.body async for stored in bus.read("log", filter.format(ns=place.ns))]
    newest = await bus.last("log", filter.format(ns=place.ns))

    assert found == [b"0", b"1"]
    assert newest is not None
    assert newest.body == b"1"


async def test_a_message_has_one_time_however_it_is_read(place: BrokerNamespace, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)
    for number in range(20):  # the broker's times have nine digits; all readers must keep the same six
        await bus.publish(place.handoff(number), b"1", {})

    delivered = {each.message.sequence: each.message.at for each in await take_all(consumer, 20)}
    read = {stored.sequence: stored.at async for stored in bus.read("work", place.handoffs)}
    got = {number: stored.at for number in read if (stored := await bus.get("work", number))}

    assert delivered == read == got


async def test_the_brokers_time_is_the_one_on_its_messages(place: BrokerNamespace, bus: Bus) -> None:
    before = await bus.time()
    await bus.publish(place.log, b"", {})
    after = await bus.time()

    stored = await bus.last("log", place.log)
    assert stored is not None
    assert before <= stored.at <= after


async def test_follow_yields_stored_and_then_new_messages(place: BrokerNamespace, bus: Bus) -> None:
    other = await place.connect()
    await bus.publish(place.log, b"0", {})
    await bus.publish(f"{place.ns}.outcome.team.w", b"no", {})
    following = bus.follow("log", [place.log, f"{place.ns}.question.team.w.*"])

    early = await some(following, 1)
    await other.publish(f"{place.ns}.question.team.w.a", b"1", {})
    await other.publish(place.log, b"2", {})
    late = await some(following, 2)

    assert (early, late) == ([b"0"], [b"1", b"2"])
    await following.aclose()  # type: ignore[attr-defined]


async def test_follow_misses_nothing_of_many(place: BrokerNamespace, bus: Bus) -> None:
    following = bus.follow("log", [place.log])

    async def write() -> None:
        for start in range(0, 1_000, 100):
            await asyncio.gather(*(bus.publish(place.log, b"%d" % n, {}) for n in range(start, start + 100)))

    writing = asyncio.create_task(write())
    bodies = await some(following, 1_000)
    await writing

    assert sorted(int(body) for body in bodies) == list(range(1_000))
    await following.aclose()  # type: ignore[attr-defined]


async def test_follow_begins_after_a_sequence(place: BrokerNamespace, bus: Bus) -> None:
    first = await bus.publish(place.log, b"0", {})
    await bus.publish(place.log, b"1", {})
    after = bus.follow("log", [place.log], after=first)

    assert await some(after, 1) == [b"1"]
    await after.aclose()  # type: ignore[attr-defined]


async def test_follow_reads_a_stream_that_ends_before_the_position_from_its_start(
    place: BrokerNamespace, bus: Bus
) -> None:
    """Such a stream was created again."""
    await bus.publish(place.log, b"0", {})
    after = bus.follow("log", [place.log], after=5)

    assert await some(after, 1) == [b"0"]
    await after.aclose()  # type: ignore[attr-defined]


async def some(messages: AsyncIterator[StoredMessage], number: int) -> list[bytes]:
    bodies: list[bytes] = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(bodies) < number:
            bodies.append((await anext(messages)).body)
    return bodies
