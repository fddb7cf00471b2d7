"""Readers delete their consumers at the broker, report refusals, and lose no stored message to an outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from structlog.testing import capture_logs
from support.broker import TIMEOUT_S, own_settings, wait_for_no_consumers
from support.proxy import Proxy
from support.waiting import until

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.bus.jetstream.follower import Follower
from pointsman.bus.jetstream.reader import StreamReader
from pointsman.errors import BusUnavailableError, PermissionDeniedError
from pointsman.ports.bus import StoredMessage
from pointsman.settings import Settings


async def test_readers_leave_no_consumers_behind(bus: JetStreamBus, namespace: str) -> None:
    await bus.publish(f"{namespace}.log.team.w", b"1", {})
    assert len([stored async for stored in bus.read("log", f"{namespace}.log.team.w")]) == 1
    following = bus.follow("log", [f"{namespace}.log.>"])
    await anext(following)

    await following.aclose()  # type: ignore[attr-defined]

    await until(lambda: wait_for_no_consumers(bus, f"{namespace.upper()}_LOG"))


def count_tries(bus: JetStreamBus, stream: str) -> list[str]:
    """Count the tries to create a consumer, each with a longer delay."""
    tries: list[str] = []
    ask = bus.api

    async def api(verb: str, payload: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if verb.startswith(f"CONSUMER.CREATE.{stream}"):
            tries.append(verb)
        return await ask(verb, payload)

    bus.api = api
    return tries


async def test_reader_refused_by_the_broker_is_reported_once_and_recovers(bus: JetStreamBus, namespace: str) -> None:
    stream = f"{namespace}_LIMITED"
    await bus.api(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"{namespace}.limited"], "max_consumers": 1})
    await bus.publish(f"{namespace}.limited", b"1", {})
    reader = StreamReader(bus, TIMEOUT_S, _never)
    first, second = (reader.follow(stream, [f"{namespace}.limited"], 0) for _ in range(2))
    await asyncio.wait_for(anext(first), TIMEOUT_S)

    with capture_logs() as lines:
        tries = count_tries(bus, stream)
        waiting = asyncio.ensure_future(anext(second))
        await until(lambda: len(tries) >= 3)
        await first.aclose()
        stored = await asyncio.wait_for(waiting, TIMEOUT_S)
        await second.aclose()

    waits = [line for line in lines if line["event"] == "follow_retrying"]
    assert stored.body == b"1"
    assert [line["log_level"] for line in waits] == ["error"]
    assert "maximum consumers" in waits[0]["reason"]
    await bus.api(f"STREAM.DELETE.{stream}")


async def test_a_reader_without_permission_ends_with_the_brokers_words(tmp_path: Path) -> None:
    rules = tmp_path / "nats-server.conf"
    denied = '{ user: u, password: p, permissions: { publish: { deny: "$JS.API.CONSUMER.CREATE.>" } } }'
    rules.write_text(f"authorization {{ users: [ {denied} ] }}")
    async with EmbeddedBroker(tmp_path / "store", config=rules) as server:
        bus = await connect(own_settings(server, user="u", password="p"), name="test", wait=TIMEOUT_S)
        await bus.set_up()
        with capture_logs() as lines, pytest.raises(PermissionDeniedError, match=r"CONSUMER\.CREATE\.OWN_LOG"):
            await asyncio.wait_for(anext(bus.follow("log", ["own.log.>"])), 4.0)
        await bus.close()

    assert [line["event"] for line in lines] == ["permission_denied"]


async def _never(stream: str) -> bool:
    return False


@pytest.mark.parametrize(("number", "leader_reads"), [(3, True), (5, False), (10, True)])
async def test_a_follower_reads_a_stream_that_was_created_again(
    number: int, leader_reads: bool, bus: JetStreamBus, settings: Settings, namespace: str
) -> None:
    """Create the stream again, with fewer messages than before, the same number, or more."""
    reader = await connect(settings, name="reader", wait=TIMEOUT_S, leader_reads=leader_reads)
    await reader.set_up()
    following = reader.follow("log", [f"{namespace}.log.*.*"])
    for _ in range(5):
        await bus.publish(f"{namespace}.log.team.w", b"before", {})
        await anext(following)
    coming = asyncio.ensure_future(anext(following))

    await bus.api(f"STREAM.DELETE.{namespace.upper()}_LOG")
    await bus.set_up()
    for _ in range(number):
        await bus.publish(f"{namespace}.log.team.w", b"after", {})

    async with asyncio.timeout(2 * TIMEOUT_S):
        read = [await coming, *[await anext(following) for _ in range(number - 1)]]
        await bus.publish(f"{namespace}.log.team.w", b"last", {})
        read.append(await anext(following))
    await following.aclose()  # type: ignore[attr-defined]
    await reader.close()

    assert [stored.body for stored in read] == [b"after"] * number + [b"last"]
    assert [stored.sequence for stored in read] == list(range(1, number + 2))


async def test_a_follower_does_not_repeat_what_is_left_of_a_stream(
    bus: JetStreamBus, settings: Settings, namespace: str
) -> None:
    """Delete the newest messages of a followed subject, then replace the consumer."""
    reader = await connect(settings, name="reader", wait=TIMEOUT_S, leader_reads=False)
    await reader.set_up()
    following = reader.follow("log", [f"{namespace}.log.*.*"])
    sequences = []
    for _ in range(5):
        sequences.append(await bus.publish(f"{namespace}.log.team.w", b"before", {}))
        await anext(following)
    coming = asyncio.ensure_future(anext(following))
    for sequence in sequences[3:]:
        await bus.delete("log", sequence)
    names = await bus.api(f"CONSUMER.NAMES.{namespace.upper()}_LOG", {"offset": 0})

    for name in names["consumers"]:
        await bus.api(f"CONSUMER.DELETE.{namespace.upper()}_LOG.{name}")
    await bus.publish(f"{namespace}.log.team.w", b"after", {})
    stored = await asyncio.wait_for(coming, 2 * TIMEOUT_S)
    await following.aclose()  # type: ignore[attr-defined]
    await reader.close()

    assert (stored.body, stored.sequence) == (b"after", 6)


async def test_a_follower_that_begins_after_a_deleted_message_repeats_no_older_message(
    bus: JetStreamBus, settings: Settings, namespace: str
) -> None:
    reader = await connect(settings, name="reader", wait=TIMEOUT_S, leader_reads=False)
    await reader.set_up()
    sequences = [await bus.publish(f"{namespace}.log.team.w", b"before", {}) for _ in range(5)]
    await bus.delete("log", sequences[-1])
    following = reader.follow("log", [f"{namespace}.log.*.*"], after=sequences[-1])
    coming = asyncio.ensure_future(anext(following))
    await until(lambda: _has_consumers(bus, f"{namespace.upper()}_LOG"))

    await bus.publish(f"{namespace}.log.team.w", b"after", {})
    stored = await asyncio.wait_for(coming, TIMEOUT_S)
    await following.aclose()  # type: ignore[attr-defined]
    await reader.close()

    assert (stored.body, stored.sequence) == (b"after", 6)


async def _has_consumers(bus: JetStreamBus, stream: str) -> bool:
    return not await wait_for_no_consumers(bus, stream)


@asynccontextmanager
async def _reader_of_long_log(
    bus: JetStreamBus, settings: Settings, namespace: str, *, leader_reads: bool = True
) -> AsyncIterator[tuple[Proxy, JetStreamBus]]:
    """Store 100 messages, which are more than a consumer delivers ahead. Yield a proxy and a reader behind it."""
    for _ in range(100):
        await bus.publish(f"{namespace}.log.team.w", bytes(100_000), {})
    address = urlsplit(settings.url)
    async with Proxy(address.hostname or "", address.port or 0) as proxy:
        through = settings.model_copy(update={"url": proxy.url, "request_timeout": 0.3})
        reader = await connect(through, name="reader", wait=TIMEOUT_S, leader_reads=leader_reads)
        yield proxy, reader
        await reader.close()


async def test_a_follower_loses_no_stored_message_to_a_long_outage(
    bus: JetStreamBus, settings: Settings, namespace: str
) -> None:
    """The connection is lost for longer than a request may take, while older messages are still delivered."""
    async with _reader_of_long_log(bus, settings, namespace) as (proxy, reader):
        read_last, asked = reader._reader.last, asyncio.Event()

        async def last(stream: str, subject: str) -> StoredMessage | None:
            try:
                return await read_last(stream, subject)
            except BusUnavailableError:
                asked.set()
                raise

        following = Follower(reader, f"{namespace.upper()}_LOG", f"{namespace}.log.*.*", 0, last).messages()
        read = [(await anext(following)).sequence]
        proxy.cut()
        await until(lambda: not reader.connected)

        async def read_on() -> None:
            while len(read) < 100:
                read.append((await anext(following)).sequence)

        reading = asyncio.ensure_future(read_on())
        await asyncio.wait_for(asked.wait(), TIMEOUT_S)
        proxy.heal()
        await asyncio.wait({reading}, timeout=TIMEOUT_S)
        reading.cancel()
        await asyncio.wait({reading})
        await following.aclose()

    assert read == list(range(1, 101))


async def test_a_read_that_the_network_interrupts_does_not_end_early(
    bus: JetStreamBus, settings: Settings, namespace: str
) -> None:
    """No data arrives for longer than an answer may take, while stored messages are still delivered."""
    async with _reader_of_long_log(bus, settings, namespace, leader_reads=False) as (proxy, reader):
        reading = reader.read("log", f"{namespace}.log.team.w")
        read = [(await anext(reading)).sequence]
        proxy.black_hole()
        failed = False
        try:
            async with asyncio.timeout(TIMEOUT_S):
                async for stored in reading:
                    read.append(stored.sequence)  # noqa: PERF401  # a comprehension would lose what was read before an error
        except BusUnavailableError:
            failed = True
        proxy.heal()

    assert failed
    assert read == list(range(1, len(read) + 1))
