"""A namespace on a memory broker or a real nats-server, for the tests of `tests/contract`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

import pytest

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.bus.jetstream.bus import connect
from pointsman.bus.memory.bus import MemoryBroker
from pointsman.ports.bus import Bus, Delivery
from pointsman.settings import Settings
from support import waiting
from support.broker import remove_streams

__all__ = [
    "HEARTBEAT_S",
    "TIMEOUT_S",
    "BrokerNamespace",
    "bus",
    "depth_is",
    "heartbeat",
    "place",
    "server",
    "take_all",
    "take_one",
    "until",
    "wait_for_pulls",
]

HEARTBEAT_S = 1 / 3  # seconds; a card expires after three, and 1 s is the shortest time that a broker accepts
TIMEOUT_S = 10.0  # seconds to wait for an expected event, enough for a busy machine


@dataclass
class BrokerNamespace:
    """A namespace of one broker, and any number of connections to the broker."""

    ns: str
    connect: Callable[[], Awaitable[Bus]]

    def handoff(self, number: int = 1) -> str:
        return f"{self.ns}.handoff.writer.team.w.t.{number}"

    def request(self, caller: str) -> str:
        return f"{self.ns}.request.team.{caller}"

    @property
    def handoffs(self) -> str:
        return f"{self.ns}.handoff.writer.>"

    @property
    def log(self) -> str:
        return f"{self.ns}.log.team.w"


@pytest.fixture(params=["memory", "jetstream", "jetstream-bound"])
def server(request: pytest.FixtureRequest) -> EmbeddedBroker | None:
    return None if request.param == "memory" else request.getfixturevalue("broker")


@pytest.fixture
def heartbeat() -> float:
    """Return the seconds between the announcements of a card. Cards of most tests must not expire on a busy machine."""
    return 5.0


@pytest.fixture
async def place(
    server: EmbeddedBroker | None, namespace: str, heartbeat: float, request: pytest.FixtureRequest
) -> AsyncIterator[BrokerNamespace]:
    leader_reads = "jetstream-bound" not in request.node.name
    async with AsyncExitStack() as stack:
        if server is None:
            memory = MemoryBroker(namespace, heartbeat=heartbeat)

            async def open_one() -> Bus:
                return memory.connect()
        else:
            settings = Settings(url=server.url, namespace=namespace, heartbeat=heartbeat, request_timeout=TIMEOUT_S)

            async def open_one() -> Bus:
                bus = await connect(settings, name="contract", wait=TIMEOUT_S, leader_reads=leader_reads)
                stack.push_async_callback(bus.close)
                return bus

        yield BrokerNamespace(namespace, open_one)
        if server is not None:
            await remove_streams(settings)


@pytest.fixture
async def bus(place: BrokerNamespace) -> Bus:
    bus = await place.connect()
    await bus.set_up()
    return bus


until = partial(waiting.until, seconds=TIMEOUT_S)


async def take_one(consumer: object, room: int = 10, wait: float = TIMEOUT_S) -> list[Delivery]:
    async with asyncio.timeout(wait):
        return list(await consumer.take(room))  # type: ignore[attr-defined]


async def take_all(consumer: object, number: int) -> list[Delivery]:
    taken: list[Delivery] = []
    while len(taken) < number:
        taken += await take_one(consumer, number - len(taken))
    return taken


async def wait_for_pulls(bus: Bus, number: int) -> None:
    """Return when the broker has `number` requests for messages of the consumer `writer`."""

    async def requested() -> bool:
        depth = await bus.depth("writer", "work")
        return depth is not None and depth.pulls == number

    await until(requested)


async def depth_is(bus: Bus, pending: int, in_flight: int) -> bool:
    depth = await bus.depth("writer", "work")
    return depth is not None and (depth.pending, depth.in_flight) == (pending, in_flight)
