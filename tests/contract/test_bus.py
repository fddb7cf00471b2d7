"""What every `Bus` promises, on the in-memory broker and on a real nats-server alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from support.broker import remove_streams

from pointsman.bus.checks import header_size
from pointsman.bus.embedded import EmbeddedBroker
from pointsman.bus.jetstream import connect
from pointsman.bus.memory import MemoryBroker
from pointsman.errors import BusUnavailable, Conflict, ContractError, InvalidToken, LostBody, OversizeEvent
from pointsman.ports import Bus, Delivery, Service, Stored
from pointsman.settings import Settings
from pointsman_schemas.card import AgentCard
from pointsman_schemas.envelope import decode

LARGE = b"".join(b"%08d" % number for number in range(150_000))
"""1.2 MB, above what one message may have, and no two chunks of it the same."""
HEARTBEAT = 1 / 3  # seconds; three make the one second that is the least a broker counts
SOON = 5.0  # seconds by which what must happen has happened, on a busy machine too


@dataclass
class Place:
    """One broker's namespace, and as many connections to it as a test wants."""

    ns: str
    connect: Callable[[], Awaitable[Bus]]

    def handoff(self, number: int = 1) -> str:
        return f"{self.ns}.handoff.writer.w.t.{number}"

    @property
    def handoffs(self) -> str:
        return f"{self.ns}.handoff.writer.>"

    @property
    def log(self) -> str:
        return f"{self.ns}.log.team.w"


@pytest.fixture(params=["memory", "jetstream"])
def server(request: pytest.FixtureRequest) -> EmbeddedBroker | None:
    return request.getfixturevalue("broker") if request.param == "jetstream" else None


@pytest.fixture
async def place(server: EmbeddedBroker | None, namespace: str) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        if server is None:
            memory = MemoryBroker(namespace, heartbeat=HEARTBEAT)

            async def open_one() -> Bus:
                return memory.connect()
        else:
            settings = Settings(url=server.url, namespace=namespace, heartbeat=HEARTBEAT, request_timeout=SOON)

            async def open_one() -> Bus:
                bus = await connect(settings, name="contract", wait=SOON)
                stack.push_async_callback(bus.close)
                return bus

        yield Place(namespace, open_one)
        if server is not None:
            await remove_streams(settings)


@pytest.fixture
async def bus(place: Place) -> Bus:
    bus = await place.connect()
    await bus.set_up()
    return bus


async def artifacts(place: Place, bus: Bus, part: str = "M") -> list[Stored]:
    """What the object store holds: `M` for the descriptions of objects, `C` for their chunks."""
    return [stored async for stored in bus.read("artifacts", f"$O.{place.ns.upper()}_ARTIFACTS.{part}.>")]


async def _taken(take: Callable[[int], Awaitable[Sequence[Delivery]]], count: int) -> AsyncIterator[Delivery]:
    async with asyncio.timeout(SOON):
        while count > 0:
            for delivery in await take(count):
                count -= 1
                yield delivery


async def until(condition: Callable[[], Awaitable[object]], wait: float = SOON) -> None:
    async with asyncio.timeout(wait):
        while not await condition():
            await asyncio.sleep(0.01)


async def take(consumer: object, room: int = 10, wait: float = SOON) -> list[Delivery]:
    async with asyncio.timeout(wait):
        return list(await consumer.take(room))  # type: ignore[attr-defined]


async def take_all(consumer: object, number: int) -> list[Delivery]:
    taken: list[Delivery] = []
    while len(taken) < number:
        taken += await take(consumer, number - len(taken))
    return taken


async def some(messages: AsyncIterator[Stored], number: int) -> list[bytes]:
    bodies = []
    async with asyncio.timeout(SOON):
        while len(bodies) < number:
            bodies.append((await anext(messages)).body)
    return bodies


def card(name: str, instance: str) -> AgentCard:
    return AgentCard(name=name, instance=instance, description="writes")


# Publishing and the compare-and-set


async def test_a_published_message_comes_back_as_it_was_sent(place: Place, bus: Bus) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)

    sequence = await bus.publish(place.log, b"\x00body\xff", {"ce-id": "a%20b", "X-Mixed-Case": "Yes"}, expect=0)

    stored = await bus.get("log", sequence)
    assert stored is not None
    assert (stored.subject, stored.body, stored.sequence) == (place.log, b"\x00body\xff", sequence)
    assert stored.headers == {"ce-id": "a%20b", "X-Mixed-Case": "Yes"}
    assert before < stored.at < datetime.now(UTC) + timedelta(seconds=1)


