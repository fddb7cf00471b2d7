"""A starting process waits for a lost broker. It ends with a reason if the broker does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support import factory
from support.waiting import until

from pointsman.bus.memory.bus import MemoryBus
from pointsman.bus.memory.consumers import MemoryConsumer
from pointsman.engine.supervisor.engine import SupervisorEngine
from pointsman.engine.worker.engine import Worker
from pointsman.errors import BusUnavailableError
from pointsman.settings import Settings

SETTINGS = Settings(ack_wait=2)


class Cut(MemoryBus):
    """A bus that fails to create the first consumer; with `away`, because the connection is lost."""

    def __init__(self, *, away: bool) -> None:
        super().__init__()
        self.loses, self.away, self.asked = away, False, 0

    @property
    def connected(self) -> bool:
        return super().connected and not self.away

    async def consumer(self, *given: Any, **more: Any) -> MemoryConsumer:
        self.asked += 1
        if self.asked == 1:
            self.away = self.loses
            raise BusUnavailableError("the connection was lost before it was answered")
        return await super().consumer(*given, **more)


def _supervisor(bus: MemoryBus) -> SupervisorEngine:
    return factory.supervisor(bus, settings=SETTINGS)


def _worker(bus: MemoryBus) -> Worker:
    return factory.worker(bus, settings=SETTINGS)


@pytest.mark.parametrize("process", [_supervisor, _worker])
async def test_process_that_loses_the_broker_while_starting_starts_again(
    process: Callable[[MemoryBus], SupervisorEngine | Worker],
) -> None:
    bus, stop = Cut(away=True), asyncio.Event()
    starting = process(bus)
    running = asyncio.create_task(starting.run(stop))
    await until(lambda: bus.away)
    bus.away = False

    await until(lambda: starting.ready)
    stop.set()
    await running

    assert bus.asked > 1


@pytest.mark.parametrize("process", [_supervisor, _worker])
async def test_stop_during_an_outage_ends_a_starting_process(
    process: Callable[[MemoryBus], SupervisorEngine | Worker],
) -> None:
    bus, stop = Cut(away=True), asyncio.Event()
    running = asyncio.create_task(process(bus).run(stop))
    await until(lambda: bus.away)

    stop.set()
    async with asyncio.timeout(5):
        await running

    assert bus.asked == 1


@pytest.mark.parametrize("process", [_supervisor, _worker])
async def test_a_reachable_broker_that_does_not_answer_ends_the_start(
    process: Callable[[MemoryBus], SupervisorEngine | Worker],
) -> None:
    with pytest.raises(BusUnavailableError, match="lost before it was answered"):
        await process(Cut(away=False)).run(asyncio.Event())
