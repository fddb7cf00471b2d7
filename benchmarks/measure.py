"""Make one run. All systems are started once and measured in turns, so all run under the same load of the machine."""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter

from benchmarks.floor import Floor, record, round_trips
from benchmarks.machine import Children, cpu_seconds, machine_seconds, memory
from benchmarks.real import RealSystem
from benchmarks.results import APART, FLOOR, LOGGED_FLOOR, REAL, SYNCED_FLOOR, TRACED, Amount, Measured, Row
from pointsman.bus.embedded_server import EmbeddedBroker

__all__ = ["collector", "measure", "together"]

_ALWAYS = "always"  # value of `sync_interval` for a sync of every message
_WARM_UP = 8  # workflows; enough to import all modules, connect and fill every cache
_START_TIMEOUT_S = 10.0  # of the process that receives telemetry


@dataclass(frozen=True, slots=True)
class _System:
    """A system under measurement. `submit` runs one workflow of a shape. `processes` has the process ids, by part."""

    name: str
    submit: Callable[[str], Awaitable[object]]
    processes: dict[str, int]
    stored: Callable[[], Awaitable[tuple[int, int]]]


async def measure(amount: Amount, report: Callable[[str], None]) -> Measured:
    """Run the benchmark and report its progress. All started processes end before the return."""
    machine = {"cpus": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}
    measured = Measured(machine, amount)
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="pointsman-bench-", ignore_cleanup_errors=True)))
        broker = await stack.enter_async_context(EmbeddedBroker(home / "broker", config=_config(home, amount.sync)))
        children = await stack.enter_async_context(Children(home))
        common = {"broker": broker.pid or 0, "client": os.getpid()}

        report("starting the system")
        real = await stack.enter_async_context(RealSystem("bench", broker.url, children, {}).running())
        systems = [_System(REAL, real.submit, {**real.processes, **common}, real.stored)]
        if amount.sync == _ALWAYS:
            report("starting it again, with its handoffs in a stream that is not synced")
            apart = RealSystem("apart", broker.url, children, {}, apart=True)
            await stack.enter_async_context(apart.running())
            systems.append(_System(APART, apart.submit, {**apart.processes, **common}, apart.stored))
        sink = 0
        if amount.tracing:
            report("starting it again, with tracing")
            sink = await collector(children, "sink")
            exporting = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{sink}", "OTEL_METRICS_EXPORTER": "none"}
            traced = await stack.enter_async_context(RealSystem("traced", broker.url, children, exporting).running())
            processes = {**traced.processes, **common, "collector": children.pids["sink"]}
            systems.append(_System(TRACED, traced.submit, processes, traced.stored))

        report("starting the floor, with the messages of the system")
        recording = home / "recording.json"
        shapes = {shape: await real.submit(shape) for shape in ("W1", *amount.shapes)}
        recording.write_bytes(await record(real.bus, real.client.subjects, shapes))
        floor = await stack.enter_async_context(Floor(broker.url, children, recording).running())
        processes = {**floor.processes, **common}
        if amount.logged:
            logged = await stack.enter_async_context(
                Floor(broker.url, children, recording, "logged", logged=True).running()
            )
            systems.append(_System(LOGGED_FLOOR, logged.submit, {**logged.processes, **common}, logged.stored))
        if amount.sync != _ALWAYS:
            systems.append(_System(FLOOR, floor.submit, processes, floor.stored))
        else:
            systems.append(_System(SYNCED_FLOOR, floor.submit, processes, floor.stored))
            usual = EmbeddedBroker(home / "usual", config=_config(home, "1s"))
            await stack.enter_async_context(usual)
            lower = Floor(usual.url, children, recording, "lower")
            await stack.enter_async_context(lower.running())
            processes = {**lower.processes, "broker": usual.pid or 0, "client": os.getpid()}
            systems.append(_System(FLOOR, lower.submit, processes, lower.stored))

        report("warming up, and counting messages")
        for system in systems:
            for _ in range(_WARM_UP):
                await system.submit("W1")
        measured.kinds = await _count(real)

        for number in range(amount.rounds):
            measured.load.append(os.getloadavg())
            acknowledged, delivered = await round_trips(broker.url, amount.raw)
            measured.acknowledged.append(statistics.median(acknowledged))
            measured.delivered.append(statistics.median(delivered))
            first = number % len(systems)  # each round begins with a different system, so the order favours no system
            for system in systems[first:] + systems[:first]:
                report(f"round {number + 1} of {amount.rounds}: {system.name}")
                measured.rows.append(await _row(system, amount))
                children.check()
        for system in systems:
            measured.memory[system.name] = {part: memory(pid) for part, pid in system.processes.items()}
        if sink:
            measured.exported = await asyncio.to_thread(_received, sink)
    return measured


def _config(home: Path, sync: str) -> Path:
    path = home / f"{sync}.conf"
    path.write_text(f'jetstream {{ sync_interval: "{sync}" }}\n')
    return path


async def _row(system: _System, amount: Amount) -> Row:
    single = sorted([await _timed(system.submit("W1")) for _ in range(amount.single)])
    before = await system.stored()
    cpu = {part: cpu_seconds(pid) for part, pid in system.processes.items()}
    busy, began = machine_seconds(), perf_counter()
    await together(system.submit, amount.many, amount.concurrency)
    seconds = perf_counter() - began
    spent = {part: cpu_seconds(pid) - cpu[part] for part, pid in system.processes.items()}
    others = machine_seconds() - busy - sum(spent.values())
    after = await system.stored()
    return Row(
        system=system.name,
        p50=statistics.median(single),
        p99=single[-1 - len(single) // 100],
        per_second=amount.many / seconds,
        cpu={part: used / amount.many for part, used in spent.items()},
        others_cpu=max(0.0, others / seconds),
        messages=(after[0] - before[0]) / amount.many,
        bytes=(after[1] - before[1]) / amount.many,
        shapes={shape: await _timed(system.submit(shape)) for shape in amount.shapes},
    )


async def _timed(work: Awaitable[object]) -> float:
    began = perf_counter()
    await work
    return perf_counter() - began


async def together(submit: Callable[[str], Awaitable[object]], count: int, concurrency: int) -> None:
    """Run `count` W1, with `concurrency` of them in parallel."""
    numbers = iter(range(count))

    async def lane() -> None:
        for _ in numbers:
            await submit("W1")

    async with asyncio.TaskGroup() as lanes:
        for _ in range(concurrency):
            lanes.create_task(lane())


async def _count(real: RealSystem) -> dict[str, float]:
    """Return the number of messages of each kind that one W1 stores, as the average of a few sequential W1."""
    before = await real.kinds()
    for _ in range(_WARM_UP):
        await real.submit("W1")
    after = await real.kinds()
    return {kind: (after[kind] - before[kind]) / _WARM_UP for kind in sorted(after)}


async def collector(children: Children, name: str, *behaviour: str) -> int:
    """Start a receiver of telemetry as the child `name` and return the port. See `benchmarks.sink` for behaviours."""
    await children.start(name, "benchmarks.sink", *behaviour)
    deadline = monotonic() + _START_TIMEOUT_S
    while monotonic() < deadline:
        children.check([name])
        if (output := children.log(name)).endswith("\n"):
            return int(output)
        await asyncio.sleep(0.02)
    raise RuntimeError(f"the receiver of telemetry {name} did not start within {_START_TIMEOUT_S:g} s")


def _received(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
        return int(answer.read())
