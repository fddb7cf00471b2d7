"""The gauges of the queues cost nobody anything, whatever the broker says."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from support.prometheus import exposing, samples
from support.system import until

from pointsman.bus.clock import SystemClock
from pointsman.bus.memory import MemoryBus
from pointsman.engine.queues import show_queues
from pointsman.errors import BusUnavailable, PeerError
from pointsman.ports import QueueDepth, StreamKind


@pytest.mark.parametrize("error", [PeerError("not described"), BusUnavailable("away")])
async def test_a_queue_that_is_not_described_hides_no_other_and_ends_nothing(error: PeerError) -> None:
    class Bus(MemoryBus):
        async def depth(self, name: str, stream: StreamKind) -> QueueDepth | None:
            if name == "request-crew":
                raise error
            return QueueDepth(pending=3, in_flight=1)

    async def shown() -> bool:
        return showing.done() or len(samples(figures).get("pointsman_queue_depth", ())) == 2

    with exposing() as figures:
        showing = asyncio.create_task(show_queues(Bus(), SystemClock(), "crew"))
        await until(shown)
        goes_on = not showing.done()
        showing.cancel()
        with suppress(asyncio.CancelledError, PeerError):
            await showing
        depths = {labels["pointsman_queue_state"]: depth for labels, depth in samples(figures)["pointsman_queue_depth"]}

    assert goes_on
    assert depths == {"waiting": 3, "in_flight": 1}