async def test_a_subject_takes_one_first_message(place: Place, bus: Bus) -> None:
    await bus.publish(place.log, b"1", {}, expect=0)

    with pytest.raises(Conflict):
        await bus.publish(place.log, b"2", {}, expect=0)

    assert [stored.body async for stored in bus.read("log", place.log)] == [b"1"]


async def test_of_many_writers_that_expect_the_same_end_one_wins(place: Place, bus: Bus) -> None:
    other = await place.connect()
    first = await bus.publish(place.log, b"1", {}, expect=0)

    answers = await asyncio.gather(
        *(writer.publish(place.log, b"2", {}, expect=first) for writer in [bus, other] * 8), return_exceptions=True
    )

    assert sum(isinstance(answer, int) for answer in answers) == 1
    assert sum(isinstance(answer, Conflict) for answer in answers) == 15


async def test_the_expected_sequence_is_the_subjects_own(place: Place, bus: Bus) -> None:
    first = await bus.publish(place.log, b"1", {}, expect=0)
    await bus.publish(f"{place.ns}.log.team.other", b"x", {})

    second = await bus.publish(place.log, b"2", {}, expect=first)

    assert second == first + 2


async def test_a_message_id_is_stored_once_and_stays_a_header(place: Place, bus: Bus) -> None:
    first = await bus.publish(place.handoff(1), b"1", {}, message_id="m1")

    second = await bus.publish(place.handoff(1), b"2", {}, message_id="m1")

    assert second == first
    stored = await bus.last("work", place.handoff(1))
    assert stored is not None
    assert (stored.body, stored.headers) == (b"1", {"Nats-Msg-Id": "m1"})


async def test_many_publishes_may_be_in_flight(place: Place, bus: Bus) -> None:
    sequences = await asyncio.gather(*(bus.publish(place.handoff(n), b"x", {}) for n in range(200)))

    assert sorted(sequences) == list(range(1, 201))


async def test_a_subject_no_stream_takes_is_refused(place: Place, bus: Bus) -> None:
    with pytest.raises(BusUnavailable):
        await bus.publish(f"{place.ns}.nowhere.x", b"", {})


@pytest.mark.parametrize("token", [
    "x 0\r\n\r\nPUB evil 1\r\nz\r\n", "a b", "a\tb", "a\x00b", "*", ">", "a>", "a*", "", "a..b", "\x7f", "\ud800",
    "a\u2028b", "y" * 2000,
])  # fmt: skip
async def test_a_subject_that_could_do_harm_is_never_sent(place: Place, bus: Bus, token: str) -> None:
    subject = f"{place.ns}.log.team.{token}"

    with pytest.raises(InvalidToken):
        await bus.publish(subject, b"", {})
    with pytest.raises(InvalidToken):
        await bus.broadcast(subject, b"", {})
    with pytest.raises(InvalidToken):
        await bus.schedule(subject, datetime.now(UTC), place.handoff(), b"", {})
    with pytest.raises(InvalidToken):
        await bus.schedule(f"{place.ns}.schedule.w.a", datetime.now(UTC), subject, b"", {})

    assert bus.connected
    assert await bus.last("log", f"{place.ns}.log.>") is None


@pytest.mark.parametrize("headers", [
    {"a": "b\r\nc: d"}, {"a": "b\nc"}, {"a": "b\x00"}, {"a\r\nb": "c"}, {"a: b": "c"}, {"": "c"}, {"a": "\udfff"},
    {"Nats-Rollup": "all"}, {"nats-rollup": "all"}, {"Nats-Expected-Last-Sequence": "1"},
])  # fmt: skip
async def test_a_header_that_could_do_harm_is_never_sent(place: Place, bus: Bus, headers: dict[str, str]) -> None:
    with pytest.raises(ContractError):
        await bus.publish(place.log, b"", headers)
    with pytest.raises(ContractError):
        await bus.broadcast(f"{place.ns}.live.w.a", b"", headers)

    assert bus.connected
    assert await bus.last("log", place.log) is None


@pytest.mark.parametrize("headers", [{}, {"ce-id": "1", "long": "h" * 1000, "wide": "ü" * 10}])
async def test_the_size_limit_counts_headers_and_is_exact(place: Place, bus: Bus, headers: dict[str, str]) -> None:
    room = bus.max_body - header_size(headers)

    await bus.publish(place.handoff(1), b"x" * (room - 1), headers)
    await bus.publish(place.handoff(2), b"x" * room, headers)
    with pytest.raises(OversizeEvent):
        await bus.publish(place.handoff(3), b"x" * (room + 1), headers)

    assert bus.connected
    assert await bus.last("work", place.handoff(3)) is None


