"""Lifespans of a worker open on its agents' event loop before it takes work, and close after its agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from pydantic import JsonValue
from structlog.testing import capture_logs
from support import factory
from support.handoffs import SupervisorDouble
from support.waiting import until

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.authoring.lifespan import Lifespan, lifespan
from pointsman.bus.memory.bus import MemoryBus
from pointsman.engine.worker.engine import Worker
from pointsman.errors import ConfigurationError
from pointsman.settings import Settings
from pointsman.testing import run_team
from pointsman_schemas.card import AgentCard
from pointsman_schemas.events import Handoff
from pointsman_schemas.team import Pipeline, Stage, Team

SETTINGS = Settings(ack_wait=2.0, heartbeat=0.05, shutdown_grace=0.2)


class Pool:
    def __init__(self, log: list[str], name: str = "pool") -> None:
        self.log = log
        self.name = name
        self.loop = asyncio.get_running_loop()


class Pair(NamedTuple):
    left: int
    right: int


def pool_of(log: list[str], name: str = "pool") -> Lifespan[Pool]:
    @lifespan
    async def pool() -> AsyncIterator[Pool]:
        log.append(f"open {name}")
        task = asyncio.current_task()
        yield Pool(log, name)
        assert asyncio.current_task() is task  # a task group needs the same task
        log.append(f"close {name}")

    return pool


@agent
async def user(request: str, context: Context) -> list[JsonValue]:
    """Uses the pool."""
    pool = context.dep(Pool)
    pool.log.append(f"use {pool.name}")
    return [pool.name, pool.loop is asyncio.get_running_loop()]


@pytest.mark.parametrize("own_loop", [True, False])
async def test_values_are_dependencies_on_the_loop_of_the_agents_until_the_drain(own_loop: bool) -> None:
    log, desk = list[str](), SupervisorDouble(MemoryBus())

    class Closing(Agent):
        @property
        def card(self) -> AgentCard:
            return user.card.model_copy(update={"name": "closing"})

        async def run(self, handoff: Handoff, context: Context) -> JsonValue:
            return None

        async def open(self) -> None:
            log.append("open agent")

        async def close(self) -> None:
            log.append("close agent")

    worker = Worker(
        desk.bus, [user, Closing()], SETTINGS, own_loop=own_loop,
        lifespans=[pool_of(log, "first"), pool_of(log, "second")],
    )  # fmt: skip
    async with factory.running(worker):
        result = await desk.result(await desk.publish_handoff("user", "go"))

    assert result.output == ["first", True]
    assert log == ["open first", "open second", "open agent", "use first", "close agent", "close second", "close first"]


async def test_a_tuple_or_list_is_several_values_and_none_is_no_value() -> None:
    @lifespan
    async def several() -> AsyncIterator[tuple[str, int]]:
        yield "text", 7

    @lifespan
    async def nothing() -> AsyncIterator[None]:
        yield

    @lifespan
    async def pair() -> AsyncIterator[Pair]:
        yield Pair(1, 2)

    @lifespan
    @asynccontextmanager
    async def managed() -> AsyncIterator[list[float]]:
        yield [0.5]

    @agent
    async def reader(request: str, context: Context) -> list[JsonValue]:
        """Reads."""
        return [context.dep(str), context.dep(int), context.dep(float), context.dep(Pair).right]

    team = Team(name="t", strategy=Pipeline(stages=(Stage(agent="reader"),)))
    outcome = await run_team(team, [reader], "go", lifespans=[several, nothing, pair, managed])

    assert outcome.answer == ["text", 7, 0.5, 2]


async def test_a_lifespan_is_opened_by_a_test_as_the_context_manager_that_it_is() -> None:
    log: list[str] = []

    async with pool_of(log)() as pool:
        answer = await user.run(
            Context.for_test("go").handoff, Context.for_test("go", deps=[pool])
        )  # fmt: skip

    assert answer == ["pool", True]
    assert log == ["open pool", "use pool", "close pool"]


async def test_a_failed_start_is_named_and_what_was_open_is_closed() -> None:
    log: list[str] = []

    @lifespan
    async def broken() -> AsyncIterator[None]:
        raise ConnectionError("no database at db:5432")
        yield

    worker = Worker(MemoryBus(), [user], SETTINGS, own_loop=True, lifespans=[pool_of(log), broken])
    with pytest.raises(
        ConfigurationError,
        match=r"^the lifespan broken .test_resources.py:.* failed at the start of the worker: ConnectionError: no",
    ):
        await worker.run(asyncio.Event())

    assert log == ["open pool", "close pool"]
    assert not worker.ready


async def test_a_stop_while_a_lifespan_opens_ends_the_worker() -> None:
    log, stop = list[str](), asyncio.Event()

    @lifespan
    async def endless() -> AsyncIterator[None]:
        log.append("opening")
        try:
            await asyncio.Event().wait()
        finally:
            log.append("cancelled")
        yield

    running = asyncio.create_task(
        Worker(MemoryBus(), [user], SETTINGS, own_loop=True, lifespans=[pool_of(log), endless]).run(stop)
    )
    await until(lambda: "opening" in log)
    stop.set()
    await asyncio.wait_for(running, 5)

    assert log == ["open pool", "opening", "cancelled", "close pool"]


async def test_errors_at_the_end_are_logged_and_the_others_are_closed() -> None:
    log: list[str] = []

    @lifespan
    async def failing() -> AsyncIterator[None]:
        yield
        raise OSError("connection lost")

    @lifespan
    async def hanging() -> AsyncIterator[None]:
        yield
        await asyncio.Event().wait()

    with capture_logs() as lines:
        async with factory.running(
            Worker(MemoryBus(), [user], SETTINGS, own_loop=True, lifespans=[pool_of(log), failing])
        ):
            pass
        async with factory.running(Worker(MemoryBus(), [user], SETTINGS, own_loop=True, lifespans=[hanging])):
            pass

    events = {line["event"]: line for line in lines}
    assert (events["lifespan_close_failed"]["lifespan"], repr(events["lifespan_close_failed"]["error"])) == (
        "failing",
        "OSError('connection lost')",
    )
    assert events["lifespan_close_timeout"]["lifespans"] == ["hanging"]
    assert log == ["open pool", "close pool"]


@pytest.mark.parametrize("error", [ConfigurationError("the server offers no tool add"), OSError("no answer")])
async def test_an_agent_that_cannot_be_opened_ends_the_worker_only_if_its_author_has_to_change_something(
    error: Exception,
) -> None:
    class Opening(Agent):
        @property
        def card(self) -> AgentCard:
            return user.card

        async def run(self, handoff: Handoff, context: Context) -> JsonValue:
            return "done"

        async def open(self) -> None:
            raise error

    desk = SupervisorDouble(MemoryBus())
    worker = Worker(desk.bus, [Opening()], SETTINGS, own_loop=True)

    if isinstance(error, ConfigurationError):
        with pytest.raises(ConfigurationError, match="offers no tool add"):
            await worker.run(asyncio.Event())
        return
    with capture_logs() as lines:
        async with factory.running(worker):
            assert (await desk.result(await desk.publish_handoff("user", "go"))).output == "done"
    (line,) = [line for line in lines if line["event"] == "agent_open_failed"]
    assert (line["agent"], line["error"]) == ("user", error)


def _with_parameter(number: int) -> Any: ...


async def _coroutine() -> None: ...


@pytest.mark.parametrize("function", [_with_parameter, _coroutine, 7])
def test_what_is_no_lifespan_is_told_how_to_write_one(function: Any) -> None:
    with pytest.raises(ConfigurationError, match="without parameters that yields once"):
        lifespan(function)
