"""A trace on a terminal grows while its workflow runs, and is gone from there when it has ended."""

from __future__ import annotations

import asyncio
import io
import re

from rich.console import Console
from support.system import echo, in_memory, planner_of, synthesizer
from support.waiting import until

from pointsman import agent
from pointsman.cli import workflows
from pointsman_schemas.team import Limits, Team

TEAM = Team(name="crew", limits=Limits(deadline=30))


async def test_the_tree_is_drawn_anew_as_it_grows() -> None:
    release = asyncio.Event()

    @agent(name="slow", description="Waits until it may")
    async def slow(request: str) -> str:
        await release.wait()
        return request

    plan = [{"id": "t1", "agent": "a", "intent": "help"}, {"id": "t2", "agent": "slow", "intent": "wait"}]
    terminal = Console(file=io.StringIO(), force_terminal=True, width=140, height=40, color_system=None)

    def screen() -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.file.getvalue())  # type: ignore[attr-defined]

    async with in_memory(TEAM, [planner_of(*plan), synthesizer, echo("a"), slow]) as client:
        workflow = await client.submit("crew", "help")
        drawing = asyncio.ensure_future(workflows._draw_while_it_runs(workflow, terminal))

        async def half_done() -> bool:
            return "\u2713 invoke_agent a" in screen() and "\u2026 invoke_agent slow" in screen()

        await until(half_done)
        assert not drawing.done()
        release.set()
        await asyncio.wait_for(drawing, 20)
