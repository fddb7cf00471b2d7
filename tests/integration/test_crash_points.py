"""A crash between receive, commit, publish and ack does not change the result."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from support import factory
from support.broker import remove_streams
from support.checker import problems
from support.crew import CREW, planner, steps, synthesizer, team, worker
from support.processes import System

from pointsman.engine.process.fault_injection import FAULT_POINTS
from pointsman.settings import Settings
from pointsman_schemas.events import Outcome

pytestmark = pytest.mark.timeout(180)

REQUEST: dict[str, Any] = {
    "tasks": [*steps("a", "b", "c")["tasks"], *steps("d", "e", serial=True)["tasks"]],
}
"""Three parallel tasks, and then two tasks in sequence."""

PASSAGES = {"supervisor.committed": 3, "supervisor.sent": 6, "supervisor.emitted": 2, "worker.ran": 4}
"""The last tested passage of each point; 1 for other points. The supervisor first sends the planner's handoff and the
timer, so the handoffs of the plan are the third to the sixth message."""


async def crash(settings: Settings, folder: Path, point: str, number: int) -> Outcome:
    """Crash a process at its passage `number` of `point`, replace it, and return the outcome of `REQUEST`."""
    part = point.partition(".")[0]
    name = f"{settings.namespace}-{point.replace('.', '-')}-{number}"
    # A long heartbeat: cards expire after three heartbeats, and must stay valid until the worker is replaced.
    own = settings.model_copy(update={"namespace": name, "ack_wait": 1.0, "heartbeat": 10.0})
    supervised = part == "worker"
    beside = factory.team(team if supervised else (), [] if supervised else [planner, synthesizer, worker], on=own)
    async with System(folder / own.namespace, own, POINTSMAN_FAULT=f"{point}:{number}") as system, beside:
        start = system.worker if supervised else system.supervisor
        armed = await start(CREW)
        workflow = await system.client.submit("crew", REQUEST)
        code = await asyncio.wait_for(armed.ended(), 60)
        del system.environment["POINTSMAN_FAULT"]
        await start(CREW)
        outcome = await workflow.outcome(60)
        found = await problems(system.client.bus, system.client.subjects, "crew", [workflow.id])
    await remove_streams(own)
    assert code == -signal.SIGKILL, f"{point}:{number} was not reached: {armed.text}"
    assert found == [], point
    return outcome


def seen(outcome: Outcome) -> tuple[Any, ...]:
    """Return the caller's view without times and ids."""
    tasks = [(task.task_id, task.agent, task.status, task.attempts) for task in outcome.tasks]
    return outcome.status, outcome.answer, outcome.gaps, tasks


@pytest.mark.parametrize("part", ["supervisor", "worker"])
async def test_crash_at_any_point_does_not_change_the_outcome(settings: Settings, tmp_path: Path, part: str) -> None:
    points = [point for point in FAULT_POINTS if point.startswith(part)]
    async with factory.team(team, [planner, synthesizer, worker], on=settings) as client:
        undisturbed = await (await client.submit("crew", REQUEST)).outcome(30)
    await remove_streams(settings)

    outcomes = await asyncio.gather(*(crash(settings, tmp_path, point, PASSAGES.get(point, 1)) for point in points))

    assert undisturbed.status == "completed"
    assert {point: seen(outcome) for point, outcome in zip(points, outcomes, strict=True)} == dict.fromkeys(
        points, seen(undisturbed)
    )
