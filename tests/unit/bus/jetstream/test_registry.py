"""The registry reports live agents, also during outages of the broker and of the registry's watch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import pytest
from structlog.testing import capture_logs

from pointsman.bus.jetstream.registry import KeyValueRegistry
from pointsman.ports.bus import StoredMessage
from pointsman.testing.clock import VirtualClock
from pointsman_schemas.card import AgentCard

LIVES = 15.0  # time to live of a card in seconds


class Bucket:
    """A key-value stream without times to live, in which the test expires cards."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.kept: list[StoredMessage] = []
        self.closed = False
        self.broken: Exception | None = None
        self._grew = asyncio.Event()

    async def publish(self, subject: str, body: bytes, wire: dict[str, str]) -> int:
        own = {name: value for name, value in wire.items() if not name.startswith("Nats-")}
        self.kept.append(StoredMessage(subject, body, own, len(self.kept) + 1, self.clock.now()))
        self._grew.set()
        return len(self.kept)

    async def broker_time(self, stream: str, subject: str) -> datetime:
        return self.clock.now()

    async def expire(self, card: AgentCard) -> None:
        await self.publish(f"$KV.cards.{card.name}.{card.instance}", b"", {"Nats-Marker-Reason": "MaxAge"})

    def break_watches(self, error: Exception) -> None:
        self.broken = error
        self._grew.set()

    async def read(self, stream: str, subject: str, after: int) -> AsyncIterator[StoredMessage]:
        for stored in self.kept[after:]:
            yield stored

    async def follow(self, stream: str, subjects: Sequence[str], after: int) -> AsyncIterator[StoredMessage]:
        while True:
            while len(self.kept) > after:
                after += 1
                yield self.kept[after - 1]
            self._grew.clear()
            await self._grew.wait()
            if (error := self.broken) is not None:
                self.broken = None
                raise error


def card(instance: str) -> AgentCard:
    return AgentCard(name="writer", description="writes", instance=instance)


@asynccontextmanager
async def watched(bucket: Bucket, clock: VirtualClock) -> AsyncIterator[KeyValueRegistry]:
    registry = KeyValueRegistry(bucket, bucket, bucket, "cards", LIVES, clock)
    await registry.cards()
    yield registry
    await registry.close()


async def alive(registry: KeyValueRegistry, clock: VirtualClock) -> list[str]:
    await clock.settle()
    return [each.instance for each in await registry.cards()]


async def test_live_card_stays_live_for_its_time_to_live_after_an_outage() -> None:
    clock = VirtualClock()
    bucket = Bucket(clock)
    async with watched(bucket, clock) as registry:
        for instance in ("a", "b", "c"):
            await registry.announce(card(instance))
        before = await alive(registry, clock)

        registry.on_connection_lost()
        await clock.advance(10 * LIVES)
        during = await alive(registry, clock)
        registry.on_connection_restored()
        for instance in ("a", "b", "c"):
            await bucket.expire(card(instance))
        after = await alive(registry, clock)
        await registry.announce(card("a"))
        await registry.withdraw(card("b"))
        withdrawn = await alive(registry, clock)
        await clock.advance(LIVES - 1)
        await registry.announce(card("a"))
        await clock.advance(2)
        later = await alive(registry, clock)
        await bucket.expire(card("a"))
        last = await alive(registry, clock)

    assert before == during == after == ["a", "b", "c"]
    assert withdrawn == ["a", "c"]
    assert later == ["a"]
    assert last == []


async def test_dead_card_stays_dead_after_an_outage() -> None:
    clock = VirtualClock()
    bucket = Bucket(clock)
    async with watched(bucket, clock) as registry:
        await registry.announce(card("a"))
        await clock.advance(LIVES + 1)

        registry.on_connection_lost()
        registry.on_connection_restored()
        after = await alive(registry, clock)

    assert after == []


async def test_a_watch_that_ends_is_reported_and_begins_again_where_it_was() -> None:
    clock = VirtualClock()
    bucket = Bucket(clock)
    with capture_logs() as lines:
        async with watched(bucket, clock) as registry:
            await registry.announce(card("a"))
            before = await alive(registry, clock)

            bucket.break_watches(ValueError("a bug"))
            await registry.announce(card("b"))
            await clock.advance(5)
            after = await alive(registry, clock)

    assert (before, after) == (["a"], ["a", "b"])
    assert [line["event"] for line in lines] == ["registry_watch_broken"]
    assert isinstance(lines[0]["exc_info"], ValueError)


