"""The command mcp, which offers a team as a tool of an MCP server on standard input and output."""

from __future__ import annotations

from typing import Annotated

import typer

from pointsman.cli.arguments import check_seconds
from pointsman.cli.support.session import Session, broker_command
from pointsman.errors import ConfigurationError
from pointsman_schemas.ids import token

__all__ = ["mcp"]


@broker_command
async def mcp(
    session: Session,
    team: Annotated[str, typer.Argument(help="The name of the team.")],
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Time limit of an answer, in seconds.", callback=check_seconds),
    ] = 120.0,
) -> None:
    """Offer a team as an MCP tool on standard input and output.

    MCP clients, such as assistants and editors, call the tool with a request. To offer all teams as MCP tools over
    HTTP, run `pointsman gateway`.

    Raises:
        ConfigurationError: The MCP SDK is not installed.
    """
    token(team, "team")

    try:
        from mcp.server.stdio import stdio_server

        from pointsman.gateway.mcp.backend import ClientBackend
        from pointsman.gateway.mcp.server import make_server
    except ModuleNotFoundError:
        raise ConfigurationError("the command mcp needs the MCP SDK: pip install 'pointsman[mcp]'") from None
    async with session(create=True) as client:
        backend = ClientBackend(client, team, timeout)
        server = make_server(lambda ctx: backend)
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
