"""A body in the object store exists as long as a message refers to it."""

from __future__ import annotations

from pointsman.bus.claim_check import REUSE_MAX_AGE_S
from pointsman.bus.memory.bus import MemoryBus
from pointsman.testing import VirtualClock

LARGE = b"x" * 5_000
STORE = "$O.POINTSMAN_ARTIFACTS"


async def test_old_body_is_stored_again_and_a_fresh_one_is_not() -> None:
    clock = VirtualClock()
    bus = MemoryBus(clock=clock, max_payload=2_000)

    await bus.publish("pointsman.log.crew.a", LARGE, {})
    await clock.advance(REUSE_MAX_AGE_S - 1)
    await bus.publish("pointsman.log.crew.a", LARGE, {})
    fresh = [stored async for stored in bus.read("artifacts", f"{STORE}.M.*")]
    await clock.advance(2)
    await bus.publish("pointsman.log.crew.a", LARGE, {})
    old = [stored async for stored in bus.read("artifacts", f"{STORE}.M.*")]

    assert (len(fresh), len(old)) == (1, 2)
    assert (await bus.time() - old[-1].at).total_seconds() == 0
    assert {stored.body async for stored in bus.read("log", "pointsman.log.crew.*")} == {LARGE}
