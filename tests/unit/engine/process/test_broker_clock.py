"""The broker's time is read again after a slow answer."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from pointsman.bus.memory.bus import MemoryBus
from pointsman.engine.process.broker_clock import BrokerClock
from pointsman.testing.clock import VirtualClock

BEHIND = timedelta(hours=1)


class SlowBus(MemoryBus):
    """A bus whose broker is an hour behind `clock`. Each answer of the broker arrives `delays` seconds late."""

    def __init__(self, clock: VirtualClock, delays: Iterator[float]) -> None:
        super().__init__()
        self._machine, self._delays = clock, delays

    async def time(self) -> datetime:
        answer = self._machine.now() - BEHIND
        await self._machine.advance(next(self._delays))
        return answer


@pytest.mark.parametrize(
    ("delays", "most", "readings"),
    [((0.02,), 0.01, 1), ((2.7, 0.02), 0.01, 2), ((2.7, 1.0, 2.0), 0.5, 3), ((0.4, 3.0, 3.0), 0.2, 3)],
)
async def test_slow_answer_does_not_set_the_clock_back(delays: tuple[float, ...], most: float, readings: int) -> None:
    machine = VirtualClock()
    left = iter(delays)
    clock = BrokerClock(machine)

    await clock.synchronize(SlowBus(machine, left))

    difference = machine.now() - BEHIND - clock.now()
    assert abs(difference.total_seconds()) <= most + 1e-6
    assert len(delays) - len(list(left)) == readings
