"""`python -m benchmarks.collectors`: what telemetry costs, with a collector that works and with four that do not.

Five systems export by OTLP and one does not. Each has one round as soon as it stands, when a collector that is away has
not been found out. Once every process has found that out, they take turns with W1, so that they meet the same machine.
Memory is what each system's five processes have resident above what they had when they stood, after each of its rounds.
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

_MANNERS = ("works", "refuses", "is slow", "hangs", "answers 503")
_AWAY = ("refuses", "hangs", "answers 503")
_WARM_UP = 20  # workflows
_FINDING_OUT = 60.0  # seconds it may take: a batch waits 5, and is tried for 10


async def measure(manners: list[str], rounds: int, many: int, concurrency: int) -> None:
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="pointsman-bench-", ignore_cleanup_errors=True)))
        broker = await stack.enter_async_context(EmbeddedBroker(home / "broker"))
        children = await stack.enter_async_context(Children(home))
        systems: dict[str, RealSystem] = {}
        speeds: dict[str, list[float]] = {}
        costs: dict[str, list[float]] = {}
        grown: dict[str, list[float]] = {}
        sizes: dict[str, float] = {}

        async def play(manner: str) -> None:
            system = systems[manner]
            processes = [*system.processes.values(), broker.pid or 0, os.getpid()]
            spent, began = sum(map(cpu_seconds, processes)), perf_counter()
            await together(system.submit, many, concurrency)
            speeds[manner].append(many / (perf_counter() - began))
            costs[manner].append((sum(map(cpu_seconds, processes)) - spent) / many * 1000)
            grown[manner].append(_memory(system) - sizes[manner])
            children.check()

        for number, manner in enumerate(["none", *manners]):
            match manner:
                case "none":
                    exporting = {}
                case "refuses":  # bound and not listening: nobody else gets the port, and nobody answers there
                    refusing = stack.enter_context(socket.socket())
                    refusing.bind(("127.0.0.1", 0))
                    exporting = _exporting(refusing.getsockname()[1])
                case _:
                    exporting = _exporting(await collector(children, f"sink-{manner.replace(' ', '-')}", manner))
            system = RealSystem(f"bench{number}", broker.url, children, exporting)
            systems[manner] = await stack.enter_async_context(system.running())
            await together(systems[manner].submit, _WARM_UP, concurrency)
            speeds[manner], costs[manner], grown[manner] = [], [], []
            sizes[manner] = _memory(system)
            await play(manner)
        _tell("from the first moment", speeds, costs, grown)
        for manner in set(_AWAY) & set(systems):
            await _found_out(systems[manner], children)
        for manner in systems:
            speeds[manner], costs[manner] = [], []
        for number in range(rounds):
            order = list(systems)
            for manner in order[number % len(order) :] + order[: number % len(order)]:
                await play(manner)
            _tell(f"round {number + 1} of {rounds} once found out, medians so far", speeds, costs, grown)


def _tell(
    when: str, speeds: dict[str, list[float]], costs: dict[str, list[float]], grown: dict[str, list[float]]
) -> None:
    print(when)
    for manner in speeds:
        speed = statistics.median(map(_ratio, speeds[manner], speeds["none"]))
        sizes = " ".join(f"{size:+.1f}" for size in grown[manner])
        print(
            f"  {manner:11} {statistics.median(speeds[manner]):6.1f} W1 a second, {speed:.3f} of none;"
            f" {statistics.median(costs[manner]):5.2f} ms of CPU a W1; {sizes} MiB",
            flush=True,
        )


async def _found_out(system: RealSystem, children: Children) -> None:
    """Every process of it knows that nobody takes its spans."""
    deadline = monotonic() + _FINDING_OUT
    while unaware := [
        part for part in system.processes if "telemetry_collector_away" not in children.log(f"{system.name}-{part}")
    ]:
        if monotonic() > deadline:
            raise RuntimeError(f"{unaware} of {system.name} did not find out within {_FINDING_OUT:g} s")
        await asyncio.sleep(0.2)


def _ratio(one: float, other: float) -> float:
    return one / other


def _memory(system: RealSystem) -> float:
    return sum(found.resident for pid in system.processes.values() if (found := memory(pid)))


def _exporting(port: int) -> dict[str, str]:
    """What a process needs in its environment to export to a collector there."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collectors", description=__doc__)
    parser.add_argument("--manners", nargs="*", default=list(_MANNERS), choices=_MANNERS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--many", type=int, default=200, help="workflows of each system in each round (200)")
    parser.add_argument("--concurrency", type=int, default=64)
    given = parser.parse_args()
    run(measure(given.manners, given.rounds, given.many, given.concurrency))


if __name__ == "__main__":
    main()
