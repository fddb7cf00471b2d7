"""Measure the cost of telemetry with one working collector and with four faulty collectors.

Five systems export by OTLP, and one system does not export. Each system runs one round directly after its start, before
its processes have detected an unavailable collector. After the detection, the systems run W1 in turns, so all systems
run under the same load of the machine. Memory is the growth of the resident memory of a system's five processes since
their start. Run `python -m benchmarks.collectors`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter

from benchmarks.machine import Children, cpu_seconds, memory
from benchmarks.measure import collector, together
from benchmarks.real import RealSystem
from pointsman.app import run
from pointsman.bus.embedded_server import EmbeddedBroker

__all__ = ["main"]

_BEHAVIOURS = ("works", "refuses", "is slow", "hangs", "answers 503")
_AWAY = ("refuses", "hangs", "answers 503")
_WARM_UP = 20  # workflows
_DETECTION_TIMEOUT_S = 60.0  # more than enough, because a batch waits up to 5 s and is retried for 10 s


async def measure(behaviours: list[str], rounds: int, many: int, concurrency: int) -> None:
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="pointsman-bench-", ignore_cleanup_errors=True)))
        broker = await stack.enter_async_context(EmbeddedBroker(home / "broker"))
        children = await stack.enter_async_context(Children(home))
        systems: dict[str, RealSystem] = {}
        speeds: dict[str, list[float]] = {}
        costs: dict[str, list[float]] = {}
        grown: dict[str, list[float]] = {}
        sizes: dict[str, float] = {}

        async def play(behaviour: str) -> None:
            system = systems[behaviour]
            processes = [*system.processes.values(), broker.pid or 0, os.getpid()]
            spent, began = sum(map(cpu_seconds, processes)), perf_counter()
            await together(system.submit, many, concurrency)
            speeds[behaviour].append(many / (perf_counter() - began))
            costs[behaviour].append((sum(map(cpu_seconds, processes)) - spent) / many * 1000)
            grown[behaviour].append(_memory(system) - sizes[behaviour])
            children.check()

        for number, behaviour in enumerate(["none", *behaviours]):
            match behaviour:
                case "none":
                    exporting = {}
                case "refuses":  # the socket does not listen, so connections are refused
                    refusing = stack.enter_context(socket.socket())
                    refusing.bind(("127.0.0.1", 0))
                    exporting = _exporting(refusing.getsockname()[1])
                case _:
                    exporting = _exporting(await collector(children, f"sink-{behaviour.replace(' ', '-')}", behaviour))
            system = RealSystem(f"bench{number}", broker.url, children, exporting)
            systems[behaviour] = await stack.enter_async_context(system.running())
            await together(systems[behaviour].submit, _WARM_UP, concurrency)
            speeds[behaviour], costs[behaviour], grown[behaviour] = [], [], []
            sizes[behaviour] = _memory(system)
            await play(behaviour)
        _report("directly after the start", speeds, costs, grown)
        for behaviour in set(_AWAY) & set(systems):
            await _wait_for_detection(systems[behaviour], children)
        for behaviour in systems:
            speeds[behaviour], costs[behaviour] = [], []
        for number in range(rounds):
            order = list(systems)
            for behaviour in order[number % len(order) :] + order[: number % len(order)]:
                await play(behaviour)
            _report(f"round {number + 1} of {rounds} after the detection, medians so far", speeds, costs, grown)


def _report(
    when: str, speeds: dict[str, list[float]], costs: dict[str, list[float]], grown: dict[str, list[float]]
) -> None:
    print(when)
    for behaviour in speeds:
        speed = statistics.median(map(_ratio, speeds[behaviour], speeds["none"]))
        sizes = " ".join(f"{size:+.1f}" for size in grown[behaviour])
        print(
            f"  {behaviour:11} {statistics.median(speeds[behaviour]):6.1f} W1 a second, {speed:.3f} of none;"
            f" {statistics.median(costs[behaviour]):5.2f} ms of CPU a W1; {sizes} MiB",
            flush=True,
        )


async def _wait_for_detection(system: RealSystem, children: Children) -> None:
    """Wait until every process of the system has detected that its collector is unavailable."""
    deadline = monotonic() + _DETECTION_TIMEOUT_S
    while unaware := [
        part for part in system.processes if "telemetry_collector_down" not in children.log(f"{system.name}-{part}")
    ]:
        if monotonic() > deadline:
            raise RuntimeError(f"{unaware} of {system.name} did not detect it within {_DETECTION_TIMEOUT_S:g} s")
        await asyncio.sleep(0.2)


def _ratio(one: float, other: float) -> float:
    return one / other


def _memory(system: RealSystem) -> float:
    return sum(found.resident for pid in system.processes.values() if (found := memory(pid)))


def _exporting(port: int) -> dict[str, str]:
    """Return the environment of a process that exports to a collector on `port`."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collectors", description=__doc__)
    parser.add_argument("--behaviours", nargs="*", default=list(_BEHAVIOURS), choices=_BEHAVIOURS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--many", type=int, default=200, help="workflows of each system in each round (200)")
    parser.add_argument("--concurrency", type=int, default=64)
    given = parser.parse_args()
    run(measure(given.behaviours, given.rounds, given.many, given.concurrency))


if __name__ == "__main__":
    main()
