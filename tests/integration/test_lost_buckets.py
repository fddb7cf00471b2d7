"""A bucket that is deleted at run time is created again, and work continues."""

from __future__ import annotations

from collections import Counter

import pytest
from structlog.testing import capture_logs
from support import factory
from support.broker import TIMEOUT_S
from support.crew import planner, steps, synthesizer, team, worker
from support.waiting import until

from pointsman.authoring.agent import Agent
from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.ports.bus import Bus
from pointsman.settings import Settings

pytestmark = pytest.mark.timeout(60)

CREW: list[Agent] = [planner, synthesizer, worker]


async def test_agents_are_known_again_after_the_bucket_of_their_cards_was_deleted(
    bus: JetStreamBus, settings: Settings
) -> None:
    async with factory.team(team, CREW, on=settings) as client:
        name = f"KV_{client.subjects.agents_bucket}"
        # All workers and the supervisor have announced cards.
        await until(lambda: _as_many(client.bus, len(CREW) + 1), seconds=TIMEOUT_S)
        before = await client.bus.registry.cards()
        with capture_logs() as lines:
            await bus.api(f"STREAM.DELETE.{name}")
            await until(lambda: _is_there(bus, name), seconds=TIMEOUT_S)
            outcome = await (await client.submit("crew", steps("a"))).outcome(20)
            await until(lambda: _as_many(client.bus, len(before)), seconds=TIMEOUT_S)

    assert outcome.status == "completed"
    assert name in {line["stream"] for line in lines if line["event"] == "stream_lost"}


@pytest.mark.parametrize("kind", ["request", "result"])
async def test_deleted_body_bucket_is_created_again(bus: JetStreamBus, settings: Settings, kind: str) -> None:
    large = "x" * 2 * bus.max_payload
    request = steps(large) if kind == "request" else steps("x", times=2 * bus.max_payload)
    request["tasks"][0]["id"], request["tasks"][0]["intent"] = "t1", "say it"
    async with factory.team(team, CREW, on=settings) as client:
        with capture_logs() as lines:
            await bus.api(f"STREAM.DELETE.OBJ_{client.subjects.artifacts_bucket}")
            workflow = await client.submit("crew", request)
            outcome = await workflow.outcome(30)

    said = Counter(line["event"] for line in lines)
    assert (outcome.status, outcome.answer) == ("completed", large)
    assert {task.attempts for task in outcome.tasks} == {1}
    assert not said.keys() & {"inputs_failed", "handoff_processing_failed", "bug"}, said


async def _is_there(bus: JetStreamBus, stream: str) -> bool:
    return "config" in await bus.api(f"STREAM.INFO.{stream}")


async def _as_many(bus: Bus, count: int) -> bool:
    return len(await bus.registry.cards()) == count
