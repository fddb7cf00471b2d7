"""A team offered as a tool answers its caller however the workflow ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp
import pytest
from mcp.server import MCPServer  # imported here, as it takes long: not within a test's time
from support import factory
from support.factory import echo
from support.waiting import until

from pointsman.authoring.agent import agent
from pointsman.cli.commands import mcp_server
from pointsman.cli.commands.mcp_server import answer_call
from pointsman.client.client import Client
from pointsman.errors import BusUnavailableError, ContractError, NotFoundError, PeerError, PointsmanError, TaskError
from pointsman.testing import running_team
from pointsman_schemas.team import FanOut, Limits, Pipeline, RetryPolicy, Stage, Team


@agent(name="broken", description="Cannot do it")
async def broken(request: str) -> str:
    raise TaskError("the shop is closed")


@agent(name="tables", description="Answers with fields")
async def tables(request: str) -> dict[str, Any]:
    return {"sold": 3}


def team(first: str, *more: str) -> Team:
    """Return the members of a fan-out, or one stage."""
    strategy = FanOut(synthesizer=None) if more else Pipeline(stages=(Stage(agent=first),))
    return Team(
        name="shop", agents=(first, *more), strategy=strategy, limits=Limits(deadline=30), retry=RetryPolicy(attempts=1)
    )


async def test_answer_of_any_type_is_returned_as_text() -> None:
    async with factory.team(team("echo"), [echo("echo")], settled=True) as client:
        text = await answer_call(client, "shop", "tea", 20)
    async with factory.team(team("tables"), [tables], settled=True) as client:
        fields = await answer_call(client, "shop", "tea", 20)

    assert text == "echo: tea"
    assert fields == '{"sold":3}'


async def test_partial_answer_lists_its_gaps() -> None:
    async with factory.team(team("echo", "broken"), [echo("echo"), broken], settled=True) as client:
        text = await answer_call(client, "shop", "tea", 20)

    assert "echo: tea" in text
    assert text.endswith("\n\nNot answered:\n- broken (broken): the shop is closed")


async def test_failure_is_an_error_with_the_workflow_and_the_reason() -> None:
    async with factory.team(team("broken"), [broken], settled=True) as client:
        with pytest.raises(PeerError, match=r"workflow wf_.* failed: .*the shop is closed"):
            await answer_call(client, "shop", "tea", 20)


async def test_cancelled_call_cancels_the_workflow() -> None:
    begun = asyncio.Event()

    @agent(name="slow", description="Takes long")
    async def slow(request: str) -> str:
        begun.set()
        await asyncio.Event().wait()
        return request

    async with factory.team(team("slow"), [slow], settled=True) as client:
        asking = asyncio.create_task(answer_call(client, "shop", "tea", 25))
        await begun.wait()
        asking.cancel()
        await asyncio.wait({asking})

        async def over() -> bool:
            return [each.status for each in await client.list()] == ["cancelled"]

        await until(over)

    assert asking.cancelled()


class Workflow:
    """One whose outcome does not come, and what it was asked."""

    id = "wf_1"

    def __init__(self, ends: BaseException, failure: PointsmanError | None = None) -> None:
        self.ends, self.failure = ends, failure
        self.asked: list[object] = []

    async def submit(self, team: str, request: str, *, deadline: float) -> Workflow:
        self.asked.append((team, request, deadline))
        return self

    async def outcome(self, timeout: float) -> object:
        self.asked.append(timeout)
        raise self.ends

    async def cancel(self, reason: str) -> None:
        self.asked.append(reason)
        if self.failure is not None:
            raise self.failure


@pytest.mark.parametrize("failure", [None, BusUnavailableError("away"), NotFoundError("it has ended")])
async def test_cancelled_call_ends_even_if_the_cancel_cannot_be_sent(failure: PointsmanError | None) -> None:
    workflow: Any = Workflow(asyncio.CancelledError(), failure)

    with pytest.raises(asyncio.CancelledError):
        await answer_call(workflow, "shop", "tea", 3.0)

    assert workflow.asked == [("shop", "tea", 3.0), 8.0, "the MCP client cancelled the call"]


CAKES = Team(name="cakes", description="Sells cake", strategy=Pipeline(stages=(Stage(agent="echo"),)))


def offered(
    monkeypatch: pytest.MonkeyPatch, shop: Team, *agents: Any, name: str = "shop", timeout: float = 20.0
) -> tuple[str | None, mcp.types.CallToolResult, list[object]]:
    """Record the offers, the answers and the target of a server."""
    seen: list[Any] = []

    @asynccontextmanager
    async def session(url: str | None, namespace: str | None, *, create: bool) -> AsyncIterator[Client]:
        seen.append((url, namespace, create))
        async with running_team([CAKES, shop], agents) as client:
            yield client

    async def talk(server: MCPServer) -> None:
        async with mcp.Client(server) as client:
            (tool,) = (await client.list_tools()).tools
            assert tool.name == name
            seen.extend([tool.description, await client.call_tool(tool.name, {"request": "tea"})])

    monkeypatch.setattr(mcp_server, "session", session)
    monkeypatch.setattr(MCPServer, "run_stdio_async", talk)
    code = mcp_server.mcp(name, timeout=timeout, url="nats://x:1", namespace="other")
    asked, described, result = seen
    return described, result, [*asked, code]


def test_team_is_offered_with_its_description(monkeypatch: pytest.MonkeyPatch) -> None:
    described, result, started = offered(
        monkeypatch, team("echo").model_copy(update={"description": "Sells tea"}), echo("echo")
    )

    assert described == "Sells tea. Give the whole request as text."
    assert (result.is_error, result.content[0].text) == (False, "echo: tea")  # type: ignore[union-attr]
    assert started == ["nats://x:1", "other", True, 0]


def test_team_without_a_description_is_offered_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described, result, _ = offered(monkeypatch, team("broken"), broken, echo("echo"))

    assert described == "The team shop. Give the whole request as text."
    assert result.is_error
    assert "the shop is closed" in result.content[0].text  # type: ignore[union-attr]


def test_missing_team_is_offered_after_the_given_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pointsman.cli.commands.mcp_server.ANSWER_GRACE_S", 0.0)

    described, result, _ = offered(monkeypatch, team("echo"), echo("echo"), name="absent", timeout=0.05)

    assert described == "The team absent. Give the whole request as text."
    assert result.is_error
    assert "`pointsman doctor absent`" in result.content[0].text  # type: ignore[union-attr]


def test_invalid_name_is_refused_before_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server, "session", None)

    with pytest.raises(ContractError, match="no team"):
        mcp_server.mcp("no team", timeout=1.0, url=None, namespace=None)


async def test_team_without_a_supervisor_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.cli.commands.mcp_server.ANSWER_GRACE_S", 0.0)
    async with factory.team(team("echo"), [echo("echo")], settled=True) as client:
        with pytest.raises(PeerError, match=r"check the supervisor with `pointsman doctor nobody"):
            await answer_call(client, "nobody", "tea", 0.05)
