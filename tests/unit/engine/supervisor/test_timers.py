"""Timers fire on time, despite foreign messages, wrong clocks and errors of the engine."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from support import factory
from support.core import WorkflowDriver, failure, task
from support.factory import planner_of
from support.waiting import in_time, until

from pointsman.authoring.agent import agent
from pointsman.bus.memory.bus import MemoryBroker, MemoryBus
from pointsman.client.client import Client, Workflow
from pointsman.clock import SystemClock
from pointsman.core.model.inputs import ResultReceived, TimerFired
from pointsman.engine.operations.dead_letters import DeadLetters
from pointsman.engine.process.handoff_codec import is_cancellation
from pointsman.engine.supervisor import engine as supervisor
from pointsman.engine.supervisor.committer import Committer
from pointsman.engine.supervisor.decoder import InboundDecoder
from pointsman.engine.supervisor.outbox_publisher import OutboxPublisher
from pointsman.engine.worker.handoff_processor import HandoffProcessor, InFlightHandoff
from pointsman.ports.bus import Delivery
from pointsman.ports.clock import Clock
from pointsman.settings import Settings
from pointsman.testing.clock import VirtualClock
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Cancellation, Outcome, Timer
from pointsman_schemas.ids import workflow_id_for
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Limits, PlanAndExecute, RetryPolicy, Team

T = TypeVar("T")

SUBJECTS = Subjects()
SETTINGS = Settings(ack_wait=2, heartbeat=0.2, shutdown_grace=0)
SOON = Team(
    name="crew", strategy=PlanAndExecute(synthesizer=None), limits=Limits(deadline=1.5), retry=RetryPolicy(backoff=0.05)
)
LATER = SOON.model_copy(update={"limits": Limits(deadline=3)})  # the difference is more than a timer may be early
ONE_TASK = {"id": "t1", "agent": "a", "intent": "do the thing"}


class SetClock:
    """The clock of a machine with a wrong wall time, which may also be set. The monotonic time is correct."""

    def __init__(self, clock: Clock, off: float = 0.0) -> None:
        self.off = timedelta(seconds=off)
        self._now, self.monotonic, self.sleep = clock.now, clock.monotonic, clock.sleep

    def now(self) -> datetime:
        return self._now() + self.off


@agent(name="a", description="Never done")
async def silent(text: str) -> str:
    await asyncio.Event().wait()
    return text


def crew(clock: VirtualClock, team: Team = SOON, **more: Any) -> AbstractAsyncContextManager[factory.RunningTeam]:
    return factory.team(team, [planner_of(ONE_TASK), silent], settings=SETTINGS, clock=clock, **more)


async def forge(client: Client, workflow: str, name: str, due: datetime | None = None) -> None:
    timer = Timer(name=name, due=due or await client.bus.time())
    envelope = Envelope(id=name, type=Timer.event_type, source="/stranger", time=timer.due)
    await client.bus.publish(SUBJECTS.timer("crew", workflow, name), dump(timer), encode(envelope))


async def begun(client: Client, id: str) -> Workflow:
    """Return a workflow whose task was sent to its agent. No time passes."""
    workflow = await client.submit("crew", "hello", request_id=id)

    async def at_work() -> bool:
        return await client.bus.last("work", f"pointsman.handoff.a.crew.{workflow.id}.>") is not None

    await until(at_work)
    return workflow


async def ended(clock: VirtualClock, client: Client, id: str = "r1") -> Outcome:
    workflow = await begun(client, id)
    return await in_time(clock, workflow.outcome(20))


async def test_message_in_hand_beyond_the_ack_deadline_is_not_redelivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a plan of two thousand tasks and a slow network, each result was redelivered before the last task was sent.
    Then all tasks were sent again."""
    clock, deliveries = VirtualClock(), list[int]()
    send, read = OutboxPublisher.publish_new, InboundDecoder.decode

    async def slowly(self: OutboxPublisher, *given: Any) -> None:
        await clock.sleep(7)  # longer than three ack deadlines of 2 s
        await send(self, *given)

    def counted(self: InboundDecoder, delivery: Delivery) -> Any:
        deliveries.append(delivery.delivered)
        return read(self, delivery)

    monkeypatch.setattr(OutboxPublisher, "publish_new", slowly)
    monkeypatch.setattr(InboundDecoder, "decode", counted)
    async with crew(clock, LATER.model_copy(update={"limits": Limits(deadline=60)})) as client:
        workflow = await client.submit("crew", "hello")
        await in_time(
            clock, until(lambda: client.bus.last("work", SUBJECTS.handoff("a", "crew", workflow.id, "t1", 1)))
        )
        await workflow.cancel("enough")
        outcome = await in_time(clock, workflow.outcome(20))

    assert outcome.status == "cancelled"
    assert set(deliveries) == {1}


