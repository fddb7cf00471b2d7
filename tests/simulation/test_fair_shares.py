"""In simulated time, a team with few requests gets its share of an agent beside a team with many."""

from __future__ import annotations

import asyncio
from random import Random
from typing import NamedTuple

from structlog.testing import capture_logs
from support import factory

from pointsman.authoring.agent import agent
from pointsman.authoring.team_agent import TeamAgent
from pointsman.bus.memory.bus import MemoryBroker
from pointsman.cli.support.shared_queues import describe_shared_queues
from pointsman.engine.process.agent_versions import group_by_name
from pointsman.ports.clock import Clock
from pointsman.settings import Settings
from pointsman.testing.simulation import SimulatedClock, simulate
from pointsman_schemas.team import Limits, Pipeline, Stage, Team

WORK_S = 1.0
CHANCE = Random(1)
TEAMS = ("big", "small")
SLOTS = 4
QUEUED = 30
STEPS = 2_000_000
SETTINGS = Settings(ack_wait=20.0)


@agent(name="a", description="Works for a fixed time", concurrency=SLOTS)
async def clerk(request: str) -> str:
    await asyncio.sleep(CHANCE.uniform(0.8, 1.2) * WORK_S)  # random, so that slots become free at different times
    return request


class Measured(NamedTuple):
    """The p95 of a small team beside a big team divided by its p95 alone, and the findings of doctor and worker."""

    ratio: float
    findings: list[str]
    warned: list[list[str]]


def measure(samples: int, *, own_queues: bool) -> Measured:
    """Measure the small team beside the big team, with a queue for each team at the agent or with a shared queue."""
    strategy, limits, own = Pipeline(stages=(Stage(agent="a"),)), Limits(deadline=600), ("a",) if own_queues else ()
    agents = [TeamAgent(clerk, "big"), TeamAgent(clerk, "small")] if own_queues else [clerk]
    teams = [Team(name=name, agents=("a",), own_agents=own, strategy=strategy, limits=limits) for name in TEAMS]
    found: list[float] = []
    findings: list[str] = []

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
                times = sorted([await elapsed("small") for _ in range(samples)])
                return times[round(0.95 * samples) - 1]

            alone = await p95()
            loads = [asyncio.create_task(load()) for _ in range(QUEUED)]
            await asyncio.sleep(3 * WORK_S)
            found.append(await p95() / alone)
            await client.submit("small", "hello")
            await asyncio.sleep(0.1 * WORK_S)
            findings.extend(await describe_shared_queues(client, group_by_name(await client.operations.agents())))
            for each in loads:
                each.cancel()

    with capture_logs() as lines:
        simulate(main, steps=STEPS)
    return Measured(found[0], findings, [each["teams"] for each in lines if each["event"] == "queue_shared_by_teams"])


def test_team_gets_its_share_of_an_agent_with_queues_of_teams() -> None:
    measured = measure(12, own_queues=True)

    assert measured.ratio <= 2.0
    assert not measured.findings
    assert not measured.warned


def test_worker_and_doctor_name_the_teams_that_wait_in_one_queue() -> None:
    """Each handoff of the small team is behind 30 other handoffs. The agent runs 4 at a time."""
    measured = measure(1, own_queues=False)

    assert measured.ratio > 5
    assert measured.warned == [["big", "small"]]
    assert [each.partition(":")[0] for each in measured.findings] == ["a"]
    assert "of big and small wait in one queue" in measured.findings[0]
