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

__all__ = ["Desk", "desk_of"]


def desk_of(agent: Agent, instance: str, subjects: Subjects) -> Desk:
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
    return Desk(agent, card.name, card.concurrency, service, subjects.source("agent", card.name))


@dataclass(slots=True, eq=False)
class Desk:
    """`room` is how many slots are free, `source` who its events are from, `left` what was answered and still runs."""

    agent: Agent
    name: str
    room: int
    service: Service
    source: str
    consumer: Consumer | None = None
    announced: AgentCard | None = None
    left: list[Attempt] = field(default_factory=list)
    free: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.free.set()
        self.service.orphaned_handlers = self.left_running

    def left_running(self) -> int:
        """How many threads and handlers of the agent were told to stop and still run."""
        self.left = [attempt for attempt in self.left if attempt.left_running]
        return sum(attempt.left_running for attempt in self.left)

    def occupy(self) -> None:
        self.room -= 1
        metrics.change(semconv.HANDOFFS_ACTIVE, 1, self.name)
        if self.room == 0:
            self.free.clear()

    def vacate(self) -> None:
        self.room += 1
        metrics.change(semconv.HANDOFFS_ACTIVE, -1, self.name)
        self.free.set()

    def count(self, seconds: float, error: str | None) -> None:
        self.service.requests += 1
        self.service.processing_time += seconds
        if error is not None:
            self.service.errors += 1
            self.service.last_error = error
