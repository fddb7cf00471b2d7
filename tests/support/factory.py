"""Make supervisors, workers and whole teams in the test's process.

    async with team(CREW, [planner_of(ONE_TASK), echo("a"), synthesizer]) as client:
        workflow = await client.submit("crew", "hello")
        outcome = await workflow.outcome(10)

| Name | Makes |
|---|---|
| `supervisor` | a `SupervisorEngine` that is not started |
| `worker` | a `Worker` that is not started |
| `running` | a block in which supervisors and workers run |
| `team` | supervisors, a worker and a client, announced and running, in memory or on JetStream |
| `workflow_of` | a handle for a workflow whose id is known |
| `planner_of`, `synthesizer`, `echo`, `shaky` | agents for a team |

`support.processes.System` starts operating-system processes. `support.core.WorkflowDriver` is a workflow without a bus.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.bus.jetstream.bus import connect
from pointsman.bus.memory.bus import MemoryBroker, MemoryBus
from pointsman.client.client import Client, Workflow
from pointsman.clock import SystemClock
from pointsman.engine.process.consumers import input_consumers
from pointsman.engine.supervisor.engine import SupervisorEngine
from pointsman.engine.worker.engine import Worker
from pointsman.errors import TaskError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.ports.clock import Clock
from pointsman.settings import Settings
from pointsman.testing.clock import VirtualClock
from pointsman_schemas.card import Role
from pointsman_schemas.events import Handoff
from pointsman_schemas.plan import Plan
from pointsman_schemas.role_io import PlannerInput, Synthesis, SynthesizerInput
from pointsman_schemas.strict_json import parse
from pointsman_schemas.team import Limits, RetryPolicy, Team
from pointsman_schemas.threads import Thread
from support.waiting import in_time, until

__all__ = [
    "CREW",
    "FAST",
    "ONE_TASK",
    "SETTINGS",
    "RunningTeam",
    "echo",
    "ended_thread",
    "planner_of",
    "running",
    "shaky",
    "supervisor",
    "synthesizer",
    "team",
    "worker",
    "workflow_of",
]

CREW = Team(name="crew", limits=Limits(deadline=30), retry=RetryPolicy(backoff=0.05))
ONE_TASK = {"id": "t1", "agent": "a", "intent": "do the thing"}
SETTINGS = Settings(ack_wait=2.0, shutdown_grace=2.0)
FAST = Settings(ack_wait=0.3, heartbeat=0.05, shutdown_grace=0.2)
"""Settings of a worker with quick redelivery of unacknowledged messages."""

_STOP_S = 20.0  # seconds in which every part must have drained, on a busy machine too


def planner_of(*tasks: dict[str, Any]) -> Agent:
    """Return a planner that always answers with `tasks`."""

    @agent(name="planner", description="Writes the plan of the test", role=Role.PLAN)
    async def plan(asked: PlannerInput) -> Plan:
        return Plan.model_validate({"goal": "the test's", "tasks": list(tasks)})

    return plan


@agent(name="synthesizer", description="Joins the results", role=Role.SYNTHESIZE)
async def synthesizer(asked: SynthesizerInput) -> Synthesis:
    return Synthesis(answer="joined")


def echo(name: str) -> Agent:
    """Return an agent that answers with its own name and its request."""

    @agent(name=name, description=f"Repeats the request as {name}")
    async def repeat(request: str) -> str:
        return f"{name}: {request}"

    return repeat


@agent(name="shaky", description="Fails the first time")
async def shaky(request: str, context: Context) -> str:
    if context.attempt == 1:
        raise TaskError("not yet", retryable=True)
    return "now"


def supervisor(
    bus: Bus,
    team: Team = CREW,
    *,
    settings: Settings = SETTINGS,
    clock: Clock | None = None,
    instance: str | None = None,
) -> SupervisorEngine:
    """Return a supervisor of `team` on `bus`, not started. By default it uses the system's clock."""
    return SupervisorEngine(bus, team, settings, clock or SystemClock(), instance=instance)


def worker(bus: Bus, *agents: Agent, settings: Settings = FAST, **more: Any) -> Worker:
    """Return a worker of `agents`, by default of `echo("echo")`, on `bus`, not started.

    `more` are the arguments `clock`, `own_loop` and `instance` of `Worker`.
    """
    return Worker(bus, agents or (echo("echo"),), settings, **more)


@asynccontextmanager
async def running(
    *parts: SupervisorEngine | Worker, clock: VirtualClock | None = None, ready: bool = True
) -> AsyncIterator[asyncio.Event]:
    """Run `parts` until the block ends or the yielded event is set. Then drain and stop the parts.

    Args:
        parts: Supervisors and workers.
        clock: The virtual clock of the parts, if they have one. Its time passes while the parts stop.
        ready: Start the block when all parts are ready.
    """
    async with _started(parts, clock) as (tasks, stop):

        def all_ready() -> bool:
            _raise_errors(tasks)
            return all(part.ready for part in parts)

        if ready:
            await until(all_ready)
        yield stop


