"""The commands that keep running: supervisor, worker, dashboard, up; and demo, which is all of it for one request."""

from __future__ import annotations

import asyncio
import importlib
import math
import os
import shlex
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from rich.text import Text

from pointsman import app
from pointsman.app import ChildEnded, Processes
from pointsman.bus.embedded import EmbeddedBroker
from pointsman.cli import render
from pointsman.cli.output import Code, clean, complain, console, emit, outcome_code, prose
from pointsman.cli.session import session, settings_for
from pointsman.cli.workflows import follow
from pointsman.client import Client, Workflow
from pointsman.errors import BusUnavailable, ConfigurationError
from pointsman.llm.selection import chosen_model
from pointsman.settings import Settings
from pointsman_schemas.ids import workflow_id_for
from pointsman_schemas.strict_json import compact
from pointsman_schemas.team import Team

__all__ = ["cast_of", "dashboard", "demo", "embedded", "supervisor", "up", "worker"]

T = TypeVar("T")

# By name and not by import: the shipped agents stand above the command line.
_SHIPPED_TEAM = "pointsman_agents.customer_service"
_SHIPPED_WORKERS = ("billing", "technical", "account")
_SHIPPED_ROLES = {name: f"pointsman_agents.{name}" for name in ("planner", "synthesizer", "classifier")}

_READY = 60.0  # seconds until everybody must be there; six interpreters on one slow core need about ten
_LOOK = 0.05  # seconds between two looks at who is there
_PORT = 4222  # where NATS clients look first
_PAUSE = 0.5  # seconds before a broker that ended is started again, as for a child's first end


def supervisor(target: str, *, url: str | None, namespace: str | None, with_parent: bool) -> Code:
    if with_parent:
        app.end_with_parent()
    return Code(app.run(app.supervise(target, settings_for(url, namespace))))


def worker(targets: Sequence[str], *, url: str | None, namespace: str | None, with_parent: bool) -> Code:
    if with_parent:
        app.end_with_parent()
    return Code(app.run(app.work(targets, settings_for(url, namespace))))


def dashboard(
    *, host: str | None, port: int | None, token: str | None, hosts: Sequence[str], url: str | None,
    namespace: str | None, with_parent: bool,
) -> Code:  # fmt: skip
    if with_parent:
        app.end_with_parent()
    chosen = {
        name: value
        for name, value in (("dashboard_host", host), ("dashboard_port", port), ("dashboard_token", token))
        if value is not None
    }
    settings = Settings.load(**{**settings_for(url, namespace).model_dump(exclude_unset=True), **chosen})

    def ready(address: str) -> None:
        console().print(Text(f"Dashboard on {address}  (Ctrl-C ends it)"))

    return Code(app.run(app.dashboard(settings, hosts=hosts, ready=ready)))


@dataclass(frozen=True, slots=True)
class Cast:
    """Who must be there: the team, and one child process per entry of `workers`: its name and what it runs."""

    team: Team
    target: str
    workers: Mapping[str, Sequence[str]]
    agents: frozenset[str] = field(default_factory=frozenset)


def demo(text: str | None, *, directory: Path | None, json: bool) -> Code:
    settings = settings_for(None, None)
    home = _folder(directory, "pointsman-demo-")
    with _alone(home):
        keep = True
        try:
            code = app.run(_demo(text, settings, home, json=json))
            keep = code is not Code.OK
            return code
        except KeyboardInterrupt:
            keep = False
            raise
        finally:
            if keep:
                complain(f"the logs of the broker and of each process are in {home}")
            elif directory is None:
                shutil.rmtree(home, ignore_errors=True)


async def _demo(text: str | None, settings: Settings, home: Path, *, json: bool) -> Code:
    terminal, began = console(), time.monotonic()
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(EmbeddedBroker(home / "broker"))
        children = await stack.enter_async_context(_children(home, broker, settings))
        starting = asyncio.ensure_future(_start(children, _SHIPPED_TEAM, _demo_workers()))
        # Importing the shipped team takes as long here as in the children, so it happens beside their start.
        module = await asyncio.to_thread(importlib.import_module, _SHIPPED_TEAM)
        await starting
        cast = Cast(app.load_team(_SHIPPED_TEAM), _SHIPPED_TEAM, _demo_workers(), frozenset(_demo_workers()))
        request = text or str(module.SAMPLE_REQUEST)
        if not json:
            _tell_setting(settings, broker, home, len(cast.agents))
        _came_up("broker", began, json=json)
        client = await stack.enter_async_context(session(broker.url, settings.namespace, create=True))
        await _unless_one_ends(
            children, _everybody(client, cast.agents, cast.team.name, json=json, began=began, patience=_READY)
        )
        workflow = await _ask(client, cast.team.name, request)
        if not json:
            subject = client.subjects.request(cast.team.name)
            body = shlex.quote(compact({"input": request}).decode())
            said = f"\nAsking, as any NATS client can:\n  nats pub {subject} {clean(body)}\n"
            terminal.print(Text(said), soft_wrap=True)  # unbroken, so that it can be copied
        outcome = await _unless_one_ends(children, follow(workflow, json=json))
        root = await client.trace(workflow.id)
        if json:
            emit({"outcome": outcome})
            emit({"trace": root})
        else:
            terminal.print()
            prose(terminal, render.answer(outcome))
            terminal.print()
            terminal.print(render.outcome(outcome))
            terminal.print()
            terminal.print(render.trace(root, datetime.now(UTC), terminal.width))
            terminal.print("\nNext: `pointsman up` keeps all this running; `pointsman submit` asks it.", style="dim")
        return outcome_code(outcome)


