"""Queue gauges never delay work, regardless of the broker's answers."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from support.prometheus import exposing, samples
from support.waiting import until

from pointsman.bus.memory.bus import MemoryBus
from pointsman.clock import SystemClock
from pointsman.engine.process.consumers import webhook_consumers
from pointsman.engine.supervisor.queue_metrics import publish_queue_gauges
from pointsman.errors import BusUnavailableError, PeerError
from pointsman.ports.bus import QueueDepth, StreamKind
from pointsman.testing import VirtualClock
from pointsman_schemas.card import AgentCard
from pointsman_schemas.subjects import Subjects


def depths(figures: object) -> dict[str, float]:
    """Return the gauge of pending messages by queue."""
    shown = samples(figures).get("pointsman_queue_depth", ())  # type: ignore[arg-type]
    return {
        str(labels["pointsman_queue"]): depth for labels, depth in shown if labels["pointsman_queue_state"] == "waiting"
    }


async def test_queue_of_a_dead_agent_is_reported_while_messages_wait() -> None:
    bus, clock = MemoryBus(), VirtualClock()
    await bus.consumer("agent-writer", "work", "pointsman.handoff.writer.>", ack_wait=30.0)
    consumer = await bus.consumer("request-crew", "requests", "pointsman.request.crew.*", ack_wait=30.0)
    card = AgentCard(name="writer", description="writes", instance="w1")
    await bus.registry.announce(card)
    sequence = await bus.publish("pointsman.handoff.writer.team.w.t.1", b"{}", {})

    with exposing() as figures:
        showing = asyncio.create_task(publish_queue_gauges(bus, Subjects(), clock, "crew"))
        await clock.settle()
        alive = depths(figures)
        await bus.registry.withdraw(card)
        await clock.advance(10)
        gone = depths(figures)
        await bus.delete("work", sequence)
        await clock.advance(10)
        empty = depths(figures)
        await bus.registry.announce(card)
        await clock.advance(10)
        back = depths(figures)
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing

    assert consumer.bound
    assert alive == gone == {"request-crew": 0, "agent-writer": 1}
    assert empty == {"request-crew": 0}
    assert back == {"request-crew": 0, "agent-writer": 0}


async def test_queues_of_webhook_services_are_reported_without_a_service() -> None:
    bus, clock, subjects = MemoryBus(), VirtualClock(), Subjects()
    for each in webhook_consumers(subjects):
        await (await bus.consumer(each.name, each.stream, each.subject, ack_wait=30.0)).close()
    await bus.publish(subjects.delivery("wh_1", "wf_1", "evt_1"), b"{}", {})

    with exposing() as figures:
        showing = asyncio.create_task(publish_queue_gauges(bus, subjects, clock, "crew"))
        await clock.settle()
        shown = depths(figures)
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing

    assert shown == {
        "webhook-outcomes": 0, "webhook-questions": 0, "webhook-dead-letters": 0, "webhook-deliveries": 1,
    }  # fmt: skip


async def test_unreadable_queue_is_not_reported_by_its_last_figure() -> None:
    class Bus(MemoryBus):
        away = False

        async def depth(self, name: str, stream: StreamKind) -> QueueDepth | None:
            if self.away:
                raise BusUnavailableError("away")
            return QueueDepth(pending=3, in_flight=1)

    bus, clock = Bus(), VirtualClock()
    with exposing() as figures:
        showing = asyncio.create_task(publish_queue_gauges(bus, Subjects(), clock, "crew"))
        await clock.settle()
        before = depths(figures)
        bus.away = True
        await clock.advance(10)
        during = depths(figures)
        bus.away = False
        await clock.advance(10)
        after = depths(figures)
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing

    names = ["request-crew", "control-crew", "result-crew", "timer-crew"]
    names += [each.name for each in webhook_consumers(Subjects())]
    assert before == after == dict.fromkeys(names, 3)
    assert during == {}


@pytest.mark.parametrize("error", [PeerError("not described"), BusUnavailableError("away")])
async def test_a_failed_query_of_a_queue_hides_no_other_queue(error: PeerError) -> None:
    class Bus(MemoryBus):
        async def depth(self, name: str, stream: StreamKind) -> QueueDepth | None:
            if name == "request-crew":
                raise error
            return QueueDepth(pending=3, in_flight=1)

    async def shown() -> bool:
        return showing.done() or len(samples(figures).get("pointsman_queue_depth", ())) == 14

    with exposing() as figures:
        showing = asyncio.create_task(publish_queue_gauges(Bus(), Subjects(), SystemClock(), "crew"))
        await until(shown)
        goes_on = not showing.done()
        showing.cancel()
        with suppress(asyncio.CancelledError, PeerError):
            await showing
        depths = {labels["pointsman_queue_state"]: depth for labels, depth in samples(figures)["pointsman_queue_depth"]}

    assert goes_on
    assert depths == {"waiting": 3, "in_flight": 1}
