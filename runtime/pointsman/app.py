"""The composition root: only this module builds and runs the services, such as a supervisor, a worker or a gateway."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from pointsman import telemetry
from pointsman.authoring.team_agent import TeamAgent
from pointsman.bus.jetstream import bus as jetstream
from pointsman.clock import SystemClock
from pointsman.engine.process.discovery import load_objects, load_worker
from pointsman.engine.process.health import serve_health
from pointsman.engine.process.signals import run_until_signal
from pointsman.engine.worker.engine import Worker
from pointsman.errors import ConfigurationError
from pointsman.settings import Settings, misspelled_variables
from pointsman.telemetry import Telemetry

# The CPU time of a worker's start is limited (tests/unit/test_starting.py), so code that only a supervisor or a
# dashboard runs is imported in the function that runs the code. The import of the supervisor's engine takes 0.1 s of
# CPU, the import of the web server 0.15 s, and the import of a team's models 0.01 s.
if TYPE_CHECKING:
    from pointsman_schemas.team import Team

__all__ = [
    "dashboard",
    "gateway",
    "has_dashboard",
    "has_gateway",
    "has_webhooks",
    "load_team",
    "load_teams",
    "run",
    "supervise",
    "webhooks",
    "work",
]

T = TypeVar("T")

_GC_THRESHOLD = 10_000
"""Number of new container objects, such as dicts, after which the garbage collector runs. About ten workflows create so
many objects, which take a few MB at most."""


async def supervise(target: str, settings: Settings) -> int:
    """Run a supervisor in this process for each team that `target` names, until a signal arrives.

    Args:
        target: `module:name`, a module or a file.
        settings: The settings.

    Returns:
        The exit code.

    Raises:
        ConfigurationError: `target` names no team, or two teams with the same name.
    """
    from pointsman.engine.supervisor.engine import SupervisorEngine

    teams = load_teams(target)
    name = f"supervisor-{teams[0].name}"
    engines: list[SupervisorEngine] = []

    def waiting_for() -> Sequence[str]:
        return [name for engine in engines for name in engine.waiting_for] if engines else ["broker"]

    async def run_all(stop: asyncio.Event) -> None:
        runs = [asyncio.ensure_future(engine.run(stop)) for engine in engines]
        try:
            await asyncio.gather(*runs)
        finally:
            stop.set()  # if one engine fails, the other engines finish their inputs, and then the process ends
            await asyncio.wait(runs)

    async with AsyncExitStack() as stack:
        observed = _start_telemetry(name, settings, stack, exposed=settings.health_port is not None)
        _freeze_imports()
        await stack.enter_async_context(_health(settings, observed, waiting_for))
        bus = await jetstream.connect(settings, name=name, observer=telemetry.bus_observer())
        stack.push_async_callback(bus.close)
        engines += [SupervisorEngine(bus, team, settings, SystemClock()) for team in teams]
        return await run_until_signal(run_all)


async def work(targets: Sequence[str], settings: Settings, *, teams: Sequence[str] = ()) -> int:
    """Run the agents that `targets` name in this process, until a signal arrives.

    Args:
        targets: Modules, files or `module:name`, each with agents.
        settings: The settings.
        teams: The teams to which the agents belong. Each agent has one queue for each team. If `teams` is empty, every
            team may use the agents.

    Returns:
        The exit code.

    Raises:
        ConfigurationError: `targets` name no agent, or a lifespan or an agent cannot be opened.
    """
    parts = load_worker(targets)
    own = tuple(TeamAgent(agent, team) for agent in parts.agents for team in dict.fromkeys(teams))
    agents = own or parts.agents
    name = "-".join(agent.card.name for agent in agents)
    worker: Worker | None = None
    async with AsyncExitStack() as stack:
        observed = _start_telemetry(name, settings, stack, exposed=settings.health_port is not None)
        _freeze_imports()
        await stack.enter_async_context(
            _health(settings, observed, lambda: worker.waiting_for if worker else ["broker"])
        )
        bus = await jetstream.connect(settings, name=name, observer=telemetry.bus_observer(), leader_reads=False)
        stack.push_async_callback(bus.close)
        await bus.set_up()
        worker = Worker(
            bus, agents, settings, own_loop=True, interceptors=parts.interceptors, lifespans=parts.lifespans
        )
        return await run_until_signal(worker.run, worker.hand_back)


async def dashboard(settings: Settings, *, hosts: Sequence[str], ready: Callable[[str], None]) -> int:
    """Serve the dashboard until a signal arrives.

    Args:
        settings: The settings.
        hosts: Names of hosts that the `Host` header of a request may have.
        ready: Called with the address once the dashboard listens.

    Returns:
        The exit code.

    Raises:
        ConfigurationError: the extra `dashboard` is not installed, the port is in use, or no user is configured.
    """
    if not has_dashboard():
        raise ConfigurationError("the dashboard needs starlette and uvicorn: pip install 'pointsman[dashboard]'")
    from pointsman.bus.jetstream.login import user_name
    from pointsman.client.client import Client
    from pointsman.web.server import check_access, serve

    # Check before the connection to the broker, because the connection may wait for the broker forever.
    users = check_access(settings.dashboard_host, settings.dashboard_token, settings.dashboard_users)
    async with AsyncExitStack() as stack:
        observed = _start_telemetry("dashboard", settings, stack)
        bus = await jetstream.connect(settings, name="dashboard", observer=telemetry.bus_observer(), leader_reads=False)
        stack.push_async_callback(bus.close)
        await bus.set_up()
        await stack.enter_async_context(_health(settings, observed, lambda: [] if bus.connected else ["broker"]))
        client = Client(
            bus, namespace=settings.namespace, user=user_name(settings), max_file_bytes=settings.max_file_bytes
        )

        async def run(stop: asyncio.Event) -> None:
            await serve(client, settings, users=users, hosts=hosts, stop=stop, ready=ready)

        return await run_until_signal(run)


async def gateway(settings: Settings, *, hosts: Sequence[str], ready: Callable[[str], None]) -> int:
    """Serve the gateway until a signal arrives.

    Args:
        settings: The settings.
        hosts: Names of hosts that the `Host` header of a request without a key may have.
        ready: Called with the address once the gateway listens.

    Returns:
        The exit code.

    Raises:
        ConfigurationError: the extra `gateway` is not installed, the port is in use, or the gateway demands keys and
            there is no key.
    """
    if not has_gateway():
        raise ConfigurationError("the gateway needs fastapi and pyjwt: pip install 'pointsman[gateway]'")
    from pointsman.client.client import Client
    from pointsman.gateway.server import serve

    async with AsyncExitStack() as stack:
        observed = _start_telemetry("gateway", settings, stack)
        _freeze_imports()
        bus = await jetstream.connect(settings, name="gateway", observer=telemetry.bus_observer(), leader_reads=False)
        stack.push_async_callback(bus.close)
        await bus.set_up()
        await stack.enter_async_context(_health(settings, observed, lambda: [] if bus.connected else ["broker"]))
        client = Client(bus, namespace=settings.namespace)

        async def run(stop: asyncio.Event) -> None:
            await serve(client, settings, hosts=hosts, stop=stop, ready=ready)

        return await run_until_signal(run)


async def webhooks(settings: Settings) -> int:
    """Deliver events to webhooks until a signal arrives.

    Args:
        settings: The settings.

    Returns:
        The exit code.

    Raises:
        ConfigurationError: the extra `gateway` is not installed.
    """
    if not has_webhooks():
        raise ConfigurationError("webhooks need h11 and standardwebhooks: pip install 'pointsman[gateway]'")
    from pointsman.webhooks.service import WebhookService

    service: WebhookService | None = None
    async with AsyncExitStack() as stack:
        observed = _start_telemetry("webhooks", settings, stack, exposed=settings.health_port is not None)
        _freeze_imports()
        await stack.enter_async_context(
            _health(settings, observed, lambda: service.waiting_for if service else ["broker"])
        )
        bus = await jetstream.connect(settings, name="webhooks", observer=telemetry.bus_observer(), leader_reads=False)
        stack.push_async_callback(bus.close)
        await bus.set_up()
        service = WebhookService(bus, settings, SystemClock())
        return await run_until_signal(service.run)


def has_webhooks() -> bool:
    """Return True if the packages that webhooks need are installed."""
    return all(find_spec(name) is not None for name in ("h11", "standardwebhooks"))


def has_gateway() -> bool:
    """Return True if the packages that the gateway needs are installed."""
    return all(find_spec(name) is not None for name in ("fastapi", "uvicorn", "jwt"))


def has_dashboard() -> bool:
    """Return True if the packages that the dashboard needs are installed."""
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn"))


def _health(
    settings: Settings, observed: Telemetry, waiting_for: Callable[[], Sequence[str]]
) -> AbstractAsyncContextManager[object]:
    if settings.health_port is None:
        return nullcontext()
    return serve_health(settings.health_host, settings.health_port, waiting_for, observed.exposition)


def _start_telemetry(name: str, settings: Settings, stack: AsyncExitStack, *, exposed: bool = False) -> Telemetry:
    """Start telemetry, and let `stack` stop it. Warn about each variable that looks like a misspelled setting."""
    observed = telemetry.setup(name, settings=settings, exposed=exposed)
    stack.push_async_callback(observed.shutdown)
    for variable, meant in misspelled_variables().items():
        telemetry.get_logger(__name__).warning(
            "setting_unknown", variable=variable, hint=f"the variable is ignored; did you mean {meant}?"
        )
    return observed


def _freeze_imports() -> None:
    """Exclude imported objects from garbage collection.

    The collector would use up to a tenth of all CPU time to scan the imported objects. In addition, the collector runs
    less often than by default, because the objects of a message have few cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 20)


