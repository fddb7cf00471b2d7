"""One sleeper fires many timeouts, each at its time."""

from __future__ import annotations

from pointsman.engine.worker.timeout_scheduler import TimeoutScheduler
from pointsman.testing.clock import VirtualClock


class Sleepers(VirtualClock):
    """A clock that counts the calls of `sleep`."""

    def __init__(self) -> None:
        super().__init__()
        self.slept = 0

    async def sleep(self, seconds: float) -> None:
        self.slept += 1
        await super().sleep(seconds)


async def test_each_timeout_fires_at_its_time_and_a_cancelled_one_never() -> None:
    clock, expired = VirtualClock(), list[str]()
    deadlines = TimeoutScheduler[str](clock, expired.append)

    for thing, seconds in (("late", 3.0), ("early", 1.0), ("forgotten", 2.0)):
        deadlines.watch(thing, seconds)
    await clock.advance(0.5)
    deadlines.cancel("forgotten")
    await clock.advance(0.4)
    before = list(expired)
    await clock.advance(0.2)
    first = list(expired)
    await clock.advance(10)

    assert (before, first, expired) == ([], ["early"], ["early", "late"])


async def test_timeout_added_during_a_sleep_is_on_time() -> None:
    clock, expired = VirtualClock(), list[str]()
    deadlines = TimeoutScheduler[str](clock, expired.append)

    deadlines.watch("long", 100.0)
    await clock.advance(1)
    deadlines.watch("short", 1.0)
    await clock.advance(1)

    assert expired == ["short"]


async def test_dropping_an_earlier_timeout_ends_no_later_one() -> None:
    clock, expired = VirtualClock(), list[str]()
    deadlines = TimeoutScheduler[str](clock, expired.append)

    deadlines.watch("first", 1.0)
    await clock.advance(0.5)
    deadlines.cancel("first")
    deadlines.watch("second", 1.0)
    await clock.advance(0.9)
    early = list(expired)
    await clock.advance(0.1)

    assert (early, expired) == ([], ["second"])


async def test_a_thousand_that_end_in_time_cost_one_sleep() -> None:
    clock = Sleepers()
    deadlines = TimeoutScheduler[int](clock, lambda _: None)

    for number in range(1_000):
        deadlines.watch(number, 60.0)
        await clock.settle()
        deadlines.cancel(number)

    assert clock.slept == 1


async def test_timeout_added_after_all_have_fired_fires_too() -> None:
    clock, expired = VirtualClock(), list[str]()
    deadlines = TimeoutScheduler[str](clock, expired.append)

    deadlines.watch("one", 1.0)
    await clock.advance(2)
    deadlines.watch("two", 1.0)
    await clock.advance(1)

    assert expired == ["one", "two"]


async def test_nothing_expires_once_it_is_closed() -> None:
    clock, expired = VirtualClock(), list[str]()
    deadlines = TimeoutScheduler[str](clock, expired.append)

    deadlines.watch("one", 1.0)
    deadlines.close()
    await clock.advance(2)

    assert expired == []
