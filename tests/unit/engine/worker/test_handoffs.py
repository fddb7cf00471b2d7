"""A repeated, late or unreadable handoff is settled but not run."""

from __future__ import annotations

import asyncio
import base64
import time
from collections import Counter
from datetime import timedelta
from typing import Any, cast

import pytest
from support import factory
from support.factory import FAST
from support.handoffs import SupervisorDouble
from support.waiting import until

from pointsman.authoring.agent import agent
from pointsman.bus.memory.bus import MemoryBroker, MemoryBus
from pointsman.engine.process.dead_lettering import dead_letter
from pointsman.engine.worker import handoff_processor
from pointsman.engine.worker.engine import Worker
from pointsman.errors import BusUnavailableError
from pointsman.ports.bus import Delivery
from pointsman_schemas.events import DeadLetter
from pointsman_schemas.strict_json import parse


async def letters(desk: SupervisorDouble) -> list[DeadLetter]:
    return [parse(DeadLetter, stored.body) async for stored in desk.bus.read("dead", desk.subjects.dead_letters)]


async def test_a_redelivered_handoff_with_a_result_is_not_run_again() -> None:
    desk = SupervisorDouble(MemoryBus())
    runs = 0

    @agent(name="once", description="d")
    async def once() -> int:
        nonlocal runs
        runs += 1
        return runs

    handoff = await desk.publish_handoff("once")
    other = await desk.bus.consumer("agent-once", "work", desk.subjects.agent_handoffs("once"), ack_wait=30)
    (taken,) = await other.take(1)
    async with factory.running(factory.worker(desk.bus, once)):
        again = await desk.publish_handoff("once", task="T2")
        await desk.result(again)
        await desk.bus.publish(handoff.return_to, b"{}", {}, expect=0)
        await taken.nak()
        await until(lambda: desk.settled("once"))

    assert runs == 1


async def test_redelivered_handoff_in_progress_runs_once() -> None:
    desk, runs = SupervisorDouble(MemoryBus()), 0
    came_again = asyncio.Event()
    settled: list[int] = []

    class Noted:
        """A delivery that records its acknowledgement."""

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
        time.sleep(2 * FAST.ack_wait)  # noqa: ASYNC251  # a blocked loop cannot extend the deadline at the broker
        async with asyncio.timeout(5):
            await came_again.wait()
        return runs

    class Watched(Worker):
        async def _process_delivery(self, desk: Any, delivery: Any) -> None:
            if delivery.delivered > 1:
                asyncio.get_running_loop().call_later(0.1, came_again.set)
            await super()._process_delivery(desk, cast(Delivery, Noted(delivery)))

    async with factory.running(Watched(desk.bus, [busy], FAST)):
        handoff = await desk.publish_handoff("busy")
        result = await desk.result(handoff)
        await until(lambda: desk.settled("busy"))

    assert (result.output, runs) == (1, 1)
    assert len(settled) == 1
    assert settled[0] > 1  # the newest delivery, because the broker no longer accepts the first


async def test_handoffs_with_reused_sequences_are_distinct() -> None:
    broker = MemoryBroker(unsynced_handoffs=True)
    desk, let_go = SupervisorDouble(broker.connect()), asyncio.Event()
    runs: Counter[str] = Counter()

    @agent(name="busy", description="d", concurrency=3)
    async def busy(input: str) -> str:
        runs[input] += 1
        await let_go.wait()
        return input

    async with factory.running(factory.worker(broker.connect(), busy)):
        forgotten = await desk.publish_handoff("busy", "one")
        await until(lambda: runs["one"])
        broker.power_cut()
        new = await desk.publish_handoff("busy", "two", task="T2")  # gets the sequence of the lost first handoff
        await until(lambda: runs["two"])
        await desk.publish(forgotten)  # gets another sequence than before
        last = await desk.publish_handoff("busy", "three", task="T3")
        await until(lambda: runs["three"])
        let_go.set()
        results = [(await desk.result(each)).output for each in (forgotten, new, last)]
        await until(lambda: desk.settled("busy"))

    assert results == ["one", "two", "three"]
    assert set(runs.values()) == {1}


