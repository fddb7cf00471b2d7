"""A new kind of worker joins and leaves a running system without any change of other processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.broker import remove_streams
from support.processes import System

from pointsman.settings import Settings

pytestmark = pytest.mark.timeout(120)

TEAM = """
from pointsman import ANY, Team

team = Team(name="desk", agents=ANY)
"""
TRANSLATOR = """
from pydantic import BaseModel

from pointsman import Context, agent


class Passage(BaseModel):
    text: str


@agent(name="translator", description="Translates a passage into another language", skills=["translation"])
async def translate(passage: str, context: Context) -> Passage:
    context.progress("consulting the glossary")
    return Passage(text=f"[fr] {passage}")
"""
REQUEST = "Translate this passage into French"


async def test_request_is_served_once_a_capable_worker_starts(settings: Settings, tmp_path: Path) -> None:
    async with System(tmp_path, settings) as system:
        supervisor, roles = await asyncio.gather(
            system.supervisor(system.write("team.py", TEAM)),
            system.worker("pointsman_agents.planner", "pointsman_agents.synthesizer"),
        )

        before = await system.ask("desk", REQUEST)
        translator = await system.worker(system.write("translator.py", TRANSLATOR))
        served = await system.ask("desk", REQUEST)
        code = await translator.stop()
        after = await system.ask("desk", REQUEST)

        assert supervisor.alive
        assert roles.alive
    await remove_streams(settings)

    assert (before.status, after.status, code) == ("failed", "failed", 0)
    assert "no agent is running that could take a task" in before.reason
    assert before.reason == after.reason
    assert str(before.answer).startswith("Could not help, because")
    assert served.status == "completed"
    assert [task.agent for task in served.tasks] == ["planner", "translator", "synthesizer"]
    assert "[fr] Translate this passage into French" in str(served.answer)
