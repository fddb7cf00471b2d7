"""Reported faults of other systems on a broker: expired pulls, floods, message sizes, outages and recovery."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import statistics
from collections import Counter
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlparse

import pytest
from pydantic import JsonValue
from structlog.testing import capture_logs
from support import factory
from support.broker import remove_streams
from support.checker import problems
from support.cluster import free_ports
from support.crew import CREW, planner, steps, synthesizer, team, worker
from support.handoffs import SupervisorDouble
from support.processes import System, wait_for
from support.proxy import Proxy
from support.sizes import SIZE, sized
from support.waiting import measured_stalls, until

from pointsman import agent
from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.bus.jetstream.client import _Tcp
from pointsman.client.client import Client, Workflow
from pointsman.ports.bus import Consumer
from pointsman.settings import Settings
from pointsman_schemas.events import Outcome
from pointsman_schemas.team import Limits, PlanAndExecute, Team

pytestmark = pytest.mark.timeout(SIZE.patience)


async def test_no_message_waits_for_an_idle_pull_to_expire(
    bus: JetStreamBus, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages arrive before, at and after the expiry of the pending pull request."""
    expires, chance, waits = 1.0, Random(1), list[float]()
    monkeypatch.setattr("pointsman.bus.jetstream.pull_request._REQUEST_EXPIRY_S", expires)
    monkeypatch.setattr("pointsman.bus.jetstream.pull_request._IDLE_HEARTBEAT_S", 0.3)
    names = [f"w{number}" for number in range(50)]
    consumers = [
        await bus.consumer(name, "work", f"{namespace}.handoff.{name}.>", ack_wait=30, max_in_flight=8)
        for name in names
    ]
    loop = asyncio.get_running_loop()

    async def try_out(name: str, consumer: Consumer) -> None:
        for number in range(4):
            taking = asyncio.ensure_future(consumer.take(8))
            await asyncio.wait({taking}, timeout=expires + chance.uniform(-0.3, 0.3))
            sent = loop.time()
            await bus.publish(f"{namespace}.handoff.{name}.crew.w.t.{number}", b"", {})
            [delivery] = await taking
            waits.append(loop.time() - sent)
            assert delivery.delivered == 1
            await delivery.ack()

    with measured_stalls() as stalls:
        await asyncio.gather(*map(try_out, names, consumers))
    information = [await bus.api(f"CONSUMER.INFO.{namespace.upper()}_WORK.{name}") for name in names]

    assert len(waits) == 200
    assert statistics.median(waits) < 0.1
    assert max(waits) < 0.5 * expires + 2 * max(stalls)
    assert max(each["num_waiting"] for each in information) <= 2
    assert {each["num_redelivered"] for each in information} == {0}


READER = """
import asyncio
from pointsman import agent

@agent(name="reader", description="Reads at leisure", concurrency=2)
async def reader(text: str) -> int:
    await asyncio.sleep(0.02)
    return len(text)
"""


async def test_flood_of_large_messages_waits_at_the_broker(
    bus: JetStreamBus, settings: Settings, tmp_path: Path
) -> None:
    desk, size, count = SupervisorDouble(bus, settings.namespace), 900_000, 100
    async with System(tmp_path, settings) as system:
        service = await system.worker(system.write("reader.py", READER))
        await desk.result(await desk.publish_handoff("reader", "x" * size, task="warm"))
        before = _peak_memory(service.pid)

        given = [await desk.publish_handoff("reader", "x" * size, task=f"t{number}") for number in range(count)]
        results = [await desk.result(handoff, within=60) for handoff in given]
        grown = _peak_memory(service.pid) - before
        information = await bus.api(f"CONSUMER.INFO.{desk.subjects.work_stream}.agent-reader")

        assert service.lines("bus_error") == service.lines("bus_disconnected") == []
    assert Counter((result.output, result.attempt) for result in results) == {(size, 1): count}
    assert information["num_redelivered"] == 0
    assert grown < 64_000_000, f"memory grew by {grown / 1e6:.0f} MB for two messages of {size / 1e6} MB in flight"


