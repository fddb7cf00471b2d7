"""In a webhook service, a slow receiver, or a caller with many slow receivers, does not delay others."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime

from pointsman.testing import VirtualClock
from pointsman.webhooks.capacity import Capacity
from pointsman.webhooks.endpoints import Endpoint

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def endpoint(id: str, caller: str | None = None) -> Endpoint:
    return Endpoint(id=id, url="https://example.org/hook", caller=caller, created_at=NOW)


def sent(capacity: Capacity, stack: ExitStack, of: Endpoint, most: int = 100) -> int:
    """Start deliveries to an endpoint until its limit is reached. Return their number."""
    for number in range(most):
        if capacity.deferral(of) > 0:
            return number
        stack.enter_context(capacity.sending(of))
    return most


def test_an_endpoint_has_a_quarter_of_the_room() -> None:
    capacity = Capacity(32, VirtualClock())
    with ExitStack() as stack:
        assert [sent(capacity, stack, endpoint(id)) for id in ("a", "b", "c", "d")] == [8, 8, 8, 8]


def test_all_endpoints_of_a_caller_share_a_quarter_and_callers_leave_room() -> None:
    capacity = Capacity(32, VirtualClock())
    with ExitStack() as stack:
        of_ada = sum(sent(capacity, stack, endpoint(f"a{number}", "ada")) for number in range(5))
        others = sum(sent(capacity, stack, endpoint(f"c-{name}", name)) for name in ("ben", "cy", "dee"))
        of_operators = sent(capacity, stack, endpoint("o"))

    assert (of_ada, others, of_operators) == (8, 16, 8)
    assert capacity.deferral(endpoint("a1", "ada")) == 0  # the deliveries have ended


async def test_deferred_deliveries_come_back_by_the_speed_of_their_endpoint() -> None:
    capacity, slow = Capacity(4, VirtualClock()), endpoint("slow")
    for _ in range(50):
        capacity.record(slow, 10.0)
    with capacity.sending(slow):
        waits = [round(capacity.deferral(slow)) for _ in range(8)]

    assert waits == [10, 20, 30, 40, 50, 60, 60, 60]


async def test_an_overloaded_endpoint_gets_nothing_for_a_bounded_time() -> None:
    clock = VirtualClock()
    capacity, busy = Capacity(32, clock), endpoint("busy")
    capacity.throttle(busy, 86_400)
    waits = capacity.deferral(busy)
    await clock.advance(301)

    assert 300 <= waits <= 330
    assert capacity.deferral(busy) == 0
