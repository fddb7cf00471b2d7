"""A user reads the subjects that a permission names, and no other subject of the same stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from support.broker import TIMEOUT_S
from support.cluster import NatsCluster
from support.permission_server import PermissionServer, Rights, permission_server
from support.waiting import quickly, until

from pointsman.bus.jetstream import follower
from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.bus.jetstream.protocol import WireMessage
from pointsman.bus.jetstream.push_consumer import PushConsumer
from pointsman.bus.jetstream.reader import StreamReader
from pointsman.errors import PermissionDeniedError
from pointsman.ports.bus import StoredMessage
from pointsman.settings import Settings
from pointsman_schemas.card import AgentCard

AT_ONCE_S = 1.0


def reads(stream: str, subject: str) -> list[str]:
    """Return the subjects on which a user publishes to read `subject` of `stream`."""
    return [
        f"$JS.API.DIRECT.GET.{stream}.{subject}",
        f"$JS.API.CONSUMER.CREATE.{stream}.*.{subject}",
        f"$JS.API.CONSUMER.DELETE.{stream}.*",
        f"$JS.FC.{stream}.>",
    ]


@asynccontextmanager
async def users(folder: Path, *publish: str) -> AsyncIterator[tuple[PermissionServer, JetStreamBus, JetStreamBus]]:
    """Yield a server, the bus of `root` with all rights, and the bus of `ada` with the rights `publish`."""
    rights = Rights(publish=publish, subscribe=["_INBOX.ada.>"])
    async with permission_server(folder, {"root": None, "ada": rights}) as server:
        root = await connect(Settings(url=server.url("root"), namespace="own"), name="root", wait=TIMEOUT_S)
        await root.set_up()
        settings = Settings(url=server.url("ada"), namespace="own", inbox_prefix="_INBOX.ada")
        ada = await connect(settings, name="ada", wait=TIMEOUT_S, leader_reads=False)
        yield server, root, ada
        await ada.close()
        await root.close()


async def test_every_read_of_an_allowed_subject_is_answered(tmp_path: Path) -> None:
    async with users(tmp_path, *reads("OWN_LOG", "own.log.crew.>")) as (server, root, ada):
        sequences = [await root.publish("own.log.crew.w", b"%d" % number, {"n": str(number)}) for number in range(5)]
        await root.publish("own.log.other.w", b"", {})

        last = await ada.last("log", "own.log.crew.*")
        got = await ada.get("log", sequences[2], "own.log.crew.w")
        read = [stored async for stored in ada.read("log", "own.log.crew.w", after=1)]
        following = ada.follow("log", ["own.log.crew.*"], after=3)
        followed = [await asyncio.wait_for(anext(following), TIMEOUT_S) for _ in range(2)]

        assert last is not None
        assert got is not None
        assert (last.body, last.sequence, last.headers) == (b"4", 5, {"n": "4"})
        assert (got.body, got.sequence) == (b"2", 3)
        assert [stored.body for stored in read] == [b"1", b"2", b"3", b"4"]
        assert followed == read[2:]
        assert await ada.last("log", "own.log.crew.none") is None
        assert await ada.get("log", 6, "own.log.crew.w") is None
        assert [stored async for stored in ada.read("log", "own.log.crew.none")] == []
        assert server.violations() == []


OTHERS: dict[str, Callable[[JetStreamBus], Awaitable[object]]] = {
    "last": lambda bus: bus.last("log", "own.log.other.w"),
    "last of all": lambda bus: bus.last("log", "own.log.>"),
    "get": lambda bus: bus.get("log", 1, "own.log.other.w"),
    "get of any subject": lambda bus: bus.get("log", 1),
    "follow": lambda bus: anext(bus.follow("log", ["own.log.other.w"])),
    "follow with an allowed subject": lambda bus: anext(bus.follow("log", ["own.log.crew.w", "own.log.other.w"])),
    "the broker's time": lambda bus: bus.time(),
}


@pytest.mark.parametrize("name", OTHERS)
async def test_a_read_of_another_subject_ends_at_once(name: str, tmp_path: Path) -> None:
    async with users(tmp_path, *reads("OWN_LOG", "own.log.crew.>")) as (server, root, ada):
        await root.publish("own.log.other.w", b"", {})

        with pytest.raises(PermissionDeniedError, match="refuses user 'ada': Permissions Violation for Publish to"):
            await quickly(OTHERS[name](ada), AT_ONCE_S)

        await until(lambda: server.violations("ada"))  # the server sends the error before it writes its log
        assert len(server.violations("ada")) == 1


async def test_a_reader_takes_more_than_the_broker_sends_at_once(tmp_path: Path) -> None:
    async with users(tmp_path, *reads("OWN_LOG", "own.log.crew.>")) as (server, root, ada):
        for _ in range(0, 600, 100):
            await asyncio.gather(*(root.publish("own.log.crew.w", b"x" * 20_000, {}) for _ in range(100)))

        sequences = []
        async for stored in ada.read("log", "own.log.crew.w"):
            sequences.append(stored.sequence)
            await asyncio.sleep(0)  # let messages accumulate in the reader

        assert sequences == list(range(1, 601))
        assert server.violations() == []


async def test_several_subjects_are_followed_in_the_order_of_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "_MERGE_WAIT_S", TIMEOUT_S)  # long, because messages arrive late on a busy machine
    filters = ["own.log.a.*", "own.log.b.*", "own.log.c.*"]
    async with users(tmp_path, *(right for each in filters for right in reads("OWN_LOG", each))) as (server, root, ada):

        async def write(number: int) -> None:
            for _ in range(number):
                names = "aaabdbab"  # no message on subject c, and messages on d, which the reader does not follow
                await asyncio.gather(*(root.publish(f"own.log.{name}.w", b"", {}) for name in names))

        await write(20)
        following = ada.follow("log", filters)
        writing = asyncio.create_task(write(40))
        async with asyncio.timeout(TIMEOUT_S):
            sequences = [(await anext(following)).sequence for _ in range(60 * 7)]
        await writing

        assert all(first < second for first, second in pairwise(sequences))
        assert server.violations() == []


async def test_a_message_that_arrives_while_the_newest_one_is_read_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filters = ["own.log.a.*", "own.log.b.*"]
    deliver, last = PushConsumer._on_message, StreamReader.last
    held: list[Callable[[], None]] = []
    read = asyncio.Event()

    def hold(self: PushConsumer, message: WireMessage) -> None:
        if self._filter != "own.log.a.*" or read.is_set():
            deliver(self, message)
        else:
            held.append(lambda: deliver(self, message))

    async def release(self: StreamReader, stream: str, subject: str) -> StoredMessage | None:
        found = await last(self, stream, subject)
        read.set()
        for each in held:
            each()
        held.clear()
        return found

    monkeypatch.setattr(PushConsumer, "_on_message", hold)
    monkeypatch.setattr(StreamReader, "last", release)
    async with users(tmp_path, *(right for each in filters for right in reads("OWN_LOG", each))) as (_, root, ada):
        for name in "ab":
            await root.publish(f"own.log.{name}.w", b"", {})
        following = ada.follow("log", filters)
        async with asyncio.timeout(TIMEOUT_S):
            sequences = [(await anext(following)).sequence for _ in range(2)]

    assert sequences == [1, 2]


async def test_a_user_keeps_its_own_card_and_reads_all_cards(tmp_path: Path) -> None:
    rights = [*reads("KV_OWN_AGENTS", "$KV.OWN_AGENTS.>"), "$KV.OWN_AGENTS.ada.*"]
    async with users(tmp_path, *rights) as (server, root, ada):
        await root.registry.announce(AgentCard(name="bob", instance="1", description="d"))
        await ada.registry.announce(AgentCard(name="ada", instance="1", description="d"))

        before = await root.time()
        now = await ada.time()
        after = await root.time()
        names = [card.name for card in await ada.registry.cards()]
        await ada.registry.withdraw(AgentCard(name="ada", instance="1", description="d"))
        with pytest.raises(PermissionDeniedError):
            await ada.registry.announce(AgentCard(name="bob", instance="2", description="d"))

        assert before <= now <= after
        assert names == ["ada", "bob"]
        await until(server.violations)  # the server sends the error before it writes its log
        assert server.violations() == ["Publish $KV.OWN_AGENTS.bob.2"]


async def test_a_card_that_is_renewed_during_the_first_read_is_listed(
    bus: JetStreamBus, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewed card moves to the end of the stream, beyond the last message of a read that has started."""
    ada, bob = (AgentCard(name=name, instance="1", description="d") for name in ("ada", "bob"))
    await bus.registry.announce(ada)
    await bus.registry.announce(bob)
    last, renewed = StreamReader.last, list[str]()

    async def renewing(self: StreamReader, stream: str, subject: str) -> StoredMessage | None:
        found = await last(self, stream, subject)
        if "AGENTS" in stream and not renewed:
            renewed.append(stream)
            await bus.registry.announce(ada)
        return found

    reader = await connect(settings, name="reader", wait=TIMEOUT_S, leader_reads=False)
    monkeypatch.setattr(StreamReader, "last", renewing)
    names = [card.name for card in await reader.registry.cards()]
    await reader.close()

    assert renewed
    assert names == ["ada", "bob"]


async def test_a_bound_reader_of_a_cluster_finds_what_was_stored(tmp_path: Path) -> None:
    """Immediately after the acknowledgement, one of twenty reads from a replica did not contain the message."""
    async with NatsCluster(tmp_path) as cluster:
        settings = Settings(url=cluster.url, namespace="own", replicas=3)
        writer = await connect(settings, name="writer", wait=TIMEOUT_S)
        await writer.set_up()
        reader = await connect(settings, name="reader", wait=TIMEOUT_S, leader_reads=False)
        absent = []
        for number in range(200):
            subject = f"own.log.crew.w{number}"
            sequence = await writer.publish(subject, b"1", {}, expect=0)
            if await reader.last("log", subject) is None:
                absent.append(sequence)
        for number in range(10):
            large = b"%d" % number * 2_000_000
            sequence = await writer.publish("own.log.crew.large", large, {})
            found = await reader.get("log", sequence, "own.log.crew.large")
            assert found is not None
            assert found.body == large
        read = [stored.sequence async for stored in reader.read("log", "own.log.crew.*")]
        await reader.close()
        await writer.close()

    assert absent == []
    assert read == list(range(1, 211))
