"""A team that acts on the message ids of the compliance kit of A2A, and teams for the tests of the A2A endpoint.

`make serve-a2a-kit` serves the team of the kit. The request's metadata contains the id of the message that started the
task. The planner passes the first part of this id to the team's only agent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from pointsman import Context, agent, tool
from pointsman.authoring.agent import Agent
from pointsman.errors import TaskError
from pointsman_schemas.card import Role
from pointsman_schemas.plan import Plan
from pointsman_schemas.role_io import PlannerInput
from pointsman_schemas.team import Limits, PlanAndExecute, RetryPolicy, Team

__all__ = ["AGENTS", "KIT", "TEAMS"]

STREAMING_TIMEOUT_S = float(os.environ.get("TCK_STREAMING_TIMEOUT", "2"))
AGAIN = ("TCK history message", "ask again")
"""Answers after which the agent asks again. Agents do not get the message ids of answers, so the texts are compared."""
TEXTS = {
    "tck-artifact-text": "Generated text content",
    "tck-stream-artifact-text": "Streamed text content",
    "tck-stream-artifact-chunked": "chunk-1 chunk-2",
    "tck-stream-001": "Stream hello from TCK",
    "tck-stream-003": "Stream task lifecycle",
    "tck-stream-ordering-001": "Ordered output",
    "tck-stream-002": "",
    "tck-complete-task": "Hello from TCK",
    "tck-message-response": "Direct message response",
}
URL = {"url": "https://example.com/output.txt", "filename": "output.txt", "mediaType": "text/plain"}


class Case(BaseModel):
    """The id and the text of the message that started a task."""

    message: str
    text: str = ""


@agent(name="kit-planner", description="Gives the message to the agent", role=Role.PLAN)
async def planner(asked: PlannerInput) -> Plan:
    origin = asked.metadata.get("pointsman.a2a")
    message = str(origin.get("message", "")) if isinstance(origin, dict) else ""
    task = {"id": "t", "agent": "actor", "intent": "act on the message"}
    return Plan.model_validate(
        {"goal": "act", "tasks": [{**task, "input": {"message": message, "text": str(asked.request)}}]}
    )


@tool(approval=True)
async def erase(name: str) -> str:
    """Erase something."""
    return f"erased {name}"


@agent(name="actor", description="Acts on ids of messages", skills=["tck"], concurrency=64, examples=["say hello"])
async def actor(asked: Case, context: Context) -> Any:
    id = asked.message
    if id.startswith(("tck-artifact-file-url",)):
        return URL
    if id.startswith(("tck-artifact-file", "tck-stream-artifact-file")):
        await context.files.add("output.txt", b"tck")
        return ""
    if id.startswith("tck-artifact-data"):
        return {"key": "value", "count": 42}
    if id.startswith("tck-reject-task"):
        raise TaskError("rejected")
    if id.startswith("tck-input-required"):
        number, answer = 1, await context.ask("Please give input 1.", timeout=600)
        while answer.startswith(AGAIN):
            number += 1
            answer = await context.ask(f"Please give input {number}.", timeout=600)
        return f"Hello from TCK: {answer}"
    if id.startswith("test-resubscribe-message-id"):
        await asyncio.sleep(2 * STREAMING_TIMEOUT_S)
        return "Hello from TCK"
    if id.startswith("wait"):
        await asyncio.Event().wait()  # until the task is cancelled
    if id.startswith("approve"):
        return await context.call(erase, name="the file")
    if id.startswith("history"):
        return [turn.request for turn in (context.history.turns if context.history else ())]
    if id.startswith("large"):
        await context.files.add("large.bin", b"x" * 1_500_000)
        return ""
    if id.startswith("read"):
        return {name: (await file.read()).decode() for name, file in context.files.items()}
    return next((text for prefix, text in TEXTS.items() if id.startswith(prefix)), f"echo: {asked.text}")


LIMITS, ONCE = Limits(deadline=600, task_timeout=300), RetryPolicy(attempts=1)
KIT = Team(
    name="kit",
    description="Acts on the message ids of the compliance kit",
    agents=("actor",),
    limits=LIMITS,
    retry=ONCE,
    strategy=PlanAndExecute(planner="kit-planner", synthesizer=None),
)
"""The team of the kit."""
TEAMS: Sequence[Team] = (KIT,)
AGENTS: Sequence[Agent] = (planner, actor)
