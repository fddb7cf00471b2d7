"""A stream of events loses no event when its gateway is killed, or its broker is restarted, during the stream."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from support import factory
from support.broker import own_settings, restart_broker
from support.crew import CREW, planner, steps, synthesizer, team, worker
from support.gateway import (
    ServerEvent,
    events_of,
    gateway_process,
    http_client,
    read_events,
)
from support.processes import System

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.settings import Settings

pytestmark = pytest.mark.timeout(180)

STREAMS = int(os.environ.get("GATEWAY_STREAMS", "50"))  # `make gateway-load` opens 1,000


async def follow_through(addresses: list[str], workflow: str, seen: list[ServerEvent]) -> None:
    """Read all events of a workflow. After each interruption, continue at the next address."""
    turn = 0
    while not seen or seen[-1].type != "workflow_ended":
        headers = {"last-event-id": seen[-1].id} if seen else {}
        try:
            async with (
                http_client(addresses[turn % len(addresses)]) as client,
                client.stream("GET", f"/v1/workflows/{workflow}/events", headers=headers) as response,
            ):
                if response.status_code == 200:
                    async for event in read_events(response):
                        seen.append(event)  # noqa: PERF401 - others look at the list meanwhile
        except httpx2.TransportError:
            pass
        turn += 1
        await asyncio.sleep(0.05)


async def until_seen(seen: list[ServerEvent], type: str, task: str) -> None:
    async with asyncio.timeout(60):
        while not any(event.type == type and event.data.get("task_id") == task for event in seen):
            await asyncio.sleep(0.02)


async def test_another_gateway_continues_where_a_killed_one_stopped(settings: Settings, tmp_path: Path) -> None:
    async with (
        factory.team(team, [planner, synthesizer, worker], on=settings),
        System(tmp_path / "system", settings, CREW_JOURNAL=str(tmp_path / "journal")) as system,
    ):
        (first, one), (_, two) = await asyncio.gather(gateway_process(system), gateway_process(system))
        go = tmp_path / "go"
        plan = steps("a", "b", "c", serial=True)
        plan["tasks"][1]["input"]["after"] = str(go)
        async with http_client(one) as client:
            workflow = (await client.post("/v1/workflows", json={"team": "crew", "input": plan})).json()["id"]
        seen: list[ServerEvent] = []
        following = asyncio.create_task(follow_through([one, two], workflow, seen))
        await until_seen(seen, "task_dispatched", "b")
        await first.kill()
        go.touch()
        async with asyncio.timeout(60):
            await following
        async with http_client(two) as client:
            every = await events_of(client, workflow)

    assert [event.id for event in seen] == [event.id for event in every]
    assert every[-1].data["outcome"]["answer"] == "a b c"


async def test_a_stopped_gateway_ends_its_streams_at_once(settings: Settings, tmp_path: Path) -> None:
    async with (
        factory.team(team, [planner, synthesizer, worker], on=settings),
        System(tmp_path / "system", settings) as system,
    ):
        service, address = await gateway_process(system)
        body = {"team": "crew", "input": steps("a", after=str(tmp_path / "never"))}
        async with http_client(address) as client:
            workflow = (await client.post("/v1/workflows", json=body)).json()["id"]
            async with client.stream("GET", f"/v1/workflows/{workflow}/events") as response:
                events = read_events(response)
                await anext(events)
                code = await service.stop()
                rest = [event async for event in events]
        await (await system.client.workflow(workflow)).cancel()

    assert code == 0
    assert "workflow_ended" not in [event.type for event in rest]


async def test_a_stream_continues_through_a_restart_of_the_broker(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    settings = own_settings(own_broker, ack_wait=2.0, heartbeat=0.5)
    async with (
        System(tmp_path / "system", settings, CREW_JOURNAL=str(tmp_path / "journal")) as system,
    ):
        await asyncio.gather(system.supervisor(CREW), system.worker(CREW))
        _, address = await gateway_process(system)
        go = tmp_path / "go"
        plan = steps("a", "b", serial=True)
        plan["tasks"][1]["input"]["after"] = str(go)
        async with http_client(address) as client:
            workflow = (await client.post("/v1/workflows", json={"team": "crew", "input": plan})).json()["id"]
            seen: list[ServerEvent] = []
            following = asyncio.create_task(follow_through([address], workflow, seen))
            await until_seen(seen, "task_dispatched", "b")
            second = restart_broker(own_broker, tmp_path)
            await own_broker.stop()
            await asyncio.sleep(0.5)  # long enough for messages that are still in flight
            async with second:
                go.touch()
                async with asyncio.timeout(90):
                    await following
                every = await events_of(client, workflow)

    assert [event.id for event in seen] == [event.id for event in every]
    assert every[-1].data["outcome"]["answer"] == "a b"


async def test_many_open_streams_take_bounded_memory_and_all_see_every_event(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREW_JOURNAL", str(tmp_path / "journal"))
    streams = STREAMS
    raise_file_limit(streams * 2 + 500)
    async with (
        factory.team(team, [planner, synthesizer, worker], on=settings),
        System(tmp_path / "system", settings) as system,
    ):
        service, address = await gateway_process(system)
        go = tmp_path / "go"
        async with http_client(address) as client:
            body = {"team": "crew", "input": steps("a", "b", after=str(go))}
            workflow = (await client.post("/v1/workflows", json=body)).json()["id"]
            host = urlsplit(address)
            # The first stream loads modules, which take as much memory as hundreds of streams.
            first = await open_stream(host.hostname or "", host.port or 0, workflow)
            await first[0].readuntil(b"task_dispatched")
            before = memory_of(service.pid)
            opened = [await open_stream(host.hostname or "", host.port or 0, workflow) for _ in range(streams)]
            await asyncio.gather(*(reader.readuntil(b"task_dispatched") for reader, _ in opened))
            after = memory_of(service.pid)
            began = asyncio.get_running_loop().time()
            go.touch()
            rests = await asyncio.gather(*(reader.read() for reader, _ in opened))
            took = asyncio.get_running_loop().time() - began
            every = await events_of(client, workflow)
        for _, writer in (first, *opened):
            writer.close()

    end = every[-1].id.encode()
    assert all(rest.count(b"id: " + end) == 1 for rest in rests)
    a_stream = (after - before) / streams
    events = streams * len(every) / took
    sys.stdout.write(f"{streams} streams: {a_stream / 1024:.0f} KiB each, {events:.0f} events/s\n")
    assert a_stream < 150 * 1024


async def open_stream(host: str, port: int, workflow: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET /v1/workflows/{workflow}/events HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
    return reader, writer


def memory_of(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def raise_file_limit(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
