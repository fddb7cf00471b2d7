"""`python -m benchmarks.collectors`: what telemetry costs, with a collector that works and with three that do not.

Four systems export by OTLP and one does not; they take turns with W1, so that they meet the same machine.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.machine import Children, cpu_seconds, memory
from benchmarks.measure import collector, together
from benchmarks.real import RealSystem
from pointsman.app import run
from pointsman.bus.embedded import EmbeddedBroker

__all__ = ["main"]

_MANNERS = ("works", "refuses", "is slow", "hangs")
_WARM_UP = 20  # workflows


async def measure(manners: list[str], rounds: int, many: int, concurrency: int) -> None:
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="pointsman-bench-", ignore_cleanup_errors=True)))
        broker = await stack.enter_async_context(EmbeddedBroker(home / "broker"))
        children = await stack.enter_async_context(Children(home))
        systems: dict[str, RealSystem] = {}
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
        speeds: dict[str, list[float]] = {manner: [] for manner in systems}
        costs: dict[str, list[float]] = {manner: [] for manner in systems}
        sizes = {manner: _memory(system) for manner, system in systems.items()}
        for number in range(rounds):
            order = list(systems)
            for manner in order[number % len(order) :] + order[: number % len(order)]:
                processes = [*systems[manner].processes.values(), broker.pid or 0, os.getpid()]
                spent, began = sum(map(cpu_seconds, processes)), perf_counter()
                await together(systems[manner].submit, many, concurrency)
                speeds[manner].append(many / (perf_counter() - began))
                costs[manner].append((sum(map(cpu_seconds, processes)) - spent) / many * 1000)
                children.check()
            print(f"round {number + 1} of {rounds}, medians so far")
            for manner, system in systems.items():
                speed = statistics.median(map(_ratio, speeds[manner], speeds["none"]))
                grown = _memory(system) - sizes[manner]
                print(
                    f"  {manner:8} {statistics.median(speeds[manner]):6.1f} W1 a second, {speed:.3f} of none;"
                    f" {statistics.median(costs[manner]):5.2f} ms of CPU a W1; {grown:+.1f} MiB",
                    flush=True,
                )


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
