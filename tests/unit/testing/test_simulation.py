"""The simulation kit has virtual time, processes that die, and a bus that fails as the seed determines."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from random import Random
from typing import Any
from unittest.mock import create_autospec

import pytest

from pointsman.bus.memory.bus import MemoryBroker
from pointsman.errors import BusUnavailableError, PublishOutcomeUnknownError
from pointsman.ports.bus import Bus
from pointsman.testing.faults import Faults, FaultyBus
from pointsman.testing.simulation import EndlessSimulationError, SimulatedClock, SimulatedProcess, simulate


def test_an_hour_passes_at_once_and_timeouts_keep_to_it() -> None:
    async def main() -> tuple[float, bool]:
        clock = SimulatedClock()
        await clock.sleep(3600)
        try:
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        except TimeoutError:
            return clock.monotonic(), True
        return clock.monotonic(), False

    assert simulate(main) == (3605, True)


def test_waiting_for_nothing_ends_with_a_reason() -> None:
    with pytest.raises(EndlessSimulationError, match="no timer is set"):
        simulate(asyncio.Event().wait)


def test_running_without_end_ends_with_a_reason() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(EndlessSimulationError, match="without end"):
        simulate(main, steps=1000)


def test_a_task_group_cancels_its_tasks_in_the_order_they_began() -> None:
    cancelled: list[int] = []

    async def wait(number: int) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    async def main() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(1), asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(wait(number))

    simulate(main)

    assert cancelled == list(range(20))


def test_many_waiters_advance_although_timers_fire_early() -> None:
    async def main() -> float:
        clock = SimulatedClock()
        broker = MemoryBroker("sim", clock)
        bus = broker.connect()
        consumer = await bus.consumer("a", "work", "sim.handoff.a.>", ack_wait=1.0)
        await bus.publish("sim.handoff.a.crew.w.t.1", b"{}", {})
        await consumer.take(1)  # the message is redelivered a second later

        async def wait(turns: int) -> None:
            for _ in range(turns):  # at different turns, so that one waiter always has work
                await asyncio.sleep(0)
            while clock.monotonic() < 1.0:
                await broker.until_changed()

        await clock.sleep(1.0 - 5e-10)
        await asyncio.gather(*(wait(turns) for turns in range(10)))
        return clock.monotonic()

    assert simulate(main, steps=1_000) < 1.001


def test_a_process_dies_with_every_task_that_began_in_it() -> None:
    lived: list[str] = []

    async def child(name: str) -> None:
        await asyncio.sleep(2)
        lived.append(name)

    async def parent(process: SimulatedProcess) -> None:
        tasks = [asyncio.create_task(child("deep"))]
        await asyncio.sleep(1)
        process.kill()
        await asyncio.wait(tasks)
        lived.append("parent")

    async def main() -> None:
        process = SimulatedProcess("p")
        outside = asyncio.create_task(child("outside"))
        process.start(parent(process))
        await process.wait()
        await outside

    simulate(main)

    assert lived == ["outside"]


def test_dead_process_has_no_effect() -> None:
    broker = MemoryBroker("sim", SimulatedClock())

    async def dying(process: SimulatedProcess) -> None:
        bus = FaultyBus(broker.connect(), Faults(Random(1), rates={}), process)
        try:
            process.kill()
            await asyncio.sleep(0)
        finally:
            await bus.publish("sim.request.team.anonymous", b"{}", {})

    async def main() -> int:
        process = SimulatedProcess("p")
        process.start(dying(process))
        await process.wait()
        return broker.stream("requests").end

    assert simulate(main) == 0


@pytest.mark.parametrize(
    ("fault", "raised", "stored"),
    [("unavailable", BusUnavailableError, 0), ("lost", PublishOutcomeUnknownError, 0), 
     ("unanswered", PublishOutcomeUnknownError, 1),
     ("late", PublishOutcomeUnknownError, 1), ("outage", BusUnavailableError, 0)],
)  # fmt: skip
def test_a_publish_fails_in_the_way_it_was_to(fault: str, raised: type[Exception], stored: int) -> None:
    broker = MemoryBroker("sim", SimulatedClock())

    async def main() -> int:
        bus = FaultyBus(broker.connect(), Faults(Random(1), rates={fault: 1.0}), SimulatedProcess("p"))
        with pytest.raises(raised):
            await bus.publish("sim.request.team.anonymous", b"{}", {})
        await asyncio.sleep(10)
        return broker.stream("requests").end

    assert simulate(main) == stored


def test_a_lost_acknowledgement_brings_the_message_again() -> None:
    broker = MemoryBroker("sim", SimulatedClock())

    async def main() -> list[int]:
        bus = FaultyBus(broker.connect(), Faults(Random(1), rates={"unsettled": 1.0}, until=1.0), SimulatedProcess("p"))
        consumer = await bus.consumer("c", "requests", "sim.request.team.anonymous", ack_wait=3.0)
        await bus.publish("sim.request.team.anonymous", b"{}", {})
        seen = []
        for _ in range(2):
            (delivery,) = await consumer.take(5)
            await delivery.ack()
            seen.append(delivery.delivered)
        return seen

    assert simulate(main) == [1, 2]


@pytest.mark.parametrize(
    "name",
    sorted(
        name
        for name, member in inspect.getmembers(Bus, inspect.iscoroutinefunction)
        if name
        not in ("close", "listen", "receive_forwarded", "serve")  # these wrap what they are given, or have no arguments
    ),
)
def test_a_call_without_faults_passes_every_argument_on(name: str) -> None:
    given = inspect.signature(getattr(Bus, name)).parameters.values()
    passed = [object() for each in given if each.kind is each.POSITIONAL_OR_KEYWORD and each.name != "self"]
    named = {each.name: object() for each in given if each.kind is each.KEYWORD_ONLY}

    async def main() -> Any:
        bus = create_autospec(Bus, instance=True)
        await getattr(FaultyBus(bus, Faults(Random(1), rates={}), SimulatedProcess("p")), name)(*passed, **named)
        return getattr(bus, name).call_args

    call = simulate(main)

    wanted = inspect.signature(getattr(Bus, name)).bind(None, *passed, **named).arguments
    got = inspect.signature(getattr(Bus, name)).bind(None, *call.args, **call.kwargs).arguments
    assert got == wanted
