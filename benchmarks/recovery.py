"""How long it takes until work goes on after everything was killed at once: broker, supervisor and agents.

`python -m benchmarks.recovery`. A chain of 50 tasks is cut soon after its start, and everything is started again on
what the broker had stored: with an interpreter for each agent and with one for all of them, for importing is most of
it; and with several values of `ack_wait`, after which a broker that lives gives a dead process up.
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
_BEGUN = 5  # results after which everything is killed
_LOOK = 0.002


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
        f"ack_wait {environment['POINTSMAN_ACK_WAIT']:>2} s, {'three' if together else 'six'} processes: goes on after "
        f"{first:.2f} s, done after {seconds:.2f} s; {dict(sent)}",
        flush=True,
    )


async def _begin_and_kill(home: Path, environment: dict[str, str]) -> str:
    """The id of the workflow that was running when everything was killed."""
    broker, workflow, killed = EmbeddedBroker(home / "broker"), "", False
    await broker.start()
    async with Children(home) as children:
        with suppress(Exception):  # the way out leads over a broker that is gone
            async with RealSystem("bench", broker.url, children, environment).running() as system:
                workflow = (await system.client.submit(TEAM.name, "W3")).id
                while (await _sent(system, workflow))["inbox"] < _BEGUN:  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK)
                for pid in (*children.pids.values(), broker.pid):
                    if pid:
                        os.kill(pid, signal.SIGKILL)
                killed = True
    await broker.stop()
    if not killed:
        raise RuntimeError("it ended before it could be killed")
    return workflow


async def _sent(system: RealSystem, workflow: str) -> Counter[str]:
    """How many messages of each kind the workflow has in the work stream."""
    found: Counter[str] = Counter()
    for subject in (f"{system.name}.handoff.*.{workflow}.>", f"{system.name}.inbox.*.{workflow}.result.>"):
        async for _ in system.bus.read("work", subject):
            found[subject.split(".")[1]] += 1
    return found


if __name__ == "__main__":
    run(main())
