"""A running system in one process over the in-memory bus: supervisors for any number of teams, one worker, a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pointsman.authoring.agent import Agent
from pointsman.bus.memory.bus import MemoryBroker
from pointsman.client.client import Client
from pointsman.clock import SystemClock
from pointsman.engine.supervisor.engine import SupervisorEngine
from pointsman.engine.worker.engine import Worker
from pointsman.settings import Settings
from pointsman_schemas.team import Team
from support.waiting import until

__all__ = ["on_memory"]


@asynccontextmanager
async def on_memory(teams: Team | Sequence[Team], agents: Sequence[Agent]) -> AsyncIterator[Client]:
    """A client of these teams and agents. Everybody is announced when it begins, and has drained when it ends."""
    broker, settings, stop = MemoryBroker(), Settings(ack_wait=2), asyncio.Event()
    chosen = [teams] if isinstance(teams, Team) else teams
    engines = [SupervisorEngine(broker.connect(), team, settings, SystemClock()) for team in chosen]
    worker = Worker(broker.connect(), agents, settings)
    parts: list[SupervisorEngine | Worker] = [*engines, worker]
    tasks = [asyncio.create_task(part.run(stop)) for part in parts]
    client = Client(broker.connect())

    async def everybody() -> bool:
        for task in tasks:
            if task.done():
                task.result()
        there = {card.name for card in await client.bus.registry.cards()}
        names = {agent.card.name for agent in agents} | {team.name for team in chosen}
        return names <= there and all(engine.ready for engine in engines)

    try:
        await until(everybody)
        yield client
    finally:
        stop.set()
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks)
