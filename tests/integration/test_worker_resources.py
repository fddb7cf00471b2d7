"""Lifespans and interceptors of a worker process, as `pointsman worker` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes import System

from pointsman.settings import Settings

pytestmark = pytest.mark.timeout(120)

TEAM = """
from pointsman import Pipeline, Stage, Team

team = Team(name="desk", strategy=Pipeline(stages=(Stage(agent="reader"),)))
"""
AGENTS = """
from collections.abc import AsyncIterator
from pathlib import Path

from pointsman import Context, agent, lifespan

NOTES = Path(__file__).with_suffix(".notes")


class Store:
    def __init__(self) -> None:
        self.reads = 0


def note(text: str) -> None:
    with NOTES.open("a") as file:
        file.write(text + "\\n")


@lifespan
async def store() -> AsyncIterator[Store]:
    opened = Store()
    note("open")
    yield opened
    note(f"close after {opened.reads}")


@agent
async def reader(request: str, context: Context) -> int:
    "Reads the store."
    context.dep(Store).reads += 1
    return context.dep(Store).reads
"""
CHECKS = """
from pydantic import JsonValue

from pointsman import AttemptInvocation, Interceptor, Next


class Doubling(Interceptor):
    async def attempt(self, call: AttemptInvocation, next: Next[AttemptInvocation, JsonValue]) -> JsonValue:
        return [await next(call), "seen"]


doubling = Doubling()
"""
BROKEN = AGENTS.replace('note("open")', 'raise ConnectionError("no database at db:5432")')


async def test_a_worker_opens_its_resources_before_it_works_and_closes_them_at_its_drain(
    settings: Settings, tmp_path: Path
) -> None:
    async with System(tmp_path, settings) as system:
        await system.supervisor(system.write("team.py", TEAM))
        worker = await system.worker(system.write("agents.py", AGENTS), system.write("checks.py", CHECKS))
        notes = tmp_path / "agents.notes"
        before = notes.read_text()

        answers = [(await system.ask("desk", "go")).answer for _ in range(2)]
        code = await worker.stop()

    assert (before, answers, code) == ("open\n", [[1, "seen"], [2, "seen"]], 0)
    assert notes.read_text() == "open\nclose after 2\n"


async def test_a_lifespan_that_fails_ends_the_worker_with_one_line(settings: Settings, tmp_path: Path) -> None:
    async with System(tmp_path, settings) as system:
        ended = await system.command("worker", system.write("broken.py", BROKEN))

    assert ended.code == 2
    lines = [line for line in ended.errors.splitlines() if not line.startswith("{")]
    assert len(lines) == 1
    assert lines[0] == (
        "pointsman: the lifespan store (broken.py:20) failed at the start of the worker: "
        "ConnectionError: no database at db:5432"
    )
    assert "Traceback" not in ended.errors + ended.output
