"""On a real broker, a team with a hundred times the load does not take another team's share of a common agent."""

from __future__ import annotations

import asyncio
import os
from time import monotonic

import pytest
from support import factory
from support.factory import RunningTeam
from support.sizes import sized

from pointsman.authoring.agent import agent
from pointsman.authoring.team_agent import TeamAgent
from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.settings import Settings
from pointsman_schemas.team import Limits, Pipeline, Stage, Team

WORK_S = 0.15
SLOTS = 4
QUEUED = 100  # queued handoffs of the big team; in a shared queue, a new handoff would wait 25 times its own work
MAX_RATIO = 2.0


@agent(name="a", description="Works for a fixed time", concurrency=SLOTS)
async def clerk(request: str) -> str:
    await asyncio.sleep(WORK_S)
    return request


def team(name: str) -> Team:
    return Team(
        name=name,
        agents=("a",),
        own_agents=("a",),
        strategy=Pipeline(stages=(Stage(agent="a"),)),
        limits=Limits(deadline=120),
    )


async def p95(client: RunningTeam, samples: int = 20) -> float:
    """Run workflows of the small team one after another. Return the 95th percentile of their times in seconds."""
    found: list[float] = []
    for _ in range(samples):
        began = monotonic()
        outcome = await (await client.submit("small", "hello")).outcome(30)
        found.append(monotonic() - began)
        assert outcome.status == "completed"
    return sorted(found)[int(0.95 * samples) - 1]


async def load(client: RunningTeam) -> None:
    """Keep one workflow of the big team running until this task is cancelled."""
    while True:
        await (await client.submit("big", "hello")).outcome(60)


@sized
@pytest.mark.skipif(
    os.environ.get("POINTSMAN_CASES") != "reported",
    reason="only `make cases` measures real times; tests/simulation/test_fair_shares.py measures simulated times",
)
@pytest.mark.timeout(300)
async def test_busy_team_does_not_double_the_p95_of_another(bus: JetStreamBus, settings: Settings) -> None:
    """Measure the ratio up to three times, because another process may use the CPU during a measurement."""
    settings = settings.model_copy(update={"heartbeat": 5.0, "ack_wait": 20.0})
    agents = [TeamAgent(clerk, "big"), TeamAgent(clerk, "small")]
    ratios: list[float] = []
    async with factory.team([team("big"), team("small")], agents, on=settings) as client:
        for _ in range(3):
            alone = await p95(client)
            loads = [asyncio.create_task(load(client)) for _ in range(QUEUED)]
            await asyncio.sleep(4 * WORK_S)
            depth = await client.operations.queue_depth("big--a")
            ratios.append(await p95(client) / alone)
            for task in loads:
                task.cancel()
            await asyncio.gather(*loads, return_exceptions=True)
            assert depth is not None
            assert depth.pending + depth.in_flight > 10 * SLOTS  # the queue of the big team was full
            if ratios[-1] <= MAX_RATIO:
                break

    assert min(ratios) <= MAX_RATIO, ratios