async def test_a_handoff_that_kills_its_workers_is_given_up() -> None:
    desk = SupervisorDouble(MemoryBus())
    handoff = await desk.publish_handoff("echo", "x")
    crashing = await desk.bus.consumer("agent-echo", "work", desk.subjects.agent_handoffs("echo"), ack_wait=0.3)
    for _ in range(FAST.max_deliveries):
        (taken,) = await crashing.take(1)
        await taken.nak()

    async with factory.running(factory.worker(desk.bus)):
        result = await desk.result(handoff)

    assert result.error is not None
    assert (result.error.kind, result.error.retryable) == ("worker_crashed", False)
    assert f"no worker of echo answered the handoff in {FAST.max_deliveries} deliveries" in result.error.message


async def test_an_expired_handoff_is_answered_and_not_started() -> None:
    desk = SupervisorDouble(MemoryBus())
    handoff = await desk.publish_handoff("echo", "x", deadline=desk.clock.now() - timedelta(seconds=5))

    async with factory.running(factory.worker(desk.bus)):
        result = await desk.result(handoff)

    assert result.output is None
    assert result.error is not None
    assert result.error.kind == "timeout"
    assert "waited too long" in result.error.message


async def test_expired_handoff_says_whether_workers_took_it() -> None:
    desk = SupervisorDouble(MemoryBus())
    handoff = await desk.publish_handoff("echo", "x", deadline=desk.clock.now() - timedelta(seconds=5))
    crashing = await desk.bus.consumer("agent-echo", "work", desk.subjects.agent_handoffs("echo"), ack_wait=30)
    for _ in range(2):
        (taken,) = await crashing.take(1)
        await taken.nak()

    async with factory.running(factory.worker(desk.bus)):
        result = await desk.result(handoff)

    assert result.error is not None
    assert result.error.kind == "timeout"
    assert "delivered 2 times without a result" in result.error.message
    assert "the attempt was not started again" in result.error.message


async def test_bad_handoffs_are_dead_lettered_and_good_ones_continue() -> None:
    desk = SupervisorDouble(MemoryBus())
    good = desk.handoff("echo", "x")
    inbox = good.return_to
    other = "pointsman.handoff.echo.team.wf_1.T2.1"
    await desk.publish(good, body=b"{")
    await desk.publish(good, body=b'{"workflow_id": 1}')
    await desk.publish(good, type="io.pointsman.handoff.v9")
    await desk.publish(good, headers={})
    await desk.publish(good, subject=other)
    await desk.publish(good, subject="pointsman.handoff.echo.team.wf_1.T1.one")
    for wrong in ("pointsman.request.team.ada", "evil" + inbox, inbox.replace(".T1.1.", ".T1.2."), "a b", "$SYS.x",
                  inbox.replace("wf_1", "wf_2"), inbox.replace(".team.", ".auditors.")):  # fmt: skip
        await desk.publish(good.model_copy(update={"return_to": wrong}))

    async with factory.running(factory.worker(desk.bus)):
        fine = await desk.publish_handoff("echo", "fine", task="T3")
        assert (await desk.result(fine)).output == "echo: fine"
        await until(lambda: desk.settled("echo"))

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
    assert await desk.find_result(good) is None
    broker = cast(MemoryBus, desk.bus).broker
    assert len(broker.advisories) == 13


async def test_a_bad_handoff_of_the_largest_size_is_dead_lettered_too() -> None:
    desk = SupervisorDouble(MemoryBus(max_payload=200_000, max_body=200_000))
    await desk.publish(desk.handoff("echo"), body=b"x" * 190_000)

    async with factory.running(factory.worker(desk.bus)):
        await until(lambda: letters(desk))
        await until(lambda: desk.settled("echo"))

    (letter,) = await letters(desk)
    assert base64.b64decode(letter.body).strip(b"x") == b""
    assert letter.sequence == 1


async def test_bad_handoff_is_kept_while_its_dead_letter_cannot_be_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk, tries = SupervisorDouble(MemoryBus()), 0

    async def away_at_first(*given: Any, **more: Any) -> DeadLetter:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise BusUnavailableError("the stream of dead letters is full or missing")
        return await dead_letter(*given, **more)

    monkeypatch.setattr(handoff_processor, "dead_letter", away_at_first)
    await desk.publish(desk.handoff("echo"), body=b"{")
    async with factory.running(factory.worker(desk.bus)):
        await until(lambda: letters(desk))
        await until(lambda: desk.settled("echo"))

    (letter,) = await letters(desk)
    assert base64.b64decode(letter.body) == b"{"
    assert tries == 3
