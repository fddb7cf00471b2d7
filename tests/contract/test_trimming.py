"""Trimming removes settled messages and messages below a sequence, and keeps all others."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from support.place import TIMEOUT_S, BrokerNamespace, take_one

from pointsman.clock import SystemClock
from pointsman.engine.supervisor.retention import RetentionJob
from pointsman.ports.bus import Bus
from pointsman_schemas.subjects import Subjects


class Ahead(SystemClock):
    """A clock that is ten days ahead."""

    def now(self) -> datetime:
        return super().now() + timedelta(days=10)


async def test_trim_removes_only_messages_below_the_sequence(place: BrokerNamespace, bus: Bus) -> None:
    first, second, third, other = [
        await bus.publish(f"{place.ns}.{name}", b"{}", {})
        for name in ("timer.team.w.a", "timer.team.w.b", "timer.team.w.a", "schedule.team.w.timer.a")
    ]

    await bus.trim("work", f"{place.ns}.timer.team.w.a", second - 1)
    of_one = [stored.sequence async for stored in bus.read("work", ">")]
    await bus.trim("work", f"{place.ns}.timer.>", third - 1)
    below = [stored.sequence async for stored in bus.read("work", ">")]
    await bus.trim("work", ">", other)

    assert of_one == [second, third, other]
    assert below == [third, other]
    assert first < second
    assert await bus.last("work", ">") is None
    assert await bus.publish(f"{place.ns}.timer.team.w.a", b"{}", {}, expect=0) > other


async def test_trim_keeps_unacknowledged_messages(place: BrokerNamespace, bus: Bus) -> None:
    subjects, request = Subjects(place.ns), f"{place.ns}.request.team.ada"
    for number in range(1_200):  # more than one batch of reads or removals
        await bus.publish(f"{place.ns}.step.a.team.w.t.1.{number}", b"{}", {})
    await bus.publish(f"{place.ns}.step.a.team.w.t.1.large", b"x" * (bus.max_payload + 1), {})
    await bus.publish(request, b"{}", {})
    trimmer = RetentionJob(bus, subjects, Ahead(), "team", retention_days=9)

    await trimmer.apply()
    waiting = [*await bus.subjects("requests", ">"), *await bus.subjects("results", ">")]
    bodies = await bus.subjects("artifacts", subjects.objects)
    consumer = await bus.consumer("request-team", "requests", request, ack_wait=30)
    (delivery,) = await take_one(consumer)
    await trimmer.apply()
    taken = await bus.subjects("requests", ">")
    await delivery.ack()
    async with asyncio.timeout(TIMEOUT_S):
        while await bus.subjects("requests", ">"):
            await trimmer.apply()
    await trimmer.apply()

    assert waiting == taken == [request]
    assert bodies
    assert await bus.subjects("artifacts", ">") == []
