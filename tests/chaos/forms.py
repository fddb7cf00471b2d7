"""The forms of chaos: targets, faults and amounts. Each form returns its report."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random
from unittest.mock import patch

from support.checker import problems
from support.cluster import NatsCluster, free_ports
from support.crew import CREW, steps
from support.health import ask
from support.processes import Service, System, wait_for
from support.proxy import Proxy

from chaos.load import TEAM, Load, Report
from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.clock import SystemClock
from pointsman.engine.supervisor import retention as engine_trimming
from pointsman.engine.supervisor.retention import RetentionJob, oldest_message
from pointsman.errors import BusUnavailableError
from pointsman.settings import Settings

__all__ = ["FORMS", "Amount"]


@dataclass(frozen=True, slots=True)
class Amount:
    """The number of faults, the number of concurrent workflows, the longest pause between faults and the time to end.

    Times are in seconds.
    """

    blows: int
    running: int
    pause: float = 1.0
    patience: float = 120.0
    supervisors: int = 2
    workers: int = 2
    seed: int = 1


def _settings(url: str, **more: object) -> Settings:
    base = {"url": url, "ack_wait": 2.0, "heartbeat": 5.0, "request_timeout": 2.0, "grace": 1.0, "max_running": 500}
    return Settings.model_validate(base | more)


async def broker_killed(folder: Path, amount: Amount, *, unsynced_handoffs: bool = False) -> Report:
    """Repeatedly kill the only broker with SIGKILL, and restart it on the same store."""
    chance = Random(amount.seed)
    report = Report("broker killed" + (", handoffs not synced" if unsynced_handoffs else ""))
    store = folder / "broker"
    [port] = free_ports(1)
    broker = EmbeddedBroker(store, port=port)
    await broker.start()
    try:
        settings = _settings(broker.url, unsynced_handoffs=unsynced_handoffs)
        async with System(folder / "processes", settings) as system:
            await asyncio.gather(system.supervisor(CREW), system.worker(CREW))
            load = Load(system, report, running=amount.running, chance=chance)
            async with load.running(patience=amount.patience):
                for _ in range(amount.blows):
                    await asyncio.sleep(chance.uniform(0.0, amount.pause))
                    assert broker.pid is not None
                    os.kill(broker.pid, signal.SIGKILL)
                    load.blow()
                    await broker.stop()
                    broker = EmbeddedBroker(store, port=port)
                    await broker.start()
            _all_alive(system, report)
    finally:
        await broker.stop()
    return report


async def recovery_interrupted(folder: Path, amount: Amount) -> Report:
    """Kill the only supervisor with SIGKILL. While its successor starts or recovers, the broker stops for two seconds,
    a little later each time. The successor must process the backlog before it reports ready. Then it is killed, too."""
    chance = Random(amount.seed)
    report = Report("recovery interrupted")
    store = folder / "broker"
    [port] = free_ports(1)
    broker = EmbeddedBroker(store, port=port)
    await broker.start()
    try:
        settings = _settings(broker.url, health_port=0)
        async with System(folder / "processes", settings) as system:
            supervisor, worker = await asyncio.gather(system.supervisor(CREW), system.worker(CREW))
            bus, inputs = system.client.bus, system.client.subjects.team_results(TEAM)
            load = Load(system, report, running=amount.running, chance=chance)
            async with load.running(patience=amount.patience):
                await asyncio.sleep(amount.pause)
                for number in range(amount.blows):
                    await supervisor.kill()
                    left = await bus.last("results", inputs)
                    supervisor = await system.start("supervisor", CREW)
                    watching = asyncio.create_task(_becomes_ready(supervisor, amount.patience))
                    await asyncio.sleep(0.2 + 0.4 * number)
                    await broker.stop()
                    load.blow()
                    await asyncio.sleep(2.0)
                    broker = EmbeddedBroker(store, port=port)
                    await broker.start()
                    report.until_ready.append(await watching)
                    inbox = await wait_for(lambda: bus.depth(f"result-{TEAM}", "results"), "results of the team")
                    assert inbox is not None
                    if left is not None and inbox.settled_through < left.sequence:
                        report.problems.append(
                            f"{supervisor.name} reported ready, but had settled the results only up to "
                            f"{inbox.settled_through} of {left.sequence}"
                        )
            report.problems += (f"{service.name} has ended" for service in (supervisor, worker) if not service.alive)
    finally:
        await broker.stop()
    return report


async def _becomes_ready(supervisor: Service, patience: float) -> float:
    """Return the seconds from the first answer of `/readyz` until it reports ready. Raise `AssertionError` if the first
    answer reports ready, because there is always a backlog."""
    port, began = int((await supervisor.logged("health_served"))["port"]), time.monotonic()
    first, _ = await ask(port, "/readyz")
    assert first == 503, f"{supervisor.name} reported ready with status {first} before it processed the backlog"

    async def ready() -> bool:
        return (await ask(port, "/readyz"))[0] == 200

    await wait_for(ready, f"readiness of {supervisor.name}", seconds=patience)
    return time.monotonic() - began


async def handoffs_forgotten(folder: Path, amount: Amount) -> Report:
    """Like `broker_killed`, but the broker acknowledges handoffs before it syncs them, so each kill loses some."""
    return await broker_killed(folder, amount, unsynced_handoffs=True)


async def processes_killed(folder: Path, amount: Amount, *, trimming: bool = False) -> Report:
    """Kill random supervisors and workers with SIGKILL. Start dead processes again."""
    report, chance = Report(f"{amount.supervisors} supervisors, {amount.workers} workers killed"), Random(amount.seed)
    report.form += ", work removed as it is over" if trimming else ""
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(EmbeddedBroker(folder / "broker"))
        share = amount.running // amount.supervisors + 1  # a limit, so that all supervisors get workflows
        async with System(folder / "processes", _settings(broker.url, max_running=share)) as system:
            kinds = ["supervisor"] * amount.supervisors + ["worker"] * amount.workers
            alive = dict(enumerate(await asyncio.gather(*(_start(system, kind) for kind in kinds))))
            load = Load(system, report, running=amount.running, chance=chance)
            async with load.running(patience=amount.patience):
                for _ in range(amount.blows):
                    await asyncio.sleep(chance.uniform(0.0, amount.pause))
                    place = chance.choice(list(alive))
                    await alive[place].kill()
                    load.blow()
                    alive[place] = await system.start(kinds[place], CREW)
                    if trimming:
                        await RetentionJob(system.client.bus, system.client.subjects, SystemClock(), TEAM, 30).apply()
            first = await oldest_message(system.client.bus, "work")
            if trimming and first is not None and first.sequence == 1:
                report.problems.append("nothing was removed from the work stream")
    return report


async def processes_killed_while_trimmed(folder: Path, amount: Amount) -> Report:
    """Like `processes_killed`, but ended work is removed from the work stream after three seconds instead of a week."""
    with patch.object(engine_trimming, "_WORK_RETENTION", timedelta(seconds=3)):
        return await processes_killed(folder, amount, trimming=True)


async def cluster_shaken(folder: Path, amount: Amount) -> Report:
    """Each stream has three replicas. Leaders step down, and each node in turn is killed and started again."""
    report, chance = Report("cluster of three shaken"), Random(amount.seed)
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(NatsCluster(folder))
        async with System(folder / "processes", _settings(cluster.url, replicas=3, request_timeout=5.0)) as system:
            await asyncio.gather(system.supervisor(CREW), system.worker(CREW))
            bus = system.client.bus
            assert isinstance(bus, JetStreamBus)
            subjects = system.client.subjects
            streams = (subjects.request_stream, subjects.result_stream, subjects.work_stream, subjects.log_stream)
            orders = [
                *(f"STREAM.LEADER.STEPDOWN.{stream}" for stream in streams),
                f"CONSUMER.LEADER.STEPDOWN.{subjects.result_stream}.result-crew",
                f"CONSUMER.LEADER.STEPDOWN.{subjects.request_stream}.request-crew",
                f"CONSUMER.LEADER.STEPDOWN.{subjects.work_stream}.agent-worker",
                "META.LEADER.STEPDOWN",
            ]
            load = Load(system, report, running=amount.running, chance=chance)
            async with load.running(patience=amount.patience):
                for number in range(amount.blows):
                    await asyncio.sleep(chance.uniform(0.0, amount.pause))
                    if number % 3 < 2:
                        await _unless_away(bus.api(chance.choice(orders)))
                        load.blow()
                        continue
                    node = number // 3 % cluster.size
                    await cluster.kill(node)
                    load.blow()
                    await asyncio.sleep(chance.uniform(0.0, amount.pause))
                    await cluster.start(node)
                    await wait_for(lambda: _whole(bus, streams), "cluster that has caught up", seconds=60)
            _all_alive(system, report)
    return report


async def network_broken(folder: Path, amount: Amount) -> Report:
    """Each process has its own network to the broker: cut, slow, silent, or silent in one direction."""
    report, chance = Report("network broken"), Random(amount.seed)
    kinds = ["supervisor"] * amount.supervisors + ["worker"] * amount.workers
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(EmbeddedBroker(folder / "broker"))
        port = int(broker.url.rpartition(":")[2])
        proxies = [await stack.enter_async_context(Proxy("127.0.0.1", port)) for _ in kinds]
        system = await stack.enter_async_context(System(folder / "processes", _settings(broker.url)))
        starting = []
        for proxy, kind in zip(proxies, kinds, strict=True):
            system.environment["POINTSMAN_URL"] = proxy.url
            starting.append(await system.start(kind, CREW))
        await asyncio.gather(
            *(service.logged(f"{kind}_started") for service, kind in zip(starting, kinds, strict=True))
        )
        load = Load(system, report, running=amount.running, chance=chance)
        async with load.running(patience=amount.patience):
            for number in range(amount.blows):
                await asyncio.sleep(chance.uniform(0.0, amount.pause))
                proxy = chance.choice(proxies)
                match number % 5:
                    case 0:
                        proxy.cut()
                    case 1:
                        proxy.black_hole()
                    case 2:
                        proxy.black_hole(upward=False)
                    case 3:
                        proxy.black_hole(downward=False)
                    case _:
                        proxy.delay = 0.2
                load.blow()
                # Longer than the ack deadline, so work of the silent process is redelivered to another process.
                await asyncio.sleep(chance.uniform(0.5, 2.5 * amount.pause + 2.0))
                proxy.heal()
        _all_alive(system, report)
    return report


async def broker_slow(folder: Path, amount: Amount) -> Report:
    """One workflow of `running` tasks, over a network with 25 ms of delay in each direction."""
    report = Report("broker slow")
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(EmbeddedBroker(folder / "broker"))
        proxy = await stack.enter_async_context(Proxy("127.0.0.1", int(broker.url.rpartition(":")[2])))
        system = await stack.enter_async_context(System(folder / "processes", _settings(broker.url)))
        system.environment["POINTSMAN_URL"] = proxy.url
        await asyncio.gather(system.supervisor(CREW), system.worker(CREW))
        proxy.delay = 0.025
        began, client = time.monotonic(), system.client
        workflow = await client.submit("crew", steps(*(f"t{number}" for number in range(amount.running))))
        outcome = await workflow.outcome(amount.patience)
        report.seconds = time.monotonic() - began
        report.workflows, report.statuses = 1, Counter([outcome.status])
        report.problems += await problems(client.bus, client.subjects, "crew", [workflow.id])
        _all_alive(system, report)
    return report


FORMS: Mapping[str, Callable[[Path, Amount], Awaitable[Report]]] = {
    "broker": broker_killed,
    "handoffs": handoffs_forgotten,
    "recovery": recovery_interrupted,
    "processes": processes_killed,
    "trimming": processes_killed_while_trimmed,
    "cluster": cluster_shaken,
    "network": network_broken,
    "slow": broker_slow,
}


async def _start(system: System, kind: str) -> Service:
    return await (system.supervisor(CREW) if kind == "supervisor" else system.worker(CREW))


def _all_alive(system: System, report: Report) -> None:
    report.problems += (f"{service.name} has ended" for service in system.services if not service.alive)


async def _unless_away(asked: Awaitable[object]) -> None:
    with suppress(BusUnavailableError):
        await asked


async def _whole(bus: JetStreamBus, streams: tuple[str, ...]) -> bool:
    try:
        states = [(await bus.api(f"STREAM.INFO.{stream}")).get("cluster", {}) for stream in streams]
    except BusUnavailableError:
        return False
    copies = [state.get("replicas", []) for state in states]
    return all(len(each) == 2 and all(one["current"] and not one.get("offline") for one in each) for each in copies)
