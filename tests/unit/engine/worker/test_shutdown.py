"""A worker announces its cards while it works, stops in time, and returns unfinished handoffs to the queue."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
from support import factory
from support.factory import FAST, echo
from support.handoffs import SupervisorDouble
from support.waiting import measured_stalls, quickly, until

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.bus.memory.bus import MemoryBroker, MemoryBus
from pointsman.engine.worker.engine import Worker
from pointsman.errors import ConfigurationError, PublishOutcomeUnknownError
from pointsman.settings import Settings
from pointsman.testing.clock import VirtualClock
from pointsman_schemas.events import Handoff


def test_a_worker_needs_agents_with_names_of_their_own() -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        Worker(MemoryBus(), [], FAST)
    with pytest.raises(ConfigurationError, match="rename an agent"):
        factory.worker(MemoryBus(), echo("a"), echo("a"))


async def test_cards_are_announced_while_it_works_and_gone_when_it_stops() -> None:
    clock = VirtualClock()
    broker = MemoryBroker(heartbeat=FAST.heartbeat, clock=clock)
    bus = broker.connect()
    subject = factory.worker(bus, clock=clock)

    async def announced() -> bool:
        return len(await bus.registry.cards()) == 1

    async with factory.running(subject):
        await until(announced)
        await clock.advance(10 * FAST.heartbeat)  # longer than the card's time to live
        (card,) = await bus.registry.cards()
        services = [service.name for service in broker.services]

    assert (card.name, card.instance) == ("echo", subject.instance)
    assert card.started_at is not None
    assert services == ["echo"]
    assert list(await bus.registry.cards()) == []
    assert broker.services == []
    assert not subject.ready


@pytest.mark.parametrize("own_loop", [False, True])
async def test_running_work_finishes_within_the_grace(own_loop: bool) -> None:
    desk = SupervisorDouble(MemoryBus())
    started, release = threading.Event(), threading.Event()

    @agent(name="brief", description="d")
    async def brief() -> str:
        started.set()
        while not release.is_set():
            await asyncio.sleep(0.01)
        return "done"

    async with factory.running(
        factory.worker(desk.bus, brief, own_loop=own_loop, settings=Settings(shutdown_grace=5))
    ) as stop:
        handoff = await desk.publish_handoff("brief")
        await until(started.is_set)
        stop.set()
        late = await desk.publish_handoff("brief", task="T2")
        release.set()
        result = await desk.result(handoff)

    assert result.output == "done"
    assert await desk.find_result(late) is None


@pytest.mark.parametrize("own_loop", [False, True])
async def test_work_longer_than_the_grace_is_handed_back(own_loop: bool) -> None:
    desk = SupervisorDouble(MemoryBus())
    started = threading.Event()
    wait = True

    @agent(name="long", description="d")
    async def long() -> str:
        started.set()
        if wait:
            await asyncio.sleep(3600)
        return "done"

    with measured_stalls() as stalls:
        async with factory.running(
            factory.worker(desk.bus, long, own_loop=own_loop, settings=Settings(shutdown_grace=0.1, ack_wait=60))
        ) as stop:
            handoff = await desk.publish_handoff("long")
            await until(started.is_set)
            began = time.monotonic()
            stop.set()
        took = time.monotonic() - began
    before = await desk.find_result(handoff)
    wait = False
    async with factory.running(factory.worker(desk.bus, long)):
        result = await quickly(desk.result(handoff), 2)

    assert took < 6 + sum(stalls)
    assert before is None
    assert result.output == "done"


async def test_handoff_arriving_with_the_stop_does_not_delay_it() -> None:
    @agent(name="long", description="d")
    async def long() -> None:
        await asyncio.sleep(3600)

    took: list[float] = []
    for turns in range(16):
        desk = SupervisorDouble(MemoryBus())
        async with factory.running(
            factory.worker(desk.bus, long, settings=Settings(shutdown_grace=0.0, ack_wait=60))
        ) as stop:
            await desk.publish_handoff("long")
            for _ in range(turns):
                await asyncio.sleep(0)
            began = time.monotonic()
            stop.set()
        took.append(time.monotonic() - began)

    assert max(took) < 5, took


class Silent(MemoryBus):
    """A bus that never answers a publish of a result."""

    async def publish(self, subject: str, body: bytes, headers: Mapping[str, str], **more: Any) -> int:
        if ".result." in subject:
            raise PublishOutcomeUnknownError("no answer")
        return await super().publish(subject, body, headers, **more)


async def test_worker_with_a_silent_broker_stops_in_time_without_acks() -> None:
    desk = SupervisorDouble(Silent())
    ran = asyncio.Event()

    @agent(name="quick", description="d")
    async def quick() -> None:
        ran.set()

    with measured_stalls() as stalls:
        async with factory.running(factory.worker(desk.bus, quick, settings=Settings(shutdown_grace=0.1))) as stop:
            await desk.publish_handoff("quick")
            await ran.wait()
            began = time.monotonic()
            stop.set()
        took = time.monotonic() - began

    depth = await desk.bus.depth("agent-quick", "work")
    assert took < 5 + sum(stalls)
    assert depth is not None
    assert (depth.pending, depth.in_flight) == (0, 1)


async def test_agents_release_resources_on_their_own_loop() -> None:
    desk = SupervisorDouble(MemoryBus())
    loops: list[asyncio.AbstractEventLoop] = []

    class Holding(Agent):
        card = echo("echo").card

        async def run(self, handoff: Handoff, context: Context) -> Any:
            loops.append(asyncio.get_running_loop())

        async def close(self) -> None:
            loops.append(asyncio.get_running_loop())
            raise ValueError("a close that fails does no harm")

    async with factory.running(factory.worker(desk.bus, Holding(), own_loop=True)):
        await desk.result(await desk.publish_handoff("echo"))

    assert len(loops) == 2
    assert loops[0] is loops[1]
    assert loops[0] is not asyncio.get_running_loop()
