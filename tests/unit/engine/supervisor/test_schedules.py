"""Schedules on the memory bus with the real engines: fires, outages, clock jumps, commands and retention."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support import factory

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.bus import file_store
from pointsman.bus.file_store import FileStore
from pointsman.bus.memory.bus import MemoryBroker
from pointsman.client.client import Client
from pointsman.client.files import store_file
from pointsman.client.schedules import Schedules
from pointsman.core.schedules.runs import fire_id, workflow_of_run
from pointsman.engine.supervisor import object_retention, retention
from pointsman.engine.supervisor.retention import RetentionJob
from pointsman.errors import ContractError, NotFoundError, ScheduleRefusedError
from pointsman.settings import Settings
from pointsman.testing.clock import VirtualClock
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Request
from pointsman_schemas.ids import schedule_id_for
from pointsman_schemas.schedules import Schedule, ScheduleRecord, ScheduleRun, ScheduleSpec, ScheduleTimer
from pointsman_schemas.strict_json import dump
from pointsman_schemas.team import Pipeline, Stage, Team

START = datetime(2030, 1, 1, 8, 30, tzinfo=UTC)
MINUTE, HOUR = 60.0, 3600.0
SOLO = Team(name="crew", strategy=Pipeline(stages=(Stage(agent="a"),)))
SETTINGS = Settings(ack_wait=3000.0, heartbeat=900.0)  # few wake-ups in hours of virtual time


class WallClock(VirtualClock):
    """A clock that can be set forward and back."""

    def set_by(self, seconds: float) -> None:
        self._start += timedelta(seconds=seconds)


async def create(client: Client, name: str = "report", **options: Any) -> Schedule:
    chosen: dict[str, Any] = {"cron": "0 * * * *", **options}
    made = await client.schedules.create(name, "crew", "the report", **chosen)
    assert made is not None
    return made


async def workflows(client: Client) -> list[str]:
    return sorted(each.id for each in await client.list("crew", limit=100))


async def test_each_fire_is_one_workflow_of_the_owner() -> None:
    clock = WallClock(START)
    async with factory.team(SOLO, [factory.echo("a")], clock=clock, settings=SETTINGS) as client:
        await create(client)

        for _ in range(3):
            await clock.advance(HOUR)
        shown = await client.schedules.get("report")
        listed = await client.list("crew")

    assert [(each.due.hour, each.status, each.outcome) for each in shown.runs] == [
        (hour, "ended", "completed") for hour in (9, 10, 11)
    ]
    assert sorted(each.id for each in listed) == sorted(each.workflow_id for each in shown.runs)
    assert {each.caller for each in listed} == {"anonymous"}


async def test_fire_is_one_workflow_with_several_supervisors() -> None:
    clock = WallClock(START)
    async with factory.team(SOLO, [factory.echo("a")], clock=clock, settings=SETTINGS, supervisors=3) as client:
        await create(client, cron="*/10 * * * *")

        for _ in range(6):
            await clock.advance(10 * MINUTE)
        shown = await client.schedules.get("report")
        found = await workflows(client)

    assert len(shown.runs) == len(found) == 6


@pytest.mark.parametrize(("missed", "runs"), [("skip", 0), ("once", 1)])
async def test_fires_without_a_supervisor_follow_the_policy(missed: str, runs: int) -> None:
    clock = WallClock(START)
    broker = MemoryBroker(clock=clock)
    async with factory.team(SOLO, [], clock=clock, broker=broker, settings=SETTINGS) as client:
        await create(client, missed=missed)
    await clock.advance(3 * HOUR)

    async with factory.team(SOLO, [factory.echo("a")], clock=clock, broker=broker, settings=SETTINGS) as client:
        await clock.advance(MINUTE)
        shown = await client.schedules.get("report")

    assert len(shown.runs) == runs
    assert shown.missed == 3 - runs
    assert [each.outcome for each in shown.runs] == ["completed"] * runs


async def test_broker_clock_that_is_set_forward_and_back_starts_no_time_twice() -> None:
    clock = WallClock(START)
    async with factory.team(SOLO, [factory.echo("a")], clock=clock, settings=SETTINGS) as client:
        await create(client, missed="once")
        await clock.advance(HOUR)  # 09:30
        for step in (3 * HOUR, -5 * HOUR, 2 * HOUR):
            clock.set_by(step)
            # More than a heartbeat, because a supervisor reads the broker's clock at each heartbeat.
            await clock.advance(1.5 * HOUR)
        await clock.advance(2 * HOUR)
        shown = await client.schedules.get("report")
        found = await workflows(client)

    times = [each.due for each in shown.runs]
    assert len(times) == len(set(times)) == len(found)
    assert {each.workflow_id for each in shown.runs} == set(found)
    assert shown.wake is not None
    assert timedelta() < shown.wake - clock.now() <= timedelta(hours=1)


async def test_clock_that_is_set_forward_fires_after_the_next_heartbeat() -> None:
    clock = WallClock(START)
    async with factory.team(SOLO, [factory.echo("a")], clock=clock, settings=SETTINGS) as client:
        await create(client, cron="0 20 * * *", grace=HOUR)
        await clock.advance(MINUTE)

        clock.set_by(11.5 * HOUR)  # 20:01
        await clock.advance(15 * MINUTE)
        shown = await client.schedules.get("report")

    assert [each.due.hour for each in shown.runs] == [20]


def gated(gate: asyncio.Event) -> Agent:
    @agent(name="a", description="Works until the gate opens")
    async def wait(request: str, context: Context) -> str:
        await gate.wait()
        return request

    return wait


async def test_queued_run_starts_when_the_run_ahead_has_ended() -> None:
    clock, gate = WallClock(START), asyncio.Event()
    async with factory.team(SOLO, [gated(gate)], clock=clock, settings=SETTINGS) as client:
        await create(client, cron="* * * * *", overlap="queue")
        await clock.advance(2 * MINUTE + 5)
        before = await client.schedules.get("report")
        gate.set()
        await clock.advance(5.0)
        after = await client.schedules.get("report")

    assert [each.status for each in before.runs] == ["running", "queued"]
    assert [each.outcome for each in after.runs] == ["completed", "completed"]


async def test_fire_during_a_run_is_skipped() -> None:
    clock, gate = WallClock(START), asyncio.Event()
    async with factory.team(SOLO, [gated(gate)], clock=clock, settings=SETTINGS) as client:
        await create(client, cron="* * * * *")
        await clock.advance(2 * MINUTE + 5)
        shown = await client.schedules.get("report")
        gate.set()
        await clock.advance(5.0)

    assert (len(shown.runs), shown.skipped) == (1, 1)


async def test_commands_change_the_schedule() -> None:
    clock = WallClock(START)
    async with factory.team(SOLO, [factory.echo("a")], clock=clock, settings=SETTINGS) as client:
        await create(client)

        paused = await client.schedules.pause("report")
        await clock.advance(HOUR)
        resumed = await client.schedules.resume("report")
        started = await client.schedules.run("report")
        await clock.advance(1.0)
        listed = await client.schedules.list()
        await client.schedules.delete("report")
        await clock.advance(HOUR)
        found = await workflows(client)
        with pytest.raises(NotFoundError, match="has no schedule"):
            await client.schedules.get("report")

    assert paused is not None
    assert resumed is not None
    assert (paused.status, resumed.status) == ("paused", "active")
    assert started is not None
    assert [each.by for each in started.runs] == ["anonymous"]
    assert [(each.name, [run.outcome for run in each.runs]) for each in listed] == [("report", ["completed"])]
    assert len(found) == 1


async def test_change_without_a_supervisor_is_carried_out_when_one_runs() -> None:
    clock = WallClock(START)
    broker = MemoryBroker(clock=clock)
    client = Client(broker.connect())

    made = await client.schedules.create("report", "crew", "hello", cron="0 * * * *", timeout=0.01)
    async with factory.team(SOLO, [], clock=clock, broker=broker, settings=SETTINGS):
        await clock.advance(1.0)
        (shown,) = await client.schedules.list()

    assert made is None
    assert shown.status == "active"


async def test_one_caller_leaves_schedules_of_the_team_to_others() -> None:
    settings = SETTINGS.model_copy(update={"max_caller_schedules": 1})
    async with factory.team(SOLO, [], clock=WallClock(START), settings=settings) as client:
        await create(client, "one")

        with pytest.raises(ScheduleRefusedError, match="POINTSMAN_MAX_CALLER_SCHEDULES"):
            await create(client, "two")
        await create(client.for_user("other"), "two")


async def test_refused_change_raises_with_the_reason() -> None:
    clock = WallClock(START)
    settings = SETTINGS.model_copy(update={"max_schedules": 1})
    async with factory.team(SOLO, [], clock=clock, settings=settings) as client:
        await create(client, "one")

        with pytest.raises(ScheduleRefusedError, match="delete it first"):
            await create(client, "one")
        with pytest.raises(ScheduleRefusedError, match="POINTSMAN_MAX_SCHEDULES"):
            await create(client, "two")
        await client.schedules.delete("one")
        await create(client, "two")

        assert [each.name for each in await client.schedules.list()] == ["two"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"cron": "nonsense nonsense"}, "expected five fields"),
        ({"cron": "0 9 * * *", "at": START}, "either a cron expression or a time"),
        ({"cron": None}, "either a cron expression or a time"),
        ({"timezone": "Nowhere"}, "expected an IANA name"),
    ],
)
async def test_wrong_definition_is_refused_before_it_is_sent(options: dict[str, Any], reason: str) -> None:
    client = Client(MemoryBroker().connect())

    with pytest.raises(ContractError, match=reason):
        await create(client, **options)

    assert await client.bus.subjects("controls", ">") == []


async def test_timer_that_no_broker_published_is_a_dead_letter() -> None:
    clock = WallClock(START)
    async with factory.team(SOLO, [], clock=clock, settings=SETTINGS) as client:
        await create(client)
        id = schedule_id_for("crew", "anonymous", "report")

        timer = ScheduleTimer(caller="anonymous", schedule="report", number=1, due=START)
        envelope = Envelope(id="t-1", type=ScheduleTimer.event_type, source="/test", time=START)
        await client.bus.publish(client.subjects.timer("crew", id, "now"), dump(timer), encode(envelope))
        await client.bus.publish(client.subjects.control("crew", id, "cancel", "eve", "c1"), b"{}", {})
        await clock.advance(1.0)
        letters = await client.operations.dead_letters()
        shown = await client.schedules.get("report")

    assert len(letters) == 2
    assert shown.runs == ()


async def store(client: Client, schedule: Schedule) -> None:
    """Store a schedule as a supervisor that crashed after its commit."""
    record = ScheduleRecord(number=1, entries=(), state=schedule)
    envelope = Envelope(id="r-1", type=ScheduleRecord.event_type, source="/test", time=START)
    subject = client.subjects.cron(schedule.team, schedule.caller, schedule.name)
    await client.bus.publish(subject, dump(record), encode(envelope))


def stored_schedule(name: str, timezone: str = "UTC", runs: tuple[ScheduleRun, ...] = ()) -> Schedule:
    return Schedule(
        team="crew",
        caller="anonymous",
        name=name,
        status="active",
        spec=ScheduleSpec(cron="0 * * * *", timezone=timezone, request=Request(input="the report")),
        created_at=START - timedelta(hours=1),
        changed_at=START,
        through=START,
        runs=runs,
        started=len(runs),
    )


async def test_schedule_that_cannot_be_read_stops_no_other() -> None:
    clock = WallClock(START)
    broker = MemoryBroker(clock=clock)
    await store(Client(broker.connect()), stored_schedule("a", timezone="Mars/Olympus"))
    await store(Client(broker.connect()), stored_schedule("b"))

    async with factory.team(SOLO, [factory.echo("a")], clock=clock, broker=broker, settings=SETTINGS) as client:
        await clock.advance(HOUR)
        shown = await client.schedules.get("b")

    assert [each.outcome for each in shown.runs] == ["completed"]


async def test_run_whose_request_was_never_sent_is_sent_by_the_next_supervisor() -> None:
    clock = WallClock(START)
    broker = MemoryBroker(clock=clock)
    request_id = fire_id("report", START - timedelta(minutes=30))
    client = Client(broker.connect())
    run = ScheduleRun(
        request_id=request_id,
        workflow_id=workflow_of_run(client.subjects, "crew", "anonymous", "report", request_id),
        due=START - timedelta(minutes=30),
        status="running",
        started_at=START - timedelta(minutes=30),
    )
    await store(client, stored_schedule("report", runs=(run,)))

    async with factory.team(SOLO, [factory.echo("a")], clock=clock, broker=broker, settings=SETTINGS) as client:
        await clock.advance(MINUTE)
        shown = await client.schedules.get("report")
        found = await workflows(client)

    assert [each.outcome for each in shown.runs] == ["completed"]
    assert found == [run.workflow_id]


async def test_one_of_two_teams_must_be_named() -> None:
    clock = WallClock(START)
    other = SOLO.model_copy(update={"name": "other"})
    async with factory.team([SOLO, other], [], clock=clock, settings=SETTINGS) as client:
        await create(client)
        await client.schedules.create("report", "other", "hello", cron="0 9 * * *")

        with pytest.raises(ContractError, match="name the team"):
            await client.schedules.get("report")
        found = await client.schedules.get("report", "other")

    assert found.team == "other"


async def test_files_stay_as_long_as_their_schedule_and_are_removed_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_store, "CHUNK_BYTES", 4)
    monkeypatch.setattr(retention, "_BODY_RETENTION", timedelta(hours=1))
    monkeypatch.setattr(object_retention, "_LONGEST_UPLOAD", timedelta(minutes=1))
    clock = WallClock(START)
    read: list[bytes] = []

    @agent(name="a", description="Reads the file of its request")
    async def reader(request: str, context: Context) -> str:
        read.append(await context.files["report.txt"].read())
        return "read"

    async with factory.team(SOLO, [reader], clock=clock, settings=SETTINGS) as client:
        client.schedules = Schedules(client.bus, client.subjects, clock=clock)
        job = RetentionJob(client.bus, client.subjects, clock, "crew", 1 / 24)
        store = FileStore(client.bus, client.subjects.artifacts_bucket, clock, 100)

        async def stored() -> tuple[int, int]:
            """Return the number of files and the number of chunks."""
            bus = client.bus
            return (
                len(await bus.subjects("artifacts", client.subjects.objects)),
                len([each async for each in bus.read("artifacts", "$O.*.C.>")]),
            )

        first = await store_file(store, "old.txt", b"old", "shared")
        given = await store_file(store, "report.txt", b"the figures", "shared")
        await create(client, files=[given])
        await store_file(store, "new.txt", b"new", "shared")
        await store.create("lost.txt", "text/plain", "shared").write(b"a writer that died")
        full = await stored()
        for _ in range(4):
            await clock.advance(HOUR)
            await job.apply()
        kept, shown = await stored(), await client.schedules.get("report")
        found = await store.find("shared", first.sha256)
        await client.schedules.delete("report")
        await clock.advance(MINUTE)
        await job.apply()
        deleted = await stored()
        await clock.advance(3 * HOUR)
        await job.apply()

        assert full == (4, 1 + 3 + 3 + 1 + 4)
        assert (kept, found) == ((1, 3), None)
        assert [each.outcome for each in shown.runs] == ["completed"] * 4
        assert read == [b"the figures"] * 4
        assert deleted == (1, 3)
        assert await stored() == (0, 0)


async def test_retention_keeps_live_schedules_and_removes_deleted_ones() -> None:
    clock = WallClock(START)
    async with factory.team(SOLO, [], clock=clock, settings=SETTINGS) as client:
        await create(client, "live")
        await create(client, "gone")
        await client.schedules.delete("gone")
        await clock.advance(2 * HOUR)

        await RetentionJob(client.bus, client.subjects, clock, "crew", 60 / 86_400).apply()
        kept = await client.bus.subjects("log", client.subjects.crons())

    assert kept == [client.subjects.cron("crew", "anonymous", "live")]
