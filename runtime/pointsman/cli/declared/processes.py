"""The commands that run something: demo, up, dashboard, supervisor, worker, mcp."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pointsman.cli.declared.options import Json, Namespace, Url, WithParent
from pointsman.cli.render.output import Code, command

__all__ = ["commands"]

commands = typer.Typer()


@commands.command()
@command
def demo(
    text: Annotated[str | None, typer.Argument(help="What to ask the team. Default: three wishes at once.")] = None,
    dir: Annotated[Path | None, typer.Option(help="Keep the broker's data and the logs here.")] = None,
    json: Json = False,
) -> Code:
    """See it work: a whole team answers one request. Its broker, supervisor and agents are processes of their own."""
    from pointsman.cli.commands import demo

    return demo.demo(text, directory=dir, json=json)


@commands.command()
@command
def up(
    target: Annotated[str | None, typer.Argument(help="The team and its agents: module or file.py.")] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            show_default=False,
            help="The broker's port. Default: 4222 if free; 0: a free one.",
        ),
    ] = None,
    dir: Annotated[Path | None, typer.Option(help="Keep the broker's data and the logs here.")] = None,
    page: Annotated[bool, typer.Option("--dashboard/--no-dashboard", help="Serve the dashboard as well.")] = True,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """For development: a broker and a whole team, until Ctrl-C. What crashes is restarted."""
    from pointsman.cli.commands import up

    return up.up(target, port=port, directory=dir, page=page, namespace=namespace, json=json)


@commands.command()
@command
def dashboard(
    host: Annotated[
        str | None, typer.Option(help="The address to answer on. Default: 127.0.0.1.", show_default=False)
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Default: 8400; 0: a free one.", show_default=False)
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(help="What a visitor must know. Needed where others can reach it.", show_default=False),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name under which it is opened; addresses and localhost need none."),
    ] = None,
    url: Url = None,
    namespace: Namespace = None,
    with_parent: WithParent = False,
) -> Code:
    """Everything in a browser, live. Workflows, agents, approvals, dead letters; until SIGTERM or Ctrl-C."""
    from pointsman.cli.commands import serve

    return serve.dashboard(
        host=host, port=port, token=token, hosts=allow_host or [], url=url, namespace=namespace,
        with_parent=with_parent,
    )  # fmt: skip


@commands.command()
@command
def supervisor(
    target: Annotated[str, typer.Argument(help="The team: module:name or file.py[:name].")],
    url: Url = None,
    namespace: Namespace = None,
    with_parent: WithParent = False,
) -> Code:
    """Run the supervisor of a team until SIGTERM or Ctrl-C. Start as many as you like."""
    from pointsman.cli.commands import serve

    return serve.supervisor(target, url=url, namespace=namespace, with_parent=with_parent)


@commands.command()
@command
def worker(
    targets: Annotated[list[str], typer.Argument(help="Agents: module:name or file.py[:name].")],
    url: Url = None,
    namespace: Namespace = None,
    with_parent: WithParent = False,
) -> Code:
    """Run agents in this process until SIGTERM or Ctrl-C. Start as many as you like."""
    from pointsman.cli.commands import serve

    return serve.worker(targets, url=url, namespace=namespace, with_parent=with_parent)


@commands.command()
@command
def mcp(
    team: Annotated[str, typer.Argument(help="The team to offer.")],
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=1, help="When an answer must be there.")] = 120.0,
    url: Url = None,
    namespace: Namespace = None,
) -> Code:
    """Offer a team as an MCP tool, to other assistants. Speaks on standard input and output."""
    from pointsman.cli.commands import mcp_server

    return mcp_server.run(team, timeout=timeout, url=url, namespace=namespace)
