"""A user with an own inbox prefix reads with consumers of its own names and cannot change other consumers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from support.broker import TIMEOUT_S
from support.permission_server import PermissionServer, Rights, permission_server
from support.waiting import until

from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.bus.jetstream.reader_names import READER_SLOTS, reader_name
from pointsman.errors import PermissionDeniedError
from pointsman.settings import Settings

STREAM, READ = "OWN_LOG", "own.log.crew.>"
NAMES = [reader_name("_INBOX.ada", slot) for slot in range(READER_SLOTS)]
RIGHTS = [
    f"$JS.API.DIRECT.GET.{STREAM}.{READ}",
    *(f"$JS.API.CONSUMER.CREATE.{STREAM}.{name}.{READ}" for name in NAMES),
    *(f"$JS.API.CONSUMER.DELETE.{STREAM}.{name}" for name in NAMES),
    *(f"$JS.FC.{STREAM}.{name}.*" for name in NAMES),
]


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[tuple[PermissionServer, JetStreamBus]]:
    rights = Rights(publish=RIGHTS, subscribe=["_INBOX.ada.>"])
    async with permission_server(folder, {"root": None, "ada": rights}) as running:
        root = await connect(Settings(url=running.url("root"), namespace="own"), name="root", wait=TIMEOUT_S)
        await root.set_up()
        yield running, root
        await root.close()


async def connect_ada(running: PermissionServer) -> JetStreamBus:
    settings = Settings(url=running.url("ada"), namespace="own", inbox_prefix="_INBOX.ada")
    return await connect(settings, name="ada", wait=TIMEOUT_S, leader_reads=False)


async def test_followers_with_all_names_find_the_end_of_the_stream(tmp_path: Path) -> None:
    """The last message is deleted, so each follower needs a second consumer for the end of the stream."""
    async with server(tmp_path) as (running, root), AsyncExitStack() as stack:
        ada = await connect_ada(running)
        stack.push_async_callback(ada.close)
        last = [await root.publish("own.log.crew.w", b"before", {}) for _ in range(2)][-1]
        await root.delete("log", last)
        following = [ada.follow("log", [READ], after=last) for _ in range(READER_SLOTS)]
        coming = [asyncio.ensure_future(anext(each)) for each in following]
        await until(lambda: _has_consumers(root, READER_SLOTS))

        await root.publish("own.log.crew.w", b"after", {})
        found = await asyncio.wait_for(asyncio.gather(*coming), 3 * TIMEOUT_S)
        for each in following:
            await each.aclose()  # type: ignore[attr-defined]

        assert [stored.body for stored in found] == [b"after"] * READER_SLOTS


async def _has_consumers(bus: JetStreamBus, count: int) -> bool:
    information = await bus.api(f"STREAM.INFO.{STREAM}")
    return bool(information["state"]["consumer_count"] >= count)


async def test_processes_of_one_user_share_its_names(tmp_path: Path) -> None:
    """Two processes follow nearly as many subjects as the user has names. Each process also reads at the same time."""
    async with server(tmp_path) as (running, root), AsyncExitStack() as stack:
        first, second = await connect_ada(running), await connect_ada(running)
        stack.push_async_callback(first.close)
        stack.push_async_callback(second.close)
        for number in range(READER_SLOTS):
            await root.publish(f"own.log.crew.w{number}", b"%d" % number, {})
        following = [
            (first if number % 2 else second).follow("log", [f"own.log.crew.w{number}"])
            for number in range(READER_SLOTS - 1)
        ]

        found = await asyncio.wait_for(asyncio.gather(*(anext(each) for each in following)), TIMEOUT_S)
        read = await asyncio.gather(*(read_all(each) for each in (first, second) for _ in range(3)))
        for each in following:
            await each.aclose()  # type: ignore[attr-defined]

        assert sorted(int(stored.body) for stored in found) == list(range(READER_SLOTS - 1))
        assert read == [[b"3"]] * 6
        assert running.violations() == []


async def read_all(bus: JetStreamBus) -> list[bytes]:
    return [stored.body async for stored in bus.read("log", "own.log.crew.w3")]


async def test_consumer_of_another_name_cannot_be_changed(tmp_path: Path) -> None:
    """Try to change the filter of another system's durable consumer."""
    async with server(tmp_path) as (running, root):
        await root.consumer("shop", "log", "own.log.other.*", ack_wait=30)
        ada = await connect_ada(running)
        config = {"name": "shop", "durable_name": "shop", "filter_subject": READ, "ack_policy": "explicit"}
        with pytest.raises(PermissionDeniedError):
            await ada.api(f"CONSUMER.CREATE.{STREAM}.shop.{READ}", {"stream_name": STREAM, "config": config})
        # Permissions check the name in the subject. The broker refuses a body with another name.
        forged = await ada.api(f"CONSUMER.CREATE.{STREAM}.{NAMES[0]}.{READ}", {"stream_name": STREAM, "config": config})
        await ada.close()

        answer = await root.api(f"CONSUMER.INFO.{STREAM}.shop")

    assert "error" in forged, json.dumps(forged)
    assert answer["config"]["filter_subject"] == "own.log.other.*"