@pytest.mark.parametrize("headers", [{}, {"ce-id": "1", "long": "h" * 1000, "wide": "ü" * 10}])
async def test_a_body_is_kept_apart_from_the_first_byte_on_that_a_message_cannot_have(
    place: Place, bus: Bus, headers: dict[str, str]
) -> None:
    room = bus.max_payload - header_size(headers)

    for number, size in enumerate((room - 1, room), 1):
        await bus.publish(place.handoff(number), b"x" * size, headers)
    inline = await artifacts(place, bus)
    await bus.publish(place.handoff(3), b"x" * (room + 1), headers)

    assert inline == []
    assert len(await artifacts(place, bus)) == 1
    held = [stored async for stored in bus.read("work", place.handoffs)]
    assert [len(stored.body) for stored in held] == [room - 1, room, room + 1]
    assert [stored.headers for stored in held] == [headers] * 3


async def test_what_a_compare_and_set_adds_counts_for_the_place_of_a_body(place: Place, bus: Bus) -> None:
    added = header_size({"Nats-Expected-Last-Subject-Sequence": "0"})

    await bus.publish(place.log, b"x" * (bus.max_payload - added), {}, expect=0)
    inline = await artifacts(place, bus)
    await bus.publish(f"{place.log}2", b"x" * (bus.max_payload - added + 1), {}, expect=0)

    assert inline == []
    assert len(await artifacts(place, bus)) == 1


async def test_a_large_body_is_read_in_every_way_as_it_was_published(place: Place, bus: Bus) -> None:
    body, headers = LARGE, {"ce-id": "1"}
    heard: asyncio.Queue[Stored] = asyncio.Queue()
    async with await bus.listen(f"{place.ns}.>", heard.put):
        sequence = await bus.publish(place.handoff(1), body, headers)
        await bus.broadcast(f"{place.ns}.live.w.a", body, headers)
        told = [await asyncio.wait_for(heard.get(), SOON) for _ in range(2)]
    now = await bus.time()
    await bus.schedule(f"{place.ns}.schedule.w.retry", now + timedelta(seconds=0.2), place.handoff(2), body, headers)

    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30.0)
    taken = [delivery async for delivery in _taken(consumer.take, 2)]
    followed = await anext(aiter(bus.follow("work", [place.handoff(2)])))
    seen = [
        *told,
        *(delivery.message for delivery in taken),
        followed,
        await bus.last("work", place.handoff(1)),
        await bus.get("work", sequence),
        *[stored async for stored in bus.read("work", place.handoffs)],
    ]

    assert [stored and (stored.body == body, stored.headers) for stored in seen] == [(True, headers)] * len(seen)


async def test_the_same_large_body_is_stored_once(place: Place, bus: Bus) -> None:
    other = await place.connect()

    await bus.publish(place.handoff(1), LARGE, {})
    once = await artifacts(place, bus, "C")
    await other.publish(place.handoff(2), LARGE, {"ce-id": "2"})
    with pytest.raises(Conflict):
        await bus.publish(place.handoff(1), LARGE, {}, expect=0)

    assert await artifacts(place, bus, "C") == once
    assert b"".join(chunk.body for chunk in once) == LARGE


async def test_two_that_store_the_same_large_body_at_once_do_not_disturb_each_other(place: Place, bus: Bus) -> None:
    others = [bus, *[await place.connect() for _ in range(3)]]

    await asyncio.gather(*(one.publish(place.handoff(n), LARGE, {}) for n, one in enumerate(others)))

    assert {stored.body async for stored in bus.read("work", place.handoffs)} == {LARGE}
    assert len(await artifacts(place, bus)) == 1


@pytest.mark.parametrize("harm", ["gone", "its chunks gone", "cut", "longer", "unreadable", "older copy"])
async def test_a_large_body_that_is_gone_or_damaged_is_a_reference_that_decode_refuses(
    place: Place, bus: Bus, harm: str
) -> None:
    await bus.publish(place.handoff(1), LARGE, {"ce-id": "1"})
    (description,), chunks = await artifacts(place, bus), await artifacts(place, bus, "C")

    match harm:
        case "gone":
            await bus.purge("artifacts", description.subject)
        case "its chunks gone":
            await bus.purge("artifacts", chunks[0].subject)
        case "cut":
            await bus.delete("artifacts", chunks[1].sequence)
        case "longer":
            await bus.publish(chunks[0].subject, b"more", {})
        case "unreadable":
            await bus.publish(description.subject, b"{}", {})
        case _:
            await bus.delete("artifacts", chunks[0].sequence)
            await bus.publish(chunks[0].subject, chunks[0].body, {})
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30.0)
    (delivery,) = await asyncio.wait_for(consumer.take(1), SOON)

    assert delivery.message.body == b""
    with pytest.raises(LostBody, match=f"{place.ns.upper()}_ARTIFACTS"):
        decode(delivery.message.headers, delivery.message.body)


