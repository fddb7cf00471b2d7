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
from pointsman.cli.render.output import Code, complain, console, emit
from pointsman.cli.support import local_system
from pointsman.cli.support.session import session, settings_for
from pointsman.cli.support.topology import Cast, cast_of
from pointsman.errors import ConfigurationError
from pointsman.settings import Settings
from pointsman.util.child_processes import ChildEnded, Processes, obituary

__all__ = ["up"]

_PORT = 4222  # where NATS clients look first
_PAUSE = 0.5  # seconds before a broker that ended is started again, as for a child's first end


def up(
    target: str | None, *, port: int | None, directory: Path | None, page: bool, namespace: str | None, json: bool
) -> Code:
    settings = settings_for(None, namespace)
    if port is not None and port > 0 and not _is_free(port):
        raise ConfigurationError(f"port {port} is taken by another program; choose another --port, 0 for a free one")
    cast = cast_of(target)
    home = local_system.folder(directory, "pointsman-up-")
    try:
        with local_system.alone(home):
            return app.run(_up(cast, settings, home, port, kept=directory is not None, page=page, json=json))
    except KeyboardInterrupt:
        _tell("stopped", json=json)
        return Code.OK  # the way it is meant to end
    finally:
        if directory is None:
            shutil.rmtree(home, ignore_errors=True)


async def _up(
    cast: Cast, settings: Settings, home: Path, port: int | None, *, kept: bool, page: bool, json: bool
) -> Code:
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        chosen = (port or -1) if port is not None else _PORT if _is_free(_PORT) else -1  # -1 is any to nats-server
        broker = await stack.enter_async_context(EmbeddedBroker(home / "broker", port=chosen))
        if port is None and chosen == -1:
            number = broker.url.rpartition(":")[2]
            complain(f"{_PORT} is taken, using {number}: export POINTSMAN_URL={broker.url}")
        children = await stack.enter_async_context(local_system.children_of(home, broker, settings))
        if not json:
            local_system.tell_setting(settings, broker, home, len(cast.agents), kept=kept)
        local_system.came_up("broker", began, json=json)
        for name in cast.absent:
            complain(f"team {cast.team.name} needs the agent {name!r}, which {cast.target} does not define: start it "
                     f"yourself, as with `POINTSMAN_URL={broker.url} pointsman worker FILE.py`")  # fmt: skip
        await local_system.start(children, cast.target, cast.workers)
        address = await _start_dashboard(children, settings) if page else None

        def told(end: ChildEnded, pause: float) -> None:
            if json:
                emit({"event": "child_ended", "message": str(end), "restart_in": pause})
            else:
                complain(f"{end}; starting it again in {pause:g} s")

        stack.enter_context(_told_of_its_end(json=json))
        async with asyncio.TaskGroup() as group:
            group.create_task(children.keep(told))
            group.create_task(_keep(broker, home / "broker" / "nats-server.log", told))
            client = await stack.enter_async_context(session(broker.url, settings.namespace, create=True))
            await local_system.everybody(client, cast.agents, cast.team.name, json=json, began=began, patience=math.inf)
            if json:
                emit({"event": "ready", "url": broker.url, "namespace": settings.namespace, "team": cast.team.name,
                      "dashboard": address})  # fmt: skip
            else:
                where = "" if broker.url.endswith(f":{_PORT}") else f" --url {broker.url}"
                shown = f"  dashboard  {address}\n" if address else ""
                console().print(Text(f"\nReady.\n{shown}In another terminal:\n  pointsman submit {cast.team.name} "
                                     f"'...'{where}\n  pointsman agents{where}\nCtrl-C ends it."))  # fmt: skip
    return Code.OK


@contextmanager
def _told_of_its_end(*, json: bool) -> Iterator[None]:
    try:
        yield
    except asyncio.CancelledError:
        _tell("stopping", json=json)
        raise


def _tell(event: str, *, json: bool) -> None:
    emit({"event": event}) if json else print(f"{event.capitalize()}.", flush=True)


async def _start_dashboard(children: Processes, settings: Settings) -> str | None:
    """Where the dashboard is; None where what it needs is not installed."""
    if not app.has_dashboard():
        complain("no dashboard: pip install 'pointsman[dashboard]' brings what it needs")
        return None
    host, port = settings.dashboard_host, settings.dashboard_port
    if not port or not _is_free(port):
        port = _a_free_port()
    await children.start("dashboard", "dashboard", "--port", str(port))
    return f"http://{host}:{port}"


async def _keep(broker: EmbeddedBroker, log: Path, told: Callable[[ChildEnded, float], None]) -> None:
    """Start the broker again whenever it ends. Returns only with the error of a start that failed."""
    while True:
        code = await broker.ended()
        told(obituary("broker", code, log), _PAUSE)
        await asyncio.sleep(_PAUSE)
        await broker.restart()


def _a_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        if os.name == "posix":  # connections of the last broker linger in TIME-WAIT; on Windows it would steal the port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
