"""Worker processes on a real broker share the work of a skill by queue length and speed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.broker import remove_streams
from support.lines import lines_of
from support.processes import System, wait_for

from pointsman.settings import Settings

pytestmark = pytest.mark.timeout(180)

CREW = '''
"""Agents that wait while a file exists, and record each start."""

import asyncio
from pathlib import Path

from pointsman import Pipeline, Stage, Team, agent

HERE = Path(__file__).parent


async def begin(name: str) -> str:
    with (HERE / "begun").open("a") as begun:
        begun.write(f"{name}\\n")
    while (HERE / f"{name}-waits").exists():
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3 if (HERE / f"{name}-slow").exists() else 0.0)
    return name


@agent(name="alpha", description="Translates", skills=["translation"], concurrency=1)
async def alpha(request: str) -> str:
    return await begin("alpha")


@agent(name="beta", description="Translates, too", skills=["translation"], concurrency=1)
async def beta(request: str) -> str:
    return await begin("beta")


bureau = Team(name="bureau", strategy=Pipeline(stages=(Stage(skill="translation"),)))
busy = Team(name="busy", strategy=Pipeline(stages=(Stage(agent="alpha"),)))
'''


def begun(folder: Path) -> list[str]:
    return lines_of(folder / "begun")


async def test_worker_with_the_shorter_queue_gets_the_work_of_a_skill(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "alpha-waits").touch()
    async with System(tmp_path, settings) as system:
        target = system.write("routes.py", CREW)
        await asyncio.gather(
            system.supervisor(target), system.worker(f"{target}:alpha"), system.worker(f"{target}:beta")
        )
        waiting = [await system.client.submit("busy", "work") for _ in range(5)]

        async def queued() -> bool:
            depth = await system.client.operations.queue_depth("alpha")
            return depth is not None and depth.pending + depth.in_flight == len(waiting)

        await wait_for(queued, "queue of alpha's")
        answers = [(await system.ask("bureau", "translate")).answer for _ in range(3)]
        (tmp_path / "alpha-waits").unlink()
        for workflow in waiting:
            await workflow.outcome(30)
    await remove_streams(settings)

    assert answers == ["beta"] * 3
    assert sorted(begun(tmp_path)) == ["alpha"] * 5 + ["beta"] * 3