@pytest.mark.parametrize(
    "reference",
    ["https://example.org/body", "nats-object://OTHER_ARTIFACTS/x?size=1&sha256=" + "0" * 64, "\xff", "", "x" * 9_000],
)
async def test_a_reference_to_elsewhere_is_not_followed(place: Place, bus: Bus, reference: str) -> None:
    await bus.publish(place.log, b"", {"CE-DataRef": reference})

    stored = await bus.last("log", place.log)

    assert stored is not None
    assert (stored.body, stored.headers) == (b"", {"CE-DataRef": reference})
    with pytest.raises(LostBody):
        decode(stored.headers, stored.body)


async def test_an_event_with_a_body_may_refer_to_whatever_it_likes(place: Place, bus: Bus) -> None:
    headers = {"ce-dataref": "https://example.org/body"}

    await bus.publish(place.log, b"{}", headers)

    stored = await bus.last("log", place.log)
    assert stored is not None
    assert decode(stored.headers, stored.body) == (None, b"{}")


async def test_headers_larger_than_the_broker_keeps_are_refused(place: Place, bus: Bus) -> None:
    with pytest.raises(OversizeEvent):
        await bus.publish(place.log, b"", {"a": "h" * 66_000})


# Reading


async def test_last_and_get_give_none_where_nothing_is(place: Place, bus: Bus) -> None:
    assert await bus.last("log", place.log) is None
    assert await bus.get("log", 1) is None
    assert await bus.delete("log", 1) is False


async def test_last_takes_wildcards(place: Place, bus: Bus) -> None:
    await bus.publish(f"{place.ns}.log.one.w", b"1", {})
    await bus.publish(f"{place.ns}.log.two.w", b"2", {})
    await bus.publish(f"{place.ns}.log.two.v", b"3", {})

    stored = await bus.last("log", f"{place.ns}.log.*.w")

    assert stored is not None
    assert stored.body == b"2"


async def test_read_gives_a_subject_in_order_from_after(place: Place, bus: Bus) -> None:
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


async def test_read_sees_what_was_just_written_however_long(place: Place, bus: Bus) -> None:
    number = 1_300  # more than two batches
    await asyncio.gather(*(bus.publish(place.log, b"x", {}) for _ in range(number)))

    sequences = [stored.sequence async for stored in bus.read("log", place.log)]

    assert sequences == list(range(1, number + 1))


async def test_read_passes_over_what_was_deleted(place: Place, bus: Bus) -> None:
    sequences = [await bus.publish(place.log, b"%d" % n, {}) for n in range(4)]

    gone = [await bus.delete("log", sequences[1]), await bus.delete("log", sequences[3])]

    assert gone == [True, True]
    assert await bus.delete("log", sequences[3]) is False
    assert [stored.body async for stored in bus.read("log", place.log)] == [b"0", b"2"]


async def test_follow_gives_what_is_there_and_what_comes(place: Place, bus: Bus) -> None:
    other = await place.connect()
    await bus.publish(place.log, b"0", {})
    await bus.publish(f"{place.ns}.outcome.team.w", b"no", {})
    following = bus.follow("log", [place.log, f"{place.ns}.event.w.>"])

    early = await some(following, 1)
    await other.publish(f"{place.ns}.event.w.a.b", b"1", {})
    await other.publish(place.log, b"2", {})
    late = await some(following, 2)

    assert (early, late) == ([b"0"], [b"1", b"2"])
    await following.aclose()  # type: ignore[attr-defined]


async def test_follow_misses_nothing_of_many(place: Place, bus: Bus) -> None:
    following = bus.follow("log", [place.log])

    async def write() -> None:
        for start in range(0, 1_000, 100):
            await asyncio.gather(*(bus.publish(place.log, b"%d" % n, {}) for n in range(start, start + 100)))

    writing = asyncio.create_task(write())
    bodies = await some(following, 1_000)
    await writing

    assert sorted(int(body) for body in bodies) == list(range(1_000))
    await following.aclose()  # type: ignore[attr-defined]


