"""A team that is offered as an MCP tool answers for every kind of end of its workflow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import mcp.types as types
import pytest
from mcp import Client as McpClient  # imported here, because the import takes seconds
from support import factory
from support.factory import RunningTeam, echo
from support.waiting import until

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.client.client import Client
from pointsman.errors import TaskError
from pointsman.gateway.mcp import backend as backend_module
from pointsman.gateway.mcp.backend import ClientBackend
from pointsman.gateway.mcp.server import make_server
from pointsman_schemas.team import FanOut, Limits, Pipeline, RetryPolicy, Stage, Team


@agent(name="broken", description="Cannot do it")
async def broken(request: str) -> str:
    raise TaskError("the shop is closed")


@agent(name="tables", description="Answers with fields")
async def tables(request: str) -> dict[str, Any]:
    return {"sold": 3}


@agent(name="asker", description="Asks for a colour")
async def asker(request: str, context: Context) -> str:
    return f"{request}: {await context.ask('Which colour?')}"


def team(first: str, *more: str, **fields: Any) -> Team:
    """Return a fan-out team with several members, or a team with one stage."""
    strategy = FanOut(synthesizer=None) if more else Pipeline(stages=(Stage(agent=first),))
    return Team(
        name="shop", agents=(first, *more), strategy=strategy, limits=Limits(deadline=30),
        retry=RetryPolicy(attempts=1), **fields,
    )  # fmt: skip


@asynccontextmanager
async def offered(client: Client, *, name: str = "shop", timeout: float = 20.0, **options: Any) -> AsyncIterator[Any]:
    """Yield an MCP client of a server that offers the team."""
    backend = ClientBackend(client, name, timeout)
    async with McpClient(make_server(lambda ctx: backend), **options) as asking:
        yield asking


@asynccontextmanager
async def shop(of: Team, *agents: Any, **options: Any) -> AsyncIterator[tuple[Any, RunningTeam]]:
    async with factory.team(of, agents, settled=True) as client, offered(client, **options) as asking:
        yield asking, client


async def ask(of: Team, *agents: Any) -> types.CallToolResult:
    async with shop(of, *agents) as (asking, _):
        result: types.CallToolResult = await asking.call_tool("shop", {"request": "tea"})
        return result


def text_of(result: types.CallToolResult) -> str:
    return "".join(each.text for each in result.content if isinstance(each, types.TextContent))


async def test_an_answer_of_any_type_is_text_and_fields_are_structured_content_too() -> None:
    text = await ask(team("echo"), echo("echo"))
    fields = await ask(team("tables"), tables)

    assert (text_of(text), text.structured_content) == ("echo: tea", None)
    assert (text_of(fields), fields.structured_content) == ('{"sold":3}', {"sold": 3})


async def test_a_partial_answer_lists_its_gaps() -> None:
    result = await ask(team("echo", "broken"), echo("echo"), broken)

    assert not result.is_error
    assert "echo: tea" in text_of(result)
    assert text_of(result).endswith("\n\nNot answered:\n- broken (broken): the shop is closed")


async def test_a_failure_is_an_error_with_the_workflow_and_the_reason() -> None:
    result = await ask(team("broken"), broken)

    assert result.is_error
    assert text_of(result).startswith("workflow wf_")
    assert "failed: " in text_of(result)
    assert "the shop is closed" in text_of(result)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_cancelled_call_cancels_the_workflow(mode: Any) -> None:
    begun = asyncio.Event()

    @agent(name="slow", description="Takes long")
    async def slow(request: str) -> str:
        begun.set()
        await asyncio.Event().wait()
        return request

    async with shop(team("slow"), slow, mode=mode) as (asking, client):
        calling = asyncio.create_task(asking.call_tool("shop", {"request": "tea"}))
        await begun.wait()
        calling.cancel()
        await asyncio.wait({calling})

        async def over() -> bool:
            return [each.status for each in await client.list()] == ["cancelled"]

        await until(over)

    assert calling.cancelled()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_question_is_an_elicitation_on_each_version_of_the_protocol(mode: Any) -> None:
    asked: list[types.ElicitRequestFormParams] = []

    async def answer(context: Any, params: Any) -> types.ElicitResult:
        asked.append(params)
        return types.ElicitResult(action="accept", content={"answer": "green"})

    async with shop(team("asker"), asker, mode=mode, elicitation_callback=answer) as (asking, _):
        result = await asking.call_tool("shop", {"request": "tea"})

    assert text_of(result) == "tea: green"
    assert [params.message for params in asked] == ["Which colour?"]
    assert asked[0].requested_schema["required"] == ["answer"]


async def test_a_team_is_offered_with_its_description_or_by_its_name() -> None:
    described: list[Sequence[types.Tool]] = []
    for fields in ({"description": "Sells tea."}, {}):
        async with shop(team("echo", **fields), echo("echo")) as (asking, _):
            described.append((await asking.list_tools()).tools)

    ((first,), (second,)) = described
    assert (first.name, first.description) == ("shop", "Sells tea. Send the whole request as text.")
    assert second.description == "The team shop. Send the whole request as text."
    assert first.input_schema["required"] == ["request"]


async def test_a_request_without_text_is_an_error_with_advice() -> None:
    async with shop(team("echo"), echo("echo")) as (asking, _):
        result = await asking.call_tool("shop", {"request": ""})

    assert result.is_error
    assert text_of(result) == "the tool shop expects one text; send the whole request as `request`"


async def test_a_team_without_a_supervisor_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "ANSWER_GRACE_S", 0.0)
    async with (
        factory.team(team("echo"), [echo("echo")], settled=True) as client,
        offered(client, name="unknown", timeout=0.05) as asking,
    ):
        result = await asking.call_tool("unknown", {"request": "tea"})

    assert result.is_error
    assert "check the supervisor with `pointsman doctor unknown`" in text_of(result)
