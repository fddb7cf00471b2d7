"""A durable consumer delivers each message to one of the connections that share it, until the message is settled."""

from __future__ import annotations

import asyncio

import pytest
from support.place import BrokerNamespace, depth_is, take_all, take_one, until, wait_for_pulls

from pointsman.errors import BusUnavailableError, InvalidTokenError
from pointsman.ports.bus import Bus


async def test_consumer_gets_messages_stored_before_it(place: BrokerNamespace, bus: Bus) -> None:
    await bus.publish(place.handoff(1), b"1", {"ce-id": "a"})
    await bus.publish(f"{place.ns}.handoff.other.team.w.t.1", b"no", {})

    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)
    [delivery] = await take_one(consumer)

    assert consumer.bound
    assert (delivery.message.subject, delivery.message.body, delivery.delivered) == (place.handoff(1), b"1", 1)
    assert delivery.message.headers == {"ce-id": "a"}
    assert delivery.message.sequence == 1


async def test_consumer_name_fits_the_longest_team_name_and_no_subject(place: BrokerNamespace, bus: Bus) -> None:
    longest = f"request-{64 * 't'}"
    await bus.publish(place.handoff(1), b"1", {})

    consumer = await bus.consumer(longest, "work", place.handoffs, ack_wait=30)
    [delivery] = await take_one(consumer)
    depth = await bus.depth(longest, "work")
    for name in ("", "a.b", "a b", "*", 256 * "t"):
        with pytest.raises(InvalidTokenError):
            await bus.consumer(name, "work", place.handoffs, ack_wait=30)

    assert delivery.message.body == b"1"
    assert depth is not None


async def test_take_waits_for_the_first_message(place: BrokerNamespace, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)
    taking = asyncio.create_task(take_one(consumer))
    await until(lambda: consumer.bound)

    await bus.publish(place.handoff(1), b"1", {})

    assert [delivery.message.body for delivery in await taking] == [b"1"]


async def test_take_gives_several_at_once_and_never_more_than_the_room(place: BrokerNamespace, bus: Bus) -> None:
    await asyncio.gather(*(bus.publish(place.handoff(n), b"x", {}) for n in range(30)))
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)

    rounds: list[int] = []
    for room in (1, 2, 4, 8, 15):
        left = room
        while left:
            taken = await take_one(consumer, left)
            assert 1 <= len(taken) <= left
            left -= len(taken)
            rounds.append(len(taken))
            for delivery in taken:
                await delivery.ack()

    assert sum(rounds) == 30
    assert len(rounds) < 30


async def test_outstanding_messages_never_exceed_the_room(place: BrokerNamespace, bus: Bus) -> None:
    await asyncio.gather(*(bus.publish(place.handoff(n), b"x", {}) for n in range(20)))
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)

    taken = await take_one(consumer, 3)
    while len(taken) < 3:
        taken += await take_one(consumer, 3 - len(taken))

    async def settled() -> bool:
        depth = await bus.depth("writer", "work")
        return depth is not None and (depth.pending, depth.in_flight) == (17, 3)

    await until(settled)
    for delivery in taken:
        await delivery.ack()
    await until(lambda: depth_is(bus, 17, 0))


async def test_depth_says_up_to_where_everything_is_settled(place: BrokerNamespace, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)
    for number in range(4):
        await bus.publish(place.handoff(number), b"1", {})
    first, second, third, _ = await take_all(consumer, 4)
    await first.ack()
    await third.ack()
    await until(lambda: depth_is(bus, 0, 2))

    before = await bus.depth("writer", "work")
    await second.ack()
    await until(lambda: depth_is(bus, 0, 1))
    after = await bus.depth("writer", "work")

    assert before is not None
    assert after is not None
    assert (before.settled_through, after.settled_through) == (first.message.sequence, third.message.sequence)


async def test_depth_shows_the_delivered_messages_and_the_waiting_processes(place: BrokerNamespace, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)
    sequences = [await bus.publish(place.handoff(number), b"1", {}) for number in range(3)]
    await take_all(consumer, 2)
    await until(lambda: depth_is(bus, 1, 2))
    busy = await bus.depth("writer", "work")
    await take_all(consumer, 1)
    taking = asyncio.create_task(consumer.take(1))

    await wait_for_pulls(bus, 1)
    taking.cancel()

    assert busy is not None
    assert busy.delivered_through == sequences[1]


async def test_depth_of_a_consumer_that_does_not_exist_is_none(bus: Bus) -> None:
    assert await bus.depth("absent", "work") is None


async def test_an_unsettled_message_comes_again_and_reports_it(place: BrokerNamespace, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=0.5)
    await bus.publish(place.handoff(1), b"1", {})

    # With more room, a request would stay open, and several deliveries could arrive between two calls.
    counts = [(await take_one(consumer, 1))[0].delivered for _ in range(3)]

    assert counts == [1, 2, 3]