async def test_follow_begins_after_a_sequence(place: Place, bus: Bus) -> None:
    first = await bus.publish(place.log, b"0", {})
    await bus.publish(place.log, b"1", {})
    after = bus.follow("log", [place.log], after=first)

    assert await some(after, 1) == [b"1"]
    await after.aclose()  # type: ignore[attr-defined]


# Consumers


async def test_a_consumer_gets_what_was_there_before_it(place: Place, bus: Bus) -> None:
    await bus.publish(place.handoff(1), b"1", {"ce-id": "a"})
    await bus.publish(f"{place.ns}.handoff.other.w.t.1", b"no", {})

    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)
    [delivery] = await take(consumer)

    assert consumer.bound
    assert (delivery.message.subject, delivery.message.body, delivery.delivered) == (place.handoff(1), b"1", 1)
    assert delivery.message.headers == {"ce-id": "a"}
    assert delivery.message.sequence == 1


async def test_a_message_has_one_time_however_it_is_read(place: Place, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)
    for number in range(20):  # of the broker's nine digits six are kept, always the same ones
        await bus.publish(place.handoff(number), b"1", {})

    delivered = {each.message.sequence: each.message.at for each in await take_all(consumer, 20)}
    read = {stored.sequence: stored.at async for stored in bus.read("work", place.handoffs)}
    got = {number: stored.at for number in read if (stored := await bus.get("work", number))}

    assert delivered == read == got


async def test_take_waits_for_the_first_message(place: Place, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)
    taking = asyncio.create_task(take(consumer))
    await until(lambda: _bound(consumer))

    await bus.publish(place.handoff(1), b"1", {})

    assert [delivery.message.body for delivery in await taking] == [b"1"]


async def _bound(consumer: object) -> bool:
    return bool(consumer.bound)  # type: ignore[attr-defined]


async def test_take_gives_several_at_once_and_never_more_than_the_room(place: Place, bus: Bus) -> None:
    await asyncio.gather(*(bus.publish(place.handoff(n), b"x", {}) for n in range(30)))
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)

    rounds: list[int] = []
    for room in (1, 2, 4, 8, 15):
        left = room
        while left:
            taken = await take(consumer, left)
            assert 1 <= len(taken) <= left
            left -= len(taken)
            rounds.append(len(taken))
            for delivery in taken:
                await delivery.ack()

    assert sum(rounds) == 30
    assert len(rounds) < 30


async def test_no_more_than_the_room_is_ever_outstanding(place: Place, bus: Bus) -> None:
    await asyncio.gather(*(bus.publish(place.handoff(n), b"x", {}) for n in range(20)))
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)

    taken = await take(consumer, 3)
    while len(taken) < 3:
        taken += await take(consumer, 3 - len(taken))

    async def settled() -> bool:
        depth = await bus.depth("writer", "work")
        return depth is not None and (depth.pending, depth.in_flight) == (17, 3)

    await until(settled)
    for delivery in taken:
        await delivery.ack()
    await until(lambda: _depth_is(bus, 17, 0))


async def _depth_is(bus: Bus, pending: int, in_flight: int) -> bool:
    depth = await bus.depth("writer", "work")
    return depth is not None and (depth.pending, depth.in_flight) == (pending, in_flight)


async def test_depth_of_a_consumer_that_does_not_exist_is_none(bus: Bus) -> None:
    assert await bus.depth("nobody", "work") is None


async def test_an_unsettled_message_comes_again_and_says_so(place: Place, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=0.5)
    await bus.publish(place.handoff(1), b"1", {})

    counts = [(await take(consumer))[0].delivered for _ in range(3)]

    assert counts == [1, 2, 3]


async def test_an_acknowledged_message_does_not_come_again(place: Place, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=0.3)
    await bus.publish(place.handoff(1), b"1", {})
    [delivery] = await take(consumer)

    await delivery.ack()

    with pytest.raises(TimeoutError):
        await take(consumer, wait=1.0)
    await until(lambda: _depth_is(bus, 0, 0))


async def test_a_handed_back_message_comes_at_once_or_after_its_delay(place: Place, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)
    loop = asyncio.get_running_loop()
    await bus.publish(place.handoff(1), b"1", {})
    [delivery] = await take(consumer)

    await delivery.nak()
    [again] = await take(consumer)
    started = loop.time()
    await again.nak(0.7)
    [later] = await take(consumer)

    assert (again.delivered, later.delivered) == (2, 3)
    assert loop.time() - started >= 0.65