async def test_supervisor_is_ready_once_its_predecessors_messages_are_processed() -> None:
    clock, controls = VirtualClock(), SUBJECTS.team_controls("crew")
    broker = MemoryBroker(clock=clock)
    client = Client(broker.connect())
    predecessor = await client.bus.consumer("control-crew", "controls", controls, ack_wait=2, ranked=True)
    await client.bus.publish(SUBJECTS.control("crew", "wf_1", "cancel", "ada", "c1"), b"{", {})
    await predecessor.take(1)
    engine = factory.supervisor(broker.connect(), LATER, settings=SETTINGS, clock=clock)

    async with factory.running(engine, clock=clock, ready=False):
        await until(lambda: "control-crew" not in engine.waiting_for)
        missing = engine.waiting_for
        await in_time(clock, until(lambda: engine.ready))
        ready_at = clock.monotonic()

    assert missing == ["backlog of control-crew"]
    assert 2 <= ready_at < 2.5


async def test_timers_published_early_by_others_delay_nothing() -> None:
    clock = VirtualClock()
    async with crew(clock, LATER) as client:
        for number in range(1, 5):
            await forge(
                client,
                workflow_id_for(client.subjects.request("crew", client.user), "r1", client.source),
                f"wake-{number}",
            )

        outcome = await ended(clock, client)

    assert "deadline" in outcome.reason
    assert outcome.elapsed >= 3


async def test_a_forged_timer_ends_nothing_before_its_time() -> None:
    clock = VirtualClock()
    async with crew(clock, LATER) as client:
        workflow = await begun(client, "r1")
        for number in range(1, 9):
            await forge(client, workflow.id, f"wake-{number}")
        outcome = await in_time(clock, workflow.outcome(20))

    assert outcome.elapsed >= 3


async def test_timer_that_crashes_the_engine_is_redelivered_until_processed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "_MAX_DELIVERIES", 2)
    monkeypatch.setattr(supervisor, "_MAX_RETRY_PAUSE_S", 0.01)
    commit, failed = Committer.commit, list[str]()

    async def trip(self: Any, workflow: str, head: Any, arrivals: Any) -> Any:
        if any(isinstance(each.input, TimerFired) for each in arrivals) and len(failed) < 8:
            failed.append(workflow)
            raise RuntimeError("a bug")
        if any(isinstance(each.input, ResultReceived) and each.input.result.agent == "a" for each in arrivals):
            raise RuntimeError("a bug")  # so only the timer can end the workflow
        return await commit(self, workflow, head, arrivals)

    monkeypatch.setattr(Committer, "commit", trip)
    clock = VirtualClock()
    async with crew(clock) as client:
        outcome = await ended(clock, client)

        letters = await DeadLetters(client.bus, SUBJECTS).list(workflow=outcome.workflow_id)
    assert not [letter for letter in letters if ".timer." in letter.content.subject]
    assert len(failed) == 8
    assert "deadline" in outcome.reason


async def set_back_and_forth(off: float, whose: str) -> None:
    clock = VirtualClock()
    machine = SetClock(clock, off)
    async with crew(clock, SOON, **{f"{whose}_clock": machine}) as client:
        first = await ended(clock, client)
        machine.off = -machine.off  # the clock is set
        second = await ended(clock, client, "r2")

    for outcome in (first, second):
        assert "deadline" in outcome.reason, whose
        assert 1.5 <= outcome.elapsed < 60, whose


async def test_clock_an_hour_off_delays_nothing() -> None:
    async with asyncio.TaskGroup() as side_by_side:
        for whose in ("supervisor", "worker"):
            for off in (-3600.0, 3600.0):
                side_by_side.create_task(set_back_and_forth(off, whose))


async def set_at_the_broker(off: float) -> None:
    clock = VirtualClock()
    machine = SetClock(clock)
    broker = MemoryBroker(clock=machine)
    async with crew(clock, LATER, broker=broker) as client:
        workflow = await begun(client, "r1")
        machine.off = timedelta(seconds=off)
        broker._schedules = {
            name: replace(plan, due=plan.due - off) for name, plan in broker._schedules.items()
        }  # a real broker fires schedules by its own clock
        broker.wake()
        outcome = await in_time(clock, workflow.outcome(20))

    assert "deadline" in outcome.reason, off
    assert 3 <= outcome.elapsed < 60, off


