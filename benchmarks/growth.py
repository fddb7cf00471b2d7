"""Measure the growth of the cost with the tasks of one workflow and with the supervisors of one team.

Run `python -m benchmarks.growth`. Plans of 50 to 1,000 parallel tasks and a join show the time per task. The same
number of concurrent W1, with one and with two supervisors on one machine, shows the effect of the second supervisor.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.machine import Children, cpu_seconds
from benchmarks.measure import together
from benchmarks.real import RealSystem
from benchmarks.team import WIDTHS
from pointsman.app import run
from pointsman.bus.embedded_server import EmbeddedBroker

__all__ = ["main"]

ROUNDS = 3
MANY = 200  # W1 in each round
TOGETHER = 64  # concurrent W1
_WARM_UP = 8
_POLL_INTERVAL_S = 0.05
_AGAIN = "outbox_republished"  # log event: an outbox was sent again, because another supervisor may not have sent it
_LOST = "commit_rejected"  # log event: another supervisor wrote its commit first


async def main() -> None:
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="pointsman-growth-", ignore_cleanup_errors=True)))
        broker = await stack.enter_async_context(EmbeddedBroker(home / "broker"))
        children = await stack.enter_async_context(Children(home))
        one = await stack.enter_async_context(RealSystem("one", broker.url, children, {}).running())
        two = await stack.enter_async_context(RealSystem("two", broker.url, children, {}).running())
        await two.start("second", "supervisor", "benchmarks.team:TEAM")
        while len(await two.client.operations.teams()) < 2:  # noqa: ASYNC110  # before, the first works alone
            await asyncio.sleep(_POLL_INTERVAL_S)
        for system in (one, two):
            await together(system.submit, _WARM_UP * TOGETHER // 8, TOGETHER)
        await _widths(one)
        await _supervisors(children, one, two)


async def _widths(system: RealSystem) -> None:
    taken: dict[int, list[float]] = {width: [] for width in WIDTHS}
    supervisor = system.processes["supervisor"]
    worked: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for _ in range(ROUNDS):
        for width in WIDTHS:
            before, began = cpu_seconds(supervisor), perf_counter()
            await system.submit(f"W2-{width}")
            taken[width].append((perf_counter() - began) / width)
            worked[width].append((cpu_seconds(supervisor) - before) / width)
    for width in WIDTHS:
        wall, cpu = 1e3 * statistics.median(taken[width]), 1e3 * statistics.median(worked[width])
        print(f"{width:5} tasks: {wall:5.2f} ms a task, {cpu:5.2f} ms of the supervisor's CPU")


async def _supervisors(children: Children, *systems: RealSystem) -> None:
    rates: dict[str, list[float]] = {system.name: [] for system in systems}
    again = {system.name: -_logged(children, system, _AGAIN) for system in systems}
    lost = {system.name: -_logged(children, system, _LOST) for system in systems}
    commits = {system.name: -(await system.kinds())["log"] for system in systems}
    for _ in range(ROUNDS):
        for system in systems:
            began = perf_counter()
            await together(system.submit, MANY, TOGETHER)
            rates[system.name].append(MANY / (perf_counter() - began))
    for system in systems:
        again[system.name] += _logged(children, system, _AGAIN)
        lost[system.name] += _logged(children, system, _LOST)
        commits[system.name] += (await system.kinds())["log"]
        print(f"{system.name:5} supervisor(s): {statistics.median(rates[system.name]):6.1f} W1 a second, "
              f"{again[system.name] / (ROUNDS * MANY):.2f} outboxes sent again for each, "
              f"{100 * lost[system.name] / commits[system.name]:.1f} % of commits lost")  # fmt: skip


def _logged(children: Children, system: RealSystem, event: str) -> int:
    """Return the number of times that the system's supervisors have logged `event`."""
    names: Sequence[str] = [name for name in children.pids if name in (f"{system.name}-supervisor", "two-second")]
    return sum(children.log(name).count(event) for name in names if name.startswith(system.name))


if __name__ == "__main__":
    run(main())