async def test_progress_keeps_a_message_from_coming_again(place: Place, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=0.6)
    await bus.publish(place.handoff(1), b"1", {})
    [delivery] = await take(consumer)
    waiting = asyncio.create_task(take(consumer))

    for _ in range(6):
        await delivery.in_progress()
        await asyncio.wait({waiting}, timeout=0.25)

    assert not waiting.done()
    assert (await waiting)[0].delivered == 2  # once nobody reports any more


async def test_a_terminated_message_does_not_come_again(place: Place, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=0.3)
    await bus.publish(place.handoff(1), b"1", {})
    [delivery] = await take(consumer)

    await delivery.term("no use")

    with pytest.raises(TimeoutError):
        await take(consumer, wait=1.0)


async def test_settling_twice_or_late_harms_nothing(place: Place, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=0.3)
    await bus.publish(place.handoff(1), b"1", {})
    [first] = await take(consumer)
    [second] = await take(consumer)

    await first.ack()
    await second.ack()
    await second.nak()
    await second.in_progress()

    with pytest.raises(TimeoutError):
        await take(consumer, wait=0.8)


async def test_processes_share_a_consumer(place: Place, bus: Bus) -> None:
    other = await place.connect()
    mine, theirs = [await each.consumer("writer", "work", place.handoffs, ack_wait=30) for each in (bus, other)]
    seen: dict[int, list[bytes]] = {0: [], 1: []}

    async def work(who: int, consumer: object) -> None:
        while True:
            for delivery in await consumer.take(4):  # type: ignore[attr-defined]
                seen[who].append(delivery.message.body)
                await delivery.ack()

    working = [asyncio.create_task(work(0, mine)), asyncio.create_task(work(1, theirs))]
    await asyncio.gather(*(bus.publish(place.handoff(n), b"%d" % n, {}) for n in range(100)))
    await until(lambda: _longer(seen[0] + seen[1], 99))
    await until(lambda: _depth_is(bus, 0, 0))
    for task in working:
        task.cancel()
    await asyncio.gather(*working, return_exceptions=True)

    assert sorted(int(body) for body in seen[0] + seen[1]) == list(range(100))
    assert seen[0]
    assert seen[1]


async def test_a_consumer_has_at_most_so_many_in_flight(place: Place, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30, max_in_flight=2)
    await asyncio.gather(*(bus.publish(place.handoff(n), b"x", {}) for n in range(4)))

    taken = await take_all(consumer, 2)
    with pytest.raises(TimeoutError):
        await take(consumer, wait=0.4)
    await taken[0].ack()

    assert len(await take(consumer)) == 1


async def test_what_was_not_taken_when_a_consumer_closes_goes_to_another(place: Place, bus: Bus) -> None:
    other = await place.connect()
    closing = await bus.consumer("writer", "work", place.handoffs, ack_wait=60)
    taking = asyncio.create_task(closing.take(8))
    await until(lambda: _bound(closing))
    await asyncio.gather(*(bus.publish(place.handoff(n), b"x", {}) for n in range(8)))
    taken = list(await taking)

    await closing.close()
    await closing.close()
    for delivery in taken:
        await delivery.ack()
    assert not closing.bound
    with pytest.raises(BusUnavailable):
        await closing.take(1)
    if len(taken) < 8:
        rest = await take_all(await other.consumer("writer", "work", place.handoffs, ack_wait=60), 8 - len(taken))
        for delivery in rest:
            await delivery.ack()

    await until(lambda: _depth_is(bus, 0, 0))


async def test_a_cancelled_take_loses_nothing(place: Place, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=60)
    with pytest.raises(TimeoutError):
        await take(consumer, 4, wait=0.2)

    await bus.publish(place.handoff(1), b"1", {})

    assert [delivery.message.body for delivery in await take(consumer, 4)] == [b"1"]


# Schedules


async def test_a_scheduled_message_comes_when_it_is_due_and_as_it_was_given(place: Place, bus: Bus) -> None:
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


async def test_a_schedule_in_the_past_comes_at_once(place: Place, bus: Bus) -> None:
    target = f"{place.ns}.inbox.team.w.timer.late"

    await bus.schedule(f"{place.ns}.schedule.w.late", datetime.now(UTC) - timedelta(days=2), target, b"", {})

    await until(lambda: bus.last("work", target), wait=1.5)


