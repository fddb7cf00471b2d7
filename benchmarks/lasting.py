"""What stays the same however much there was before: the cost of a W1, the list of workflows, a supervisor's memory.

`python -m benchmarks.lasting` measures an empty broker, and one with 20,000 and with 100,000 finished workflows; then
it runs 10,000 W1 and looks at every thousand. `--finished 200 --run 100` is short.

`--minutes 60` is another measurement: five W1 a second for so long, and every minute what each process has in memory.

The finished ones are one W1's messages, stored again under other ids and straight by the broker's own protocol: running
them takes 20 minutes. What is to be done of them stands under the names of a team and of agents that nobody runs, or
the team would be given it; their requests are left out, for a list looks which requests have no log yet.
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

__all__ = ["main"]

SINGLE, MANY, TOGETHER = 40, 200, 64  # W1 one at a time, at a concurrency, and that concurrency
LOOK = 1_000  # W1 between two looks at the memory
RATE = 5  # W1 a second, one after the other, when it is time that is measured
_WARM_UP = 100
_AHEAD = 20_000  # messages handed to the connection before the broker is asked how far it is

Kept = tuple[str, bytes, bytes]  # subject, header block, body, each of one workflow


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lasting")
    parser.add_argument("--finished", type=int, nargs="*", default=[20_000, 100_000], help="finished workflows")
    parser.add_argument("--run", type=int, default=10_000, help="W1 that are then run")
    parser.add_argument("--minutes", type=int, help=f"instead: {RATE} W1 a second for so long, and its memory")
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
        kept = await _kept(system, original)
        await _row(system, processes, 0)
        there = 0
        for finished in given.finished:
            await _fill(system, original, kept, range(there, finished))
            there = finished
            await _row(system, processes, finished)
        await _run(system, processes, given.run)


async def _slowly(system: RealSystem, processes: dict[str, int], children: Children, minutes: int) -> None:
    """`RATE` W1 a second, started on time whether or not the last ones have ended, and a look every minute."""
    async with asyncio.TaskGroup() as running:
        began = perf_counter()
        for number in range(60 * RATE * minutes + 1):
            await asyncio.sleep(began + number / RATE - perf_counter())
            if number % (60 * RATE) == 0:
                _look(system, processes, children, number)
            running.create_task(system.submit("W1"))


def _look(system: RealSystem, processes: dict[str, int], children: Children, done: int) -> None:
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
    """`count` W1, with a look at each `LOOK` of them, and what was added between the first look and the last."""
    looks: list[dict[str, float]] = []
    for _ in range(max(2, count // LOOK)):
        seconds = await _timed(lambda: together(system.submit, min(count, LOOK), TOGETHER))
        looks.append({part: _resident(pid) for part, pid in processes.items()})
        sizes = ", ".join(f"{part} {size:.1f}" for part, size in looks[-1].items())
        print(f"{min(count, LOOK):7} more W1: {min(count, LOOK) / seconds:5.1f} a second; MiB: {sizes}", flush=True)
    per = 10_000 / ((len(looks) - 1) * min(count, LOOK))
    grown = ", ".join(f"{part} {per * (looks[-1][part] - size):+.1f}" for part, size in looks[0].items())
    print(f"in 10,000 W1, MiB: {grown}")


async def _kept(system: RealSystem, workflow: str) -> Sequence[Kept]:
    """The messages that are called by that workflow; a schedule of it would fire, and is not among them."""
    found = list[Kept]()
    for stream in ("work", "log"):
        async for stored in system.bus.read(stream, f"{system.name}.>"):
            if workflow in stored.subject and f"{system.name}.schedule." not in stored.subject:
                lines = "".join(f"{name}: {value}\r\n" for name, value in stored.headers.items())
                found.append((_elsewhere(stored.subject), f"NATS/1.0\r\n{lines}\r\n".encode(), stored.body))
    return found


def _elsewhere(subject: str) -> str:
    """Where nobody takes it: what is to be done is done."""
    namespace, kind, name, *rest = subject.split(".")
    return ".".join([namespace, kind, "past" if kind in ("inbox", "handoff") else name, *rest])


async def _fill(system: RealSystem, workflow: str, kept: Sequence[Kept], numbers: range) -> None:
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
        if sent % _AHEAD < len(kept):
            await _until(system, before + sent - _AHEAD)
    await _until(system, before + sent)
    print(f"{len(numbers):7} stored in {perf_counter() - began:.0f} s", flush=True)


async def _until(system: RealSystem, messages: int) -> None:
    """Return when the streams hold as many: asking takes its turn behind what was sent before."""
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
