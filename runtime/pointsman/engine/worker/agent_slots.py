"""A desk is one agent's place in a worker: its slots, its consumer, and the counters that `$SRV.STATS` answers with."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from pointsman.authoring.agent import Agent
from pointsman.engine.worker.attempt import Attempt
from pointsman.ports.bus import Consumer, Service
from pointsman.telemetry import metrics, semconv
from pointsman_schemas.card import AgentCard
from pointsman_schemas.subjects import Subjects

__all__ = ["AgentSlots", "create_slots"]


def create_slots(agent: Agent, instance: str, subjects: Subjects) -> AgentSlots:
    """The agent's desk in the worker `instance`, with all its slots free."""
    card = agent.card
    service = Service(
        card.name,
        instance,
        card.version,
        card.description,
        subjects.agent_handoffs(card.name),
        {"role": card.role, "skills": ", ".join(card.skills)},
    )
    return AgentSlots(agent, card.name, card.concurrency, service, subjects.source("agent", card.name))


@dataclass(slots=True, eq=False)
class AgentSlots:
    """`free_slots` is how many slots are free, `source` who its events are from, `unfinished` what was answered and
    still runs."""

    agent: Agent
    name: str
    free_slots: int
    service: Service
    source: str
    consumer: Consumer | None = None
    card: AgentCard | None = None
    unfinished: list[Attempt] = field(default_factory=list)
    slot_free: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.slot_free.set()
        self.service.orphaned_handlers = self.orphaned_handlers

    def orphaned_handlers(self) -> int:
        """How many threads and handlers of the agent were told to stop and still run."""
        self.unfinished = [attempt for attempt in self.unfinished if attempt.orphaned_handlers]
        return sum(attempt.orphaned_handlers for attempt in self.unfinished)

    def acquire(self) -> None:
        self.free_slots -= 1
        metrics.change_for_agent(semconv.HANDOFFS_ACTIVE, 1, self.name)
        if self.free_slots == 0:
            self.slot_free.clear()

    def release(self) -> None:
        self.free_slots += 1
        metrics.change_for_agent(semconv.HANDOFFS_ACTIVE, -1, self.name)
        self.slot_free.set()

    def record_request(self, seconds: float, error: str | None) -> None:
        self.service.requests += 1
        self.service.processing_time += seconds
        if error is not None:
            self.service.errors += 1
            self.service.last_error = error
