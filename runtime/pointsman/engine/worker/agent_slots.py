"""Slots of an agent in a worker: the agent runs at most as many attempts at once as it has slots.

The agent's consumer and the counters that `$SRV.STATS` reports are stored with the slots.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from pointsman.authoring.agent import Agent
from pointsman.engine.worker.attempt import Attempt
from pointsman.engine.worker.queue_sharing import QueueSharing
from pointsman.ports.bus import Consumer, Delivery, Service
from pointsman.telemetry import metrics, semconv
from pointsman_schemas.card import AgentCard
from pointsman_schemas.subjects import Subjects

__all__ = ["AgentSlots", "SlotPool", "create_slots"]


def create_slots(agent: Agent, instance: str, subjects: Subjects, pool: SlotPool | None = None) -> AgentSlots:
    """Return the slots of `agent` in the worker `instance`: the slots of `pool`, or new slots if `pool` is None."""
    card = agent.card
    service = Service(
        card.name,
        instance,
        card.version,
        card.description,
        subjects.agent_handoffs(card.name),
        {"role": card.role, "skills": ", ".join(card.skills)},
    )
    pool = pool or SlotPool(card.concurrency)
    slots = AgentSlots(agent, card.name, pool, service, subjects.source("agent", card.name))
    slots.sharing = QueueSharing() if card.owner is None else None
    return slots


class SlotPool:
    """Slots of one agent in a worker, or of several agents that share the slots.

    Args:
        size: Number of slots.

    Attributes:
        free: Number of free slots.
        slot_free: Set while at least one slot is free.
    """

    def __init__(self, size: int) -> None:
        self.free = size
        self.slot_free = asyncio.Event()
        self.slot_free.set()

    def acquire(self) -> None:
        self.free -= 1
        if self.free == 0:
            self.slot_free.clear()

    def release(self) -> None:
        self.free += 1
        self.slot_free.set()


@dataclass(slots=True, eq=False)
class AgentSlots:
    """Slots of one agent in a worker.

    Attributes:
        agent: Agent of the slots.
        name: Name of the agent.
        pool: The slots.
        service: Service with the counters of the agent.
        source: CloudEvents source of the agent's events.
        consumer: Consumer of the agent's handoffs; None before the worker has started.
        card: Card that the worker announced last.
        problems: Problems that the worker found at its start, for the card.
        unfinished: Attempts that have a result although their threads or handlers still run.
        waiting: Deliveries that wait for a slot, if the agent shares its slots with agents of other teams.
        sharing: The teams with handoffs in the agent's queue; None for an agent of one team.
    """

    agent: Agent
    name: str
    pool: SlotPool
    service: Service
    source: str
    consumer: Consumer | None = None
    card: AgentCard | None = None
    problems: tuple[str, ...] = ()
    unfinished: list[Attempt] = field(default_factory=list)
    waiting: deque[Delivery] = field(default_factory=deque)
    sharing: QueueSharing | None = None

    def __post_init__(self) -> None:
        self.service.orphaned_handlers = self.orphaned_handlers

    def orphaned_handlers(self) -> int:
        """Return the number of the agent's threads and handlers that still run although their attempt has ended."""
        self.unfinished = [attempt for attempt in self.unfinished if attempt.orphaned_handlers]
        return sum(attempt.orphaned_handlers for attempt in self.unfinished)

    def acquire(self) -> None:
        self.pool.acquire()
        metrics.change_for_agent(semconv.HANDOFFS_ACTIVE, 1, self.name)

    def release(self) -> None:
        self.pool.release()
        metrics.change_for_agent(semconv.HANDOFFS_ACTIVE, -1, self.name)

    def record_request(self, seconds: float, error: str | None) -> None:
        self.service.requests += 1
        self.service.processing_time += seconds
        if error is not None:
            self.service.errors += 1
            self.service.last_error = error
