"""Ended work is deleted after its retention period. Unsettled work stays."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import pytest
import structlog
from structlog.testing import capture_logs
from support import factory
from support.core import SUBJECTS
from support.waiting import in_time, until

from pointsman.authoring.agent import Agent, agent
from pointsman.bus.memory.bus import MemoryBroker
from pointsman.bus.memory.streams import Durable
from pointsman.cli.support import checks
from pointsman.client.client import Client
from pointsman.engine.operations.archive_export import export_workflow
from pointsman.engine.operations.archive_import import import_workflow
from pointsman.engine.process.consumers import DurableConsumer, input_consumers, request_consumer
from pointsman.engine.supervisor import retention
from pointsman.engine.supervisor.retention import RetentionJob
from pointsman.errors import PeerError
from pointsman.ports.bus import StreamKind
from pointsman.settings import Settings
from pointsman.testing.clock import VirtualClock
from pointsman_schemas.ids import child_id_for
from pointsman_schemas.team import Limits, Pipeline, Stage, Team

T = TypeVar("T")

DAY = 86_400.0
SETTINGS = Settings(ack_wait=7200, heartbeat=3600, shutdown_grace=0, retention_days=30)
QUICK = Team(name="quick", strategy=Pipeline(stages=(Stage(agent="a"),)), limits=Limits(deadline=60))
PATIENT = Team(
    name="patient",
    strategy=Pipeline(stages=(Stage(agent="a"),)),
    limits=Limits(deadline=100 * DAY, task_timeout=100 * DAY),
)
STREAMS: Sequence[StreamKind] = ("requests", "results", "work", "log", "artifacts")


@agent(name="a", description="Repeats the request")
async def repeats(request: str) -> str:
    return f"done: {request}"


def supervised(
    broker: MemoryBroker, clock: VirtualClock, team: Team, *agents: Agent
) -> AbstractAsyncContextManager[factory.RunningTeam]:
    return factory.team(team, agents, broker=broker, settings=SETTINGS, clock=clock)


async def trimmed(broker: MemoryBroker, clock: VirtualClock, days: float = 0.0, *, by: str = "other") -> None:
    """Advance the clock by `days`. Then a supervisor of another team applies retention."""
    await clock.advance(days * DAY)
    await RetentionJob(broker.connect(), SUBJECTS, clock, by, SETTINGS.retention_days).apply()


async def held(client: Client) -> dict[str, int]:
    return {stream: len([stored async for stored in client.bus.read(stream, ">")]) for stream in STREAMS}


async def complete(client: Client, clock: VirtualClock, text: str) -> str:
    """Run a workflow until it has ended and its timer was settled. Return its status."""
    outcome = await in_time(clock, (await client.submit("quick", text)).outcome(20))
    await clock.advance(120)
    return outcome.status


async def test_work_is_removed_after_a_week_and_logs_after_the_retention() -> None:
    clock = VirtualClock()
    broker = MemoryBroker(clock=clock, max_payload=20_000)
    async with supervised(broker, clock, QUICK, repeats) as client:
        assert await complete(client, clock, "x" * 30_000) == "completed"
    full = await held(client)

    await trimmed(broker, clock, 6.9)
    after_six = await held(client)
    await trimmed(broker, clock, 0.2)
    after_seven = await held(client)
    await trimmed(broker, clock, 22.8)
    after_twenty_nine = await held(client)
    await trimmed(broker, clock, 0.2)
    after_thirty = await held(client)

    assert all(full.values())
    assert after_six == full
    assert after_seven == after_twenty_nine == {**full, "requests": 0, "results": 0, "work": 0}
    assert after_thirty == dict.fromkeys(STREAMS, 0)


async def test_files_stay_as_long_as_their_workflow_and_are_removed_after_it() -> None:
    clock = VirtualClock()
    broker = MemoryBroker(clock=clock)
    client = Client(broker.connect())
    await client.submit("quick", "read it", files=[("a.txt", b"content")])
    (stored,) = await client.bus.subjects("artifacts", client.subjects.objects)

    await trimmed(broker, clock, 365)  # no supervisor has admitted the request
    kept = await client.bus.last("artifacts", stored)
    async with supervised(broker, clock, QUICK, repeats) as running:
        assert await complete(running, clock, "another") == "completed"
        (found,) = [each for each in await client.list("quick") if each.input == "read it"]
        (file,) = await client.files(found.id)
    await trimmed(broker, clock, 29)
    read = [piece async for piece in client.read_file(file.file)]
    await trimmed(broker, clock, 2)

    assert kept is not None
    assert read == [b"content"]
    assert (await held(client))["artifacts"] == 0


async def test_request_without_a_team_is_kept_for_a_year_and_served() -> None:
    clock = VirtualClock()
    broker = MemoryBroker(clock=clock, max_payload=20_000)
    client = Client(broker.connect())
    workflow = await client.submit("quick", "x" * 30_000)

    await trimmed(broker, clock, 365)
    async with supervised(broker, clock, QUICK, repeats):
        outcome = await in_time(clock, workflow.outcome(20))

    assert outcome.status == "completed"
    assert len(str(outcome.answer)) > 30_000


@pytest.mark.parametrize("settled", [False, True])
async def test_unsettled_work_and_handoffs_to_teams_are_kept(
    settled: bool,
) -> None:
    clock = VirtualClock()
    broker = MemoryBroker(clock=clock)
    bus = broker.connect()
    taken: dict[DurableConsumer, str] = {
        request_consumer(SUBJECTS, "quick"): SUBJECTS.request("quick", "ada"),
        **{
            consumer: subject
            for team in ("quick", "other")  # `other` has never got a request
            for consumer, subject in zip(
                input_consumers(SUBJECTS, team),
                (
                    SUBJECTS.control(team, "wf_1", "cancel", "ada", "c1"),
                    SUBJECTS.result(team, "a", "wf_1", "t1", 1, "token"),
                    SUBJECTS.timer(team, "wf_1", "wake-1"),
                ),
                strict=True,
            )
        },
    }
    for durable, subject in taken.items():
        consumer = await bus.consumer(*durable, ack_wait=DAY * 100)
        await bus.publish(subject, b"{}", {})
        (delivery,) = await consumer.take(1)
        if settled:
            await delivery.ack()

    await trimmed(broker, clock, 40)

    streams = {consumer.stream for consumer in taken}
    left = [subject for stream in streams for subject in await bus.subjects(stream, "pointsman.>")]
    assert sorted(left) == ([] if settled else sorted(taken.values()))


async def test_workflow_longer_than_the_retention_ends_normally() -> None:
    clock = VirtualClock()
    broker = MemoryBroker(clock=clock)
    async with supervised(broker, clock, PATIENT) as client:
        workflow = await client.submit("patient", "hello")
        await until(lambda: client.bus.last("work", f"pointsman.handoff.a.patient.{workflow.id}.>"))
    async with supervised(broker, clock, QUICK, repeats):
        assert await complete(client, clock, "later") == "completed"
    begun = [stored.sequence async for stored in client.bus.read("log", SUBJECTS.team_logs("patient"))]

    await trimmed(broker, clock, 40)
    kept = [stored.sequence async for stored in client.bus.read("log", SUBJECTS.team_logs("patient"))]
    later = await client.bus.subjects("log", SUBJECTS.team_logs("quick"))
    async with supervised(broker, clock, PATIENT, repeats):
        outcome = await in_time(clock, workflow.outcome(20))
        await clock.advance(2 * DAY)
    whole = [stored.sequence async for stored in client.bus.read("log", SUBJECTS.team_logs("patient"))]
    await trimmed(broker, clock, 25)
    since = [stored.sequence async for stored in client.bus.read("log", SUBJECTS.team_logs("patient"))]
    await trimmed(broker, clock, 6, by="patient")

    assert kept == begun
    assert later  # the later message is stored after the kept messages
    assert outcome.status == "completed"
    assert since == whole  # all messages stay, because the workflow ended less than thirty days ago
    assert await held(client) == dict.fromkeys(STREAMS, 0)


async def test_only_unsettled_work_is_reported_as_retained_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    level = structlog.make_filtering_bound_logger("info")
    monkeypatch.setattr(retention, "_log", structlog.wrap_logger(None, wrapper_class=level))
    clock = VirtualClock()
    broker = MemoryBroker(clock=clock)
    async with supervised(broker, clock, PATIENT) as client:
        workflow = await client.submit("patient", "hello")
        await until(lambda: client.bus.last("work", f"pointsman.handoff.a.patient.{workflow.id}.>"))

    with capture_logs() as running:
        await trimmed(broker, clock, 40)
    async with supervised(broker, clock, PATIENT, repeats):
        await in_time(clock, workflow.outcome(20))
    with capture_logs() as over:
        await trimmed(broker, clock, 1)

    assert "retention_deferred" in {line["event"] for line in running}
    # An ended workflow is in its normal retention period.
    assert "retention_deferred" not in {line["event"] for line in over}


async def test_log_is_kept_while_its_request_may_be_repeated() -> None:
    clock = VirtualClock()
    broker = MemoryBroker(clock=clock)
    async with supervised(broker, clock, QUICK, repeats) as client:
        assert await complete(client, clock, "hello") == "completed"
        before = await held(client)
    requests = broker.find_durable("requests", "request-quick")
    assert requests is not None
    requests.restore_pending([1])  # as if the supervisor had died before the acknowledgement

    await trimmed(broker, clock, 40)
    kept = await held(client)
    async with supervised(broker, clock, QUICK, repeats):
        await in_time(clock, until(lambda: nothing_left(requests)))
        after = await held(client)
    await trimmed(broker, clock)

    assert kept["log"] == after["log"] == before["log"]
    assert await held(client) == dict.fromkeys(STREAMS, 0)


async def nothing_left(durable: Durable) -> bool:
    return not durable.unsettled


async def test_work_is_kept_no_longer_than_its_log() -> None:
    clock = VirtualClock()
    broker = MemoryBroker(clock=clock)
    async with supervised(broker, clock, QUICK, repeats) as client:
        assert await complete(client, clock, "hello") == "completed"

    await clock.advance(2 * DAY)
    await RetentionJob(broker.connect(), SUBJECTS, clock, "other", retention_days=1).apply()

    assert await held(client) == dict.fromkeys(STREAMS, 0)


@pytest.mark.parametrize("has_told", [False, True])
async def test_team_handoff_is_kept_until_the_teams_outcome(has_told: bool) -> None:
    clock = VirtualClock()
    broker = MemoryBroker(clock=clock)
    bus = broker.connect()
    async with supervised(broker, clock, QUICK, repeats) as client:
        workflow = await client.submit("quick", "hello")
        await in_time(clock, workflow.outcome(20))
        told = await bus.last("log", SUBJECTS.outcome("quick", workflow.id))
    assert told
    handoff, child = (
        SUBJECTS.handoff("below", "crew", workflow.id, "t1", 1),
        child_id_for("below", workflow.id, "t1", 1),
    )
    await bus.publish(handoff, b"{}", {})
    begun, *_ = [stored async for stored in bus.read("log", SUBJECTS.log("quick", workflow.id))]
    await bus.publish(SUBJECTS.log("below", child), begun.body, begun.headers)
    if has_told:
        await bus.publish(SUBJECTS.outcome("below", child), told.body, {**told.headers, "ce-subject": child})

    await trimmed(broker, clock, 8)

    assert (await bus.last("handoffs", handoff) is None) == has_told


async def test_late_notes_do_not_extend_the_retention() -> None:
    clock = VirtualClock()
    broker = MemoryBroker(clock=clock)
    async with supervised(broker, clock, QUICK, repeats) as client:
        assert await complete(client, clock, "hello") == "completed"
    newest = await client.bus.last("log", SUBJECTS.team_logs("quick"))
    assert newest is not None
    await clock.advance(DAY)
    await client.bus.publish(newest.subject, newest.body, newest.headers)

    await trimmed(broker, clock, 29.5)
    noted = await client.bus.subjects("log", ">")
    await trimmed(broker, clock, 1)

    assert noted == [newest.subject]  # only the newest commit, without the start and the outcome
    assert await held(client) == dict.fromkeys(STREAMS, 0)


async def test_a_supervisor_trims_by_itself_and_only_the_first_of_a_team() -> None:
    clock = VirtualClock()
    broker = MemoryBroker(clock=clock)
    async with supervised(broker, clock, QUICK, repeats) as client:
        assert await complete(client, clock, "hello") == "completed"
        await in_time(clock, until(lambda: nothing_in(client, "work")), step=DAY / 4)
        assert await client.bus.subjects("log", SUBJECTS.team_logs("quick"))

    asked: list[float] = []

    def ends() -> bool:
        asked.append(clock.monotonic())
        return False

    trimmer = RetentionJob(broker.connect(), SUBJECTS, clock, "quick", 30)
    watching = asyncio.create_task(trimmer.run(ends))
    with capture_logs() as lines:
        await clock.advance(retention._INTERVAL_S * 3 + 1)
    watching.cancel()
    assert len(asked) == 3
    assert lines == []


async def nothing_in(client: Client, stream: StreamKind) -> bool:
    return not await client.bus.subjects(stream, "pointsman.>")


async def test_foreign_and_teamless_messages_expire() -> None:
    clock = VirtualClock()
    elsewhere, broker = MemoryBroker(clock=clock), MemoryBroker(clock=clock)
    async with supervised(elsewhere, clock, PATIENT) as there:
        workflow = await there.submit("patient", "hello")
        await until(lambda: there.bus.last("work", f"pointsman.handoff.a.patient.{workflow.id}.>"))
    bus = broker.connect()
    await import_workflow(bus, SUBJECTS, await export_workflow(there.bus, SUBJECTS, workflow.id, clock.now()))
    await bus.publish("pointsman.request.sh\u00f6p.ada", b"{}", {})
    await bus.publish("pointsman.handoff.a.crew.w\u00f6.t.1", b"{}", {})
    await bus.publish("pointsman.step.a.crew.w\u00f6.t.1.s", b"{}", {})

    await trimmed(broker, clock, 31)

    assert [await bus.subjects(stream, ">") for stream in STREAMS] == [[]] * len(STREAMS)


async def test_many_messages_are_removed_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_BATCH_SIZE", 2)
    clock = VirtualClock()
    broker = MemoryBroker(clock=clock)
    bus = broker.connect()
    for number in range(5):
        await bus.publish(f"pointsman.step.a.crew.wf_1.t.1.{number}", b"{}", {})
    await clock.advance(8 * DAY)
    await bus.publish("pointsman.step.a.crew.wf_1.t.1.new", b"{}", {})

    trim, upto = broker.trim, list[int]()

    def seen(kind: StreamKind, subject: str, last: int) -> None:
        upto.append(last)
        trim(kind, subject, last)

    monkeypatch.setattr(broker, "trim", seen)
    await trimmed(broker, clock)

    assert await bus.subjects("results", "pointsman.>") == ["pointsman.step.a.crew.wf_1.t.1.new"]
    assert upto == [2, 4, 5]


async def test_a_refused_removal_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualClock()
    broker = MemoryBroker(clock=clock)
    bus = broker.connect()
    await bus.publish("pointsman.step.a.crew.wf_1.t.1.s", b"{}", {})
    await clock.advance(8 * DAY)
    trim, refused = bus.trim, list[str]()

    async def refuse(stream: StreamKind, subject: str, last: int) -> None:
        if not refused:
            refused.append(subject)
            raise PeerError("the broker does not purge")
        await trim(stream, subject, last)

    monkeypatch.setattr(bus, "trim", refuse)
    trimming_on = asyncio.create_task(RetentionJob(bus, SUBJECTS, clock, "quick", 30).run(lambda: True))
    with capture_logs() as lines:
        await clock.advance(retention._INTERVAL_S * 2 + 1)
    trimming_on.cancel()

    assert [line["event"] for line in lines] == ["retention_failed"]
    assert await nothing_in(Client(bus), "results")


async def test_doctor_reports_messages_kept_too_long() -> None:
    clock = VirtualClock()
    broker = MemoryBroker(clock=clock)
    client = Client(broker.connect())
    nothing = await checks.check_retention(client, SETTINGS)
    await client.submit("quick", "hello")
    await clock.advance(8 * DAY + 1)
    held_up = await checks.check_retention(client, SETTINGS)
    await clock.advance(7 * DAY)
    for_long = await checks.check_retention(client, SETTINGS)

    assert (nothing.ok, held_up.ok, for_long.ok) == (True, True, False)
    assert "POINTSMAN_REQUESTS contains pointsman.request.quick.anonymous since " in held_up.finding
    assert "POINTSMAN_REQUESTS contains pointsman.request.quick.anonymous since " in for_long.finding


async def test_threads_are_forgotten_after_their_time_to_live_and_open_ones_stay() -> None:
    clock = VirtualClock()
    broker = MemoryBroker(clock=clock)
    async with supervised(broker, clock, QUICK, repeats) as client:
        ended, running = client.thread("quick", "ended"), client.thread("quick", "running")
        assert (await in_time(clock, ended.ask("one", timeout=20))).status == "completed"
        await in_time(clock, running.ask("one", timeout=20))
        record = await client.bus.last("log", SUBJECTS.thread("quick", client.user, "running"))
        assert record is not None
        opened = record.body.replace(b'"status":"ended"', b'"status":"running"')
        await client.bus.publish(record.subject, opened, record.headers)

    kept = RetentionJob(broker.connect(), SUBJECTS, clock, "quick", 30, 2 * DAY)

    await clock.advance(DAY)
    await kept.apply()
    before = await ended.state()
    await clock.advance(2 * DAY)
    await kept.apply()

    assert before is not None
    assert await ended.state() is None
    assert await running.state() is not None
    await clock.advance(60 * DAY)
    await kept.apply()
    assert await running.state() is not None