def workflow_of(client: Client, workflow: str, team: str = "crew") -> Workflow:
    """Return a handle for the workflow id `workflow`. The workflow may start later."""
    return Workflow(client.bus, client.subjects, workflow, team, source=client.source)


class RunningTeam(Client):
    """A client of a team that runs in this process, with access to the team's parts."""

    supervisors: list[SupervisorEngine]
    broker: MemoryBroker
    """The memory broker. The attribute is missing on JetStream."""


async def return_to(bus: Bus, handoff: str) -> str:
    """Wait until a handoff is stored on the subject `handoff`. Return the subject for its result."""
    stored = await until(lambda: bus.last("handoffs", handoff), seconds=20)
    assert isinstance(stored, StoredMessage)
    return parse(Handoff, stored.body).return_to


async def ended_thread(client: Client, turns: int) -> Thread:
    """Wait until the only thread has `turns` turns, and the record has the end of each. Return the thread.

    A supervisor publishes the outcome of a turn before it writes the record.
    """

    async def read() -> Thread | None:
        (thread,) = await client.operations.threads()
        return thread if len(thread.turns) == turns and all(turn.outcome for turn in thread.turns) else None

    thread = await until(read)
    assert isinstance(thread, Thread)
    return thread


@asynccontextmanager
async def team(
    teams: Team | Sequence[Team] = CREW,
    agents: Sequence[Agent] = (),
    *,
    broker: MemoryBroker | None = None,
    settings: Settings = SETTINGS,
    clock: Clock | None = None,
    supervisor_clock: Clock | None = None,
    worker_clock: Clock | None = None,
    supervisors: int = 1,
    bus: type[MemoryBus] = MemoryBus,
    on: Settings | None = None,
    settled: bool = False,
) -> AsyncIterator[RunningTeam]:
    """Run `teams` and a worker of `agents`. Yield a client when all cards are announced.

    Each part has its own connection. All parts have drained when the block ends.

    Args:
        teams: One team or several.
        agents: The agents of one worker. Without agents, no worker is started.
        broker: The memory broker; a new broker by default.
        settings: The settings of every part on a memory broker.
        clock: The clock of every part; the system's by default. Time passes at the end if it is a `VirtualClock`.
        supervisor_clock: The clock of the supervisors; `clock` by default.
        worker_clock: The clock of the worker; `clock` by default.
        supervisors: Supervisors for each team.
        bus: The class of the supervisors' connections to a memory broker.
        on: The settings of every part on a real broker. They contain the broker's address.
        settled: End the block only after every input of the teams is acknowledged.
    """
    settings = on or settings
    chosen = [teams] if isinstance(teams, Team) else list(teams)
    shared = broker or MemoryBroker(settings.namespace, clock, max_body=settings.max_body)
    virtual = clock if isinstance(clock, VirtualClock) else None
    async with AsyncExitStack() as stack:

        async def connection(name: str) -> Bus:
            if on is None:
                return bus(broker=shared) if name == "supervisor" else shared.connect()
            connected = await connect(on, name=name, wait=30.0)
            stack.push_async_callback(connected.close)
            await connected.set_up()
            return connected

        client = RunningTeam(await connection("client"), namespace=settings.namespace)
        client.broker = shared
        client.supervisors = [
            supervisor(await connection("supervisor"), each, settings=settings, clock=supervisor_clock or clock)
            for each in chosen
            for _ in range(supervisors)
        ]
        parts: list[SupervisorEngine | Worker] = [*client.supervisors]
        if agents:
            own = worker_clock or clock
            parts.append(worker(await connection("worker"), *agents, settings=settings, clock=own))
        async with _started(parts, virtual) as (tasks, _):
            names = {each.card.name for each in agents} | {each.name for each in chosen}
            instances = {part.instance for part in parts}

            async def announced() -> bool:
                _raise_errors(tasks)
                cards = await client.bus.registry.cards()
                return names <= {card.name for card in cards} and instances <= {card.instance for card in cards}

            async def acknowledged() -> bool:
                inputs = [consumer for each in chosen for consumer in input_consumers(client.subjects, each.name)]
                depths = [await client.bus.depth(consumer.name, consumer.stream) for consumer in inputs]
                return all(depth is not None and depth.pending == depth.in_flight == 0 for depth in depths)

            await until(announced, seconds=30)
            yield client
            if settled:
                await until(acknowledged, seconds=30)


@asynccontextmanager
async def _started(
    parts: Sequence[SupervisorEngine | Worker], clock: VirtualClock | None
) -> AsyncIterator[tuple[list[asyncio.Task[None]], asyncio.Event]]:
    """Run `parts` until the block ends. Then wait until the parts have drained, while time passes on `clock`."""
    stop = asyncio.Event()
    tasks = [asyncio.create_task(part.run(stop)) for part in parts]
    try:
        yield tasks, stop
    finally:
        stop.set()
        ending = asyncio.gather(*tasks)
        async with asyncio.timeout(_STOP_S):
            await (in_time(clock, ending) if clock else ending)


def _raise_errors(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()
