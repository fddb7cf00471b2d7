"""Measure the admission of calls under the shared limits of a model provider, by one worker and by four workers.

`python -m benchmarks.model_limits` uses a real broker. The calls end at once, and the limits never delay a call, so the
measured time is the time of the admission alone.
"""

from __future__ import annotations

import asyncio
import time
from uuid import uuid4

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.bus.jetstream.bus import connect
from pointsman.clock import SystemClock
from pointsman.core.budget.token_bucket import ModelLimits
from pointsman.engine.worker.rate_limiter import BusRateLimiter
from pointsman.settings import Settings
from pointsman.testing.models import ScriptedModel
from pointsman_schemas.subjects import Subjects

__all__ = ["main"]

LIMITS = {"scripted": ModelLimits(requests=6_000_000, tokens=6_000_000_000, concurrency=1000)}
CALLS = 400  # calls of all workers together, which take a second or two


async def main() -> None:
    async with EmbeddedBroker() as broker:
        for workers, at_once in ((1, 1), (4, 1), (4, 8)):
            settings = Settings(url=broker.url, namespace=f"b{uuid4().hex[:8]}", log_level="error")
            print(f"{workers} workers with {at_once} calls at a time: {await measure(settings, workers, at_once)}")


async def measure(settings: Settings, workers: int, at_once: int) -> str:
    buses = [await connect(settings, name="bench", wait=10.0) for _ in range(workers)]
    await buses[0].set_up()
    meters = [BusRateLimiter(bus, Subjects(settings.namespace), LIMITS, SystemClock()) for bus in buses]
    model, waits = ScriptedModel(), list[float]()

    async def calls(each: BusRateLimiter) -> None:
        for _ in range(CALLS // workers // at_once):
            began = time.perf_counter()
            admission = await each.acquire(model, 100, 60)
            waits.append(time.perf_counter() - began)
            if admission is not None:
                admission.release(100, None)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for each in meters:
            for _ in range(at_once):
                group.create_task(calls(each))
    took = time.perf_counter() - began
    for each, bus in zip(meters, buses, strict=True):
        await each.close()
        await bus.close()
    half = sorted(waits)[len(waits) // 2] * 1000
    return f"{len(waits) / took:.0f} admissions a second, half of them within {half:.1f} ms"


if __name__ == "__main__":
    asyncio.run(main())