async def test_an_acknowledged_message_does_not_come_again(place: BrokerNamespace, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=0.3)
    await bus.publish(place.handoff(1), b"1", {})
    [delivery] = await take_one(consumer, 1)  # no request is open, so a late acknowledgement still is in time

    await delivery.ack()

    await until(lambda: depth_is(bus, 0, 0))
    with pytest.raises(TimeoutError):
        await take_one(consumer, wait=1.0)


async def test_a_handed_back_message_comes_at_once_or_after_its_delay(place: BrokerNamespace, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)
    loop = asyncio.get_running_loop()
    await bus.publish(place.handoff(1), b"1", {})
    [delivery] = await take_one(consumer)

    await delivery.nak()
    [again] = await take_one(consumer)
    started = loop.time()
    await again.nak(0.7)
    [later] = await take_one(consumer)

    assert (again.delivered, later.delivered) == (2, 3)
    assert loop.time() - started >= 0.65


async def test_progress_keeps_a_message_from_coming_again(place: BrokerNamespace, bus: Bus) -> None:
    """If a busy machine delays a report for too long, the message rightly comes again, and another one is tried."""
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=0.6)
    loop = asyncio.get_running_loop()

    for number in range(5):
        reported, longest = loop.time(), 0.0  # the start of the last report; the longest time between two reports
        await bus.publish(place.handoff(number), b"1", {})
        [delivery] = await take_one(consumer, 1)
        waiting = asyncio.create_task(take_one(consumer, 1))
        for _ in range(6):
            began = loop.time()
            await delivery.in_progress()
            await bus.depth("writer", "work")  # the answer shows that the broker has the report
            longest, reported = max(longest, loop.time() - reported), began
            await asyncio.wait({waiting}, timeout=0.25)
        longest = max(longest, loop.time() - reported)
        is_early, [again] = waiting.done(), await waiting
        await again.ack()
        if longest < 0.55:
            break
        await until(lambda: depth_is(bus, 0, 0))

    assert longest >= 0.55 or not is_early
    assert longest >= 0.55 or again.delivered == 2  # only after the last progress report expired


async def test_a_terminated_message_does_not_come_again(place: BrokerNamespace, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=0.3)
    await bus.publish(place.handoff(1), b"1", {})
    [delivery] = await take_one(consumer, 1)

    await delivery.term("no use")

    await until(lambda: depth_is(bus, 0, 0))
    with pytest.raises(TimeoutError):
        await take_one(consumer, wait=1.0)


async def test_settling_twice_or_late_harms_nothing(place: BrokerNamespace, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=0.3)
    await bus.publish(place.handoff(1), b"1", {})
    [first] = await take_one(consumer, 1)
    [second] = await take_one(consumer, 1)

    await first.ack()
    await second.ack()
    await second.nak()
    await second.in_progress()

    await until(lambda: depth_is(bus, 0, 0))
    with pytest.raises(TimeoutError):
        await take_one(consumer, wait=0.8)


async def test_processes_share_a_consumer(place: BrokerNamespace, bus: Bus) -> None:
    other = await place.connect()
    mine, theirs = [await each.consumer("writer", "work", place.handoffs, ack_wait=30) for each in (bus, other)]
    seen: dict[int, list[bytes]] = {0: [], 1: []}

    async def work(who: int, consumer: object) -> None:
        while True:
            for delivery in await consumer.take(4):  # type: ignore[attr-defined]
                seen[who].append(delivery.message.body)
                await delivery.ack()

    working = [asyncio.create_task(work(0, mine)), asyncio.create_task(work(1, theirs))]
    await wait_for_pulls(bus, 2)
    await asyncio.gather(*(bus.publish(place.handoff(n), b"%d" % n, {}) for n in range(100)))
    await until(lambda: len(seen[0] + seen[1]) > 99)
    await until(lambda: depth_is(bus, 0, 0))
    for task in working:
        task.cancel()
    await asyncio.gather(*working, return_exceptions=True)

    assert sorted(int(body) for body in seen[0] + seen[1]) == list(range(100))
    assert seen[0]
    assert seen[1]


async def test_a_consumer_has_at_most_so_many_in_flight(place: BrokerNamespace, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30, max_in_flight=2)
    await asyncio.gather(*(bus.publish(place.handoff(n), b"x", {}) for n in range(4)))

    taken = await take_all(consumer, 2)
    with pytest.raises(TimeoutError):
        await take_one(consumer, wait=0.4)
    await taken[0].ack()

    assert len(await take_one(consumer)) == 1