async def test_a_message_that_the_watch_cannot_process_is_not_read_for_ever() -> None:
    clock = VirtualClock()
    bucket = Bucket(clock)

    class Poisonous(bytes):
        def __bool__(self) -> bool:
            raise ValueError("an error that no code expects")

    with capture_logs() as lines:
        async with watched(bucket, clock) as registry:
            await bucket.publish("$KV.cards.writer.x", Poisonous(), {})
            await registry.announce(card("a"))
            await clock.advance(5)
            after = await alive(registry, clock)

    assert after == ["a"]
    assert len(lines) == 1


async def test_the_watch_ends_with_its_bus() -> None:
    clock = VirtualClock()
    bucket = Bucket(clock)
    with capture_logs() as lines:
        async with watched(bucket, clock):
            bucket.closed = True
            await clock.settle()
            bucket.break_watches(ConnectionError("closed"))
            await clock.settle()

    assert lines == []


async def test_expired_card_kept_by_the_broker_is_not_live() -> None:
    clock = VirtualClock()
    bucket = Bucket(clock)
    writer = KeyValueRegistry(bucket, bucket, bucket, "cards", LIVES, clock)
    await writer.announce(card("dead"))
    await clock.advance(LIVES)
    await writer.announce(card("old"))
    await clock.advance(LIVES - 5)

    async with watched(bucket, clock) as registry:
        first = await alive(registry, clock)
        await clock.advance(4)
        then = await alive(registry, clock)
        await clock.advance(2)
        last = await alive(registry, clock)

    assert (first, then, last) == (["old"], ["old"], [])


def text_of(**fields: object) -> bytes:
    return json.dumps({"name": "writer", "description": "writes", "instance": "a", **fields}).encode()


@pytest.mark.parametrize(
    ("key", "body", "reason"),
    [
        ("other.a", text_of(), "'writer.a', but its key is 'other.a'"),
        ("writer.b", text_of(), "'writer.a', but its key is 'writer.b'"),
        ("writer.a", text_of(instance=""), "'writer.', but its key is 'writer.a'"),
        ("writer.a.b", text_of(), "its key is 'writer.a.b'"),
        ("writer.a", text_of(input_schema={"type": "strin"}), "input_schema: not a JSON Schema: type is"),
        ("writer.a", text_of(output_schema={"properties": []}), "not a JSON Schema: properties is []"),
        ("writer.a", text_of(description="x" * 200_000), "bytes; 65536 are accepted; shorten its description"),
        ("writer.a", b"[]", "not a valid AgentCard"),
    ],
)
async def test_entry_that_is_no_valid_card_is_refused_with_the_reason(key: str, body: bytes, reason: str) -> None:
    clock = VirtualClock()
    bucket = Bucket(clock)
    with capture_logs() as lines:
        async with watched(bucket, clock) as registry:
            await registry.announce(card("b"))
            for _ in range(3):  # as with each heartbeat
                await bucket.publish(f"$KV.cards.{key}", body, {})
            live, refused = await alive(registry, clock), await registry.refused()

    assert live == ([] if key == "writer.b" else ["b"])
    assert list(refused) == [key]
    assert reason in refused[key]
    assert [(line["event"], line["key"]) for line in lines] == [("card_refused", key)]
    assert lines[0]["reason"] == refused[key]


async def test_refused_entry_is_forgotten_once_it_is_corrected_or_expires() -> None:
    clock = VirtualClock()
    bucket = Bucket(clock)
    with capture_logs() as lines:
        async with watched(bucket, clock) as registry:
            await bucket.publish("$KV.cards.writer.a", text_of(input_schema={"type": 1}), {})
            await bucket.publish("$KV.cards.writer.b", text_of(), {})
            first = (await alive(registry, clock), list(await registry.refused()))
            await registry.announce(card("a"))
            second = (await alive(registry, clock), list(await registry.refused()))
            await clock.advance(LIVES + 1)
            third = (await alive(registry, clock), list(await registry.refused()))

    assert first == ([], ["writer.a", "writer.b"])
    assert second == (["a"], ["writer.b"])
    assert third == ([], [])
    assert len(lines) == 2