async def test_a_repeated_schedule_comes_once_and_not_again_after_it_came(place: Place, bus: Bus) -> None:
    name, target = f"{place.ns}.schedule.w.once", f"{place.ns}.inbox.team.w.timer.once"
    at = datetime.now(UTC) + timedelta(seconds=0.4)

    answers = [await bus.schedule(name, at, target, b"same", {}) for _ in range(2)]
    await until(lambda: bus.last("work", target))
    answers.append(await bus.schedule(name, at, target, b"same", {}))

    with pytest.raises(TimeoutError):
        await until(lambda: _second(bus, target), wait=0.5)
    assert answers == [True, True, False]


async def test_a_schedule_that_is_repeated_while_it_fires_comes_once(place: Place, bus: Bus) -> None:
    base = datetime.now(UTC) + timedelta(seconds=0.1)
    targets = [place.handoff(number) for number in range(10)]

    async def repeat(number: int) -> None:
        due = base + timedelta(seconds=0.02 * number)
        while await bus.schedule(f"{place.ns}.schedule.w.{number}", due, targets[number], b"", {}):
            await asyncio.sleep(0.001)

    await asyncio.gather(*(repeat(number) for number in range(10) for _ in range(2)))
    with pytest.raises(TimeoutError):
        await until(lambda: _second(bus, f"{place.ns}.handoff.>", of=10), wait=0.3)


async def _second(bus: Bus, target: str, *, of: int = 1) -> bool:
    return len([stored async for stored in bus.read("work", target)]) > of


async def test_what_is_purged_is_gone_and_does_not_come(place: Place, bus: Bus) -> None:
    name, target = f"{place.ns}.schedule.w.gone", place.handoff(2)
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)
    await bus.publish(place.handoff(1), b"1", {})
    await bus.schedule(name, datetime.now(UTC) + timedelta(seconds=0.2), target, b"2", {})

    for subject in (place.handoff(1), name, f"{place.ns}.schedule.w.none"):
        await bus.purge("work", subject)
    await bus.publish(place.handoff(3), b"3", {})

    assert [each.message.body for each in await take(consumer)] == [b"3"]
    with pytest.raises(TimeoutError):
        await until(lambda: bus.last("work", target), wait=0.6)
    assert await bus.publish(place.handoff(1), b"again", {}, expect=0)


async def test_the_brokers_time_is_the_one_on_its_messages(place: Place, bus: Bus) -> None:
    before = await bus.time()
    await bus.publish(place.log, b"", {})
    after = await bus.time()

    stored = await bus.last("log", place.log)
    assert stored is not None
    assert before <= stored.at <= after


async def test_a_scheduled_message_reaches_consumers(place: Place, bus: Bus) -> None:
    consumer = await bus.consumer("writer", "work", place.handoffs, ack_wait=30)

    await bus.schedule(
        f"{place.ns}.schedule.w.h", datetime.now(UTC) + timedelta(seconds=0.2), place.handoff(2), b"2", {}
    )

    [delivery] = await take(consumer)
    assert (delivery.message.body, delivery.delivered, delivery.message.headers) == (b"2", 1, {})


# The registry


async def test_cards_come_sorted_and_go_when_withdrawn(place: Place, bus: Bus) -> None:
    other = await place.connect()
    await bus.registry.announce(card("writer", "b"))

    assert [each.instance for each in await other.registry.cards()] == ["b"]  # complete at the first answer
    for name, instance in (("writer", "a"), ("a-b", "x"), ("a", "x")):
        await bus.registry.announce(card(name, instance))
    await until(lambda: _has(other, [("a", "x"), ("a-b", "x"), ("writer", "a"), ("writer", "b")]), wait=1.0)
    await bus.registry.withdraw(card("a", "x"))
    await until(lambda: _lacks(other, "a"), wait=1.0)


async def _has(bus: Bus, expected: list[tuple[str, str]]) -> bool:
    return [(each.name, each.instance) for each in await bus.registry.cards()] == expected


async def _lacks(bus: Bus, name: str) -> bool:
    return name not in [each.name for each in await bus.registry.cards()]


async def test_a_card_nobody_refreshes_is_gone_after_three_heartbeats(place: Place, bus: Bus) -> None:
    other = await place.connect()
    loop = asyncio.get_running_loop()
    await bus.registry.announce(card("writer", "dead"))
    await bus.registry.announce(card("writer", "alive"))
    assert len(await other.registry.cards()) == 2
    started = loop.time()

    async def refreshed_until_the_other_is_gone() -> bool:
        await bus.registry.announce(card("writer", "alive"))
        return await _has(other, [("writer", "alive")])

    await until(refreshed_until_the_other_is_gone)

    assert 2 * HEARTBEAT < loop.time() - started < 3 * HEARTBEAT + 1.5
    assert await _has(await place.connect(), [("writer", "alive")])


