"""The commands supervisor, worker and dashboard. Each command runs one process, and imports only the modules for it."""

from __future__ import annotations

from typing import Annotated

import typer

from pointsman import app
from pointsman.cli.arguments import Namespace, Url, WithParent, address_option, exit_with_parent_if, port_option
from pointsman.cli.render.output import Code
from pointsman.settings import Settings

__all__ = ["dashboard", "supervisor", "worker"]


def supervisor(
    target: Annotated[str, typer.Argument(help="The team: module:name or file.py[:name].")],
    url: Url = None,
    namespace: Namespace = None,
    with_parent: WithParent = False,
) -> Code:
    """Run the supervisor of a team until SIGTERM or Ctrl-C.

    Several supervisors of a team share its workflows. If `target` defines several teams, supervise all of them.

    Returns:
        The exit code.
    """
    exit_with_parent_if(with_parent)
    return Code(app.run(app.supervise(target, Settings.load(url=url, namespace=namespace))))


def worker(
    targets: Annotated[list[str], typer.Argument(help="Agents: module:name, file.py[:name], or an installed agent.")],
    team: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="The team to which the agents belong. Each agent gets its own queue, as TEAM--NAME. The definition of "
            "the team must list the agent in own_agents. May be repeated; several teams then share the slots of each "
            "agent, in turn. Default: every team may use the agents.",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
    namespace: Namespace = None,
    with_parent: WithParent = False,
) -> Code:
    """Run agents in this process until SIGTERM or Ctrl-C.

    Several workers with the same agent share its tasks.

    Returns:
        The exit code.
    """
    exit_with_parent_if(with_parent)
    return Code(app.run(app.work(targets, Settings.load(url=url, namespace=namespace), teams=team or ())))


def dashboard(
    host: Annotated[str | None, address_option("POINTSMAN_DASHBOARD_HOST")] = None,
    port: Annotated[int | None, port_option("POINTSMAN_DASHBOARD_PORT, or 8400")] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="Secret of at least 16 characters that a visitor must give. Required if the address is not local. "
            "Default: POINTSMAN_DASHBOARD_TOKEN.",
            show_default=False,
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Host name under which browsers may open the dashboard, in addition to IP addresses and localhost. "
            "May be repeated.",
        ),
    ] = None,
    url: Url = None,
    namespace: Namespace = None,
    with_parent: WithParent = False,
) -> Code:
    """Serve the dashboard until SIGTERM or Ctrl-C.

    The dashboard shows workflows, agents, approvals and dead letters in a browser, live.

    Returns:
        The exit code.
    """
    exit_with_parent_if(with_parent)
    settings = Settings.load(
        url=url, namespace=namespace, dashboard_host=host, dashboard_port=port, dashboard_token=token
    )

    def print_address(address: str) -> None:
        print(f"Dashboard on {address}  (Ctrl-C stops it)", flush=True)

    return Code(app.run(app.dashboard(settings, hosts=allow_host or [], ready=print_address)))
