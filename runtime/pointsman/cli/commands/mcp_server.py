"""The command mcp: offer a team as a tool of an MCP server on standard input and output."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated

import typer

from pointsman.cli.arguments import Namespace, Url, check_seconds
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

__all__ = ["answer_call", "mcp"]

ANSWER_GRACE_S = 5.0  # seconds after the deadline in which a team answers with the results that the team has


def mcp(
    team: Annotated[str, typer.Argument(help="The name of the team.")],
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Time limit of an answer, in seconds.", callback=check_seconds),
    ] = 120.0,
    url: Url = None,
    namespace: Namespace = None,
) -> Code:
    """Offer a team as an MCP tool on standard input and output.

    MCP clients, such as assistants and editors, call the tool with a request as text.

    Returns:
        The exit code.
    """
    token(team, "team")

    async def serve() -> Code:
        try:
            from mcp.server import MCPServer
            from mcp.server.mcpserver.exceptions import ToolError
        except ModuleNotFoundError:
            raise ConfigurationError("the command mcp needs the MCP SDK: pip install 'pointsman[mcp]'") from None
        async with session(url, namespace, create=True) as client:
            description = next((card.description for card in await client.operations.teams() if card.name == team), "")

            async def ask(request: str) -> str:
                try:
                    return await answer_call(client, team, request, timeout)
                except PointsmanError as error:  # the text of any other error stays in this process
                    raise ToolError(describe_error(error)) from None

            server = MCPServer("pointsman")
            subject = description or f"The team {team}"
            server.add_tool(ask, name=team, description=f"{subject}. Give the whole request as text.")
            await server.run_stdio_async()
        return Code.OK

    return asyncio.run(serve())


async def answer_call(client: Client, team: str, request: str, timeout: float) -> str:
    """Submit a request and return the answer. If the caller cancels the call, cancel the workflow.

    Args:
        client: The client.
        team: The name of the team.
        request: The request.
        timeout: The time limit of the workflow, in seconds.

    Returns:
        The answer. A partial answer has the list of gaps.

    Raises:
        CancelledError: The caller cancelled the call.
        PeerError: The workflow failed, was cancelled, or has not ended in time.
    """
    workflow = await client.submit(team, request, deadline=timeout)
    try:
        outcome = await workflow.outcome(timeout + ANSWER_GRACE_S)
    except asyncio.CancelledError:
        with suppress(BusUnavailableError, NotFoundError):
            await workflow.cancel("the MCP client cancelled the call")
        raise
    except TimeoutError:
        raise PeerError(
            f"workflow {workflow.id} of {team} has not ended after {timeout + ANSWER_GRACE_S:g} s; check the "
            f"supervisor with `pointsman doctor {team}`"
        ) from None
    text = outcome.answer if isinstance(outcome.answer, str) else compact_json(outcome.answer).decode()
    gaps = "".join(f"\n- {gap.task_id} ({gap.agent}): {gap.reason}" for gap in outcome.gaps)
    if outcome.status == "completed":
        return text
    if outcome.status == "partial":
        return f"{text}\n\nNot answered:{gaps}"
    raise PeerError(f"workflow {workflow.id} {outcome.status}: {outcome.reason}{gaps}")
