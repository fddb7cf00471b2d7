"""The command `up`: a whole team in processes of its own, kept running until Ctrl-C."""

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

from rich.text import Text

from pointsman import app
from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.cli.render.output import Code, console, print_error, print_json
from pointsman.cli.support import local_system
from pointsman.cli.support.session import session, settings_for
from pointsman.cli.support.topology import Topology, topology_of
from pointsman.errors import ConfigurationError
from pointsman.settings import Settings
from pointsman.util.child_processes import ChildExitedError, ChildProcesses, exit_message

__all__ = ["up"]

_DEFAULT_PORT = 4222  # where NATS clients look first
_RESTART_PAUSE_S = 0.5  # seconds before a broker that ended is started again, as for a child's first end


def up(
    target: str | None, *, port: int | None, directory: Path | None, page: bool, namespace: str | None, json: bool
) -> Code:
    local_system.ignore_connection_settings()
    settings = settings_for(None, namespace)
    if port is not None and port > 0 and not _is_port_free(port):
        raise ConfigurationError(f"port {port} is taken by another program; choose another --port, 0 for a free one")
    cast = topology_of(target)
    home = local_system.working_directory(directory, "pointsman-up-")
    try:
        with local_system.exclusive_lock(home):
            return app.run(_run_up(cast, settings, home, port, kept=directory is not None, page=page, json=json))
    except KeyboardInterrupt:
        _print_event("stopped", json=json)
        return Code.OK  # the way it is meant to end
    finally:
        if directory is None:
            shutil.rmtree(home, ignore_errors=True)


async def _run_up(
    cast: Topology, settings: Settings, home: Path, port: int | None, *, kept: bool, page: bool, json: bool
) -> Code:
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        chosen = (
            (port or -1) if port is not None else _DEFAULT_PORT if _is_port_free(_DEFAULT_PORT) else -1
        )  # -1 is any to nats-server
        broker = await stack.enter_async_context(EmbeddedBroker(home / "broker", port=chosen))
        if port is None and chosen == -1:
            number = broker.url.rpartition(":")[2]
            print_error(f"{_DEFAULT_PORT} is taken, using {number}: export POINTSMAN_URL={broker.url}")
        children = await stack.enter_async_context(local_system.child_processes(home, broker, settings))
        if not json:
            local_system.print_connection_settings(settings, broker, home, len(cast.agents), kept=kept)
        local_system.print_ready("broker", began, json=json)
        for name in cast.missing:
            print_error(f"team {cast.team.name} needs the agent {name!r}, which {cast.target} does not define:"
            " start it "
                     f"yourself, as with `POINTSMAN_URL={broker.url} pointsman worker FILE.py`")  # fmt: skip
        await local_system.start_children(children, cast.target, cast.workers)
        address = await _start_dashboard(children, settings) if page else None

        def told(end: ChildExitedError, pause: float) -> None:
            if json:
                print_json({"event": "child_exited", "message": str(end), "restart_in": pause})
            else:
                print_error(f"{end}; starting it again in {pause:g} s")

        stack.enter_context(_report_exit(json=json))
        async with asyncio.TaskGroup() as group:
            group.create_task(children.keep_running(told))
            group.create_task(_keep_broker_running(broker, home / "broker" / "nats-server.log", told))
            client = await stack.enter_async_context(session(broker.url, settings.namespace, create=True))
            await local_system.wait_for_all(
                client, cast.agents, cast.team.name, json=json, began=began, patience=math.inf
            )
            if json:
                print_json({"event": "ready", "url": broker.url, "namespace": settings.namespace,
                        "team": cast.team.name,
                      "dashboard": address})  # fmt: skip
            else:
                where = "" if broker.url.endswith(f":{_DEFAULT_PORT}") else f" --url {broker.url}"
                shown = f"  dashboard  {address}\n" if address else ""
                console().print(Text(f"\nReady.\n{shown}In another terminal:\n  pointsman submit {cast.team.name} "
                                     f"'...'{where}\n  pointsman agents{where}\nCtrl-C ends it."))  # fmt: skip
    return Code.OK


@contextmanager
def _report_exit(*, json: bool) -> Iterator[None]:
    try:
        yield
    except asyncio.CancelledError:
        _print_event("stopping", json=json)
        raise


def _print_event(event: str, *, json: bool) -> None:
    print_json({"event": event}) if json else print(f"{event.capitalize()}.", flush=True)


async def _start_dashboard(children: ChildProcesses, settings: Settings) -> str | None:
    """Where the dashboard is; None where what it needs is not installed."""
    if not app.has_dashboard():
        print_error("no dashboard: pip install 'pointsman[dashboard]' brings what it needs")
        return None
    host, port = settings.dashboard_host, settings.dashboard_port
    if not port or not _is_port_free(port):
        port = _find_free_port()
    await children.start("dashboard", "dashboard", "--port", str(port))
    return f"http://{host}:{port}"


async def _keep_broker_running(
    broker: EmbeddedBroker, log: Path, told: Callable[[ChildExitedError, float], None]
) -> None:
    """Start the broker again whenever it ends. Returns only with the error of a start that failed."""
    while True:
        code = await broker.wait_for_exit()
        told(exit_message("broker", code, log), _RESTART_PAUSE_S)
        await asyncio.sleep(_RESTART_PAUSE_S)
        await broker.restart()


def _find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _is_port_free(port: int) -> bool:
    with socket.socket() as probe:
        if os.name == "posix":  # connections of the last broker linger in TIME-WAIT; on Windows it would steal the port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
