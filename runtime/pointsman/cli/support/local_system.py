"""A whole system of one's own: a broker, a supervisor and agents as child processes, and waiting until all are up."""

from __future__ import annotations

import asyncio
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
from pointsman.util.environment import unset_variables

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

_CONNECTION_VARIABLES = tuple(
    f"POINTSMAN_{name}"
    for name in ("CREDENTIALS", "USER", "PASSWORD", "TOKEN", "TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_HANDSHAKE_FIRST",
                 "JETSTREAM_DOMAIN", "REPLICAS")
)  # fmt: skip
_READY_TIMEOUT_S = 60.0  # seconds until everybody must be there; six interpreters on one slow core need about ten
_POLL_INTERVAL_S = 0.05  # seconds between two looks at who is there


@asynccontextmanager
async def local_system(target: str, settings: Settings, home: Path, *, team: bool) -> AsyncIterator[Client]:
    """A client of a broker of its own, with everything that `target` needs running: its `team`, or its agents alone."""
    if team:
        cast = topology_of(target)
        if cast.missing:
            raise ConfigurationError(
                f"{target} does not define {', '.join(cast.missing)}, which its team needs, and nobody else can run "
                "what works on a broker of its own; import it there, or do without --embedded"
            )
        workers, agents, name = cast.workers, cast.agents, cast.team.name
    else:
        from pointsman.engine.process.discovery import load_agents

        workers, name = {"agents": [target]}, None
        agents = frozenset(agent.card.name for agent in load_agents([target]))
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(EmbeddedBroker(home / "broker"))
        children = await stack.enter_async_context(child_processes(home, broker, settings))
        await start_children(children, target if team else None, workers)
        client = await stack.enter_async_context(session(broker.url, settings.namespace, create=True))
        waiting = wait_for_all(client, agents, name, json=None, began=time.monotonic())
        await or_child_exit(children, waiting)
        yield client


def ignore_connection_settings() -> None:
    """Unset the variables that describe another broker, for this process and its children.

    A broker of one's own is one server without TLS, login and JetStream domain.
    """
    unset_variables(*_CONNECTION_VARIABLES)


def working_directory(directory: Path | None, prefix: str) -> Path:
    """`directory`, made if need be, or a temporary folder."""
    if directory is None:
        return Path(tempfile.mkdtemp(prefix=prefix))
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"the folder {directory} cannot be made: {error.strerror}; give --dir a place you can write to"
        ) from None
    return directory


@contextmanager
def exclusive_lock(home: Path) -> Iterator[None]:
    """Nobody else uses `home` meanwhile: two brokers on one store destroy it. The kernel frees it with this process."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    try:
        lock = (home / "lock").open("ab")
    except OSError as error:
        raise ConfigurationError(
            f"the folder {home} cannot be written to: {error.strerror}; give --dir another"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"another `pointsman up` or `demo` is running on {home}; end it, or give --dir another folder"
            ) from None
        yield


def child_processes(home: Path, broker: EmbeddedBroker, settings: Settings) -> ChildProcesses:
    environment = {"POINTSMAN_URL": broker.url, "POINTSMAN_NAMESPACE": settings.namespace}
    if settings.health_port is not None:
        environment["POINTSMAN_HEALTH_PORT"] = "0"  # one port cannot be had by all of them
    return ChildProcesses(home, environment)


async def start_children(children: ChildProcesses, target: str | None, workers: Mapping[str, Sequence[str]]) -> None:
    """All at once: they find each other over the broker, in whatever order they come up."""
    await asyncio.gather(
        *([children.start("supervisor", "supervisor", target)] if target is not None else []),
        *(children.start(name, "worker", *targets) for name, targets in workers.items()),
    )


async def wait_for_all(
    client: Client, agents: frozenset[str], team: str | None, *, json: bool | None, began: float,
    patience: float = _READY_TIMEOUT_S,
) -> None:  # fmt: skip
    """Wait, for `patience` seconds, until the team's consumers exist and the card of every agent is announced. `json`
    None tells nobody who came up."""
    missing = {*agents, *(["supervisor"] if team is not None else [])}
    deadline = time.monotonic() + patience
    while missing:
        there = {card.name for card in await client.operations.agents()} & missing
        if "supervisor" in missing and team is not None and await _has_supervisor(client, team):
            there.add("supervisor")
        for name in sorted(there) if json is not None else ():
            print_ready(name, began, json=json is True)
        missing -= there
        if missing and time.monotonic() > deadline:
            late = ", ".join(sorted(missing))
            raise BusUnavailableError(f"{late} did not come up within {patience:.0f} s; look at the logs")
        if missing:
            await asyncio.sleep(_POLL_INTERVAL_S)


def print_ready(name: str, began: float, *, json: bool) -> None:
    after = time.monotonic() - began
    if json:
        print_json({"event": "started", "name": name, "after": round(after, 3)})
    else:
        console().print(Text(f"  ✓ {name:<14} after {format_seconds(after)}", style="dim"))


async def _has_supervisor(client: Client, team: str) -> bool:
    return await client.bus.depth(f"inbox-{team}", "work") is not None


async def or_child_exit(children: ChildProcesses, work: Coroutine[Any, Any, T]) -> T:
    """`work`, or the error that says which child ended meanwhile."""
    working, ending = asyncio.ensure_future(work), asyncio.ensure_future(children.wait_for_exit())
    try:
        await asyncio.wait([working, ending], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ending.result()
        return working.result()
    finally:
        for task in (working, ending):
            task.cancel()


def print_connection_settings(
    settings: Settings, broker: EmbeddedBroker, home: Path, agents: int, *, kept: bool = True
) -> None:
    terminal, model = console(), selected_model(settings.model)
    told = "offline: deterministic, no network; OPENAI_API_KEY or ANTHROPIC_API_KEY brings a real one"
    terminal.print(Text(f"broker  {broker.url}\nmodel   {told if model == 'offline' else model}\nlogs    {home}"))
    if not kept:
        terminal.print(Text("data    kept until Ctrl-C, logs too; --dir PATH keeps it"))
    terminal.print(Text(f"a broker, a supervisor and {agents} agent{'' if agents == 1 else 's'}:", style="bold"))