@asynccontextmanager
async def embedded(target: str, settings: Settings, home: Path, *, team: bool) -> AsyncIterator[Client]:
    """A client of a broker of its own, with everything that `target` needs running: its `team`, or its agents alone."""
    if team:
        cast = cast_of(target)
        workers, agents, name = cast.workers, cast.agents, cast.team.name
    else:
        from pointsman.engine.loading import load_agents

        workers, name = {"agents": [target]}, None
        agents = frozenset(agent.card.name for agent in load_agents([target]))
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(EmbeddedBroker(home / "broker"))
        children = await stack.enter_async_context(_children(home, broker, settings))
        await _start(children, target if team else None, workers)
        client = await stack.enter_async_context(session(broker.url, settings.namespace, create=True))
        waiting = _everybody(client, agents, name, json=None, began=time.monotonic(), patience=_READY)
        await _unless_one_ends(children, waiting)
        yield client


def up(
    target: str | None, *, port: int | None, directory: Path | None, page: bool, namespace: str | None, json: bool
) -> Code:
    settings = settings_for(None, namespace)
    cast = cast_of(target)
    home = _folder(directory, "pointsman-up-")
    try:
        with _alone(home):
            return app.run(_up(cast, settings, home, port, kept=directory is not None, page=page, json=json))
    except KeyboardInterrupt:
        return Code.OK  # the way it is meant to end
    finally:
        if directory is None:
            shutil.rmtree(home, ignore_errors=True)


async def _up(
    cast: Cast, settings: Settings, home: Path, port: int | None, *, kept: bool, page: bool, json: bool
) -> Code:
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        chosen = port if port is not None else _PORT if _is_free(_PORT) else -1
        broker = await stack.enter_async_context(EmbeddedBroker(home / "broker", port=chosen))
        if port is None and chosen == -1:
            number = broker.url.rpartition(":")[2]
            complain(f"{_PORT} is taken, using {number}: export POINTSMAN_URL={broker.url}")
        children = await stack.enter_async_context(_children(home, broker, settings))
        if not json:
            _tell_setting(settings, broker, home, len(cast.agents), kept=kept)
        _came_up("broker", began, json=json)
        await _start(children, cast.target, cast.workers)
        address = await _start_dashboard(children, settings) if page else None

        def told(end: ChildEnded, pause: float) -> None:
            if json:
                emit({"event": "child_ended", "message": str(end), "restart_in": pause})
            else:
                complain(f"{end}; starting it again in {pause:g} s")

        async with asyncio.TaskGroup() as group:
            group.create_task(children.keep(told))
            group.create_task(_keep(broker, home / "broker" / "nats-server.log", told))
            client = await stack.enter_async_context(session(broker.url, settings.namespace, create=True))
            await _everybody(client, cast.agents, cast.team.name, json=json, began=began)
            if json:
                emit({"event": "ready", "url": broker.url, "namespace": settings.namespace, "team": cast.team.name,
                      "dashboard": address})  # fmt: skip
            else:
                where = "" if broker.url.endswith(f":{_PORT}") else f" --url {broker.url}"
                shown = f"  dashboard  {address}\n" if address else ""
                console().print(Text(f"\nReady.\n{shown}In another terminal:\n  pointsman submit {cast.team.name} "
                                     f"'...'{where}\n  pointsman agents{where}\nCtrl-C ends it."))  # fmt: skip
    return Code.OK


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
        told(app.obituary("broker", code, log), _PAUSE)
        await asyncio.sleep(_PAUSE)
        await broker.restart()


def _folder(directory: Path | None, prefix: str) -> Path:
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
def _alone(home: Path) -> Iterator[None]:
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


