"""In a namespace with unsynced handoffs, workflows survive a restart of a broker that lost handoffs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support import factory
from support.broker import remove_streams
from support.checker import problems
from support.crew import planner, steps, synthesizer, team, worker
from support.lines import documents_of
from support.store import Store
from support.waiting import until

from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.client.client import Client
from pointsman.errors import BusUnavailableError, ConfigurationError
from pointsman.settings import Settings
from pointsman_schemas.log import TaskDispatched

pytestmark = pytest.mark.timeout(90)


async def test_the_broker_reports_that_it_does_not_sync_handoffs(settings: Settings) -> None:
    apart = settings.model_copy(update={"unsynced_handoffs": True})
    bus = await connect(apart, name="test", wait=5)
    name = settings.namespace.upper()
    try:
        await bus.set_up()
        configs = {stream: (await bus.api(f"STREAM.INFO.{name}_{stream}"))["config"] for stream in ("WORK", "HANDOFFS")}
        number = await bus.publish(f"{settings.namespace}.handoff.a.crew.w.t.1", b"", {}, expect=0)
        there = await bus.subjects("handoffs", f"{settings.namespace}.handoff.>")
        # The existing stream takes precedence over the setting.
        follower = await connect(settings, name="follower", wait=5)
        await follower.set_up()
        followed = await follower.get("handoffs", number)
        knows = follower.handoffs_unsynced
        await follower.close()
    finally:
        await bus.close()
        await remove_streams(apart)

    assert configs["HANDOFFS"]["persist_mode"] == "async"
    assert "persist_mode" not in configs["WORK"]
    assert there == [f"{settings.namespace}.handoff.a.crew.w.t.1"]
    assert followed is not None
    assert followed.subject == there[0]
    assert knows


@pytest.mark.parametrize("lost", ["WORK", "HANDOFFS"])
async def test_a_stream_that_was_lost_is_made_again_as_it_was(settings: Settings, lost: str) -> None:
    name = settings.namespace.upper()
    bus = await connect(settings.model_copy(update={"unsynced_handoffs": True}), name="test", wait=5)
    await bus.set_up()
    await bus.api(f"STREAM.DELETE.{name}_{lost}")
    # These settings lack `unsynced_handoffs`, so only the remaining stream shows the mode.
    other = await connect(settings, name="other", wait=5)

    await other.set_up()
    config = (await bus.api(f"STREAM.INFO.{name}_HANDOFFS"))["config"]
    forgets, where = other.handoffs_unsynced, other.stream_name("handoffs")
    await other.close()
    await bus.close()
    await remove_streams(settings)

    assert forgets
    assert where == f"{name}_HANDOFFS"
    assert config["persist_mode"] == "async"


async def test_an_existing_namespace_keeps_its_configuration(bus: JetStreamBus, settings: Settings) -> None:
    other = await connect(settings.model_copy(update={"unsynced_handoffs": True}), name="test", wait=5)

    with capture_logs() as logs:
        await other.set_up()
    number = await other.publish(f"{settings.namespace}.handoff.a.crew.w.t.1", b"", {}, expect=0)
    stored = await bus.get("work", number)
    forgets = other.handoffs_unsynced
    await other.close()

    assert stored is not None
    assert not forgets
    assert [line["event"] for line in logs] == ["unsynced_handoffs_ignored"]


async def test_copies_are_refused(settings: Settings) -> None:
    wrong = await connect(settings.model_copy(update={"unsynced_handoffs": True, "replicas": 3}), name="test", wait=5)

    with pytest.raises(ConfigurationError, match="POINTSMAN_REPLICAS=1"):
        await wrong.set_up()

    await wrong.close()


async def test_workflows_end_once_when_the_broker_comes_back_without_their_handoffs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, released = tmp_path / "journal", tmp_path / "released"
    monkeypatch.setenv("CREW_JOURNAL", str(journal))
    store = Store(tmp_path)
    settings = (await store.start()).model_copy(update={"unsynced_handoffs": True})
    try:
        async with factory.team(team, [planner, synthesizer, worker], on=settings) as client:
            await (await client.submit("crew", steps("first"))).outcome(20)
        await store.restart(copy=True)
        async with factory.team(team, [planner, synthesizer, worker], on=settings, supervisors=2) as client:
            released_later = [steps("a", "b", after=str(released)), steps("c", "d", serial=True, after=str(released))]
            workflows = [await client.submit("crew", each) for each in 3 * released_later]
            await until(lambda: _sent(client, 1 + 9))  # the planner and the tasks without dependencies
            lost = set(await client.bus.subjects("handoffs", client.subjects.agent_handoffs("worker")))

            await store.restart(back="POINTSMAN_HANDOFFS")
            await until(lambda: _sent(client, 1 + 9), seconds=30)
            back = set(await client.bus.subjects("handoffs", client.subjects.agent_handoffs("worker")))
            released.touch()
            outcomes = [await workflow.outcome(30) for workflow in workflows]
            entries = [entry for workflow in workflows for entry in await client.entries(workflow.id)]
            wrong = await problems(client.bus, client.subjects, "crew", [workflow.id for workflow in workflows])
    finally:
        await store.stop()

    ran = documents_of(journal)
    assert wrong == []
    assert back == lost
    assert {outcome.status for outcome in outcomes} == {"completed"}
    assert {entry.attempt for entry in entries if isinstance(entry, TaskDispatched)} == {1}
    assert sum(note["what"] == "end" for note in ran) == 1 + 12


async def _sent(client: Client, count: int) -> bool:
    with suppress(BusUnavailableError):  # the broker restarts
        return len(await client.bus.subjects("handoffs", client.subjects.agent_handoffs("worker"))) >= count
    return False
