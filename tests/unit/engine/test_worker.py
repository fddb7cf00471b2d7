"""A worker answers every attempt once, whatever arrives and however the handler behaves."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, cast

import pytest
from opentelemetry.trace import SpanKind
from support.spans import exporting
from support.workers import TRACEPARENT, Desk, eventually, running

from pointsman.agent import Agent, agent
from pointsman.bus.memory import MemoryBroker, MemoryBus
from pointsman.context import Context
from pointsman.engine.worker import Worker
from pointsman.errors import ConfigurationError, Conflict, ModelError, Refused, TaskError, UnknownOutcome
from pointsman.ports import Bus, Delivery
from pointsman.settings import Settings
from pointsman.telemetry import traces
from pointsman.testing.clock import VirtualClock
from pointsman.tools import tool
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import Cancellation, DeadLetter, Handoff, Progress, Usage
from pointsman_schemas.strict_json import dump, parse

SETTINGS = Settings(ack_wait=0.3, heartbeat=0.05, grace=0.2)


@agent(name="echo", description="Says it again")
async def echo(text: str) -> str:
    return text


def worker(bus: Bus, *agents: Agent, settings: Settings = SETTINGS, **more: Any) -> Worker:
    return Worker(bus, agents or (echo,), settings, **more)


async def is_set(event: threading.Event) -> bool:
    return event.is_set()


async def letters(desk: Desk) -> list[DeadLetter]:
    return [parse(DeadLetter, stored.body) async for stored in desk.bus.read("dead", desk.subjects.dead_letters)]


async def reports(desk: Desk, workflow: str = "wf_1") -> list[Progress]:
    found = [stored async for stored in desk.bus.read("log", desk.subjects.events_of(workflow))]
    return [parse(Progress, stored.body) for stored in found]


async def test_a_handoff_gets_its_result_and_is_acknowledged() -> None:
    desk = Desk(MemoryBus())

    async with running(worker(desk.bus)):
        handoff = await desk.hand("echo", {"request": "hello"})
        result = await desk.result(handoff)
        await eventually(lambda: desk.settled("echo"))

    assert (result.status, result.output, result.agent, result.attempt) == ("succeeded", "hello", "echo", 1)
    assert result.ended_at >= result.started_at


async def test_a_result_says_what_caused_it() -> None:
    desk = Desk(MemoryBus())

    async with running(worker(desk.bus)):
        handoff = await desk.hand("echo", "hello")
        await desk.result(handoff)

    stored = await desk.bus.last("work", handoff.return_to)
    assert stored is not None
    envelope, _ = decode(stored.headers, stored.body)
    assert envelope is not None
    assert (envelope.type, envelope.subject) == ("io.pointsman.result.v1", "wf_1")
    assert (envelope.correlation_id, envelope.causation_id) == ("correlation-1", "handoff-T1")
    assert envelope.traceparent is not None
    assert envelope.traceparent.split("-")[1] == TRACEPARENT.split("-")[1]


@pytest.mark.parametrize("own_loop", [False, True])
async def test_reports_tools_events_and_usage_travel_with_the_work(own_loop: bool) -> None:
    desk = Desk(MemoryBus())

    @tool
    def search(query: str) -> str:
        """Searches."""
        return query.upper()

    @agent(name="busy", description="d")
    async def busy(text: str, context: Context) -> Any:
        await context.progress("looking", step=1)
        found = await context.call(search, query=text)
        await context.emit("found", {"what": found})
        context.record_usage(Usage(calls=2, cost=0.5))
        context.set_confidence(0.75)
        context.replan("more to do")
        return found

    async with running(worker(desk.bus, busy, own_loop=own_loop)):
        handoff = await desk.hand("busy", "tea")
        result = await desk.result(handoff)

    assert (result.output, result.usage.calls, result.confidence) == ("TEA", 2, 0.75)
    assert result.replan_hint == "more to do"
    assert {each.kind: (each.name, each.message, each.data) for each in await reports(desk)} == {
        "progress": ("", "looking", {"step": 1}),
        "tool": ("search", "", None),
        "found": ("found", "", {"what": "TEA"}),
    }
    assert await desk.bus.last("log", desk.subjects.event("wf_1", "found")) is not None


async def test_what_is_reported_has_the_brokers_time_whatever_the_clock_here_says() -> None:
    clock = VirtualClock()  # years ahead of the worker's
    desk = Desk(MemoryBus(clock=clock), clock=clock)

    @tool
    def search(query: str) -> str:
        """Searches."""
        return query

    @agent(name="busy", description="d")
    async def busy(context: Context) -> None:
        await context.progress("looking")
        await context.call(search, query="tea")
        await context.emit("found")

    async with running(worker(desk.bus, busy)):
        await desk.result(await desk.hand("busy"))

    said = [stored async for stored in desk.bus.read("log", desk.subjects.events_of("wf_1"))]
    times = [report.started_at for report in await reports(desk)]
    times += [envelope.time for stored in said if (envelope := decode(stored.headers, stored.body)[0]) is not None]
    assert len(times) == 6
    assert all(abs(at - clock.now()) < timedelta(minutes=1) for at in times)


@pytest.mark.parametrize(
    ("error", "status", "kind", "retryable", "retry_after"),
    [
        (TaskError("no"), "failed", "handler_error", False, None),
        (TaskError("no", kind="own", retryable=True, retry_after=3), "failed", "own", True, 3),
        (TaskError("no", retry_after=float("inf")), "failed", "handler_error", False, None),
        (TaskError("no", retry_after=-5), "failed", "handler_error", False, 0),
        (Refused("will not"), "refused", "refused", False, None),
        (ModelError("busy", retryable=True, retry_after=9), "failed", "provider_error", True, 9),
        (ValueError("bad \ud800 " + "x" * 1000), "failed", "handler_error", True, None),
        (SystemExit(1), "failed", "handler_error", True, None),
        (asyncio.CancelledError(), "failed", "handler_error", True, None),
    ],
    ids=repr,
)
async def test_what_a_handler_raises_is_told_to_the_supervisor(
    error: BaseException, status: str, kind: str, retryable: bool, retry_after: float | None
) -> None:
    desk = Desk(MemoryBus())

    @agent(name="failing", description="d")
    async def failing(context: Context) -> None:
        context.record_usage(Usage(calls=1))
        raise error

    async with running(worker(desk.bus, failing)):
        result = await desk.result(await desk.hand("failing"))
        after = await desk.result(await desk.hand("failing", task="T2"))

    assert result.error is not None
    assert (result.status, result.error.kind, result.error.retryable) == (status, kind, retryable)
    assert result.error.retry_after == retry_after
    assert 0 < len(result.error.message) <= 500
    assert result.usage.calls == 1
    assert after.status == status


async def test_an_output_of_a_hand_made_agent_is_checked_too() -> None:
    class Odd(Agent):
        card = echo.card

        async def run(self, handoff: Handoff, context: Context) -> Any:
            return {"a": float("nan")}

    desk = Desk(MemoryBus())

    async with running(worker(desk.bus, Odd())):
        result = await desk.result(await desk.hand("echo"))

    assert result.error is not None
    assert result.error.kind == "invalid_output"
    assert "$.a" in result.error.message


async def test_a_redelivered_handoff_with_a_result_is_not_run_again() -> None:
    desk = Desk(MemoryBus())
    runs = 0

    @agent(name="once", description="d")
    async def once() -> int:
        nonlocal runs
        runs += 1
        return runs

    handoff = await desk.hand("once")
    other = await desk.bus.consumer("agent-once", "work", desk.subjects.handoffs_of("once"), ack_wait=0.3)
    (taken,) = await other.take(1)
    async with running(worker(desk.bus, once)):
        again = await desk.hand("once", task="T2")
        await desk.result(again)
        await desk.bus.publish(handoff.return_to, b"{}", {}, expect=0)
        await taken.nak()
        await eventually(lambda: desk.settled("once"))

    assert runs == 1


async def test_a_handoff_that_comes_again_while_it_is_worked_on_is_not_run_twice() -> None:
    desk, runs = Desk(MemoryBus()), 0
    came_again = asyncio.Event()
    settled: list[int] = []

    class Noted:
        """A delivery that says which one it was when it is acknowledged."""

        def __init__(self, delivery: Delivery) -> None:
            self._delivery = delivery

        def __getattr__(self, name: str) -> Any:
            return getattr(self._delivery, name)

        async def ack(self) -> None:
            settled.append(self._delivery.delivered)
            await self._delivery.ack()

    @agent(name="busy", description="d")
    async def busy() -> int:
        nonlocal runs
        runs += 1
        time.sleep(2 * SETTINGS.ack_wait)  # noqa: ASYNC251  # nobody here can tell the broker that it is worked on
        async with asyncio.timeout(5):
            await came_again.wait()
        return runs

    class Watched(Worker):
        async def _handle(self, desk: Any, delivery: Any) -> None:
            if delivery.delivered > 1:
                asyncio.get_running_loop().call_later(0.1, came_again.set)
            await super()._handle(desk, cast(Delivery, Noted(delivery)))

    async with running(Watched(desk.bus, [busy], SETTINGS)):
        handoff = await desk.hand("busy")
        result = await desk.result(handoff)
        await eventually(lambda: desk.settled("busy"))

    assert (result.output, runs) == (1, 1)
    assert len(settled) == 1
    assert settled[0] > 1  # the newest: the first is no longer this worker's to settle


async def test_a_handoff_that_kills_its_workers_is_given_up() -> None:
    desk = Desk(MemoryBus())
    handoff = await desk.hand("echo", "x")
    crashing = await desk.bus.consumer("agent-echo", "work", desk.subjects.handoffs_of("echo"), ack_wait=0.3)
    for _ in range(SETTINGS.deliveries):
        (taken,) = await crashing.take(1)
        await taken.nak()

    async with running(worker(desk.bus)):
        result = await desk.result(handoff)

    assert result.error is not None
    assert (result.error.kind, result.error.retryable) == ("worker_crashed", False)
    assert f"delivered {SETTINGS.deliveries + 1} times" in result.error.message


async def test_an_expired_handoff_is_answered_and_not_started() -> None:
    desk = Desk(MemoryBus())
    handoff = await desk.hand("echo", "x", deadline=desk.clock.now() - timedelta(seconds=5))

    async with running(worker(desk.bus)):
        result = await desk.result(handoff)

    assert result.output is None
    assert result.error is not None
    assert result.error.kind == "timeout"
    assert "waited too long" in result.error.message


async def test_bad_handoffs_are_dead_lettered_and_good_ones_go_on() -> None:
    desk = Desk(MemoryBus())
    good = desk.handoff("echo", "x")
    inbox = desk.subjects.result("team", "wf_1", "echo", "T1", 1)
    other = "pointsman.handoff.echo.wf_1.T2.1"
    await desk.publish(good, body=b"{")
    await desk.publish(good, body=b'{"workflow_id": 1}')
    await desk.publish(good, type="io.pointsman.handoff.v9")
    await desk.publish(good, headers={})
    await desk.publish(good, subject=other)
    await desk.publish(good, subject="pointsman.handoff.echo.wf_1")
    for wrong in ("pointsman.request.team", "evil.inbox.team.wf_1.result.echo.T1.1", inbox[:-1] + "2", "a b", "$SYS.x",
                  inbox.replace("wf_1", "wf_2"), "pointsman.inbox.team.wf_1.control.x"):  # fmt: skip
        await desk.publish(good.model_copy(update={"return_to": wrong}))

    async with running(worker(desk.bus)):
        fine = await desk.hand("echo", "fine", task="T3")
        assert (await desk.result(fine)).output == "fine"
        await eventually(lambda: desk.settled("echo"))

    found = await letters(desk)
    kinds = ["undecodable", "undecodable", "unknown_type", "undecodable", "contract", "contract"]
    assert [letter.cause.kind for letter in found[:6]] == kinds
    assert len(found) == 13
    assert all(
        letter.origin == "echo" and letter.attempts == 1 and letter.stream == "POINTSMAN_WORK" for letter in found
    )
    assert base64.b64decode(found[0].body) == b"{"
    assert found[0].headers["ce-id"] == "handoff-T1"
    assert (found[0].workflow_id, found[0].task_id) == ("wf_1", "T1")
    assert found[5].workflow_id is None
    assert await desk.find(good) is None
    broker = cast(MemoryBus, desk.bus).broker
    assert len(broker.advisories) == 13


async def test_a_bad_handoff_of_the_largest_size_is_dead_lettered_too() -> None:
    desk = Desk(MemoryBus(max_payload=200_000, max_body=200_000))
    await desk.publish(desk.handoff("echo"), body=b"x" * 190_000)

    async with running(worker(desk.bus)):
        await eventually(lambda: letters(desk))
        await eventually(lambda: desk.settled("echo"))

    (letter,) = await letters(desk)
    assert base64.b64decode(letter.body).strip(b"x") == b""
    assert letter.sequence == 1


async def test_a_result_too_large_for_the_broker_fails_the_attempt_once() -> None:
    desk = Desk(MemoryBus(max_payload=4096, max_body=4096))
    runs = 0

    @agent(name="verbose", description="d")
    async def verbose() -> str:
        nonlocal runs
        runs += 1
        return "x" * 5000

    async with running(worker(desk.bus, verbose)):
        result = await desk.result(await desk.hand("verbose"))
        await eventually(lambda: desk.settled("verbose"))

    assert result.error is not None
    assert (result.error.kind, result.error.retryable, runs) == ("oversize", False, 1)
    assert "4096" in result.error.message


async def crowd(workers: int, at_once: int, **bounds: Any) -> tuple[int, int, int]:
    """Of ten handoffs for `workers` of an agent: the most side by side; those in flight and waiting when full."""
    desk = Desk(MemoryBus())
    inside, most = 0, 0
    release = asyncio.Event()

    @agent(name="narrow", description="d", **bounds)
    async def narrow() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await release.wait()
        inside -= 1

    async def full() -> bool:
        return inside == at_once

    async with AsyncExitStack() as stack:
        for _ in range(workers):
            await stack.enter_async_context(running(worker(desk.bus, narrow)))
        given = [await desk.hand("narrow", task=f"T{number}") for number in range(10)]
        await eventually(full)
        depth = await desk.bus.depth("agent-narrow", "work")
        release.set()
        for handoff in given:
            await desk.result(handoff)

    assert depth is not None
    return most, depth.in_flight, depth.pending


async def test_never_more_runs_than_there_are_slots() -> None:
    assert await crowd(1, 3, concurrency=3) == (3, 3, 7)


async def test_never_more_runs_in_all_replicas_together_than_may_be_in_flight() -> None:
    assert await crowd(2, 4, concurrency=3, max_in_flight=4) == (4, 4, 6)


@pytest.mark.parametrize("own_loop", [False, True])
@pytest.mark.parametrize("blocking", [False, True])
async def test_a_long_task_keeps_its_message(own_loop: bool, blocking: bool) -> None:
    clock = VirtualClock()
    desk = Desk(MemoryBus(clock=clock), clock=clock)
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
    workers = [worker(desk.bus, subject, clock=clock, own_loop=own) for own in (own_loop, False)]
    async with running(workers[0]), running(workers[1]):
        handoff = await desk.hand("long")
        await eventually(lambda: is_set(started))
        await clock.advance(4 * SETTINGS.ack_wait)
        release.set()
        await desk.result(handoff)

    assert runs == 1


async def test_a_handler_that_blocks_its_loop_keeps_its_message_on_a_loop_of_its_own() -> None:
    clock = VirtualClock()
    desk = Desk(MemoryBus(clock=clock), clock=clock)
    runs = 0
    started, release = threading.Event(), threading.Event()

    @agent(name="rude", description="d")
    async def rude() -> None:
        nonlocal runs
        runs += 1
        started.set()
        release.wait(10)  # the rudeness is the point

    workers = [worker(desk.bus, rude, clock=clock, own_loop=True) for _ in range(2)]
    async with running(workers[0]), running(workers[1]):
        handoff = await desk.hand("rude")
        await eventually(lambda: is_set(started))
        await clock.advance(4 * SETTINGS.ack_wait)
        release.set()
        result = await desk.result(handoff)

    assert (result.status, runs) == ("succeeded", 1)


@pytest.mark.parametrize("own_loop", [False, True])
@pytest.mark.parametrize("swallows", [False, True])
async def test_the_hard_deadline_ends_an_attempt_and_frees_its_slot(own_loop: bool, swallows: bool) -> None:
    desk = Desk(MemoryBus())
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

    async with running(worker(desk.bus, hung, own_loop=own_loop)):
        result = await desk.result(await desk.hand("hung", "hang"))
        after = await desk.result(await desk.hand("hung", "fine", task="T2"))
        release.set()

    assert result.error is not None
    assert (result.error.kind, result.error.retryable) == ("timeout", True)
    assert contexts[0].cancelled
    assert after.output == "fine"


async def test_the_tasks_deadline_counts_when_it_is_nearer() -> None:
    clock = VirtualClock()
    desk = Desk(MemoryBus(clock=clock), clock=clock)

    @agent(name="hung", description="d", timeout=100)
    async def hung() -> None:
        await asyncio.Event().wait()

    async with running(worker(desk.bus, hung, clock=clock, settings=Settings(grace=0))):
        handoff = await desk.hand("hung", deadline=clock.now() + timedelta(seconds=30))
        await clock.advance(29)
        before = await desk.find(handoff)
        await clock.advance(2)
        result = await desk.result(handoff)

    assert before is None
    assert result.error is not None
    assert "within 30.0 s" in result.error.message


async def test_cancelled_tasks_stop_running_and_do_not_start() -> None:
    clock = VirtualClock()  # years ahead of the worker's, and nobody minds
    desk = Desk(MemoryBus(clock=clock), clock=clock)
    started = asyncio.Event()

    @agent(name="slow", description="d", concurrency=1)
    async def slow(text: str) -> str:
        if text == "wait":
            started.set()
            await asyncio.Event().wait()
        return text

    async with running(worker(desk.bus, slow)):
        runs = await desk.hand("slow", "wait")
        waits = await desk.hand("slow", "no", task="T2")
        others = [await desk.hand("slow", "yes", task="T3"), await desk.hand("slow", "yes", workflow="wf_2")]
        await started.wait()
        cancelled = desk.subjects.live("wf_1", "cancelled")
        await desk.bus.broadcast(cancelled, b"not json", {})
        await desk.bus.broadcast(cancelled, dump(Cancellation(tasks=("T1", "T2", "T9"))), {})
        results = [await desk.result(handoff) for handoff in (runs, waits, *others)]
        await eventually(lambda: desk.settled("slow"))

    assert [result.error.kind if result.error else result.output for result in results] == [
        "cancelled", "cancelled", "yes", "yes"]  # fmt: skip


class Unreliable(MemoryBus):
    """Answers the first `silent` publishes of results with silence; each second one was stored all the same."""

    silent = 4
    tried = 0

    async def publish(self, subject: str, body: bytes, headers: Mapping[str, str], *, expect: int | None = None,
                      message_id: str | None = None) -> int:  # fmt: skip
        if ".result." not in subject:
            return await super().publish(subject, body, headers, expect=expect, message_id=message_id)
        self.tried += 1
        if self.tried > self.silent:
            return await super().publish(subject, body, headers, expect=expect, message_id=message_id)
        if self.tried == 1:
            raise Conflict("an earlier publish is still under way")
        if self.tried == self.silent:
            await super().publish(subject, body, headers, expect=expect, message_id=message_id)
        raise UnknownOutcome("no answer")


async def test_nothing_is_acknowledged_before_the_result_is_stored() -> None:
    clock = VirtualClock()
    bus = Unreliable(clock=clock)
    desk = Desk(bus, clock=clock)
    acked_early = False

    async with running(worker(bus, clock=clock, settings=Settings(grace=0))):
        handoff = await desk.hand("echo", "x")
        for _ in range(100):
            await clock.advance(0.1)
            if await desk.find(handoff) is None and await desk.settled("echo"):
                acked_early = True
        assert await desk.settled("echo")

    assert bus.tried == 5
    assert not acked_early
    assert (await desk.result(handoff)).output == "x"


async def test_the_first_answer_stands() -> None:
    desk = Desk(MemoryBus())
    running_now = asyncio.Event()
    release = asyncio.Event()

    @agent(name="slow", description="d")
    async def slow() -> str:
        running_now.set()
        await release.wait()
        return "second"

    async with running(worker(desk.bus, slow)):
        handoff = await desk.hand("slow")
        await running_now.wait()
        first = await desk.bus.publish(handoff.return_to, b"{}", {}, expect=0)
        release.set()
        await eventually(lambda: desk.settled("slow"))

    stored = await desk.bus.last("work", handoff.return_to)
    assert stored is not None
    assert stored.sequence == first


async def test_cards_are_announced_while_it_works_and_gone_when_it_stops() -> None:
    clock = VirtualClock()
    broker = MemoryBroker(heartbeat=SETTINGS.heartbeat, clock=clock)
    bus = broker.connect()
    subject = worker(bus, clock=clock)

    async def announced() -> bool:
        return len(await bus.registry.cards()) == 1

    async with running(subject):
        await eventually(announced)
        await clock.advance(10 * SETTINGS.heartbeat)  # past the time to live: it is refreshed
        (card,) = await bus.registry.cards()
        services = [service.name for service in broker.services]

    assert (card.name, card.instance) == ("echo", subject.instance)
    assert card.started_at is not None
    assert services == ["echo"]
    assert list(await bus.registry.cards()) == []
    assert broker.services == []
    assert not subject.ready


async def test_the_counters_tell_what_was_done() -> None:
    broker = MemoryBroker()
    desk = Desk(broker.connect())

    @agent(name="picky", description="d")
    async def picky(number: int) -> int:
        return number

    async with running(worker(desk.bus, picky)):
        await desk.result(await desk.hand("picky", 1))
        await desk.result(await desk.hand("picky", "one", task="T2"))
        await eventually(lambda: desk.settled("picky"))
        (service,) = broker.services

    assert (service.requests, service.errors, service.last_error) == (2, 1, "invalid_input")
    assert service.processing_time > 0


@pytest.mark.parametrize("own_loop", [False, True])
async def test_running_work_finishes_within_the_grace(own_loop: bool) -> None:
    desk = Desk(MemoryBus())
    started, release = threading.Event(), threading.Event()

    @agent(name="brief", description="d")
    async def brief() -> str:
        started.set()
        while not release.is_set():
            await asyncio.sleep(0.01)
        return "done"

    async with running(worker(desk.bus, brief, own_loop=own_loop, settings=Settings(grace=5))) as stop:
        handoff = await desk.hand("brief")
        await eventually(lambda: is_set(started))
        stop.set()
        late = await desk.hand("brief", task="T2")
        release.set()
        result = await desk.result(handoff)

    assert result.output == "done"
    assert await desk.find(late) is None


@pytest.mark.parametrize("own_loop", [False, True])
async def test_work_longer_than_the_grace_is_handed_back(own_loop: bool) -> None:
    desk = Desk(MemoryBus())
    started = threading.Event()
    wait = True

    @agent(name="long", description="d")
    async def long() -> str:
        started.set()
        if wait:
            await asyncio.sleep(3600)
        return "done"

    async with running(worker(desk.bus, long, own_loop=own_loop, settings=Settings(grace=0.1, ack_wait=60))) as stop:
        handoff = await desk.hand("long")
        await eventually(lambda: is_set(started))
        began = time.monotonic()
        stop.set()
    took = time.monotonic() - began
    before = await desk.find(handoff)
    wait = False
    async with running(worker(desk.bus, long)):
        result = await desk.result(handoff, within=2)

    assert took < 3
    assert before is None
    assert result.output == "done"


class Silent(MemoryBus):
    """Never answers a publish of a result."""

    async def publish(self, subject: str, body: bytes, headers: Mapping[str, str], **more: Any) -> int:
        if ".result." in subject:
            raise UnknownOutcome("no answer")
        return await super().publish(subject, body, headers, **more)


async def test_a_worker_whose_broker_is_silent_leaves_in_time_and_acknowledges_nothing() -> None:
    desk = Desk(Silent())
    ran = asyncio.Event()

    @agent(name="quick", description="d")
    async def quick() -> None:
        ran.set()

    async with running(worker(desk.bus, quick, settings=Settings(grace=0.1))) as stop:
        await desk.hand("quick")
        await ran.wait()
        began = time.monotonic()
        stop.set()
    took = time.monotonic() - began

    depth = await desk.bus.depth("agent-quick", "work")
    assert took < 2.5
    assert depth is not None
    assert (depth.pending, depth.in_flight) == (0, 1)


@pytest.mark.parametrize("own_loop", [False, True])
async def test_one_trace_runs_through_worker_handler_thread_and_tool(own_loop: bool) -> None:
    desk = Desk(MemoryBus())

    @tool
    def count(word: str) -> int:
        """Counts letters."""
        with traces.span("inside"):
            return len(word)

    @agent(name="traced", description="d")
    def traced(text: str, context: Context) -> Any:
        return context.wait(context.call(count, word=text))

    with exporting() as exporter:
        async with running(worker(desk.bus, traced, own_loop=own_loop)):
            handoff = await desk.hand("traced", "four")
            result = await desk.result(handoff)
            await eventually(lambda: desk.settled("traced"))

    spans = {each.name: each for each in exporter.get_finished_spans()}
    process, execute, inside = (
        spans[name] for name in ("process pointsman.handoff.traced", "execute_tool count", "inside")
    )
    assert result.output == 4
    assert process.kind is SpanKind.CONSUMER
    assert process.parent is not None
    assert f"{process.parent.span_id:016x}" == TRACEPARENT.split("-")[2]
    assert dict(process.attributes or {})["pointsman.workflow.id"] == "wf_1"
    assert inside.parent is not None
    assert inside.parent.span_id == execute.context.span_id
    assert {f"{each.context.trace_id:032x}" for each in spans.values()} == {TRACEPARENT.split("-")[1]}
    assert execute.parent is not None
    assert execute.parent.span_id == process.context.span_id
    (report,) = await reports(desk)
    assert report.span_id == f"{execute.context.span_id:016x}"
    assert report.parent_span_id == f"{process.context.span_id:016x}"


async def test_agents_give_back_what_they_hold_where_they_ran() -> None:
    desk = Desk(MemoryBus())
    loops: list[asyncio.AbstractEventLoop] = []

    class Holding(Agent):
        card = echo.card

        async def run(self, handoff: Handoff, context: Context) -> Any:
            loops.append(asyncio.get_running_loop())

        async def close(self) -> None:
            loops.append(asyncio.get_running_loop())
            raise ValueError("a close that fails harms nobody")

    async with running(worker(desk.bus, Holding(), own_loop=True)):
        await desk.result(await desk.hand("echo"))

    assert len(loops) == 2
    assert loops[0] is loops[1]
    assert loops[0] is not asyncio.get_running_loop()


def test_a_worker_needs_agents_with_names_of_their_own() -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        Worker(MemoryBus(), [], SETTINGS)
    with pytest.raises(ConfigurationError, match="rename one"):
        Worker(MemoryBus(), [echo, echo], SETTINGS)