async def test_a_card_needs_an_instance_that_can_stand_in_a_subject(bus: Bus) -> None:
    with pytest.raises(InvalidToken):
        await bus.registry.announce(card("writer", "a.b"))


# Broadcasts and services


async def test_a_broadcast_is_heard_by_those_who_listen_and_kept_by_nobody(place: Place, bus: Bus) -> None:
    other = await place.connect()
    heard: list[Stored] = []

    async def hear(stored: Stored) -> None:
        heard.append(stored)

    async def has_come() -> bool:
        return bool(heard)

    async with await other.listen(f"{place.ns}.live.*.cancelled", hear):
        await bus.broadcast(f"{place.ns}.live.w.other", b"no", {})
        await bus.broadcast(f"{place.ns}.live.w.cancelled", b"yes", {"ce-id": "a"})
        await until(has_come)
    await bus.broadcast(f"{place.ns}.live.w.cancelled", b"late", {})

    async with await other.listen(f"{place.ns}.live.w.marker", hear):  # what was sent before it has been passed on
        await bus.broadcast(f"{place.ns}.live.w.marker", b"marker", {})
        await until(lambda: _longer(heard, 1))
    assert [(each.body, each.headers, each.sequence) for each in heard] == [
        (b"yes", {"ce-id": "a"}, 0), (b"marker", {}, 0)]  # fmt: skip


async def _longer(heard: Sequence[object], than: int) -> bool:
    return len(heard) > than


async def test_a_listener_that_fails_goes_on_listening(place: Place, bus: Bus) -> None:
    heard: list[bytes] = []

    async def fail_first(stored: Stored) -> None:
        heard.append(stored.body)
        if len(heard) == 1:
            raise ValueError("not this one")

    async def both() -> bool:
        return len(heard) == 2

    async with await bus.listen(f"{place.ns}.live.>", fail_first):
        await bus.broadcast(f"{place.ns}.live.w.a", b"1", {})
        await bus.broadcast(f"{place.ns}.live.w.a", b"2", {})
        await until(both)

    assert heard == [b"1", b"2"]


async def test_a_service_can_be_served_and_left(place: Place, bus: Bus) -> None:
    service = Service(name="writer", id="i1", version="1.0.0", description="writes", subject=place.handoffs)

    async with await bus.serve(service):
        assert bus.connected


# Beginning and end


async def test_set_up_may_run_many_times_at_once(place: Place) -> None:
    buses = [await place.connect() for _ in range(4)]

    await asyncio.gather(*(each.set_up() for each in buses * 2))

    assert await buses[0].publish(place.log, b"", {}) == 1


async def test_closing_twice_is_safe_and_ends_the_connection(place: Place) -> None:
    bus = await place.connect()
    await bus.set_up()

    await asyncio.wait_for(bus.close(), SOON)
    await asyncio.wait_for(bus.close(), SOON)

    assert not bus.connected
    with pytest.raises(BusUnavailable):
        await asyncio.wait_for(bus.last("log", place.log), SOON + 5)


async def test_what_is_published_to_a_stream_is_heard_as_it_is_sent(place: Place, bus: Bus) -> None:
    heard: asyncio.Queue[Stored] = asyncio.Queue()

    async with await bus.listen(place.log, heard.put):
        await bus.publish(place.log, b"{}", {"ce-id": "1"}, expect=0)
        async with asyncio.timeout(5):
            message = await heard.get()

    assert (message.subject, message.body, message.sequence) == (place.log, b"{}", 0)
    assert message.headers["ce-id"] == "1"


async def test_a_closed_bus_says_so(place: Place) -> None:
    other = await place.connect()

    before = other.closed
    await other.close()

    assert (before, other.closed) == (False, True)


async def test_of_what_is_left_of_a_limit_only_the_newest_is_kept_and_compared(place: Place, bus: Bus) -> None:
    subject = f"{place.ns}.limit.a"
    first = await bus.publish(subject, b"1", {}, expect=0)

    second = await bus.publish(subject, b"2", {}, expect=first)

    with pytest.raises(Conflict):
        await bus.publish(subject, b"3", {}, expect=first)
    kept = [stored async for stored in bus.read("limits", subject)]
    assert [(stored.sequence, stored.body) for stored in kept] == [(second, b"2")]
