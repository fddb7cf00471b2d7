"""A running system in one process: supervisors and workers on a real or an in-memory broker, and a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.bus.jetstream.bus import connect
from pointsman.bus.memory.bus import MemoryBroker
from pointsman.client.client import Client
from pointsman.clock import SystemClock
from pointsman.engine.supervisor.engine import SupervisorEngine
from pointsman.engine.worker.engine import Worker
from pointsman.errors import TaskError
from pointsman.ports.bus import Bus
from pointsman.settings import Settings
from pointsman_schemas.card import Role
from pointsman_schemas.plan import Plan
from pointsman_schemas.role_io import PlannerInput, Synthesis, SynthesizerInput
from pointsman_schemas.team import Team
from support.waiting import until

__all__ = ["echo", "in_memory", "planner_of", "running", "shaky", "synthesizer"]


def planner_of(*tasks: dict[str, Any]) -> Agent:
    """A planner that always answers with these tasks."""

    @agent(name="planner", description="Writes the plan of the test", role=Role.PLAN)
    async def plan(asked: PlannerInput) -> Plan:
        return Plan.model_validate({"goal": "the test's", "tasks": list(tasks)})

    return plan


@agent(name="synthesizer", description="Joins the results", role=Role.SYNTHESIZE)
async def synthesizer(asked: SynthesizerInput) -> Synthesis:
    return Synthesis(answer="joined")


def echo(name: str) -> Agent:
    """An agent that answers with what it was asked."""

    @agent(name=name, description=f"Repeats the request as {name}")
    async def repeat(request: str) -> str:
        return f"{name}: {request}"

    return repeat


@agent(name="shaky", description="Fails the first time")
async def shaky(request: str, context: Context) -> str:
    if context.attempt == 1:
        raise TaskError("not yet", retryable=True)
    return "now"


@asynccontextmanager
async def in_memory(team: Team, agents: Sequence[Agent], *, deliveries: int = 5) -> AsyncIterator[Client]:
    """A client of `team` and its agents on the in-memory bus. All inputs are settled when the context ends."""
    stop, broker, settings = asyncio.Event(), MemoryBroker(), Settings(ack_wait=2, max_deliveries=deliveries)
    engine = SupervisorEngine(broker.connect(), team, settings, SystemClock())
    worker = Worker(broker.connect(), agents, settings)
    tasks = [asyncio.create_task(part.run(stop)) for part in (engine, worker)]
    client = Client(broker.connect())

    async def announced() -> bool:
        return len(await client.agents()) == len(agents)

    async def settled() -> bool:
        queue = await client.bus.depth(f"inbox-{team.name}", "work")
        return queue is not None and queue.pending == queue.in_flight == 0

    try:
        await until(announced)
        yield client
        await until(settled)
    finally:
        stop.set()
        await asyncio.gather(*tasks)


@asynccontextmanager
async def running(
    settings: Settings, team: Team | None, agents: Sequence[Agent] = (), *, supervisors: int = 1
) -> AsyncIterator[Client]:
    """A client of a system with these parts, each on a connection of its own. It has drained when the context ends."""
    stop = asyncio.Event()
    buses: list[Bus] = []

    async def new_bus(name: str) -> Bus:
        buses.append(await connect(settings, name=name, wait=5.0))
        await buses[-1].set_up()
        return buses[-1]

    client = Client(await new_bus("client"), namespace=settings.namespace)
    parts = []
    if agents:
        parts.append(Worker(await new_bus("worker"), agents, settings).run(stop))
    for _ in range(supervisors if team else 0):
        assert team is not None
        parts.append(SupervisorEngine(await new_bus("supervisor"), team, settings, SystemClock()).run(stop))
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        names = {each.card.name for each in agents}

        async def announced() -> bool:
            for task in tasks:
                if task.done():
                    task.result()
            return names <= {card.name for card in await client.agents()}

        await until(announced)
        yield client
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await asyncio.gather(*tasks)
        for bus in buses:
            await bus.close()
