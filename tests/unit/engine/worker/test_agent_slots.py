"""A running attempt occupies a slot and its message, at most until its deadline or its cancellation."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any

import pytest
from support import factory
from support.factory import FAST
from support.handoffs import SupervisorDouble
from support.waiting import in_time, until

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.bus.memory.bus import MemoryBus
from pointsman.engine.worker import attempt
from pointsman.engine.worker.engine import Worker
from pointsman.errors import ConfigurationError
from pointsman.settings import Settings
from pointsman.testing.clock import VirtualClock
from pointsman_schemas.events import Cancellation
from pointsman_schemas.strict_json import dump


def test_a_worker_without_agents_reports_it() -> None:
    with pytest.raises(ConfigurationError, match="a worker needs an agent"):
        Worker(MemoryBus(), [], FAST)


async def crowd(workers: int, at_once: int, **bounds: Any) -> tuple[int, int, int]:
    """Run ten handoffs with `workers` workers of an agent. Return the most concurrent runs and the full queue."""
    desk = SupervisorDouble(MemoryBus())
    inside, most = 0, 0
    release = asyncio.Event()

    @agent(name="narrow", description="d", **bounds)
    async def narrow() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await release.wait()
        inside -= 1

    async with AsyncExitStack() as stack:
        for _ in range(workers):
            await stack.enter_async_context(factory.running(factory.worker(desk.bus, narrow)))
        given = [await desk.publish_handoff("narrow", task=f"T{number}") for number in range(10)]
        await until(lambda: inside == at_once)
        depth = await desk.bus.depth("agent-narrow", "work")
        release.set()
        for handoff in given:
            await desk.result(handoff)

    assert depth is not None
    return most, depth.in_flight, depth.pending


async def test_runs_never_exceed_the_slots() -> None:
    assert await crowd(1, 3, concurrency=3) == (3, 3, 7)


async def test_the_runs_of_all_replicas_never_exceed_the_limit_in_flight() -> None:
    assert await crowd(2, 4, concurrency=3, max_in_flight=4) == (4, 4, 6)


@pytest.mark.parametrize("own_loop", [False, True])
@pytest.mark.parametrize("blocking", [False, True])
async def test_a_long_task_keeps_its_message(own_loop: bool, blocking: bool) -> None:
    clock = VirtualClock()
    desk = SupervisorDouble(MemoryBus(clock=clock), clock=clock)
    runs = 0
    started, release = threading.Event(), threading.Event()

    async def patient() -> None:
        nonlocal runs
        runs += 1
        started.set()
        while not release.is_set():
            await asyncio.sleep(0.01)

    def stubborn() -> None:
        nonlocal runs
        runs += 1
        started.set()
        release.wait(10)

    subject: Agent = agent(name="long", description="d")(stubborn if blocking else patient)
    workers = [factory.worker(desk.bus, subject, clock=clock, own_loop=own) for own in (own_loop, False)]
    async with factory.running(workers[0]), factory.running(workers[1]):
        handoff = await desk.publish_handoff("long")
        await until(started.is_set)
        await clock.advance(4 * FAST.ack_wait)
        release.set()
        await desk.result(handoff)

    assert runs == 1


async def test_blocking_handler_keeps_its_message_on_its_own_loop() -> None:
    clock = VirtualClock()
    desk = SupervisorDouble(MemoryBus(clock=clock), clock=clock)
    runs = 0
    started, release = threading.Event(), threading.Event()

    @agent(name="rude", description="d")
    async def rude() -> None:
        nonlocal runs
        runs += 1
        started.set()
        release.wait(10)  # block the event loop on purpose

    workers = [factory.worker(desk.bus, rude, clock=clock, own_loop=True) for _ in range(2)]
    async with factory.running(workers[0]), factory.running(workers[1]):
        handoff = await desk.publish_handoff("rude")
        await until(started.is_set)
        await clock.advance(4 * FAST.ack_wait)
        release.set()
        result = await desk.result(handoff)

    assert (result.status, runs) == ("succeeded", 1)


@pytest.mark.parametrize("own_loop", [False, True])
@pytest.mark.parametrize("swallows", [False, True])
async def test_the_hard_deadline_ends_an_attempt_and_frees_its_slot(
    own_loop: bool, swallows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "CANCEL_GRACE_S", 0.2)
    clock = VirtualClock()
    desk = SupervisorDouble(MemoryBus(clock=clock), clock=clock)
    release = threading.Event()
    contexts: list[Context] = []

    @agent(name="hung", description="d", timeout=0.1, concurrency=1)
    async def hung(text: str, context: Context) -> str:
        contexts.append(context)
        if text == "fine":
            return text
        while not release.is_set():
            try:
                await asyncio.sleep(0.01 if swallows else 3600)
            except asyncio.CancelledError:
                if not swallows:
                    raise
        return text

    async with factory.running(factory.worker(desk.bus, hung, clock=clock, own_loop=own_loop), clock=clock):
        hanging = await desk.publish_handoff("hung", "hang")
        await until(lambda: contexts)
        result = await in_time(clock, desk.result(hanging))
        after = await desk.result(await desk.publish_handoff("hung", "fine", task="T2"))
        release.set()

    assert result.error is not None
    assert (result.error.kind, result.error.retryable) == ("timeout", True)
    assert contexts[0].cancelled
    assert after.output == "fine"


@pytest.mark.parametrize("own_loop", [False, True])
@pytest.mark.parametrize("blocking", [False, True])
async def test_a_handler_that_could_not_be_stopped_is_reported_as_running(
    own_loop: bool, blocking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "CANCEL_GRACE_S", 10.0)  # the other thread is slow on a busy machine
    clock = VirtualClock()
    desk = SupervisorDouble(MemoryBus(clock=clock), clock=clock)
    started, release = threading.Event(), threading.Event()

    async def patient() -> None:
        started.set()
        await asyncio.sleep(3600)

    def stubborn() -> None:
        started.set()
        release.wait(20)

    subject: Agent = agent(name="long", description="d", timeout=0.1)(stubborn if blocking else patient)
    async with factory.running(factory.worker(desk.bus, subject, clock=clock, own_loop=own_loop), clock=clock):
        handoff = await desk.publish_handoff("long")
        await until(started.is_set)
        result = await in_time(clock, desk.result(handoff))
        release.set()

    assert result.error is not None
    end = "a thread of the handler did not stop and still runs" if blocking else "the handler was stopped"
    assert result.error.message.endswith(end)


async def test_blocking_async_handler_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "CANCEL_GRACE_S", 0.2)
    clock = VirtualClock()
    desk = SupervisorDouble(MemoryBus(clock=clock), clock=clock)
    started, release = threading.Event(), threading.Event()

    async def blocking() -> None:
        started.set()
        release.wait(20)

    subject = agent(name="long", description="d", timeout=0.1)(blocking)
    async with factory.running(factory.worker(desk.bus, subject, clock=clock, own_loop=True), clock=clock):
        handoff = await desk.publish_handoff("long")
        await until(started.is_set)
        result = await in_time(clock, desk.result(handoff))
        release.set()

    assert result.error is not None
    assert (
        "the handler did not stop and still runs: the handler swallows cancellation, or a handler"
        in result.error.message
    )
    assert result.error.message.endswith("write blocking code as a plain function")


@pytest.mark.parametrize("own_loop", [False, True])
@pytest.mark.parametrize("blocking", [False, True])
async def test_handler_that_ignores_its_stop_is_counted_until_it_ends(
    own_loop: bool, blocking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "CANCEL_GRACE_S", 0.2)
    clock = VirtualClock()
    bus = MemoryBus(clock=clock)
    desk, release = SupervisorDouble(bus, clock=clock), threading.Event()
    started = threading.Semaphore(0)

    async def swallowing() -> None:
        started.release()
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    def stubborn() -> None:
        started.release()
        release.wait(20)

    async def counted(amount: int) -> bool:
        [card], [service] = await bus.registry.cards(), bus.broker.services
        return card.orphaned_handlers == service.orphaned_handlers() == amount

    subject: Agent = agent(name="long", description="d", timeout=0.1)(stubborn if blocking else swallowing)
    async with factory.running(factory.worker(bus, subject, clock=clock, own_loop=own_loop), clock=clock):
        for task in ("T1", "T2"):
            handoff = await desk.publish_handoff("long", task=task)
            await until(lambda: started.acquire(blocking=False))
            await in_time(clock, desk.result(handoff))
        await in_time(clock, until(lambda: counted(2)))
        release.set()
        await in_time(clock, until(lambda: counted(0)))


@pytest.mark.parametrize(("timeout", "deadline"), [(100, 30), (30, 100)])
async def test_attempt_ends_at_the_task_deadline_or_agent_timeout(timeout: float, deadline: float) -> None:
    clock = VirtualClock()
    desk = SupervisorDouble(MemoryBus(clock=clock), clock=clock)

    @agent(name="hung", description="d", timeout=timeout)
    async def hung() -> None:
        await asyncio.Event().wait()

    async with factory.running(factory.worker(desk.bus, hung, clock=clock, settings=Settings(shutdown_grace=0))):
        handoff = await desk.publish_handoff("hung", deadline=clock.now() + timedelta(seconds=deadline))
        await clock.advance(29)
        before = await desk.find_result(handoff)
        await clock.advance(2)
        result = await desk.result(handoff)

    assert before is None
    assert result.error is not None
    assert "within 30.0 s" in result.error.message


async def test_cancelled_tasks_stop_running_and_do_not_start() -> None:
    clock = VirtualClock()  # years ahead of the worker's clock, which must have no effect
    desk = SupervisorDouble(MemoryBus(clock=clock), clock=clock)
    started = asyncio.Event()

    @agent(name="slow", description="d", concurrency=1)
    async def slow(text: str) -> str:
        if text == "wait":
            started.set()
            await asyncio.Event().wait()
        return text

    async with factory.running(factory.worker(desk.bus, slow)):
        runs = await desk.publish_handoff("slow", "wait")
        waits = await desk.publish_handoff("slow", "no", task="T2")
        others = [
            await desk.publish_handoff("slow", "yes", task="T3"),
            await desk.publish_handoff("slow", "yes", workflow="wf_2"),
        ]
        await started.wait()
        cancelled = desk.subjects.cancelled("team", "wf_1")
        await desk.bus.broadcast(cancelled, b"not json", {})
        await desk.bus.broadcast(cancelled, dump(Cancellation(tasks=("T1", "T2", "T9"))), {})
        results = [await desk.result(handoff) for handoff in (runs, waits, *others)]
        await until(lambda: desk.settled("slow"))

    assert [result.error.kind if result.error else result.output for result in results] == [
        "cancelled", "cancelled", "yes", "yes"]  # fmt: skip
