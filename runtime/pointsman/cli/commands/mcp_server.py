"""The command `mcp`: a team is a tool of an MCP server on standard input and output."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from pointsman.cli.render.output import Code
from pointsman.cli.support.session import session
from pointsman.client.client import Client
from pointsman.errors import (
    BusUnavailableError,
    ConfigurationError,
    NotFoundError,
    PeerError,
    PointsmanError,
    describe_error,
)
from pointsman_schemas.ids import token
from pointsman_schemas.strict_json import compact_json

__all__ = ["answer_call", "run"]

ANSWER_GRACE_S = 5.0  # seconds: at its deadline a team answers with what it has, and that takes a moment


def run(team: str, *, timeout: float, url: str | None, namespace: str | None) -> Code:
    token(team, "team")

    async def serve() -> Code:
        try:
            from mcp.server import MCPServer
            from mcp.server.mcpserver.exceptions import ToolError
        except ModuleNotFoundError:
            raise ConfigurationError("offering a team needs the MCP SDK: pip install 'pointsman[mcp]'") from None
        async with session(url, namespace, create=True) as client:
            described = next((card.description for card in await client.operations.teams() if card.name == team), "")

            async def ask(request: str) -> str:
                try:
                    return await answer_call(client, team, request, timeout)
                except PointsmanError as error:  # of any other the caller is told no more than that there was one
                    raise ToolError(describe_error(error)) from None

            server = MCPServer("pointsman")
            what = described or f"The team {team}"
            server.add_tool(ask, name=team, description=f"{what}. Give the whole request as text.")
            await server.run_stdio_async()
        return Code.OK

    return asyncio.run(serve())


async def answer_call(client: Client, team: str, request: str, timeout: float) -> str:
    """The team's answer; whatever else a workflow ends with is an error that says so. Who gives up asking ends it."""
    workflow = await client.submit(team, request, deadline=timeout)
    try:
        outcome = await workflow.outcome(timeout + ANSWER_GRACE_S)
    except asyncio.CancelledError:
        with suppress(BusUnavailableError, NotFoundError):
            await workflow.cancel("the MCP client gave up")
        raise
    except TimeoutError:
        raise PeerError(
            f"workflow {workflow.id} of {team} has not ended; is its supervisor running? `pointsman doctor {team}`"
        ) from None
    text = outcome.answer if isinstance(outcome.answer, str) else compact_json(outcome.answer).decode()
    gaps = "".join(f"\n- {gap.task_id} ({gap.agent}): {gap.reason}" for gap in outcome.gaps)
    if outcome.status == "completed":
        return text
    if outcome.status == "partial":
        return f"{text}\n\nNot answered:{gaps}"
    raise PeerError(f"workflow {workflow.id} {outcome.status}: {outcome.reason}{gaps}")
