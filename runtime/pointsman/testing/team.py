"""Run a whole team in the test's own process. The supervisor and the workers are real, and the bus is in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pydantic import JsonValue

from pointsman.authoring.agent import Agent
from pointsman.authoring.interceptor import Interceptor
from pointsman.authoring.lifespan import Lifespan
from pointsman.bus.memory.bus import MemoryBroker
from pointsman.client.client import Client
from pointsman.clock import SystemClock
from pointsman.engine.process.discovery import installed_agents
from pointsman.engine.supervisor.engine import SupervisorEngine
from pointsman.engine.worker.engine import Worker
from pointsman.errors import ConfigurationError
from pointsman.ports.clock import Clock
from pointsman.settings import Settings
from pointsman.testing.clock import VirtualClock
from pointsman_schemas.card import AgentCard
from pointsman_schemas.events import Outcome
from pointsman_schemas.team import Team

__all__ = ["run_team", "running_team"]

_POLL_INTERVAL_S = 0.005  # seconds between two checks of the registry; all agents register in a few milliseconds
_STOP_STEP_S = 0.05  # seconds of virtual time between two checks while the parts stop
_HEARTBEAT_S, _ACK_WAIT_S = 3_600.0, 12_000.0  # seconds; long, because each heartbeat in virtual time takes real time


@asynccontextmanager
async def running_team(
    team: Team | Sequence[Team],
    agents: Sequence[Agent],
    *,
    settings: Settings | None = None,
    interceptors: Sequence[Interceptor] = (),
    lifespans: Sequence[Lifespan[Any]] = (),
    clock: Clock | None = None,
) -> AsyncIterator[Client]:
    """Run a team and its agents in this process, on a bus in memory, until the block ends.

    Args:
        team: Team, or several teams that hand over to each other.
        agents: Agents, including the agents for the roles of the strategy.
        settings: Settings of all parts. Default: the settings of the environment, without a grace time at the end. With
            a `VirtualClock`, heartbeats are rare by default, so that a day of virtual time takes less than a second.
        interceptors: Interceptors of the worker, the outermost first.
        lifespans: Lifespans of the worker.
        clock: Clock of all parts, the broker included. Default: the clock of the system. With a `VirtualClock`, the
            test moves time: schedules fire, deadlines pass and retries start while the test calls `advance`.

    Yields:
        A client of the team.

    Raises:
        ConfigurationError: There are no agents, two agents have the same name, a team names an agent or a skill that
            no element of `agents` has, or a lifespan failed.
    """
    teams = [team] if isinstance(team, Team) else list(team)
    cast: list[AgentCard | Team] = [*(each.card for each in agents), *teams]
    names = {each.name for each in cast}
    for each in teams:
        _check_agents(each, cast)
    virtual = clock if isinstance(clock, VirtualClock) else None
    chosen = settings or _settings(virtual)
    broker = MemoryBroker(chosen.namespace, clock, heartbeat=chosen.heartbeat, max_body=chosen.max_body)
    stop = asyncio.Event()
    worker = Worker(broker.connect(), agents, chosen, interceptors=interceptors, lifespans=lifespans, clock=clock)
    supervisors = [SupervisorEngine(broker.connect(), each, chosen, clock or SystemClock()) for each in teams]
    client = Client(broker.connect(), namespace=chosen.namespace, user=chosen.user or "anonymous", clock=clock)
    tasks = [asyncio.create_task(worker.run(stop)), *(asyncio.create_task(each.run(stop)) for each in supervisors)]
    try:
        while not names <= {card.name for card in await client.bus.registry.cards()}:
            for task in tasks:
                if task.done():
                    task.result()
                    raise ConfigurationError(f"a part of {teams[0].name} ended before the team was ready")
            await asyncio.sleep(_POLL_INTERVAL_S)
        yield client
    finally:
        stop.set()
        ending = asyncio.gather(*tasks, return_exceptions=True)
        while virtual is not None and not ending.done():
            await virtual.advance(_STOP_STEP_S)
            await asyncio.sleep(_POLL_INTERVAL_S)  # threads of agents need real time
        await ending


def _settings(clock: VirtualClock | None) -> Settings:
    """Return the default settings of all parts."""
    if clock is None:
        return Settings(shutdown_grace=0.0)
    return Settings(shutdown_grace=0.0, heartbeat=_HEARTBEAT_S, ack_wait=_ACK_WAIT_S)


def _check_agents(team: Team, cast: Sequence[AgentCard | Team]) -> None:
    """Raise an error if an agent that the team names is missing, because a request would wait until its deadline."""
    present = {each.name for each in cast}
    missing = {name: does for name, does in team.required_agents().items() if name not in present}
    if roles := [name for name, does in missing.items() if does != "works"]:
        shipped = installed_agents()
        places = [shipped[name].value.replace(":", ".") if name in shipped else name for name in roles]
        raise ConfigurationError(
            f"the strategy {type(team.strategy).__name__} of {team.name} needs {' and '.join(roles)}: pass "
            f"{' and '.join(places)}, or agents of your own with those names"
        )
    had = {skill for each in cast for skill in each.skills}
    wanted = [f"an agent called {name}" for name in missing]
    wanted += [f"an agent with the skill {skill}" for skill in team.required_skills() if skill not in had]
    if wanted or not any(isinstance(each, AgentCard) for each in cast):
        lacking = " and ".join(wanted) or "an agent"
        raise ConfigurationError(f"the team {team.name} needs {lacking}, which is missing; add it to the agents")


async def run_team(
    team: Team | Sequence[Team],
    agents: Sequence[Agent],
    request: str | Mapping[str, JsonValue],
    *,
    timeout: float = 10.0,
    settings: Settings | None = None,
    interceptors: Sequence[Interceptor] = (),
    lifespans: Sequence[Lifespan[Any]] = (),
) -> Outcome:
    """Run one request through a team in this process.

    Args:
        team: Team, or several teams of which the first gets the request.
        agents: Agents, including the agents for the roles of the strategy.
        request: Text or object.
        timeout: Longest wait for the outcome, in seconds.
        settings: Settings of all parts. Default: the settings of the environment, without a grace time at the end.
        interceptors: Interceptors of the worker, the outermost first.
        lifespans: Lifespans of the worker.

    Returns:
        The outcome of the workflow.

    Raises:
        TimeoutError: There was no outcome within `timeout`.
        ConfigurationError: As for `running_team`.
    """
    first = team if isinstance(team, Team) else team[0]
    async with running_team(team, agents, settings=settings, interceptors=interceptors, lifespans=lifespans) as client:
        workflow = await client.submit(first.name, request)
        try:
            return await workflow.outcome(timeout)
        except TimeoutError as error:
            raise TimeoutError(
                f"{first.name} had no outcome within {timeout} s: an agent may still be at work; "
                "give run_team a longer timeout"
            ) from error
