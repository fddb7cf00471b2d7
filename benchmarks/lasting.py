"""Measure the change, over time, of the cost of a W1, of the list of workflows and of the memory of a supervisor.

`python -m benchmarks.lasting` measures a broker without finished workflows, with 20,000 and with 100,000. Then the
benchmark runs 10,000 W1 and measures after every thousand. `--finished 200 --run 100` is a short run.

`--minutes 60` is a different measurement. It runs five W1 a second for 60 minutes, and prints the memory every minute.

The finished workflows are copies of the messages of one W1 with different ids. The copies are published directly by the
broker's protocol, because running the workflows would take 20 minutes. Copied handoffs and inbox messages name a team
and agents that do not exist, because the benchmark's team must not process them. Requests are not copied, because the
list of workflows would search for the log of each copied request.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.machine import Children, cpu_seconds, memory
from benchmarks.measure import together
from benchmarks.real import RealSystem
from pointsman.app import run
from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.ports.bus import StreamKind

__all__ = ["main"]

SINGLE, MANY, TOGETHER = 40, 200, 64  # W1 one at a time; concurrent W1; their concurrency
MEASURE_EVERY = 1_000  # W1 between two measurements of the memory
RATE = 5  # W1 a second with `--minutes`
_WARM_UP = 100
_MAX_UNCONFIRMED = 20_000  # messages written to the connection before the broker's count is checked

StoredWorkflowMessage = tuple[str, bytes, bytes]  # subject, header block, body


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lasting")
    parser.add_argument("--finished", type=int, nargs="*", default=[20_000, 100_000], help="finished workflows")
    parser.add_argument("--run", type=int, default=10_000, help="W1 to run afterwards")
    parser.add_argument("--minutes", type=int, help=f"instead: {RATE} W1 a second for this time, and the memory")
    given = parser.parse_args()
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="pointsman-lasting-", ignore_cleanup_errors=True)))
        broker = await stack.enter_async_context(EmbeddedBroker(home / "broker"))
        children = await stack.enter_async_context(Children(home))
        system = await stack.enter_async_context(
            RealSystem("bench", broker.url, children, {}, counted=bool(given.minutes)).running()
        )
        processes = {**system.processes, "broker": broker.pid or 0}
        if given.minutes:
            await _slowly(system, processes, children, given.minutes)
            return
        await together(system.submit, _WARM_UP, TOGETHER)
        original = await system.submit("W1")
        kept = await _workflow_messages(system, original)
        await _row(system, processes, 0)
        there = 0
        for finished in given.finished:
            await _fill(system, original, kept, range(there, finished))
            there = finished
            await _row(system, processes, finished)
        await _run(system, processes, given.run)


async def _slowly(system: RealSystem, processes: dict[str, int], children: Children, minutes: int) -> None:
    """Start `RATE` W1 a second, even if earlier W1 have not ended. Print the memory every minute."""
    async with asyncio.TaskGroup() as running:
        began = perf_counter()
        for number in range(60 * RATE * minutes + 1):
            await asyncio.sleep(began + number / RATE - perf_counter())
            if number % (60 * RATE) == 0:
                _print_memory(system, processes, children, number)
            running.create_task(system.submit("W1"))


def _print_memory(system: RealSystem, processes: dict[str, int], children: Children, done: int) -> None:
    sizes = list[str]()
    for part, pid in processes.items():
        used = memory(pid)
        counts = (
            re.findall(r"^objects (\d+) blocks (\d+)$", children.log(f"{system.name}-{part}"), re.MULTILINE)
            if part != "broker"
            else []
        )
        objects = f", {counts[-1][0]} objects, {counts[-1][1]} blocks" if counts else ""
        sizes.append(f"{part} {used.resident:.1f} ({used.proportional or 0:.1f}){objects}" if used else part)
    print(f"{done // (60 * RATE):4} min, {done:6} W1; MiB resident (proportional): {'; '.join(sizes)}", flush=True)


async def _row(system: RealSystem, processes: dict[str, int], finished: int) -> None:
    single = [await _timed(lambda: system.submit("W1")) for _ in range(SINGLE)]
    before = {part: cpu_seconds(pid) for part, pid in processes.items()}
    seconds = await _timed(lambda: together(system.submit, MANY, TOGETHER))
    cpu = {part: 1e3 * (cpu_seconds(pid) - before[part]) / MANY for part, pid in processes.items()}
    listed = [await _timed(system.client.list) for _ in range(5)]
    messages, stored = await system.stored()
    print(f"{finished:7} finished: {1e3 * statistics.median(single):5.1f} ms a W1, {MANY / seconds:5.1f} a second, "
          f"{cpu['supervisor']:4.1f} ms of the supervisor, {cpu['broker']:4.1f} ms of the broker; "
          f"the newest 20 in {1e3 * statistics.median(listed):4.0f} ms; {messages} messages, {stored / 1e9:.2f} GB, "
          f"broker {_resident(processes['broker']):.0f} MiB", flush=True)  # fmt: skip


async def _run(system: RealSystem, processes: dict[str, int], count: int) -> None:
    """Run `count` W1. Print the memory after each `MEASURE_EVERY`, and at the end the growth of the memory."""
    looks: list[dict[str, float]] = []
    for _ in range(max(2, count // MEASURE_EVERY)):
        seconds = await _timed(lambda: together(system.submit, min(count, MEASURE_EVERY), TOGETHER))
        looks.append({part: _resident(pid) for part, pid in processes.items()})
        sizes = ", ".join(f"{part} {size:.1f}" for part, size in looks[-1].items())
        run = min(count, MEASURE_EVERY)
        print(f"{run:7} more W1: {run / seconds:5.1f} a second; MiB: {sizes}", flush=True)
    per = 10_000 / ((len(looks) - 1) * min(count, MEASURE_EVERY))
    grown = ", ".join(f"{part} {per * (looks[-1][part] - size):+.1f}" for part, size in looks[0].items())
    print(f"in 10,000 W1, MiB: {grown}")


async def _workflow_messages(system: RealSystem, workflow: str) -> Sequence[StoredWorkflowMessage]:
    """Return the messages of a workflow. Schedules are omitted, because their copies would fire."""
    found = list[StoredWorkflowMessage]()
    streams: Sequence[StreamKind] = ("results", "work", "log")
    for stream in streams:
        async for stored in system.bus.read(stream, f"{system.name}.>"):
            if workflow in stored.subject and f"{system.name}.schedule." not in stored.subject:
                lines = "".join(f"{name}: {value}\r\n" for name, value in stored.headers.items())
                found.append((_elsewhere(stored.subject), f"NATS/1.0\r\n{lines}\r\n".encode(), stored.body))
    return found


def _elsewhere(subject: str) -> str:
    """Return the subject. If a consumer would deliver the message, name a team or an agent without a consumer."""
    namespace, kind, name, *rest = subject.split(".")
    return ".".join([namespace, kind, "past" if kind in ("result", "timer", "handoff") else name, *rest])


async def _fill(system: RealSystem, workflow: str, kept: Sequence[StoredWorkflowMessage], numbers: range) -> None:
    began, (before, _) = perf_counter(), await system.stored()
    sent, old = 0, workflow.encode()
    for number in numbers:
        name = f"{workflow[:-8]}{number:08d}"
        new = name.encode()
        for subject, headers, body in kept:
            await system.bus.send(
                subject.replace(workflow, name), body.replace(old, new), headers=headers.replace(old, new)
            )
        sent += len(kept)
        if sent % _MAX_UNCONFIRMED < len(kept):
            await _until(system, before + sent - _MAX_UNCONFIRMED)
    await _until(system, before + sent)
    print(f"{len(numbers):7} stored in {perf_counter() - began:.0f} s", flush=True)


async def _until(system: RealSystem, messages: int) -> None:
    """Query the streams until they hold `messages`. The broker answers a query after the messages sent before it."""
    while (await system.stored())[0] < messages:  # streams have no event to wait for
        pass


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    began = perf_counter()
    await work()
    return perf_counter() - began


def _resident(pid: int) -> float:
    used = memory(pid)
    return used.resident if used else 0.0


if __name__ == "__main__":
    run(main())