async def test_a_change_of_the_brokers_clock_neither_fires_nor_delays_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = HandoffProcessor.process

    async def unheard(self: HandoffProcessor, job: InFlightHandoff) -> None:
        if job.delivery.message.subject.startswith("pointsman.handoff.a."):
            await asyncio.Event().wait()  # so only the timer can end the workflow
        await answer(self, job)

    monkeypatch.setattr(HandoffProcessor, "process", unheard)
    async with asyncio.TaskGroup() as side_by_side:
        for off in (-3600.0, 3600.0):
            side_by_side.create_task(set_at_the_broker(off))


# Messages of a state's outbox


def sender(bus: MemoryBus) -> OutboxPublisher:
    return OutboxPublisher(bus, SUBJECTS, SystemClock(), "team")


async def test_an_outcome_is_sent_once_although_the_brokers_clock_was_set_back() -> None:
    bus = MemoryBroker(clock=SetClock(SystemClock(), -3600)).connect()
    story = WorkflowDriver(now=datetime.now(UTC)).planned(task("a"))
    ended = story.control("cancel")
    await sender(bus).publish_new(story.state, ended)
    sent = await bus.last("log", SUBJECTS.outcome(story.state.team, story.state.workflow_id))

    await sender(bus).republish_all(story.state, ended)  # like another supervisor that has committed the same entries
    await sender(bus).republish_all(story.state)  # like a supervisor that gets a redelivered input

    assert sent is not None
    assert await bus.last("log", sent.subject) == sent


async def test_discarded_letter_does_not_return_when_its_workflow_resumes() -> None:
    bus = MemoryBus()
    letters = DeadLetters(bus, SUBJECTS)
    story = WorkflowDriver().planned(task("a"), task("b"))
    story.fail_task("a", failure(retryable=False))
    await sender(bus).republish_all(story.state)
    (letter,) = await letters.list()

    gone = await letters.discard(letter)
    await sender(bus).republish_all(story.state)

    assert gone
    assert await letters.list() == ()
    assert await letters.discard(letter) is False


async def test_a_cancelled_workflow_leaves_no_task_to_start() -> None:
    bus = MemoryBus()
    story = WorkflowDriver(now=datetime.now(UTC)).planned(task("a"), task("b"))
    story.fail_task("a", failure(retryable=True))
    await sender(bus).republish_all(story.state)
    waiting = dict(bus.broker._schedules)
    consumer = await bus.consumer("agent-worker", "work", SUBJECTS.agent_handoffs("worker"), ack_wait=30)

    added = story.control("cancel")
    await sender(bus).publish_new(story.state, added)

    assert len(waiting) == 2  # schedules: the wake-up and the second attempt
    assert [name for name in bus.broker._schedules if ".handoff." in name] == []
    left = [stored async for stored in bus.read("work", SUBJECTS.agent_handoffs("worker"))]
    assert [is_cancellation(stored) for stored in left] == [True, True]
    assert {parse(Cancellation, each.message.body).tasks for each in await consumer.take(9)} == {("a",), ("b",)}
    await consumer.close()


async def test_fired_retry_of_a_cancelled_workflow_leaves_the_queue() -> None:
    bus = MemoryBus()
    story = WorkflowDriver().planned(task("a"))  # the workflow's times are long ago, so its schedules fire at once
    story.fail_task("a", failure(retryable=True))
    await sender(bus).republish_all(story.state)
    assert await bus.last("work", SUBJECTS.handoff("worker", "team", story.state.workflow_id, "a", 2))

    story.control("cancel")
    await sender(bus).republish_all(story.state)  # like a supervisor that recovers the workflow

    left = [stored async for stored in bus.read("work", SUBJECTS.agent_handoffs("worker"))]
    assert [is_cancellation(stored) for stored in left] == [True]


def test_results_that_come_together_with_the_plan_count() -> None:
    story = WorkflowDriver().start()

    story.decide_and_apply(
        story.result("plan-1", {"goal": "g", "tasks": [{"id": "a", "agent": "worker", "intent": "do it"}]}),
        story.result("a", {"text": "done"}),
    )

    assert story.statuses() == {"a": "succeeded"}


def test_a_result_before_its_task_may_start_does_not_count() -> None:
    story = WorkflowDriver().start()

    story.decide_and_apply(
        story.result(
            "plan-1",
            {
                "goal": "g",
                "tasks": [
                    {"id": "a", "agent": "worker", "intent": "do it"},
                    {"id": "b", "agent": "worker", "intent": "do more", "depends_on": ["a"]},
                ],
            },
        ),
        story.result("b", {"text": "done"}),
    )

    assert story.statuses() == {"a": "running", "b": "waiting"}
