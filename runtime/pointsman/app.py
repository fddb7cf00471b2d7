"""The composition root: here a team, agents and settings become running processes, and nowhere else.

`supervise` and `work` are what one process does; `Processes` runs several of them as children of this one.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from pointsman.errors import ConfigurationError, PointsmanError
from pointsman.settings import Settings, misspelled

if TYPE_CHECKING:
    from pointsman.telemetry import Telemetry
    from pointsman_schemas.team import Team

__all__ = [
    "ChildEnded",
    "Processes",
    "dashboard",
    "end_with_parent",
    "has_dashboard",
    "load_team",
    "load_teams",
    "obituary",
    "run",
    "supervise",
    "work",
]

T = TypeVar("T")

_GRACE = 5.0  # seconds children have to drain before they are killed; agents of a demo or a laptop are done in one
_FIRST_PAUSE = 0.5  # seconds before a crashed child is started again; doubled each time
_LONGEST_PAUSE = 30.0
_STABLE = 30.0  # seconds after which a child is taken to have started well, and the pauses begin anew
_TAIL = 400  # characters of a log that an error repeats
_GC_EVERY = 10_000  # containers made and kept until the collector looks: some ten workflows' worth, a few MB at most


async def supervise(target: str, settings: Settings) -> int:
    """Run a supervisor for each team that `target` names, in this process, until a signal; the exit code.

    Raises:
        ConfigurationError: `target` names no team, or two under one name.
    """
    teams = load_teams(target)

    from pointsman import telemetry
    from pointsman.bus import jetstream
    from pointsman.bus.clock import SystemClock
    from pointsman.engine.signals import run_until_signal
    from pointsman.engine.supervisor import SupervisorEngine

    _settle_memory()
    name = f"supervisor-{teams[0].name}"
    engines: list[SupervisorEngine] = []

    def waiting_for() -> Sequence[str]:
        return [name for engine in engines for name in engine.waiting_for] if engines else ["broker"]

    async def run_all(stop: asyncio.Event) -> None:
        runs = [asyncio.ensure_future(engine.run(stop)) for engine in engines]
        try:
            await asyncio.gather(*runs)
        finally:
            stop.set()  # one that fails ends the process, and the others have what they took in hand
            await asyncio.wait(runs)

    async with AsyncExitStack() as stack:
        observed = _observe(name, settings, stack, exposed=settings.health_port is not None)
        await stack.enter_async_context(_health(settings, observed, waiting_for))
        bus = await jetstream.connect(settings, name=name, watcher=telemetry.watcher())
        stack.push_async_callback(bus.close)
        engines += [SupervisorEngine(bus, team, settings, SystemClock()) for team in teams]
        return await run_until_signal(run_all)


async def work(targets: Sequence[str], settings: Settings) -> int:
    """Run the agents that `targets` name in this process until a signal; the exit code."""
    from pointsman.engine.loading import load_agents

    agents = load_agents(targets)

    from pointsman import telemetry
    from pointsman.bus import jetstream
    from pointsman.engine.signals import run_until_signal
    from pointsman.engine.worker import Worker

    name = "-".join(agent.card.name for agent in agents)
    _settle_memory()
    worker: Worker | None = None
    async with AsyncExitStack() as stack:
        observed = _observe(name, settings, stack, exposed=settings.health_port is not None)
        await stack.enter_async_context(
            _health(settings, observed, lambda: worker.waiting_for if worker else ["broker"])
        )
        bus = await jetstream.connect(settings, name=name, watcher=telemetry.watcher())
        stack.push_async_callback(bus.close)
        await bus.set_up()
        worker = Worker(bus, agents, settings, own_loop=True)
        return await run_until_signal(worker.run, worker.hand_back)


async def dashboard(settings: Settings, *, hosts: Sequence[str], ready: Callable[[str], None]) -> int:
    """Serve the dashboard until a signal; the exit code. `ready` is told its address.

    Raises:
        ConfigurationError: the extra `dashboard` is not installed, the port cannot be had, or a token is missing.
    """
    if not has_dashboard():
        raise ConfigurationError("the dashboard needs starlette and uvicorn: pip install 'pointsman[dashboard]'")
    from pointsman import telemetry
    from pointsman.bus import jetstream
    from pointsman.client import Client
    from pointsman.engine.signals import run_until_signal
    from pointsman.web.server import check_access, serve

    check_access(settings.dashboard_host, settings.dashboard_token)  # before a broker is waited for
    async with AsyncExitStack() as stack:
        observed = _observe("dashboard", settings, stack)
        bus = await jetstream.connect(settings, name="dashboard", watcher=telemetry.watcher())
        stack.push_async_callback(bus.close)
        await bus.set_up()
        await stack.enter_async_context(_health(settings, observed, lambda: [] if bus.connected else ["broker"]))
        client = Client(bus, namespace=settings.namespace)

        async def run(stop: asyncio.Event) -> None:
            await serve(
                client,
                host=settings.dashboard_host,
                port=settings.dashboard_port,
                token=settings.dashboard_token,
                hosts=hosts,
                stop=stop,
                ready=ready,
            )

        return await run_until_signal(run)


def has_dashboard() -> bool:
    """Whether what the dashboard needs is installed."""
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn"))


def _health(
    settings: Settings, observed: Telemetry, waiting_for: Callable[[], Sequence[str]]
) -> AbstractAsyncContextManager[object]:
    if settings.health_port is None:
        return nullcontext()
    from pointsman.engine.health import serve_health

    return serve_health(settings.health_host, settings.health_port, waiting_for, observed.exposition)


def _observe(name: str, settings: Settings, stack: AsyncExitStack, *, exposed: bool = False) -> Telemetry:
    """Telemetry until the end of `stack`; its first line is of what was meant for the settings and is none."""
    from pointsman import telemetry

    observed = telemetry.setup(name, settings=settings, exposed=exposed)
    stack.push_async_callback(observed.shutdown)
    for variable, meant in misspelled().items():
        telemetry.get_logger(__name__).warning(
            "setting_unknown", variable=variable, hint=f"it is ignored; did you mean {meant}?"
        )
    return observed


def _settle_memory() -> None:
    """What was imported stays: the collector need not look through it again and again, up to a tenth of all CPU. What
    is made for a message is mostly free of cycles, and is looked through less often than Python would."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_EVERY, 20, 20)


