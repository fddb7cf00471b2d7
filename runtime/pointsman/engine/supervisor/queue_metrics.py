"""Gauges of queue depths. Supervisors publish the gauges, because a stopped agent or webhook service cannot."""

from __future__ import annotations

from contextlib import suppress

from pointsman.engine.process.consumers import (
    DurableConsumer,
    agent_consumer,
    input_consumers,
    request_consumer,
    webhook_consumers,
)
from pointsman.errors import PeerError
from pointsman.ports.bus import Bus, QueueDepth
from pointsman.ports.clock import Clock
from pointsman.telemetry import metrics, semconv
from pointsman_schemas.subjects import Subjects

__all__ = ["publish_queue_gauges"]

_INTERVAL_S = 10.0
"""Time between two measurements. A shorter time would cost more, because a measurement takes one request for each
agent, and would show no more, because collectors read every 15 to 60 s."""


async def publish_queue_gauges(bus: Bus, subjects: Subjects, clock: Clock, team: str) -> None:
    """Publish the depth of the team's queues and of every agent's queue, including stopped agents with queued tasks.

    The queues of the webhook services are published if they exist. Every supervisor publishes the same figures, so use
    the maximum of the figures, not the sum. Never returns.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        clock: The clock.
        team: The team.
    """
    own: dict[DurableConsumer, str | None] = dict.fromkeys(
        (request_consumer(subjects, team), *input_consumers(subjects, team), *webhook_consumers(subjects))
    )
    queues = dict(own)
    while True:
        live = dict(queues)  # while the registry cannot be read, measure all known queues
        with suppress(PeerError):
            live = own | {agent_consumer(subjects, card.name): card.name for card in await bus.registry.cards()}
        queues |= live
        for queue, agent in list(queues.items()):
            depth: QueueDepth | None = None
            with suppress(PeerError):  # a depth that cannot be read has no gauge
                depth = await bus.depth(queue.name, queue.stream)
            if queue not in live and (depth is None or not depth.pending + depth.in_flight):
                depth = None
                del queues[queue]
            _set_gauges(queue.name, agent, depth)
        await clock.sleep(_INTERVAL_S)


def _set_gauges(queue: str, agent: str | None, depth: QueueDepth | None) -> None:
    for state in ("waiting", "in_flight"):
        about = {semconv.QUEUE: queue, semconv.AGENT_NAME: agent, semconv.QUEUE_STATE: state}
        if depth is None:
            metrics.clear_gauge(semconv.QUEUE_DEPTH, about)
        else:
            metrics.set_gauge(semconv.QUEUE_DEPTH, depth.pending if state == "waiting" else depth.in_flight, about)
