"""Several connections may set up one namespace, and a closed connection stays closed."""

from __future__ import annotations

import asyncio

import pytest
from support.place import TIMEOUT_S, BrokerNamespace

from pointsman.errors import BusUnavailableError


async def test_set_up_may_run_many_times_at_once(place: BrokerNamespace) -> None:
    buses = [await place.connect() for _ in range(4)]

    await asyncio.gather(*(each.set_up() for each in buses * 2))

    assert await buses[0].publish(place.log, b"", {}) == 1


async def test_handoffs_are_stored_in_the_work_stream(place: BrokerNamespace) -> None:
    bus = await place.connect()
    await bus.set_up()

    names = [bus.stream_name(stream) for stream in ("work", "handoffs", "log", "dead")]

    ns = place.ns.upper()
    assert names == [f"{ns}_WORK", f"{ns}_WORK", f"{ns}_LOG", f"{ns}_DEAD"]


async def test_closing_twice_is_safe_and_ends_the_connection(place: BrokerNamespace) -> None:
    bus = await place.connect()
    await bus.set_up()

    await asyncio.wait_for(bus.close(), TIMEOUT_S)
    await asyncio.wait_for(bus.close(), TIMEOUT_S)

    assert not bus.connected
    with pytest.raises(BusUnavailableError):
        await asyncio.wait_for(bus.last("log", place.log), TIMEOUT_S + 5)


async def test_a_closed_bus_reports_it(place: BrokerNamespace) -> None:
    other = await place.connect()

    before = other.closed
    await other.close()

    assert (before, other.closed) == (False, True)