def load_team(target: str) -> Team:
    """Load the team that `target` names: the only team of a module, or the team in the module's variable `team`.

    Args:
        target: `module:name`, a module or a file.

    Returns:
        The team.

    Raises:
        ConfigurationError: `target` names no team. Or it names several teams, and no variable has the name `team`.
    """
    teams = load_teams(target)
    if len(teams) == 1:
        return teams[0]
    from pointsman_schemas.team import Team

    try:
        return load_objects(f"{target}:team", Team)[0]
    except ConfigurationError:
        names = ", ".join(team.name for team in teams)
        raise ConfigurationError(
            f"{target} defines {len(teams)} teams: {names}; call the variable of the main team `team`, or name the "
            f"variable of a team, as in {target}:VARIABLE"
        ) from None


def load_teams(target: str) -> tuple[Team, ...]:
    """Load all teams that `target` names.

    Args:
        target: `module:name`, a module or a file.

    Returns:
        The teams, in order.

    Raises:
        ConfigurationError: `target` names no team, or two teams with the same name.
    """
    from pointsman_schemas.team import Team

    teams = load_objects(target, Team)
    if len({team.name for team in teams}) < len(teams):
        raise ConfigurationError(f"{target} defines two teams with the same name; rename a team")
    return teams


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a service's `main` on the fastest installed event loop.

    If `main` does not handle SIGTERM, SIGTERM ends the service as Ctrl-C does. SIGINT works also in a process that a
    script started with `&`, although such a process inherits SIGINT as ignored.

    Args:
        main: The coroutine of the service.

    Returns:
        The result of `main`.

    Raises:
        KeyboardInterrupt: a signal ended `main`.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

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
