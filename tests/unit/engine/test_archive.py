"""A workflow that is exported can be opened elsewhere, whole, and nothing there acts on it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from support.system import echo, in_memory, planner_of, synthesizer, until

from pointsman import Context, agent
from pointsman.agent import Agent
from pointsman.bus.memory import MemoryBroker
from pointsman.client import Client
from pointsman.core.rehearsal import rehearse
from pointsman.engine.archive import (
    AlreadyThere,
    Archive,
    commits_of,
    export_workflow,
    import_workflow,
    read,
    results_of,
)
from pointsman.engine.dead_letters import DeadLetters, NotReplayable
from pointsman.errors import ConfigurationError, NotFound, TaskError
from pointsman_schemas.team import Limits, Team

TEAM = Team(name="crew", limits=Limits(deadline=30, attempts=1))


@agent(name="lost", description="Cannot do it")
async def lost(request: str, context: Context) -> str:
    await context.progress("looking")
    raise TaskError("nothing there")


@pytest.fixture
async def archive() -> Archive:
    """A workflow with a result, a report, a failure and its dead letter."""
    agents: list[Agent] = [
        planner_of({"id": "t1", "agent": "a", "intent": "help"}, {"id": "t2", "agent": "lost", "intent": "find"}),
        synthesizer, echo("a"), lost,
    ]  # fmt: skip
    async with in_memory(TEAM, agents) as client:
        workflow = await client.submit("crew", "h\u00e9llo")
        await workflow.outcome(20)
        return await export_workflow(client.bus, client.subjects, workflow.id, datetime.now(UTC))


async def test_it_is_the_same_workflow_in_another_namespace(archive: Archive) -> None:
    client = Client(MemoryBroker(namespace="elsewhere").connect(), namespace="elsewhere")
    copy = read(archive.model_dump_json().encode())
    assert isinstance(copy, Archive)

    count = await import_workflow(client.bus, client.subjects, copy)
    again = await export_workflow(client.bus, client.subjects, archive.workflow_id, archive.exported_at)

    assert [each.body for each in again.records] == [each.body for each in archive.records if each.stream != "work"]
    assert count == len(again.records)
    assert {record.subject.split(".")[1] for record in archive.records} == {
        "log", "event", "outcome", "handoff", "inbox", "dead",
    }  # fmt: skip
    (listed,) = await client.list()
    assert (listed.id, listed.status) == (archive.workflow_id, "partial")
    root = await client.trace(archive.workflow_id)
    assert {child.name for child in root.children[0].children} >= {"invoke_agent a", "invoke_agent lost"}


async def test_one_that_is_there_already_is_refused(archive: Archive) -> None:
    client = Client(MemoryBroker().connect())
    await import_workflow(client.bus, client.subjects, archive)

    with pytest.raises(AlreadyThere, match=r"already.*--namespace"):
        await import_workflow(client.bus, client.subjects, archive)


async def test_nothing_acts_on_it_whoever_asks(archive: Archive) -> None:
    running = archive.model_copy(update={"records": archive.records[:2]})  # as of one that had not ended
    async with in_memory(TEAM, [planner_of(), synthesizer, echo("a")]) as client:
        await import_workflow(client.bus, client.subjects, running)
        before = await client.entries(archive.workflow_id)

        await (await client.workflow(archive.workflow_id)).cancel("stop")
        letters = DeadLetters(client.bus, client.subjects)

        async def refused() -> bool:
            return [each.content.cause.kind for each in await letters.list()] == ["imported_log"]

        await until(refused)
        assert await client.entries(archive.workflow_id) == before
        assert await client.bus.last("work", "pointsman.handoff.>") is None


async def test_its_dead_letters_are_shown_and_not_replayed(archive: Archive) -> None:
    client = Client(MemoryBroker(namespace="elsewhere").connect(), namespace="elsewhere")
    await import_workflow(client.bus, client.subjects, archive)
    letters = DeadLetters(client.bus, client.subjects)
    (letter,) = await letters.list()

    with pytest.raises(NotReplayable):
        await letters.replay(letter)


async def test_it_is_decided_again_as_it_was(archive: Archive) -> None:
    assert len(results_of(archive)) == 4
    assert list(rehearse(commits_of(archive), results_of(archive))) == []


async def test_what_is_not_there_cannot_be_exported() -> None:
    client = Client(MemoryBroker().connect())

    with pytest.raises(NotFound):
        await export_workflow(client.bus, client.subjects, "wf_1", datetime.now(UTC))


@pytest.mark.parametrize("text", [b"", b"{}", b"hello", b'{"number": 1}', b'{"format": "pointsman.workflow"}'])
def test_what_is_no_archive_is_refused_with_a_reason(text: bytes) -> None:
    with pytest.raises(ConfigurationError, match="this is no"):
        read(text)


async def test_an_archive_of_a_later_version_is_refused(archive: Archive) -> None:
    text = archive.model_dump_json().replace('"version":1', '"version":2').encode()

    with pytest.raises(ConfigurationError, match="version"):
        read(text)
