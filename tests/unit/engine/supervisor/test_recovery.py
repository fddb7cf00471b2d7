"""After a power cut with lost unsynced handoffs, each workflow still ends, and each task runs once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime

import pytest
from support import factory
from support.core import SUBJECTS, WorkflowDriver, failure, task
from support.factory import ONE_TASK, SETTINGS, planner_of, synthesizer
from support.handoffs import SupervisorDouble
from support.waiting import until

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.bus.memory.bus import MemoryBroker
from pointsman.client.client import Client
from pointsman.clock import SystemClock
from pointsman.engine.log.workflow_log import LogHead, WorkflowLog
from pointsman.engine.process.handoff_codec import RESENT_HEADER, is_cancellation
from pointsman.engine.supervisor.outbox_publisher import OutboxPublisher
from pointsman.engine.supervisor.recovery import Recovery
from pointsman.engine.worker.engine import Worker
from pointsman.ports.bus import Delivery
from pointsman_schemas.events import Outcome
from pointsman_schemas.log import TaskDispatched
from pointsman_schemas.team import Limits, Team

TEAM = Team(name="crew", limits=Limits(deadline=60, task_timeout=30))
AT_ONCE = 6  # workflows; most tasks stay queued, because the agent has one slot


class Gate:
    """An agent with one slot, whose work waits for the event `opened`. `runs` counts the runs by workflow."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.runs: Counter[str] = Counter()

    @property
    def agent(self) -> Agent:
        @agent(name="a", description="Waits to be let go", concurrency=1)
        async def waits(request: str, context: Context) -> str:
            self.runs[context.workflow_id] += 1
            await self.open.wait()
            return "done"

        return waits


def supervised(broker: MemoryBroker) -> AbstractAsyncContextManager[asyncio.Event]:
    return factory.running(factory.supervisor(broker.connect(), TEAM), ready=False)


def at_work(broker: MemoryBroker, gate: Gate) -> Worker:
    plan = planner_of(ONE_TASK)
    return factory.worker(broker.connect(), plan, synthesizer, gate.agent, settings=SETTINGS)


async def handed_over(client: Client, workflows: Sequence[str]) -> bool:
    there = await client.bus.subjects("handoffs", client.subjects.agent_handoffs("a"))
    return len(there) == len(workflows)


async def check_each_was_done_once(client: Client, gate: Gate, outcomes: Sequence[Outcome]) -> None:
    ids = [outcome.workflow_id for outcome in outcomes]
    entries = [entry for workflow in ids for entry in await client.entries(workflow)]
    assert [outcome.status for outcome in outcomes] == ["completed"] * AT_ONCE
    assert gate.runs == dict.fromkeys(ids, 1)
    assert {entry.attempt for entry in entries if isinstance(entry, TaskDispatched)} == {1}


async def test_handoffs_that_were_forgotten_are_sent_again_and_done_once() -> None:
    broker, gate = MemoryBroker(unsynced_handoffs=True), Gate()
    client = Client(broker.connect())
    async with supervised(broker), factory.running(at_work(broker, gate)):
        workflows = [await client.submit("crew", "hello") for _ in range(AT_ONCE)]
        await until(lambda: handed_over(client, [each.id for each in workflows]))
        await until(lambda: bool(gate.runs))

        broker.power_cut()
        forgotten = broker.stream("handoffs").end == 0
        gate.open.set()
        outcomes = [await each.outcome(20) for each in workflows]

        await check_each_was_done_once(client, gate, outcomes)
    assert forgotten
    assert {RESENT_HEADER in sent.headers for sent in broker.stream("handoffs").select("pointsman.handoff.a.>")} == {
        True
    }


async def test_handoffs_lost_without_a_supervisor_are_sent_by_the_next() -> None:
    broker, gate = MemoryBroker(unsynced_handoffs=True), Gate()
    client = Client(broker.connect())
    async with factory.running(at_work(broker, gate)):
        async with supervised(broker):
            workflows = [await client.submit("crew", "hello") for _ in range(AT_ONCE)]
            await until(lambda: handed_over(client, [each.id for each in workflows]))

        broker.power_cut()
        gate.open.set()
        async with supervised(broker):
            outcomes = [await each.outcome(20) for each in workflows]

        await check_each_was_done_once(client, gate, outcomes)


async def test_answered_work_is_not_repeated_when_consumers_are_put_back() -> None:
    broker, gate = MemoryBroker(unsynced_handoffs=True), Gate()
    client = Client(broker.connect())
    gate.open.set()
    async with supervised(broker), factory.running(at_work(broker, gate)):
        workflows = [await client.submit("crew", "hello") for _ in range(AT_ONCE)]
        outcomes = [await each.outcome(20) for each in workflows]
        broker.sync_handoffs()

        broker.power_cut()  # the handoffs stay, but their acknowledgements are lost
        back = await client.operations.queue_depth("a")
        desk = SupervisorDouble(client.bus)
        await until(lambda: desk.settled("a"))

        await check_each_was_done_once(client, gate, outcomes)
    assert back is not None
    assert back.pending + back.in_flight == AT_ONCE


