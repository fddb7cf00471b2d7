"""A process without the right to create streams uses existing streams. It names the command that creates others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.broker import TIMEOUT_S
from support.permission_server import PermissionServer, Rights, permission_server
from support.waiting import quickly, until

from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.errors import ConfigurationError, PermissionDeniedError
from pointsman.settings import Settings

AT_ONCE_S = 3.0
CREATE = "$JS.API.CONSUMER.CREATE.OWN_WORK.agent-echo.own.handoff.echo.>"
WORKER = Rights(
    publish=[
        "$JS.API.CONSUMER.MSG.NEXT.OWN_WORK.agent-echo",
        "$JS.ACK.OWN_WORK.agent-echo.>",
        "$JS.ACK._.*.OWN_WORK.agent-echo.>",
        "$JS.API.DIRECT.GET.KV_OWN_AGENTS.$KV.OWN_AGENTS.>",
    ],
    subscribe=["_INBOX.echo.>"],
)


async def open_bus(server: PermissionServer, user: str, **others: Any) -> JetStreamBus:
    prefix = "_INBOX" if user == "root" else f"_INBOX.{user}"
    settings = Settings(url=server.url(user), namespace="own", inbox_prefix=prefix, **others)
    return await connect(settings, name=user, wait=TIMEOUT_S, leader_reads=user == "root")


async def take_one(bus: JetStreamBus) -> None:
    consumer = await bus.consumer("agent-echo", "handoffs", "own.handoff.echo.>", ack_wait=30)
    [delivery] = await asyncio.wait_for(consumer.take(1), TIMEOUT_S)
    await delivery.in_progress()
    await delivery.ack()
    await consumer.close()


@pytest.mark.parametrize("provision", [True, False])
async def test_a_worker_takes_its_handoffs_without_rights_over_consumers(provision: bool, tmp_path: Path) -> None:
    async with permission_server(tmp_path, {"root": None, "echo": WORKER}) as server:
        root = await open_bus(server, "root")
        await root.set_up()
        await (await root.consumer("agent-echo", "handoffs", "own.handoff.echo.>", ack_wait=30)).close()
        await root.publish("own.handoff.echo.crew.w.t.1", b"{}", {})
        echo = await open_bus(server, "echo", provision=provision)

        with capture_logs() as lines:
            await echo.set_up()
            await take_one(echo)

        async def is_settled() -> bool:
            depth = await root.depth("agent-echo", "handoffs")
            return depth is not None and (depth.pending, depth.in_flight) == (0, 0)

        await until(is_settled)
        await echo.close()
        await root.close()

        asked = ["Publish $JS.API.INFO", "Publish $JS.API.CONSUMER.INFO.OWN_WORK.agent-echo"]
        assert server.violations() == (asked if provision else [])
        assert [line for line in lines if line["log_level"] in ("warning", "error")] == []


async def test_a_process_that_may_create_consumers_creates_the_missing_consumer(tmp_path: Path) -> None:
    rights = Rights([*WORKER.publish, CREATE, "$JS.API.CONSUMER.INFO.OWN_WORK.agent-echo"], WORKER.subscribe)
    async with permission_server(tmp_path, {"root": None, "echo": rights}) as server:
        root = await open_bus(server, "root")
        await root.set_up()
        await root.publish("own.handoff.echo.crew.w.t.1", b"{}", {})
        echo = await open_bus(server, "echo")
        await echo.set_up()

        await take_one(echo)

        await echo.close()
        await root.close()


@pytest.mark.parametrize("provision", [True, False])
async def test_a_missing_consumer_names_the_command_that_creates_it(provision: bool, tmp_path: Path) -> None:
    async with permission_server(tmp_path, {"root": None, "echo": WORKER}) as server:
        root = await open_bus(server, "root")
        await root.set_up()
        echo = await open_bus(server, "echo", provision=provision)
        await echo.set_up()

        with pytest.raises(ConfigurationError) as caught:
            await quickly(take_one(echo), AT_ONCE_S)

        await echo.close()
        await root.close()

    told = str(caught.value)
    assert told.startswith("OWN_WORK has no consumer agent-echo; run `pointsman provision`")
    assert ('Permissions Violation for Publish to "$JS.API.CONSUMER.INFO' in told) is provision


@pytest.mark.parametrize("provision", [True, False])
async def test_a_missing_namespace_names_the_command_that_creates_it(provision: bool, tmp_path: Path) -> None:
    async with permission_server(tmp_path, {"root": None, "echo": WORKER}) as server:
        echo = await open_bus(server, "echo", provision=provision)

        with pytest.raises(ConfigurationError, match=r"no namespace 'own'.*`pointsman provision` creates the streams"):
            await asyncio.wait_for(echo.set_up(), TIMEOUT_S)

        await echo.close()


async def test_a_stream_that_may_not_be_created_is_named(tmp_path: Path) -> None:
    rights = Rights(["$JS.API.INFO", "$JS.API.STREAM.INFO.*"], WORKER.subscribe)
    async with permission_server(tmp_path, {"echo": rights}) as server:
        echo = await open_bus(server, "echo")

        with pytest.raises(ConfigurationError, match=r"run `pointsman provision` as a user.*STREAM\.CREATE\."):
            await quickly(echo.set_up(), AT_ONCE_S)

        await echo.close()


async def test_a_lost_consumer_is_awaited(tmp_path: Path) -> None:
    """Delete the consumer of a worker. After it is created again, work continues."""
    async with permission_server(tmp_path, {"root": None, "echo": WORKER}) as server:
        root = await open_bus(server, "root")
        await root.set_up()
        await (await root.consumer("agent-echo", "handoffs", "own.handoff.echo.>", ack_wait=30)).close()
        echo = await open_bus(server, "echo", provision=False)
        consumer = await echo.consumer("agent-echo", "handoffs", "own.handoff.echo.>", ack_wait=30)
        with capture_logs() as lines:
            taking = asyncio.create_task(consumer.take(1))
            await until(lambda: consumer.bound)
            await root.api("CONSUMER.DELETE.OWN_WORK.agent-echo")
            await until(lambda: [line for line in lines if line["event"] == "consumer_unavailable"])
            await (await root.consumer("agent-echo", "handoffs", "own.handoff.echo.>", ack_wait=30)).close()
            await root.publish("own.handoff.echo.crew.w.t.1", b"{}", {})
            [delivery] = await asyncio.wait_for(taking, TIMEOUT_S)
        await delivery.ack()
        await echo.close()
        await root.close()

    [line] = [line for line in lines if line["event"] == "consumer_unavailable"]
    assert "run `pointsman provision`" in line["reason"]


async def test_a_worker_without_the_right_to_pull_ends_at_once(tmp_path: Path) -> None:
    rights = Rights([*WORKER.publish[1:]], WORKER.subscribe)
    async with permission_server(tmp_path, {"root": None, "echo": rights}) as server:
        root = await open_bus(server, "root")
        await root.set_up()
        echo = await open_bus(server, "echo", provision=False)

        with pytest.raises(PermissionDeniedError, match=r"CONSUMER\.MSG\.NEXT\.OWN_WORK\.agent-echo"):
            await quickly(take_one(echo), AT_ONCE_S)

        await echo.close()
        await root.close()
