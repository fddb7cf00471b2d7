"""Measure the time of a recovery after broker, supervisor and agents were killed at the same time.

Run `python -m benchmarks.recovery`. All processes are killed soon after the start of a chain of 50 tasks. Then the
system is started again with the stored data of the broker. The measurement is repeated with one interpreter for each
agent and with one interpreter for all agents, because imports take most of the time. It is also repeated with several
values of `ack_wait`, the time after which a running broker redelivers the messages of a dead process.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, time

from benchmarks.machine import Children
from benchmarks.real import RealSystem
from benchmarks.team import TEAM
from pointsman.app import run
from pointsman.bus.embedded_server import EmbeddedBroker

__all__ = ["main"]

WAITS = ("30", "5", "2")  # seconds of POINTSMAN_ACK_WAIT; the first is the default
ROUNDS = 3
_KILL_AFTER = 5  # results
_POLL_INTERVAL_S = 0.002


async def main() -> None:
    for wait, together in [*((wait, False) for wait in WAITS), *((WAITS[0], one) for one in (False, True) * ROUNDS)]:
        with TemporaryDirectory(prefix="pointsman-recovery-", ignore_cleanup_errors=True) as home:
            await _killed_and_started(Path(home), {"POINTSMAN_ACK_WAIT": wait}, together=together)


async def _killed_and_started(home: Path, environment: dict[str, str], *, together: bool) -> None:
    workflow = await _begin_and_kill(home, environment)
    began, at = perf_counter(), time()
    async with (
        EmbeddedBroker(home / "broker") as broker,
        Children(home) as children,
        RealSystem("bench", broker.url, children, environment, together=together).running() as system,
    ):
        await system.ended(workflow)
        seconds = perf_counter() - began
        sent = await _sent(system, workflow)
        log = system.client.subjects.log(TEAM.name, workflow)
        commits = [stored.at.timestamp() - at async for stored in system.bus.read("log", log)]
    first = min(seconds for seconds in commits if seconds > 0)
    print(
        f"ack_wait {environment['POINTSMAN_ACK_WAIT']:>2} s, {'three' if together else 'six'} processes: resumes after "
        f"{first:.2f} s, done after {seconds:.2f} s; {dict(sent)}",
        flush=True,
    )


async def _begin_and_kill(home: Path, environment: dict[str, str]) -> str:
    """Start a workflow, kill all processes while it runs, and return its id."""
    broker, workflow, killed = EmbeddedBroker(home / "broker"), "", False
    await broker.start()
    async with Children(home) as children:
        with suppress(Exception):  # the end of the context needs the broker, which was killed
            async with RealSystem("bench", broker.url, children, environment).running() as system:
                workflow = (await system.client.submit(TEAM.name, "W3")).id
                while (await _sent(system, workflow))["result"] < _KILL_AFTER:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_INTERVAL_S)
                for pid in (*children.pids.values(), broker.pid):
                    if pid:
                        os.kill(pid, signal.SIGKILL)
                killed = True
    await broker.stop()
    if not killed:
        raise RuntimeError("the workflow ended before the processes were killed; run the benchmark again")
    return workflow


async def _sent(system: RealSystem, workflow: str) -> Counter[str]:
    """Count the handoffs and the results of a workflow."""
    found: Counter[str] = Counter()
    async for _ in system.bus.read("handoffs", f"{system.name}.handoff.*.*.{workflow}.>"):
        found["handoff"] += 1
    async for _ in system.bus.read("results", f"{system.name}.result.*.*.{workflow}.>"):
        found["result"] += 1
    return found


if __name__ == "__main__":
    run(main())
