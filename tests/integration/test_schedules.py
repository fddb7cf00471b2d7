"""Schedules with a real broker and real processes survive crashes at each point, and an outage during a fire."""

from __future__ import annotations

import asyncio
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support import factory
from support.broker import own_settings, remove_streams, restart_broker
from support.crew import CREW, planner, steps, synthesizer, worker
from support.processes import System
from support.waiting import until

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.client.client import Client, connect
from pointsman.settings import Settings
from pointsman_schemas.schedules import Schedule
from pointsman_schemas.team import Pipeline, Stage, Team

pytestmark = pytest.mark.timeout(180)

SOLO = Team(name="crew", strategy=Pipeline(stages=(Stage(agent="a"),)))
# The first passage of each point belongs to the command that creates the schedule, the second to its timer. The point
# `sent` is different, because the first message that the supervisor sends is the request of the fire.
POINTS = {"received": 2, "committed": 2, "sent": 1, "emitted": 2, "acked": 2}


async def ended_run(client: Client, name: str) -> Schedule | None:
    found = await client.schedules.get(name)
    return found if [each.status for each in found.runs] == ["ended"] else None


async def crash(settings: Settings, folder: Path, point: str, number: int) -> None:
    """Crash the supervisor at a passage of `point`, and start another. The fire has one workflow with one outcome."""
    own = settings.model_copy(update={"namespace": f"{settings.namespace}-{point}", "ack_wait": 1.0, "heartbeat": 10.0})
    beside = factory.team((), [planner, synthesizer, worker], on=own)
    async with System(folder / own.namespace, own, POINTSMAN_FAULT=f"supervisor.{point}:{number}") as system, beside:
        armed = await system.supervisor(CREW)
        client = system.client
        soon = datetime.now(UTC) + timedelta(seconds=1)
        await client.schedules.create("report", "crew", steps("a"), at=soon)
        code = await asyncio.wait_for(armed.ended(), 60)
        del system.environment["POINTSMAN_FAULT"]
        await system.supervisor(CREW)
        shown = await until(lambda: ended_run(client, "report"), seconds=60)
        workflows = await client.list("crew")
        dead = await client.operations.dead_letters()
    await remove_streams(own)

    assert code == -signal.SIGKILL, f"{point}:{number} was not reached: {armed.text}"
    assert isinstance(shown, Schedule)
    assert [(each.workflow_id, each.outcome) for each in shown.runs] == [(workflows[0].id, "completed")]
    assert len(workflows) == 1
    assert list(dead) == []


async def test_fire_is_one_workflow_although_its_supervisor_is_killed(settings: Settings, tmp_path: Path) -> None:
    await asyncio.gather(*(crash(settings, tmp_path, point, number) for point, number in POINTS.items()))


async def test_fire_of_a_stopped_broker_comes_once_after_its_restart(
    own_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    settings = own_settings(own_broker, ack_wait=2.0, heartbeat=0.5)
    async with factory.team(SOLO, [factory.echo("a")], on=settings), connect(settings=settings) as client:
        soon = datetime.now(UTC) + timedelta(seconds=3.5)  # the broker must be stopped before, also on a slow machine
        await client.schedules.create("report", "crew", "the report", at=soon, grace=1.0, missed="once")
        await client.schedules.create("other", "crew", "the other", at=soon, grace=1.0, missed="skip")
        second = restart_broker(own_broker, tmp_path)
        await own_broker.stop()
        await asyncio.sleep(max(0.0, (soon - datetime.now(UTC)).total_seconds()) + 1.1)  # more than the grace
        await second.start()
        try:
            shown = await until(lambda: ended_run(client, "report"), seconds=30)

            async def missed() -> bool:
                return (await client.schedules.get("other")).status == "ended"

            await until(missed, seconds=30)
            other = await client.schedules.get("other")
            workflows = await client.list("crew")
        finally:
            await second.stop()

    assert isinstance(shown, Schedule)
    assert [each.workflow_id for each in shown.runs] == [each.id for each in workflows]
    assert (other.runs, other.missed) == ((), 1)
