"""Measure the time of `pointsman --help`, the time until a worker announces its agent, and the CPU use at idle.

Run `python -m benchmarks.starting`. An agent is announced when its consumer is open, so from then on it receives
handoffs.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.machine import Children, cpu_seconds
from pointsman.app import run
from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.bus.jetstream.bus import connect
from pointsman.settings import Settings

__all__ = ["main"]

TRIES = 5
IDLE_S = 20.0  # four heartbeats of every process
_POLL_INTERVAL_S = 0.005
_START_TIMEOUT_S = 30.0


async def main() -> None:
    helped = [_seconds("--help") for _ in range(TRIES)]
    print(f"pointsman --help         {statistics.median(helped) * 1e3:6.0f} ms")
    with TemporaryDirectory(prefix="pointsman-starting-") as home:
        async with EmbeddedBroker(Path(home) / "broker") as broker, Children(Path(home)) as children:
            environment = {"POINTSMAN_URL": broker.url}
            bus = await connect(Settings(url=broker.url), name="starting", wait=5.0)
            await bus.set_up()
            await bus.registry.cards()
            await children.start(
                "supervisor",
                "pointsman",
                "supervisor",
                "benchmarks.team:TEAM",
                "--with-parent",
                environment=environment,
            )
            started: list[float] = []
            for number in range(TRIES):
                there, began = len(await bus.registry.cards()), time.perf_counter()
                await children.start(
                    f"a{number}", "pointsman", "worker", "benchmarks.team:a", "--with-parent", environment=environment
                )
                async with asyncio.timeout(_START_TIMEOUT_S):
                    while len(await bus.registry.cards()) == there:  # noqa: ASYNC110  # cards have no event to wait for
                        await asyncio.sleep(_POLL_INTERVAL_S)
                started.append(time.perf_counter() - began)
            print(f"a worker, to its card    {statistics.median(started) * 1e3:6.0f} ms")
            processes = {"supervisor": children.pids["supervisor"], "worker": children.pids["a0"]}
            before = {name: cpu_seconds(pid) for name, pid in processes.items()}
            await asyncio.sleep(IDLE_S)
            for name, pid in processes.items():
                print(f"{name:10} at rest       {100 * (cpu_seconds(pid) - before[name]) / IDLE_S:6.2f} % of a CPU")
            await bus.close()


def _seconds(*arguments: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "pointsman", *arguments], check=True, capture_output=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    run(main())