TEAM = """
import asyncio
from pointsman import agent
from pointsman_schemas.team import Limits, Pipeline, Stage, Team

team = Team(name="crew", strategy=Pipeline(stages=(Stage(agent="reader"),)), limits=Limits(
    deadline={patience}, task_timeout={patience}))

@agent(name="reader", description="Reads at leisure", concurrency=1)
async def reader(text: str) -> int:
    await asyncio.sleep({work})
    return len(text)
"""


@sized
async def test_flood_of_large_requests_is_processed_once(tmp_path: Path) -> None:
    """One slow worker starts. When it has done a twentieth of the work, the other `flood_agents` start."""
    size, count = 900_000, SIZE.flood
    async with EmbeddedBroker(tmp_path / "broker") as broker:
        settings = Settings(
            url=broker.url, ack_wait=30.0, heartbeat=1.0, request_timeout=30.0, max_running=2 * SIZE.flood_agents
        )
        async with System(tmp_path / "processes", settings) as system:
            crew = system.write("flooded.py", TEAM.format(patience=SIZE.patience, work=SIZE.flood_work))
            services = list(await asyncio.gather(system.supervisor(crew), system.worker(crew)))
            client = system.client
            assert isinstance(client.bus, JetStreamBus)
            await (await client.submit("crew", "x" * size)).outcome(SIZE.patience)
            before = {service.pid: _peak_memory(service.pid) for service in services}
            asked, loop = list[Workflow](), asyncio.get_running_loop()
            began = loop.time()
            for number in range(count):
                asked.append(await client.submit("crew", f"{number:06}" + "x" * (size - 6)))
            sent = loop.time() - began
            for workflow in asked[: count // 20]:
                await workflow.outcome(SIZE.patience)
            one = services[1]
            grown_alone = _peak_memory(one.pid) - before[one.pid]
            services += await asyncio.gather(*(system.worker(crew) for _ in range(SIZE.flood_agents - 1)))
            ended = Counter[tuple[str, Any, int]]()
            for workflow in asked:
                outcome = await workflow.outcome(SIZE.patience)
                ended[outcome.status, outcome.answer, outcome.tasks[0].attempts] += 1
            took = loop.time() - began
            grown = {service.name: _peak_memory(service.pid) - before.get(service.pid, 0) for service in services[:2]}
            information = await client.bus.api(f"CONSUMER.INFO.{client.subjects.work_stream}.agent-reader")
            said = Counter(line["event"] for service in services for line in service.lines(level="warning"))
            wrong = {service.name: service.lines("bus_error") for service in services if service.lines("bus_error")}

    told = {"sent": sent, "took": took, "alone": grown_alone, "grown": grown, "said": said}
    print(json.dumps(told))  # noqa: T201 - what docs/faults.md is written from
    assert ended == {("completed", size, 1): count}
    assert information["num_redelivered"] == 0
    assert wrong == {}
    assert max(grown_alone, *grown.values()) < 64_000_000 + 6 * size * settings.max_running, told
    assert grown_alone < 64_000_000, told


def _peak_memory(pid: int) -> int:
    """Return the peak memory of a process in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


@pytest.mark.parametrize("kept_apart", [False, True])
async def test_result_near_the_size_limit_arrives_or_fails_at_once(settings: Settings, kept_apart: bool) -> None:
    """Try the largest size of a message, sizes near it, and a size at which only the headers are too large. With the
    object store these sizes all fit. A result must fail only above the higher limit of the store."""
    settings = settings if kept_apart else settings.model_copy(update={"max_body": 1_048_576})
    runs: Counter[int] = Counter()

    @agent(name="a", description="Answers at length", concurrency=4)
    async def long(length: int) -> str:
        runs[length] += 1
        return "x" * length

    join = Team(name="crew", limits=Limits(deadline=40), strategy=PlanAndExecute(synthesizer=None))

    async def answered(bound: int, fewer: int) -> Outcome:
        request: dict[str, Any] = {"tasks": [{"id": "t", "agent": "a", "intent": "write", "input": bound - fewer}]}
        return await (await client.submit("crew", request)).outcome(40)

    lengths = [8_000, 2_500, 2_000, 1_700, 1_500, 1_300, 1_100, 900, 700, 500, 200, 1, 0, -1]
    with capture_logs() as lines:
        async with factory.team(join, [planner, long], on=settings) as client:
            bound = client.bus.max_payload
            outcomes = await asyncio.gather(*(answered(bound, fewer) for fewer in lengths), answered(bound, bound - 9))
            beyond = await answered(settings.max_body, -7)
    await remove_streams(settings)

    statuses = [outcome.status for outcome in outcomes]
    assert beyond.status == "failed"
    assert "bytes" in beyond.gaps[0].reason
    if kept_apart:
        assert set(statuses) == {"completed"}
        assert [len(str(outcome.answer)) for outcome in outcomes] == [*(bound - fewer for fewer in lengths), 9]
        return
    assert statuses == [*sorted(statuses[:-1]), "completed"]  # long results failed, shorter results completed
    assert (statuses[0], statuses[-2]) == ("completed", "failed")
    for outcome in outcomes:
        assert outcome.status == "completed" or "bytes" in outcome.gaps[0].reason or "large" in outcome.gaps[0].reason
    assert set(runs.values()) == {1}
    assert not [line for line in lines if line["event"] in ("bus_disconnected", "bus_error", "inputs_failed")]


@sized
async def test_supervisors_that_start_together_repeat_nothing_their_predecessor_did(
    settings: Settings, tmp_path: Path
) -> None:
    """Five supervisors start. One of them receives and sends everything late, so it decides on old data."""
    settings = settings.model_copy(update={"ack_wait": 1.0, "request_timeout": 10.0})
    gate = tmp_path / "gate"

    two_workers = factory.team((), [worker], on=settings)  # the waiting tasks need more slots than one worker has
    async with factory.team((), [planner, synthesizer, worker], on=settings) as client, two_workers:
        async with factory.team(team, on=settings):
            request: dict[str, Any] = {"tasks": [*steps("a")["tasks"], *steps("b", after=str(gate))["tasks"]]}
            workflows = [await client.submit("crew", request) for _ in range(SIZE.half_done)]
            await wait_for(lambda: _as_many(client, "b", len(workflows)), "a waiting task of each", seconds=40)
            await wait_for(lambda: _as_many(client, "a", len(workflows), "result"), "a result of each", seconds=40)
        async with AsyncExitStack() as stack:
            proxy = await stack.enter_async_context(Proxy("127.0.0.1", int(settings.url.rpartition(":")[2])))
            slow = settings.model_copy(update={"url": proxy.url})
            await stack.enter_async_context(factory.team(team, on=settings, supervisors=4))
            await stack.enter_async_context(factory.team(team, on=slow))
            proxy.delay = SIZE.late
            gate.touch()
            outcomes = await asyncio.gather(*(workflow.outcome(110) for workflow in workflows))
            wrong = await problems(client.bus, client.subjects, "crew", [workflow.id for workflow in workflows])
            proxy.heal()
    await remove_streams(settings)

    assert wrong == []
    assert {(outcome.status, outcome.answer) for outcome in outcomes} == {("completed", "a b")}
    assert {task.attempts for outcome in outcomes for task in outcome.tasks} == {1}


async def _as_many(client: Client, task: str, count: int, kind: str = "handoff") -> bool:
    ns = client.subjects.namespace
    if kind == "handoff":
        found = client.bus.read("work", f"{ns}.handoff.worker.*.*.{task}.1")
    else:
        found = client.bus.read("results", f"{ns}.result.*.worker.*.{task}.1.*")
    return len([stored async for stored in found]) == count


@sized
@pytest.mark.parametrize("seconds", SIZE.outages)
async def test_first_requests_after_a_long_outage_find_their_agents(tmp_path: Path, seconds: float) -> None:
    """A card expires after 2.4 s, so every card expires during the outage."""
    [port] = free_ports(1)
    broker = EmbeddedBroker(tmp_path / "broker", port=port)
    await broker.start()
    settings = Settings(url=broker.url, ack_wait=1.0, heartbeat=0.8, request_timeout=1.0, shutdown_grace=0.5)
    loop = asyncio.get_running_loop()
    try:
        async with factory.team(team, [planner, synthesizer, worker], on=settings) as client:
            await (await client.submit("crew", steps("before"))).outcome(20)
            with capture_logs() as lines:
                await broker.stop()
                await asyncio.wait([asyncio.ensure_future(asyncio.sleep(seconds))])
                broker = EmbeddedBroker(tmp_path / "broker", port=port)
                await broker.start()
                began = loop.time()
                workflows = await asyncio.gather(*(client.submit("crew", steps("a", "b")) for _ in range(20)))
                outcomes = await asyncio.gather(*(workflow.outcome(30) for workflow in workflows))
                took = loop.time() - began
    finally:
        await broker.stop()

    said = Counter(line["event"] for line in lines if line["log_level"] == "warning")
    assert {(outcome.status, outcome.answer) for outcome in outcomes} == {("completed", "a b")}
    assert took < 15
    assert said["bus_disconnected"] == 3  # a client, a worker and a supervisor
    assert sum(said.values()) < 30, said


async def test_consumers_survive_a_broker_restart(
    tmp_path: Path,
) -> None:
    """A reader keeps its position in memory and continues at this position."""
    [port] = free_ports(1)
    broker = EmbeddedBroker(tmp_path / "broker", port=port)
    await broker.start()
    settings = Settings(url=broker.url, ack_wait=1.0, heartbeat=5.0, request_timeout=1.0, shutdown_grace=0.5)
    try:
        async with factory.team(team, [planner, synthesizer, worker], on=settings) as client:
            await (await client.submit("crew", steps("before"))).outcome(20)
            before, made = await _consumers(client)
            await broker.stop()
            # Simulate a broker that lost the state of one consumer.
            shutil.rmtree(next((tmp_path / "broker").rglob("POINTSMAN_WORK/obs/agent-worker")))
            broker = EmbeddedBroker(tmp_path / "broker", port=port)
            await broker.start()
            workflows = await asyncio.gather(*(client.submit("crew", steps("a", "b")) for _ in range(20)))
            outcomes = await asyncio.gather(*(workflow.outcome(30) for workflow in workflows))
            after, made_again = await _consumers(client)
    finally:
        await broker.stop()

    kept = {name for name, config in before.items() if not config.get("mem_storage")}
    assert kept >= {"request-crew", "result-crew", "timer-crew", "agent-planner", "agent-synthesizer", "agent-worker"}
    assert all(name.startswith("reader_") for name in before.keys() - kept)
    assert {name for name in kept if made[name] != made_again.get(name)} == {"agent-worker"}
    assert {name: before[name] for name in kept} == {name: after.get(name) for name in kept}
    assert all(before[name]["durable_name"] == name and before[name]["num_replicas"] == 0 for name in kept)
    assert {(outcome.status, outcome.answer) for outcome in outcomes} == {("completed", "a b")}


async def _consumers(client: Client) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the configuration and the creation time of every consumer by name."""
    bus = client.bus
    assert isinstance(bus, JetStreamBus)
    streams = (await bus.api("STREAM.NAMES"))["streams"]
    lists = await asyncio.gather(*(bus.api(f"CONSUMER.LIST.{stream}") for stream in streams))
    found = [each for listed in lists for each in listed["consumers"]]
    return {each["name"]: each["config"] for each in found}, {each["name"]: each["created"] for each in found}


async def test_an_outage_is_not_taken_for_the_death_of_an_agent(tmp_path: Path) -> None:
    [port] = free_ports(1)
    broker = EmbeddedBroker(tmp_path / "broker", port=port)
    await broker.start()
    bus = await connect(Settings(url=broker.url, heartbeat=0.8), name="test", wait=10)
    await bus.set_up()
    try:
        await bus.registry.announce(worker.card.model_copy(update={"instance": "one"}))
        await until(bus.registry.cards)
        await broker.stop()
        await asyncio.wait([asyncio.ensure_future(asyncio.sleep(3.0))])  # longer than the lifetime of a card
        broker = EmbeddedBroker(tmp_path / "broker", port=port)
        await broker.start()
        await until(lambda: bus.connected)

        seen = []
        for _ in range(10):  # long enough for a new announcement
            seen.append(len(await bus.registry.cards()))
            await asyncio.sleep(0.05)
        await until(lambda: _is_not(bus.registry.cards()))  # the card expires without a new announcement
    finally:
        await bus.close()
        await broker.stop()

    assert seen == [1] * 10


async def _is_not(asked: Awaitable[object]) -> bool:
    return not await asked


async def test_processes_leave_in_time_although_the_broker_is_away(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path / "broker") as broker:
        settings = Settings(url=broker.url, ack_wait=2.0, heartbeat=0.5, shutdown_grace=2.0)
        async with System(tmp_path / "processes", settings) as system:
            services = await asyncio.gather(system.supervisor(CREW), system.worker(CREW))
            workflow = await system.client.submit("crew", steps("a", seconds=30))
            await wait_for(
                lambda: system.client.bus.last("work", f"pointsman.handoff.worker.crew.{workflow.id}.>"),
                "task under way",
            )

            await broker.stop()
            loop = asyncio.get_running_loop()
            asked = loop.time()
            with measured_stalls() as stalls:
                codes = await asyncio.gather(*(service.stop(seconds=20) for service in services))
            took = loop.time() - asked

    assert codes == [0, 0]
    # 2 s are for the waiting work; the third second is for a busy machine.
    assert took < settings.shutdown_grace + 3.0 + sum(stalls)


def test_connection_closed_by_the_library_is_reported_as_lost() -> None:
    """uvloop raises `RuntimeError` for a closed connection. This error would end the client's reconnection for ever."""
    uvloop = pytest.importorskip("uvloop")

    async def write_after_the_end() -> None:
        left = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            await writer.wait_closed()
            left.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            transport = _Tcp(lambda data: data)
            await transport.connect(urlparse(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"), 1024, 5)
            transport.close()  # type: ignore[no-untyped-call]
            await transport.wait_closed()
        finally:
            server.close()  # otherwise the loop never ends
        with pytest.raises(ConnectionError):
            transport.write(b"PING")
        with pytest.raises(ConnectionError):
            transport.writelines([b"PING"])
        await left.wait()

    uvloop.run(write_after_the_end())


async def test_request_near_the_size_limit_reaches_its_agents(settings: Settings) -> None:
    """The log has the request only once, even if several supervisors receive the request."""
    settings = settings.model_copy(update={"ack_wait": 10.0})
    request: dict[str, JsonValue] = {
        "text": "x" * 900_000,
        "tasks": [{"id": name, "agent": "reader", "intent": f"read {name}"} for name in "ab"],
    }

    @agent(name="reader", description="Reads", concurrency=2)
    async def reader(given: dict[str, Any]) -> int:
        return len(given["text"])

    async with factory.team(team, [planner, synthesizer, reader], on=settings) as client:
        workflows = [await client.submit("crew", request) for _ in range(5)]
        outcomes = [await workflow.outcome(40) for workflow in workflows]
        logs = [
            sum([len(stored.body) async for stored in client.bus.read("log", client.subjects.log("crew", workflow.id))])
            for workflow in workflows
        ]
    await remove_streams(settings)

    assert {(outcome.status, outcome.answer) for outcome in outcomes} == {("completed", "900000 900000")}
    assert max(logs) < 1_000_000
