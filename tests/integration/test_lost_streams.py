"""The system detects and reports that a broker lost acknowledged data, and repairs the loss as far as possible."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest
from support import factory
from support.crew import planner, steps, synthesizer, team, worker
from support.handoffs import SupervisorDouble
from support.lines import documents_of
from support.store import Store
from support.waiting import until

from pointsman.authoring.agent import Agent
from pointsman.bus.jetstream.bus import connect
from pointsman.client.client import Workflow
from pointsman.clock import SystemClock
from pointsman.engine.supervisor import engine
from pointsman.engine.supervisor.stream_integrity import find_lost_log, find_lost_work
from pointsman.errors import BusUnavailableError, ConflictError, StreamLostError
from pointsman.settings import Settings
from pointsman_schemas.events import Handoff, Request

pytestmark = pytest.mark.timeout(90)

CREW: list[Agent] = [planner, synthesizer, worker]
NOON = "2026-01-31T12:00:00Z"


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the errors that supervisors log during the test."""
    said: list[str] = []
    monkeypatch.setattr(engine._log, "error", lambda event, **more: said.append(event))
    return said


async def test_supervisor_does_not_continue_from_memory_after_its_log_was_restored(tmp_path: Path) -> None:
    store = Store(tmp_path)
    settings = await store.start()
    try:
        async with factory.team(team, CREW, on=settings) as client:
            await (await client.submit("crew", steps("a"))).outcome(20)
        await store.restart(copy=True)
        async with factory.team((), CREW, on=settings) as client:
            bus = await connect(settings, name="supervisor", wait=5)
            supervising = asyncio.create_task(factory.supervisor(bus, team, settings=settings).run(asyncio.Event()))
            await (await client.submit("crew", steps("b"))).outcome(20)
            await store.restart(back="*")
            with pytest.raises(StreamLostError, match="older copy"):
                await asyncio.wait_for(supervising, 30)
            await bus.close()
        async with factory.team(team, CREW, on=settings) as client:
            outcome = await (await client.submit("crew", steps("c"))).outcome(20)
    finally:
        await store.stop()

    assert outcome.status == "completed"


async def test_a_log_that_has_lost_its_end_is_reported_at_the_start(tmp_path: Path, errors: list[str]) -> None:
    store = Store(tmp_path)
    settings = await store.start()
    try:
        async with factory.team(team, CREW, on=settings) as client:
            await (await client.submit("crew", steps("a"))).outcome(20)
            sound = await find_lost_log(client.bus, client.subjects, SystemClock(), 30.0)
        await store.restart(copy=True)
        async with factory.team(team, CREW, on=settings) as client:
            workflow = await client.submit("crew", steps("b"))
            await workflow.outcome(20)
        await store.restart(back="POINTSMAN_LOG")
        async with factory.team(team, CREW, on=settings) as client:
            (loss,) = await find_lost_log(client.bus, client.subjects, SystemClock(), 30.0)
            await until(lambda: _any(errors))
    finally:
        await store.stop()

    assert errors == ["log_rolled_back"]
    assert not sound
    assert workflow.id in loss
    assert "POINTSMAN_LOG has none of its commits" in loss


async def test_work_that_was_lost_is_sent_again_from_the_log(tmp_path: Path, errors: list[str]) -> None:
    store, released = Store(tmp_path), tmp_path / "released"
    settings = await store.start()
    try:
        async with factory.team(team, CREW, on=settings) as client:
            await (await client.submit("crew", steps("a"))).outcome(20)
        await store.restart(copy=True)
        async with factory.team(team, CREW, on=settings) as client:
            work = await client.submit("crew", steps("b", after=str(released)))
            sent = client.subjects.handoff("worker", "crew", work.id, "b", 1)
            await until(lambda: client.bus.last("work", sent))
        await store.restart(back="POINTSMAN_WORK")
        async with factory.team((), on=settings) as client:
            gone = await client.bus.last("work", sent) is None
            (loss,) = await find_lost_work(client.bus, client.subjects, "crew", SystemClock(), 30)
        released.touch()
        async with factory.team(team, CREW, on=settings) as client:
            outcome = await factory.workflow_of(client, work.id).outcome(20)
    finally:
        await store.stop()

    assert errors == ["work_rolled_back"]
    assert gone
    assert work.id in loss
    assert (outcome.status, outcome.answer) == ("completed", "b")


async def test_handoff_with_the_sequence_of_a_lost_one_is_a_different_handoff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, released, journal = Store(tmp_path), tmp_path / "released", tmp_path / "journal"
    monkeypatch.setenv("CREW_JOURNAL", str(journal))
    settings = await store.start()
    try:
        async with factory.team((), [worker], on=settings) as client:
            desk = SupervisorDouble(client.bus)
            await desk.result(await desk.publish_handoff("worker", {"say": "first"}, task="t0"))
        await store.restart(copy=True)
        async with factory.team((), [worker], on=settings) as client:
            desk = SupervisorDouble(client.bus)
            lost = await desk.publish_handoff("worker", {"say": "lost", "after": str(released)}, task="t1")
            await until(lambda: "t1" in [each["task"] for each in documents_of(journal)])
            await store.restart(back="POINTSMAN_WORK")  # a worker may still run handoffs that the broker has lost
            new = await _handed_later(desk)
            result = await desk.result(new)
            released.touch()
            late = await desk.result(lost)
    finally:
        await store.stop()

    assert (result.output, late.output) == ("new", "lost")


async def _handed_later(desk: SupervisorDouble) -> Handoff:
    """Return the first handoff that a broker accepts after it was restored."""
    while True:
        with suppress(BusUnavailableError, ConflictError):
            return await desk.publish_handoff("worker", {"say": "new"}, task="t2")


async def _any(values: list[str]) -> bool:
    return bool(values)


async def test_request_with_a_purged_log_is_answered_again_under_its_id(settings: Settings) -> None:
    headers = {"ce-specversion": "1.0", "ce-id": "r1", "ce-source": "/shop", "ce-type": Request.event_type}
    body = json.dumps({"input": steps("a")}).encode()
    async with factory.team(team, CREW, on=settings) as client:

        async def ask() -> Workflow:
            sequence = await client.bus.publish(
                client.subjects.request("crew", "anonymous"), body, {**headers, "ce-time": NOON}
            )
            return await client.workflow_from_sequence(sequence)

        first = await ask()
        await first.outcome(20)
        for subject in (client.subjects.log("crew", first.id), client.subjects.outcome("crew", first.id)):
            await client.bus.trim("log", subject, 2**53)
        outcome = await (await ask()).outcome(10)

    assert (outcome.workflow_id, outcome.status) == (first.id, "completed")
