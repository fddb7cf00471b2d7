"""Teams for the official conformance suite of MCP, which calls teams by name, and for the tests of the MCP server.

Processes run this file: `pointsman up tests/support/mcp_teams.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pointsman import Context, agent
from pointsman.authoring.agent import Agent
from pointsman.errors import TaskError
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.strategies import Fixed
from pointsman_schemas.team import Limits, RetryPolicy, Team

__all__ = ["AGENTS", "SUITE_TEAMS", "TEAMS"]

MIN_WORK_S = 0.0  # seconds of work of `computer` and `failer`; the official suite sets a longer time


class Greeting(BaseModel):
    """The name of a person."""

    name: str = "you"


class Computation(BaseModel):
    """Seconds of work. The task also waits until the file `after` exists."""

    seconds: float = 0.0
    label: str = ""
    after: str = ""


class Deletion(BaseModel):
    """The file to delete."""

    filename: str = "a file"


class Consent(BaseModel):
    """The consent of a person."""

    confirm: bool


class Check(BaseModel):
    """The result of a check by a person."""

    ok: bool


class Name(BaseModel):
    """The name of a person, as an answer."""

    name: str


@agent(name="greeter", description="Greets a person")
async def greeter(asked: Greeting) -> str:
    return f"Hello, {asked.name}!"


@agent(name="computer", description="Computes for some time", concurrency=64)
async def computer(asked: Computation) -> dict[str, Any]:
    await asyncio.sleep(max(asked.seconds * 1.1, MIN_WORK_S) if asked.seconds else 0)
    while asked.after and not _exists(asked.after):
        await asyncio.sleep(0.02)
    return {"label": asked.label, "done": True}


@agent(name="writer", description="Writes a sentence, with dots in the middle while it waits", concurrency=16)
async def writer(asked: Computation, context: Context) -> str:
    written = ""

    def write(text: str) -> None:
        nonlocal written
        written += text
        context.stream_text(text)

    write("The sky ")
    while asked.after and not _exists(asked.after):
        write(".")
        await asyncio.sleep(0.05)
    write("is blue.")
    return written


def _exists(name: str) -> bool:
    return Path(name).exists()


@agent(name="failer", description="Fails after a second")
async def failer(asked: Computation) -> str:
    await asyncio.sleep(max(1, MIN_WORK_S))
    raise TaskError("the shop is closed")


@agent(name="deleter", description="Deletes a file once a person confirms", concurrency=16)
async def deleter(asked: Deletion, context: Context) -> str:
    consent = await context.ask(f"Delete {asked.filename}?", output=Consent)
    return f"{'deleted' if consent.confirm else 'kept'} {asked.filename}"


@agent(name="asker", description="Asks two questions at once", concurrency=16)
async def asker(asked: Greeting, context: Context) -> str:
    first, second = await asyncio.gather(
        context.ask("Who begins?", output=Name), context.ask("Does the other follow?", output=Consent)
    )
    return f"{first.name}, {second.confirm}"


@agent(name="namer", description="Asks for a name", concurrency=16)
async def namer(asked: Greeting, context: Context) -> str:
    return f"Hello, {(await context.ask('What is your name?', output=Name)).name}!"


@agent(name="checker", description="Asks for a check", concurrency=16)
async def checker(asked: Greeting, context: Context) -> str:
    return "state-ok" if (await context.ask("Is it right?", output=Check)).ok else "state-wrong"


@agent(name="clerk", description="Writes a file")
async def clerk(asked: Greeting, context: Context) -> Any:
    return await context.files.add("letter.txt", f"Dear {asked.name}".encode())


def _team(name: str, agent: str, description: str, given: type[BaseModel], **fields: Any) -> Team:
    plan = Plan(goal=description, tasks=(PlannedTask(id="work", agent=agent, intent=description),))
    schema = given.model_json_schema()
    return Team(
        name=name,
        description=description,
        strategy=Fixed(plan=plan, input_schema=schema),
        limits=Limits(deadline=120),
        retry=RetryPolicy(attempts=1),
        **fields,
    )


AGENTS: Sequence[Agent] = [greeter, computer, writer, failer, deleter, asker, namer, checker, clerk]
"""The agents of all teams."""

TEAMS: Sequence[Team] = (
    _team("greet", "greeter", "Greets a person", Greeting),
    _team("slow_compute", "computer", "Computes for some time", Computation),
    _team("write", "writer", "Writes a sentence", Computation),
    _team("failing_job", "failer", "Fails after a second", Computation),
    _team("confirm_delete", "deleter", "Deletes a file once a person confirms", Deletion),
    _team("multi_input", "asker", "Asks two questions at once", Greeting),
    _team("test_input_required_result_elicitation", "namer", "Asks for a name", Greeting),
    _team("letters", "clerk", "Writes a letter", Greeting),
    _team("guarded", "greeter", "Begins once a person approves", Greeting, approve_plan=True),
)
"""The teams of the tests."""

SUITE_TEAMS: Sequence[Team] = (
    *TEAMS,
    _team("test_simple_text", "greeter", "Answers with a text", Greeting),
    _team("test_tool_with_progress", "computer", "Reports its progress", Computation),
    _team("test_error_handling", "failer", "Fails", Computation),
    _team("test_input_required_result_request_state", "checker", "Asks for a check", Greeting),
    _team("test_input_required_result_tampered_state", "checker", "Asks for a check", Greeting),
    _team("test_input_required_result_multi_round", "namer", "Asks for a name", Greeting),
    _team("test_streaming_elicitation", "namer", "Asks for a name", Greeting),
    _team("test_logging_tool", "greeter", "Writes no log for a client", Greeting),
)
"""The teams of the official suite. The suite defines most of the names."""
