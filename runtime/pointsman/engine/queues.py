"""What waits in the broker's queues is looked at by whoever supervises: an agent that is gone cannot tell."""

from __future__ import annotations

from contextlib import suppress

from pointsman.engine.handoffs import consumer_name
from pointsman.errors import PeerError
from pointsman.ports import Bus, Clock
from pointsman.telemetry import metrics, names

__all__ = ["show_queues"]

_EVERY = 10.0  # seconds between two looks: metrics are collected every 15 to 60, and a look is a request for each agent


async def show_queues(bus: Bus, clock: Clock, team: str) -> None:
    """Keep the gauges of the team's queues, and of every agent's that was seen since the start. Never returns.

    Every supervisor shows the same figures: take their maximum, not their sum.
    """
    queues: dict[str, str | None] = {f"request-{team}": None, f"inbox-{team}": None}
    while True:
        with suppress(PeerError):
            queues.update({consumer_name(card.name): card.name for card in await bus.registry.cards()})
        for queue, agent in queues.items():
            with suppress(PeerError):  # a figure that is missing is missing
                if (depth := await bus.depth(queue, "work")) is not None:
                    for state, count in (("waiting", depth.pending), ("in_flight", depth.in_flight)):
                        about = {names.QUEUE: queue, names.AGENT_NAME: agent, names.QUEUE_STATE: state}
                        metrics.show(names.QUEUE_DEPTH, count, about)
        await clock.sleep(_EVERY)