def cast_of(target: str | None) -> Cast:
    """Who runs for `target`: its teams in a process, its agents in another, and each shipped role they need and it
    does not define."""
    if target in (None, _SHIPPED_TEAM):
        return Cast(app.load_team(_SHIPPED_TEAM), _SHIPPED_TEAM, _demo_workers(), frozenset(_demo_workers()))
    from pointsman.engine.loading import installed_agents, load_agents

    team, teams = app.load_team(target), app.load_teams(target)
    before, _, name = target.rpartition(":")
    place = before if name.isidentifier() and before else target
    try:
        own = {agent.card.name for agent in load_agents([place])}
    except ConfigurationError:
        own = set()
    workers: dict[str, Sequence[str]] = {"agents": [place]} if own else {}
    needed = {name for each in teams for name in each.needs()} - {each.name for each in teams}
    for name in sorted(needed - own):
        if name in installed_agents():
            workers[name] = [name]
        elif name in _SHIPPED_ROLES:
            workers[name] = [_SHIPPED_ROLES[name]]
        else:
            complain(f"team {team.name} needs the agent {name!r}, which {place} does not define: start it yourself")
    return Cast(team, target, workers, frozenset(own | {name for name in workers if name != "agents"}))


def _demo_workers() -> dict[str, Sequence[str]]:
    roles = {name: [_SHIPPED_ROLES[name]] for name in ("planner", "synthesizer")}
    return {**roles, **{name: [f"{_SHIPPED_TEAM}.{name}"] for name in _SHIPPED_WORKERS}}


def _children(home: Path, broker: EmbeddedBroker, settings: Settings) -> Processes:
    environment = {"POINTSMAN_URL": broker.url, "POINTSMAN_NAMESPACE": settings.namespace}
    if settings.health_port is not None:
        environment["POINTSMAN_HEALTH_PORT"] = "0"  # one port cannot be had by all of them
    return Processes(home, environment)


async def _start(children: Processes, target: str | None, workers: Mapping[str, Sequence[str]]) -> None:
    """All at once: they find each other over the broker, in whatever order they come up."""
    await asyncio.gather(
        *([children.start("supervisor", "supervisor", target)] if target is not None else []),
        *(children.start(name, "worker", *targets) for name, targets in workers.items()),
    )


async def _everybody(
    client: Client, agents: frozenset[str], team: str | None, *, json: bool | None, began: float,
    patience: float = math.inf,
) -> None:  # fmt: skip
    """Wait, for `patience` seconds, until the team's consumers exist and the card of every agent is announced. `json`
    None tells nobody who came up."""
    missing = {*agents, *(["supervisor"] if team is not None else [])}
    deadline = time.monotonic() + patience
    while missing:
        there = {card.name for card in await client.agents()} & missing
        if "supervisor" in missing and team is not None and await _supervised(client, team):
            there.add("supervisor")
        for name in sorted(there) if json is not None else ():
            _came_up(name, began, json=json is True)
        missing -= there
        if missing and time.monotonic() > deadline:
            late = ", ".join(sorted(missing))
            raise BusUnavailable(f"{late} did not come up within {patience:.0f} s; look at the logs")
        if missing:
            await asyncio.sleep(_LOOK)


def _came_up(name: str, began: float, *, json: bool) -> None:
    after = time.monotonic() - began
    if json:
        emit({"event": "started", "name": name, "after": round(after, 3)})
    else:
        console().print(Text(f"  ✓ {name:<14} after {render.seconds(after)}", style="dim"))


async def _supervised(client: Client, team: str) -> bool:
    return await client.bus.depth(f"inbox-{team}", "work") is not None


async def _unless_one_ends(children: Processes, work: Coroutine[Any, Any, T]) -> T:
    """`work`, or the error that says which child ended meanwhile."""
    working, ending = asyncio.ensure_future(work), asyncio.ensure_future(children.ended())
    try:
        await asyncio.wait([working, ending], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ending.result()
        return working.result()
    finally:
        for task in (working, ending):
            task.cancel()


async def _ask(client: Client, team: str, request: str) -> Workflow:
    """Publish the request as any NATS client would: bare JSON, no header. Its place in the stream is then its id."""
    sequence = await client.bus.publish(client.subjects.request(team), compact({"input": request}), {})
    return Workflow(client, workflow_id_for(team, f"sequence-{sequence}"), team)


def _tell_setting(settings: Settings, broker: EmbeddedBroker, home: Path, agents: int, *, kept: bool = True) -> None:
    terminal, model = console(), chosen_model(settings.model)
    told = "offline: deterministic, no network; OPENAI_API_KEY or ANTHROPIC_API_KEY brings a real one"
    terminal.print(Text(f"broker  {broker.url}\nmodel   {told if model == 'offline' else model}\nlogs    {home}"))
    if not kept:
        terminal.print(Text("data    kept until Ctrl-C, logs too; --dir PATH keeps it"))
    terminal.print(Text(f"a broker, a supervisor and {agents} agent{'' if agents == 1 else 's'}:", style="bold"))


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
