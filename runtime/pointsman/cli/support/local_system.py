"""Run a local system, which is a broker, a supervisor and agents as child processes of a command."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rich.text import Text

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.cli.render.output import console, print_json
from pointsman.cli.support.session import session
from pointsman.cli.support.topology import topology_of
from pointsman.client.client import Client
from pointsman.core.views.formatting import format_seconds
from pointsman.errors import BusUnavailableError, ConfigurationError
from pointsman.llm.factory import selected_model
from pointsman.settings import Settings
from pointsman.util.child_processes import ChildProcesses
from pointsman.util.environment import unset_variables, variable

__all__ = [
    "child_processes",
    "exclusive_lock",
    "ignore_connection_settings",
    "local_system",
    "or_child_exit",
    "print_connection_settings",
    "print_ready",
    "start_children",
    "wait_for_all",
    "working_directory",
]

T = TypeVar("T")

_CONNECTION_SETTINGS = (
    "CREDENTIALS",
    "USER",
    "PASSWORD",
    "TOKEN",
    "TLS_CA",
    "TLS_CERT",
    "TLS_KEY",
    "TLS_HANDSHAKE_FIRST",
    "JETSTREAM_DOMAIN",
    "REPLICAS",
)
_READY_TIMEOUT_S = 60.0  # seconds within which all processes must start; on one slow core, six processes need 10 s
_POLL_INTERVAL_S = 0.05  # seconds between two checks for live agents
_MIN_NAME_WIDTH = 14  # smallest number of columns for the names of processes


def ignore_connection_settings() -> None:
    """Unset the variables for the connection to a different broker, in this process and for its children.

    The broker of a local system is one server without TLS, login and JetStream domain, so these variables would be
    wrong.
    """
    unset_variables(*(f"POINTSMAN_{name}" for name in _CONNECTION_SETTINGS))


@asynccontextmanager
async def local_system(
    target: str, settings: Settings, home: Path, *, team: bool, search_path: Path | None = None
) -> AsyncIterator[Client]:
    """Run a broker and the processes of a target until the block ends.

    Args:
        target: A module or a file.
        settings: The settings.
        home: A folder for data and logs.
        team: True to run the supervisor and the agents of the target's team. False to run only the agents.
        search_path: An additional folder in which the processes look for modules. Default: none.

    Yields:
        A client of the broker, after all processes are live.

    Raises:
        ConfigurationError: The target does not define an agent that its team needs.
    """
    if team:
        topology = topology_of(target)
        if topology.missing:
            raise ConfigurationError(
                f"{target} does not define {', '.join(topology.missing)}, which its team needs; import the agents in "
                f"{target}, or start them elsewhere and leave out --embedded"
            )
        workers, agents, name = topology.workers, topology.agents, topology.team.name
    else:
        from pointsman.engine.process.discovery import load_agents

        workers, name = {"agents": [target]}, None
        agents = frozenset(agent.card.name for agent in load_agents([target]))
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(EmbeddedBroker(home / "broker"))
        children = await stack.enter_async_context(child_processes(home, broker, settings, search_path))
        await start_children(children, target if team else None, workers)
        client = await stack.enter_async_context(session(broker.url, settings.namespace, create=True))
        waiting = wait_for_all(client, agents, name, json=None, began=time.monotonic())
        await or_child_exit(children, waiting)
        yield client


def working_directory(directory: Path | None, prefix: str) -> Path:
    """Create the folder for data and logs.

    Args:
        directory: The value of `--dir`, or None for a temporary folder.
        prefix: The beginning of the name of a temporary folder.

    Returns:
        The folder.

    Raises:
        ConfigurationError: The folder cannot be created.
    """
    if directory is None:
        return Path(tempfile.mkdtemp(prefix=prefix))
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"the folder {directory} cannot be created: {error.strerror}; give --dir a folder that you may write to"
        ) from None
    return directory


@contextmanager
def exclusive_lock(home: Path) -> Iterator[None]:
    """Lock a folder. Two brokers in one folder would destroy the stored data. The kernel releases the lock at exit.

    Args:
        home: The folder.

    Yields:
        Nothing.

    Raises:
        ConfigurationError: Another process has the lock, or the folder cannot be written to.
    """
    try:
        import fcntl
    except ImportError:  # no lock on Windows
        yield
        return
    try:
        lock = (home / "lock").open("ab")
    except OSError as error:
        raise ConfigurationError(
            f"the folder {home} cannot be written to: {error.strerror}; give --dir another folder"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"another `pointsman up` or `pointsman demo` uses {home}; stop it, or give --dir another folder"
            ) from None
        yield


def child_processes(
    home: Path, broker: EmbeddedBroker, settings: Settings, search_path: Path | None = None
) -> ChildProcesses:
    """Return an object that starts and stops child processes. These processes use the broker.

    Args:
        home: The folder for logs.
        broker: The broker.
        settings: The settings of this process.
        search_path: An additional folder in which the processes look for modules. Default: none.

    Returns:
        The object. It has not started a process yet.
    """
    environment = {"POINTSMAN_URL": broker.url, "POINTSMAN_NAMESPACE": settings.namespace}
    if settings.health_port is not None:
        environment["POINTSMAN_HEALTH_PORT"] = "0"  # a free port for each process, because two cannot share one port
    if search_path is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(search_path), variable("PYTHONPATH"))))
    return ChildProcesses(home, environment)


async def start_children(children: ChildProcesses, target: str | None, workers: Mapping[str, Sequence[str]]) -> None:
    """Start all processes at the same time. The order does not matter, because they communicate only over the broker.

    Args:
        children: The child processes.
        target: The module or file of the team; None for no supervisor.
        workers: The targets of each worker, by the name of the process.
    """
    await asyncio.gather(
        *([children.start("supervisor", "supervisor", target)] if target is not None else []),
        *(children.start(name, "worker", *targets) for name, targets in workers.items()),
    )


async def wait_for_all(
    client: Client,
    agents: frozenset[str],
    team: str | None,
    *,
    json: bool | None,
    began: float,
    timeout: float = _READY_TIMEOUT_S,
) -> None:
    """Wait until the supervisor has its consumers and all agents have announced their cards.

    Args:
        client: The client.
        agents: The agents.
        team: The team; None for no supervisor.
        json: Print each live process as JSON if True, as text if False, and not at all if None.
        began: The monotonic time at which the command started.
        timeout: Seconds to wait. Default: 60.

    Raises:
        BusUnavailableError: A process did not start in time.
    """
    missing = {*agents, *(["supervisor"] if team is not None else [])}
    width = max(_MIN_NAME_WIDTH, *map(len, missing), 0)
    deadline = time.monotonic() + timeout
    while missing:
        live = {card.name for card in await client.operations.agents()} & missing
        if "supervisor" in missing and team is not None and await _has_supervisor(client, team):
            live.add("supervisor")
        for name in sorted(live) if json is not None else ():
            print_ready(name, began, json=json is True, width=width)
        missing -= live
        if missing and time.monotonic() > deadline:
            late = ", ".join(sorted(missing))
            raise BusUnavailableError(f"{late} did not start within {timeout:.0f} s; read the logs of the processes")
        if missing:
            await asyncio.sleep(_POLL_INTERVAL_S)


def print_ready(name: str, began: float, *, json: bool, width: int = _MIN_NAME_WIDTH) -> None:
    """Print that a process is live.

    Args:
        name: The name of the process.
        began: The monotonic time at which the command started.
        json: True to print JSON, False to print text.
        width: Columns for the name. Default: 14.
    """
    after = time.monotonic() - began
    if json:
        print_json({"event": "started", "name": name, "after": round(after, 3)})
    else:
        console().print(Text(f"  ✓ {name:<{width}} after {format_seconds(after)}", style="dim"))


async def _has_supervisor(client: Client, team: str) -> bool:
    return await client.bus.depth(f"result-{team}", "results") is not None


async def or_child_exit(children: ChildProcesses, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine, and stop it if a child process exits.

    Args:
        children: The child processes.
        work: The coroutine.

    Returns:
        The result of the coroutine.

    Raises:
        ChildExitedError: A child process exited first.
    """
    working, exiting = asyncio.ensure_future(work), asyncio.ensure_future(children.wait_for_exit())
    try:
        await asyncio.wait([working, exiting], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise exiting.result()
        return working.result()
    finally:
        for task in (working, exiting):
            task.cancel()


def print_connection_settings(
    settings: Settings, broker: EmbeddedBroker, home: Path, agents: int, *, kept: bool = True
) -> None:
    """Print the broker, the model and the folders of a local system.

    Args:
        settings: The settings.
        broker: The broker.
        home: The folder for data and logs.
        agents: The number of agents.
        kept: True if the folder is kept after the command. Default: True.
    """
    terminal, model = console(), selected_model(settings.model)
    if model == "offline":
        model = "offline: deterministic, without network; set OPENAI_API_KEY or ANTHROPIC_API_KEY for a real model"
    terminal.print(Text(f"broker  {broker.url}\nmodel   {model}\nlogs    {home}"))
    if not kept:
        terminal.print(Text("data    deleted with the logs after Ctrl-C; --dir PATH keeps both"))
    terminal.print(
        Text(f"starting a broker, a supervisor and {agents} agent{'' if agents == 1 else 's'}:", style="bold")
    )