async def test_handoff_resent_after_its_answer_is_not_repeated() -> None:
    desk, runs = SupervisorDouble(MemoryBroker().connect()), []

    @agent(name="a", description="Counts")
    async def counts(request: str) -> str:
        runs.append(request)
        return "done"

    async with factory.running(factory.worker(desk.bus, counts, settings=SETTINGS)):
        handoff = await desk.publish_handoff("a", "once")
        await desk.result(handoff)
        sent = await desk.bus.last("handoffs", desk.subjects.agent_handoffs("a"))
        assert sent is not None
        await desk.bus.delete("handoffs", sent.sequence)
        await desk.bus.publish(sent.subject, sent.body, {**sent.headers, RESENT_HEADER: "true"}, expect=0)
        await until(lambda: desk.settled("a"))

    assert runs == ["once"]


async def test_rescheduled_handoff_has_the_resent_header() -> None:
    bus = MemoryBroker(unsynced_handoffs=True).connect()
    story = WorkflowDriver(now=datetime.now(UTC)).planned(task("a"))
    story.fail_task("a", failure(retryable=True))

    await OutboxPublisher(bus, SUBJECTS, SystemClock(), "crew").republish_scheduled(story.state)

    waiting = {name: RESENT_HEADER in plan.headers for name, plan in bus.broker._schedules.items()}
    assert waiting == {name: ".handoff." in name for name in waiting}
    assert any(waiting.values())


async def test_task_abandoned_during_a_resend_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    story = WorkflowDriver(now=datetime.now(UTC)).planned(task("a"))
    heads = [LogHead(story.state, 7)]
    story.control("cancel")
    heads.append(LogHead(story.state, 8))
    bus, clock = MemoryBroker(unsynced_handoffs=True).connect(), SystemClock()
    logs, sender = WorkflowLog(bus, SUBJECTS, clock, "team"), OutboxPublisher(bus, SUBJECTS, clock, "team")
    await bus.publish(SUBJECTS.log("team", story.state.workflow_id), b"", {})

    async def moves_on(*_: object) -> LogHead:
        return heads.pop(0)

    monkeypatch.setattr(logs, "load", moves_on)
    await Recovery(bus, SUBJECTS, clock, logs, sender, "team").resend_running()

    assert heads == []
    assert bus.broker.stream("handoffs").end == 2
    left = [stored async for stored in bus.read("handoffs", SUBJECTS.agent_handoffs("worker"))]
    assert [is_cancellation(stored) for stored in left] == [True]


async def test_supervisor_recovers_once_for_each_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    mended: list[str] = []

    async def lost(*_: object) -> Sequence[str]:
        return ("the end of the inbox",)

    async def noted(_: Recovery) -> None:
        mended.append("all")

    monkeypatch.setattr("pointsman.engine.supervisor.engine.find_lost_work", lost)
    monkeypatch.setattr(Recovery, "resend_running", noted)
    for forgets in (True, False):
        async with supervised(MemoryBroker(unsynced_handoffs=forgets)):
            await until(lambda: bool(mended))
        assert mended == ["all"]
        mended.clear()


async def test_reused_sequence_is_not_settled_by_its_first_owner() -> None:
    bus = MemoryBroker(unsynced_handoffs=True).connect()
    consumer = await bus.consumer("agent-a", "handoffs", "pointsman.handoff.a.>", ack_wait=30)
    await bus.publish("pointsman.handoff.a.crew.w1.t.1", b"", {})
    (before,) = await consumer.take(1)

    bus.broker.power_cut()
    await bus.publish("pointsman.handoff.a.crew.w2.t.1", b"", {})
    (after,) = await consumer.take(1)
    await before.ack()
    left = await bus.depth("agent-a", "handoffs")

    assert (before.message.sequence, after.message.sequence) == (1, 1)
    assert left is not None
    assert left.in_flight == 1


async def test_reused_sequence_is_not_settled_by_its_forwarded_owner() -> None:
    bus = MemoryBroker(unsynced_handoffs=True).connect()
    consumer = await bus.consumer("agent-a", "handoffs", "pointsman.handoff.a.>", ack_wait=30)
    await bus.publish("pointsman.handoff.a.crew.w1.t.1", b"", {})
    (before,) = await consumer.take(1)
    received: list[Delivery] = []

    async with await bus.receive_forwarded("two", received.append):
        handed = await before.forward("two")
        await until(lambda: bool(received))
        bus.broker.power_cut()
        handed_after = await before.forward("two")
        await bus.publish("pointsman.handoff.a.crew.w2.t.1", b"", {})
        (after,) = await consumer.take(1)
        await received[0].ack()
        left = await bus.depth("agent-a", "handoffs")

    assert (handed, handed_after) == (True, False)
    assert (received[0].message.sequence, after.message.sequence) == (1, 1)
    assert left is not None
    assert left.in_flight == 1
