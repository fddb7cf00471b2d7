"""Teams for AG-UI front ends. Their agents call a tool, stream text, ask a person, wait and fail."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pointsman import Context, TaskError, agent, tool
from pointsman_schemas.team import Limits, PlanAndExecute, RetryPolicy, Team
from support.factory import planner_of, synthesizer

__all__ = ["AGENTS", "TEAMS", "fail"]

_LIMITS, _ONCE = Limits(deadline=60), RetryPolicy(attempts=1)
TEAMS = [
    Team(name="crew", limits=_LIMITS, retry=_ONCE),
    Team(name="alone", limits=_LIMITS, retry=_ONCE, strategy=PlanAndExecute(synthesizer=None)),
    Team(name="strict", approve_plan=True, limits=_LIMITS, retry=_ONCE),
]
"""A team with a synthesizer, a team without one, and a team whose plans wait for an approval."""


@tool
async def look(name: str) -> str:
    """Look something up."""
    return name


@agent(name="a", description="Says it")
async def say(request: str, context: Context) -> str:
    """Call a tool and stream text. Before, wait until the file exists that the request names after `after`.

    The path of the file may contain any words, so only the text before the path decides what follows.
    """
    asked, _, after = request.partition("after ")
    while after and not _exists(after):
        await asyncio.sleep(0.02)
    await context.call(look, name="x")
    context.stream_text("said ")
    context.stream_text("it")
    if "wait" in asked:
        await asyncio.sleep(60)
    if "ask" in asked:
        return str(await context.ask("Which account?", choices=["north", "south"], timeout=60))
    return "said it"


def _exists(name: str) -> bool:
    return Path(name).exists()


@agent(name="b", description="Fails")
async def fail(request: str) -> str:
    raise TaskError("no")


AGENTS = [planner_of({"id": "t", "agent": "a", "intent": "say it"}), say, fail, synthesizer]
