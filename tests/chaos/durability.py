"""`python -m chaos.durability` measures the cost of acknowledged publishes, by sync interval and replicas.

Every round measures all systems, so changes of the machine's load affect all of them. Compare only the ratios.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

from support.cluster import CONFIGURATION, NatsCluster

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.settings import Settings

_ROUNDS, _SINGLE, _MANY, _AT_ONCE = 7, 60, 400, 64
_BODY = b"x" * 1000  # about the size of a commit
_SYNCS = ("2m", "1s", "always")


async def main(folder: Path) -> None:
    async with AsyncExitStack() as stack:
        buses: dict[str, JetStreamBus] = {}
        for copies in (1, 3):
            for sync in _SYNCS:
                settings = await _broker(stack, folder / f"{copies}-{sync}", sync, copies)
                bus = await connect(settings, name="durability", wait=20)
                stack.push_async_callback(bus.close)
                await bus.set_up()
                buses[f"| {copies} | `{sync}` |"] = bus
        latencies: dict[str, list[float]] = {name: [] for name in buses}
        rates: dict[str, list[float]] = {name: [] for name in buses}
        numbers = count()
        for _ in range(_ROUNDS):
            for name, bus in buses.items():
                latencies[name].append(await _one_by_one(bus, numbers))
                rates[name].append(await _many(bus, numbers))
        first = next(iter(buses))
        sys.stdout.write(
            "| copies | sync_interval | p50 of a publish | times the first | 64 at a time | of the first |\n"
        )
        sys.stdout.write("|---|---|---|---|---|---|\n")
        for name in buses:
            slower = statistics.median(a / b for a, b in zip(latencies[name], latencies[first], strict=True))
            part = statistics.median(a / b for a, b in zip(rates[name], rates[first], strict=True))
            latency, rate = statistics.median(latencies[name]), statistics.median(rates[name])
            sys.stdout.write(f"{name} {1000 * latency:.2f} ms | {slower:.1f} | {rate:.0f}/s | {part:.0%} |\n")


async def _broker(stack: AsyncExitStack, home: Path, sync: str, copies: int) -> Settings:
    await asyncio.to_thread(home.mkdir, parents=True)
    config = home / "nats.conf"
    if copies == 1:
        config.write_text(f'jetstream {{ sync_interval: "{sync}" }}\n')
        return Settings(url=(await stack.enter_async_context(EmbeddedBroker(home, config=config))).url)
    config.write_text(CONFIGURATION.read_text().replace("sync_interval: 1s", f'sync_interval: "{sync}"'))
    return Settings(url=(await stack.enter_async_context(NatsCluster(home, config=config))).url, replicas=copies)


async def _one_by_one(bus: JetStreamBus, numbers: Iterator[int]) -> float:
    """Return the median time in seconds until a publish is acknowledged."""
    taken: list[float] = []
    for _ in range(_SINGLE):
        began = time.perf_counter()
        await bus.publish(f"pointsman.log.team.w{next(numbers)}", _BODY, {}, expect=0)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


async def _many(bus: JetStreamBus, numbers: Iterator[int]) -> float:
    """Return the number of publishes per second."""
    left = iter(range(_MANY))

    async def some() -> None:
        for _ in left:
            await bus.publish(f"pointsman.log.team.w{next(numbers)}", _BODY, {}, expect=0)

    began = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(_AT_ONCE)))
    return _MANY / (time.perf_counter() - began)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="pointsman-durability-", ignore_cleanup_errors=True) as place:
        asyncio.run(main(Path(place)))