def load_team(target: str) -> Team:
    """The team that `target` names; of several in a module, the one it calls `team`.

    Raises:
        ConfigurationError: there is none, or several and none is called so.
    """
    teams = load_teams(target)
    if len(teams) == 1:
        return teams[0]
    from pointsman.engine.loading import load
    from pointsman_schemas.team import Team

    try:
        return load(f"{target}:team", Team)[0]
    except ConfigurationError:
        names = ", ".join(team.name for team in teams)
        raise ConfigurationError(
            f"{target} defines {len(teams)} teams: {names}; call the first of them `team`, or name one, as in "
            f"{target}:VARIABLE"
        ) from None


def load_teams(target: str) -> tuple[Team, ...]:
    """All teams that `target` names. Raises `ConfigurationError` when there is none, or two have the same name."""
    from pointsman.engine.loading import load
    from pointsman_schemas.team import Team

    teams = load(target, Team)
    if len({team.name for team in teams}) < len(teams):
        raise ConfigurationError(f"{target} defines two teams with one name; rename one of them")
    return teams


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a service's `main` on the fastest loop there is. SIGTERM ends it as Ctrl-C does, unless `main` says how."""

    async def guarded() -> T:
        task = asyncio.ensure_future(main)
        with suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(guarded())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def end_with_parent() -> None:
    """Ask this process to stop when its standard input closes.

    The parent holds the other end and never writes: when it is gone, killed or not, the kernel closes it.
    """

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="end-with-parent", daemon=True).start()


class ChildEnded(PointsmanError):
    """A process that was to run has ended. The message holds the last thing it said and where the rest is."""

    kind = "child_ended"


@dataclass(slots=True)
class _Child:
    name: str
    arguments: Sequence[str]
    log: Path
    process: asyncio.subprocess.Process
    started: float
    pause: float = _FIRST_PAUSE


class Processes:
    """Children that run `pointsman` commands, each with a log file in `directory`. Leaving the context ends them all.

    Each has a session of its own, so that the terminal's Ctrl-C reaches this process alone and it decides who ends
    when; each ends by itself when this process is gone.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self._environment = {**os.environ, **environment}
        self._children: list[_Child] = []
        self._stopping = False

    async def __aenter__(self) -> Processes:
        self.directory.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self, name: str, *arguments: str) -> None:
        """Start `pointsman ARGUMENTS` as the child `name`."""
        log = self.directory / f"{name}.log"
        process = await self._spawn(arguments, log)
        self._children.append(_Child(name, arguments, log, process, time.monotonic()))

    async def stop(self) -> None:
        """End all children: asked first, killed after a bounded wait. Safe to call twice."""
        self._stopping = True
        running = [child.process for child in self._children if child.process.returncode is None]
        for process in running:
            _end(process, kill=False)
        if running:
            _, left = await asyncio.wait([asyncio.ensure_future(process.wait()) for process in running], timeout=_GRACE)
            if left:
                for process in running:
                    _end(process, kill=True)
                await asyncio.wait(left)

    async def ended(self) -> ChildEnded:
        """Wait for the first child that ends, and return what it said last."""
        waits = {asyncio.ensure_future(child.process.wait()): child for child in self._children}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return _obituary(waits[done.pop()])

    async def keep(self, told: Callable[[ChildEnded, float], None]) -> None:
        """Start again whoever ends, after a growing pause that `told` hears of. Never returns."""
        async with asyncio.TaskGroup() as group:
            for child in self._children:
                group.create_task(self._keep(child, told))

    async def _keep(self, child: _Child, told: Callable[[ChildEnded, float], None]) -> None:
        while True:
            await child.process.wait()
            if self._stopping:
                return
            if time.monotonic() - child.started > _STABLE:
                child.pause = _FIRST_PAUSE
            told(_obituary(child), child.pause)
            await asyncio.sleep(child.pause)
            child.pause = min(_LONGEST_PAUSE, child.pause * 2)
            child.process = await self._spawn(child.arguments, child.log)
            child.started = time.monotonic()

    async def _spawn(self, arguments: Sequence[str], log: Path) -> asyncio.subprocess.Process:
        with log.open("ab") as said:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "pointsman",
                *arguments,
                "--with-parent",
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                env=self._environment,
                start_new_session=True,
            )


def obituary(name: str, code: int, log: Path) -> ChildEnded:
    """How the process `name` ended: a negative `code` is the signal that killed it, as in `subprocess`.

    Only a positive one is the process's own word, which the last line of its log then explains.
    """
    if code < 0:
        return ChildEnded(f"the process {name} was killed by signal {-code}; its log is {log}")
    if code == 0:
        return ChildEnded(f"the process {name} ended with code 0; its log is {log}")
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    last = lines[-1][-_TAIL:] if lines else "it said nothing"
    return ChildEnded(f"the process {name} ended with code {code}: {last}; its log is {log}")


def _obituary(child: _Child) -> ChildEnded:
    return obituary(child.name, child.process.returncode or 0, child.log)


def _end(process: asyncio.subprocess.Process, *, kill: bool) -> None:
    with suppress(ProcessLookupError):
        process.kill() if kill else process.terminate()