async def test_lowest_rank_gets_all_it_has_room_for(place: BrokerNamespace, bus: Bus) -> None:
    first = await bus.consumer("writer", "work", place.handoffs, ack_wait=30, ranked=True)
    other = await place.connect()
    second = await other.consumer("writer", "work", place.handoffs, ack_wait=30, ranked=True)
    second.set_rank(1)
    left = asyncio.create_task(take_all(second, 4))
    taking = asyncio.create_task(take_all(first, 6))
    await wait_for_pulls(bus, 2)
    for number in range(6):
        await bus.publish(place.handoff(number), b"%d" % number, {})
    taken = await taking
    none_left = not left.done()
    for number in range(6, 10):
        await bus.publish(place.handoff(number), b"%d" % number, {})

    assert [delivery.message.body for delivery in taken] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert none_left
    assert [delivery.message.body for delivery in await left] == [b"6", b"7", b"8", b"9"]


async def test_higher_rank_gets_everything_once_lower_ranks_leave(place: BrokerNamespace, bus: Bus) -> None:
    first = await bus.consumer("writer", "work", place.handoffs, ack_wait=30, ranked=True)
    second = await (await place.connect()).consumer("writer", "work", place.handoffs, ack_wait=30, ranked=True)
    second.set_rank(9)
    taking, leaving = asyncio.create_task(take_one(second)), asyncio.create_task(first.take(8))
    await wait_for_pulls(bus, 2)

    await first.close()
    await bus.publish(place.handoff(1), b"1", {})

    assert [delivery.message.body for delivery in await taking] == [b"1"]
    with pytest.raises(BusUnavailableError):
        await leaving


async def test_unranked_consumer_becomes_ranked_when_opened_ranked(place: BrokerNamespace, bus: Bus) -> None:
    await bus.consumer("writer", "work", place.handoffs, ack_wait=30)
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30, ranked=True)
    consumer.set_rank(2)

    await bus.publish(place.handoff(1), b"1", {})

    [delivery] = await take_one(consumer)
    assert delivery.message.body == b"1"


@pytest.mark.parametrize(("first", "second"), [(30, 20), (20, 30)])
async def test_longest_ack_deadline_among_sharers_counts(
    place: BrokerNamespace, bus: Bus, first: float, second: float
) -> None:
    """The shorter deadline would redeliver work of a worker with a longer report interval."""
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=first)
    await bus.publish(place.handoff(1), b"1", {})
    [delivery] = await take_one(consumer)

    await (await place.connect()).consumer("writer", "work", place.handoffs, ack_wait=second)
    shared = await bus.depth("writer", "work")
    await delivery.ack()
    await consumer.close()
    await until(lambda: depth_is(bus, 0, 0))
    await bus.consumer("writer", "work", place.handoffs, ack_wait=20)
    alone = await bus.depth("writer", "work")

    assert shared is not None
    assert alone is not None
    assert (shared.ack_waits, alone.ack_waits) == ((20, 30), ())


async def test_untaken_messages_of_a_closed_consumer_go_to_another(place: BrokerNamespace, bus: Bus) -> None:
    other = await place.connect()
    closing = await bus.consumer("writer", "work", place.handoffs, ack_wait=60)
    taking = asyncio.create_task(closing.take(8))
    await until(lambda: closing.bound)
    await asyncio.gather(*(bus.publish(place.handoff(n), b"x", {}) for n in range(8)))
    taken = list(await taking)

    await closing.close()
    await closing.close()
    for delivery in taken:
        await delivery.ack()
    assert not closing.bound
    with pytest.raises(BusUnavailableError):
        await closing.take(1)
    if len(taken) < 8:
        rest = await take_all(await other.consumer("writer", "work", place.handoffs, ack_wait=60), 8 - len(taken))
        for delivery in rest:
            await delivery.ack()

    await until(lambda: depth_is(bus, 0, 0))


async def test_withdrawn_request_leaves_messages_to_other_processes(place: BrokerNamespace, bus: Bus) -> None:
    other = await (await place.connect()).consumer("writer", "handoffs", place.handoffs, ack_wait=5.0)
    consumer = await bus.consumer("writer", "handoffs", place.handoffs, ack_wait=5.0)
    for number in range(3):
        taking = asyncio.create_task(consumer.take(1))
        await wait_for_pulls(bus, 1)
        taking.cancel()
        assert await consumer.withdraw() == ()
        assert consumer.bound

        await bus.publish(place.handoff(number), b"", {})
        (delivery,) = await take_one(other, 1)
        assert delivery.delivered == 1  # a message that the withdrawn request took would come again after 5 s
        await delivery.ack()

    await other.close()
    await bus.publish(place.handoff(9), b"", {})
    (delivery,) = await take_one(consumer, 1)
    assert delivery.message.subject == place.handoff(9)


async def test_a_cancelled_take_loses_nothing(place: BrokerNamespace, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=60)
    with pytest.raises(TimeoutError):
        await take_one(consumer, 4, wait=0.2)

    await bus.publish(place.handoff(1), b"1", {})

    assert [delivery.message.body for delivery in await take_one(consumer, 4)] == [b"1"]
