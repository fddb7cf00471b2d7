"""The command up, which runs a broker and a team as child processes until Ctrl-C. A child that exits is restarted."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from pointsman import app
from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.cli.arguments import Json, Namespace, port_option
from pointsman.cli.render.output import Code, console, print_error, print_json
from pointsman.cli.support import local_system
from pointsman.cli.support.session import session, settings_for
from pointsman.cli.support.topology import Topology, topology_of
from pointsman.errors import ConfigurationError
from pointsman.settings import Settings
from pointsman.util.child_processes import ChildExitedError, ChildProcesses, exit_message

__all__ = ["up"]

_DEFAULT_PORT = 4222  # the default port of NATS clients
_RESTART_PAUSE_S = 0.5  # seconds before a restart of the broker; other children wait as long before the first restart


def up(
    target: Annotated[
        str | None,
        typer.Argument(help="The team and its agents: module or file.py. Default: the demo team.", show_default=False),
    ] = None,
    port: Annotated[int | None, port_option("4222, or a free port if 4222 is in use", "Port of the broker")] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="FOLDER",
            help="Folder for the data of the broker and the logs. Default: a temporary folder, deleted at the end.",
            show_default=False,
        ),
    ] = None,
    page: Annotated[bool, typer.Option("--dashboard/--no-dashboard", help="Serve the dashboard.")] = True,
    serve_http: Annotated[bool, typer.Option("--gateway/--no-gateway", help="Serve the team over HTTP.")] = True,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Run a broker and a team for development until Ctrl-C.

    The broker, the supervisor, the agents, the dashboard and the gateway run as child processes. A process that exits
    is restarted.

    Returns:
        The exit code.

    Raises:
        ConfigurationError: The port is in use.
    """
    local_system.ignore_connection_settings()
    settings = settings_for(None, namespace)
    if port is not None and port > 0 and not _is_port_free(port):
        raise ConfigurationError(f"port {port} is in use; give another --port, or 0 for a free port")
    topology = topology_of(target)
    home = local_system.working_directory(directory, "pointsman-up-")
    try:
        with local_system.exclusive_lock(home):
            return app.run(
                _run_up(
                    topology,
                    settings,
                    home,
                    port,
                    kept=directory is not None,
                    page=page,
                    serve_http=serve_http,
                    json=json,
                )
            )
    except KeyboardInterrupt:
        _print_event("stopped", json=json)
        return Code.OK  # Ctrl-C is the normal end
    finally:
        if directory is None:
            shutil.rmtree(home, ignore_errors=True)


async def _run_up(
    topology: Topology,
    settings: Settings,
    home: Path,
    port: int | None,
    *,
    kept: bool,
    page: bool,
    serve_http: bool,
    json: bool,
) -> Code:
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        default = _DEFAULT_PORT if _is_port_free(_DEFAULT_PORT) else 0
        chosen = default if port is None else port
        broker = await stack.enter_async_context(EmbeddedBroker(home / "broker", port=chosen or -1))  # -1: a free port
        if port is None and not default:
            number = broker.url.rpartition(":")[2]
            print_error(f"port {_DEFAULT_PORT} is in use; using {number}: export POINTSMAN_URL={broker.url}")
        children = await stack.enter_async_context(local_system.child_processes(home, broker, settings))
        if not json:
            local_system.print_connection_settings(settings, broker, home, len(topology.agents), kept=kept)
        local_system.print_ready("broker", began, json=json)
        for name in topology.missing:
            print_error(
                f"{topology.target} does not define the agent {name}, which the team {topology.team.name} needs; start "
                f"it with `POINTSMAN_URL={broker.url} pointsman worker FILE.py`"
            )
        await local_system.start_children(children, topology.target, topology.workers)
        address = await _start_dashboard(children, settings) if page else None
        gateway = await _start_gateway(children, settings) if serve_http else None

        def report_restart(end: ChildExitedError, pause: float) -> None:
            if json:
                print_json({"event": "child_exited", "message": str(end), "restart_in": pause})
            else:
                print_error(f"{end}; restarting it in {pause:g} s")

        stack.enter_context(_print_stopping(json=json))
        async with asyncio.TaskGroup() as group:
            group.create_task(children.keep_running(report_restart))
            group.create_task(_keep_broker_running(broker, home / "broker" / "nats-server.log", report_restart))
            client = await stack.enter_async_context(session(broker.url, settings.namespace, create=True))
            await local_system.wait_for_all(
                client, topology.agents, topology.team.name, json=json, began=began, timeout=math.inf
            )
            if json:
                ready = {"url": broker.url, "namespace": settings.namespace, "team": topology.team.name}
                print_json({"event": "ready", **ready, "dashboard": address, "gateway": gateway})
            else:
                option = "" if broker.url.endswith(f":{_DEFAULT_PORT}") else f" --url {broker.url}"
                page_line = f"  dashboard  {address}\n" if address else ""
                page_line += f"  gateway    {gateway}\n" if gateway else ""
                text = (
                    f"\nReady.\n{page_line}In another terminal:\n"
                    f"  pointsman submit {topology.team.name} '...'{option}\n  pointsman agents{option}\n"
                    "Ctrl-C stops it."
                )
                console().print(Text(text))
    return Code.OK


@contextmanager
def _print_stopping(*, json: bool) -> Iterator[None]:
    try:
        yield
    except asyncio.CancelledError:
        _print_event("stopping", json=json)
        raise


def _print_event(event: str, *, json: bool) -> None:
    print_json({"event": event}) if json else print(f"{event.capitalize()}.", flush=True)


async def _start_dashboard(children: ChildProcesses, settings: Settings) -> str | None:
    """Start the dashboard and return its address; None if its packages are not installed."""
    if not app.has_dashboard():
        print_error(
            "no dashboard: its packages are not installed; install them with pip install 'pointsman[dashboard]'"
        )
        return None
    host, port = settings.dashboard_host, settings.dashboard_port
    if not port or not _is_port_free(port):
        port = _find_free_port()
    await children.start("dashboard", "dashboard", "--port", str(port))
    return f"http://{host}:{port}"


async def _start_gateway(children: ChildProcesses, settings: Settings) -> str | None:
    """Start the gateway and a webhook service. Return the gateway's address; None if packages are not installed."""
    if not app.has_gateway():
        print_error("no gateway: its packages are not installed; install them with pip install 'pointsman[gateway]'")
        return None
    host, port = settings.gateway_host, settings.gateway_port
    if not port or not _is_port_free(port):
        port = _find_free_port()
    await children.start("gateway", "gateway", "--port", str(port))
    await children.start("webhooks", "webhooks", "run")
    return f"http://{host}:{port}"


async def _keep_broker_running(
    broker: EmbeddedBroker, log: Path, report_restart: Callable[[ChildExitedError, float], None]
) -> None:
    """Restart the broker whenever it exits, until a restart raises an error or the task is cancelled."""
    while True:
        code = await broker.wait_for_exit()
        report_restart(exit_message("broker", code, log), _RESTART_PAUSE_S)
        await asyncio.sleep(_RESTART_PAUSE_S)
        await broker.restart()


def _find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _is_port_free(port: int) -> bool:
    with socket.socket() as probe:
        # Allow a port on which connections of the last broker are in TIME-WAIT. On Windows, the option is not set,
        # because it would also allow a port that is in use.
        if os.name == "posix":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
