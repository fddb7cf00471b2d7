"""In simulated time, a team with few requests gets its share of an agent beside a team with many."""

from __future__ import annotations

import asyncio
from random import Random

from support import factory

from pointsman.authoring.agent import agent
from pointsman.authoring.team_agent import TeamAgent
from pointsman.bus.memory.bus import MemoryBroker
from pointsman.ports.clock import Clock
from pointsman.settings import Settings
from pointsman.testing.simulation import SimulatedClock, simulate
from pointsman_schemas.team import Limits, Pipeline, Stage, Team

WORK_S = 1.0
CHANCE = Random(1)
SLOTS = 4
QUEUED = 30
SAMPLES = 12
STEPS = 2_000_000
SETTINGS = Settings(ack_wait=20.0)


@agent(name="a", description="Works for a fixed time", concurrency=SLOTS)
async def clerk(request: str) -> str:
    await asyncio.sleep(CHANCE.uniform(0.8, 1.2) * WORK_S)  # otherwise all slots are free at the same moments
    return request


def p95_ratio() -> float:
    """Return the p95 of a small team beside a big team, relative to its p95 alone."""
    agents = [TeamAgent(clerk, "big"), TeamAgent(clerk, "small")]
    strategy, limits = Pipeline(stages=(Stage(agent="a"),)), Limits(deadline=600)
    teams = [
        Team(name=name, agents=("a",), own_agents=("a",), strategy=strategy, limits=limits) for name in ("big", "small")
    ]
    found: list[float] = []

    async def main() -> None:
        clock: Clock = SimulatedClock()
        broker = MemoryBroker("pointsman", clock)
        async with factory.team(teams, agents, broker=broker, clock=clock, settings=SETTINGS) as client:

            async def elapsed(name: str) -> float:
                began = clock.monotonic()
                assert (await (await client.submit(name, "hello")).outcome(600)).status == "completed"
                return clock.monotonic() - began

            async def load() -> None:
                while True:
                    await elapsed("big")

            async def p95() -> float:
                times = sorted([await elapsed("small") for _ in range(SAMPLES)])
                return times[round(0.95 * SAMPLES) - 1]

            alone = await p95()
            loads = [asyncio.create_task(load()) for _ in range(QUEUED)]
            await asyncio.sleep(3 * WORK_S)
            found.append(await p95() / alone)
            for each in loads:
                each.cancel()

    simulate(main, steps=STEPS)
    return found[0]


def test_team_gets_its_share_of_an_agent_with_queues_of_teams() -> None:
    """In one queue the ratio is above 7: 30 handoffs before each of the small team, at 4 at a time."""
    assert p95_ratio() <= 2.0
