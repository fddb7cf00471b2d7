"""A workflow that is exported can be opened elsewhere, whole, and nothing there acts on it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from support import factory
from support.factory import echo, planner_of, synthesizer
from support.waiting import until

from pointsman import Context, agent
from pointsman.authoring.agent import Agent
from pointsman.bus.memory.bus import MemoryBroker
from pointsman.cli.commands.archive import replay
from pointsman.cli.render.output import Code
from pointsman.client.client import Client
from pointsman.core.replay.replayer import replay_log
from pointsman.core.views.trace import TraceNode
from pointsman.engine.operations.archive import (
    Archive,
    WorkflowExistsError,
    commits_of,
    export_workflow,
    flatten,
    import_workflow,
    read_archive,
)
from pointsman.engine.operations.dead_letters import DeadLetters, NotReplayableError
from pointsman.errors import ConfigurationError, NotFoundError, TaskError
from pointsman.testing import running_team
from pointsman_schemas.team import Limits, Pipeline, RetryPolicy, Stage, Team

TEAM = Team(name="crew", limits=Limits(deadline=30), retry=RetryPolicy(attempts=1))


@agent(name="lost", description="Cannot do it")
async def lost(request: str, context: Context) -> str:
    context.progress("looking")
    raise TaskError("nothing there")


@pytest.fixture
async def archive() -> Archive:
    """Return a workflow with a result, a report, a failure and its dead letter."""
    agents: list[Agent] = [
        planner_of({"id": "t1", "agent": "a", "intent": "help"}, {"id": "t2", "agent": "lost", "intent": "find"}),
        synthesizer, echo("a"), lost,
    ]  # fmt: skip
    async with factory.team(TEAM, agents, settled=True) as client:
        workflow = await client.submit("crew", "h\u00e9llo")
        await workflow.outcome(20)
        return await export_workflow(client.bus, client.subjects, workflow.id, datetime.now(UTC))


async def test_it_is_the_same_workflow_in_another_namespace(archive: Archive) -> None:
    client = Client(MemoryBroker(namespace="elsewhere").connect(), namespace="elsewhere")
    copy = read_archive(archive.model_dump_json().encode())
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


@pytest.fixture
async def family() -> Archive:
    """Return a workflow with a nested team whose workflow has a nested team."""
    desk = Team(name="desk", agents=("refunds",), strategy=Pipeline(stages=(Stage(agent="refunds"),)))
    refunds = Team(name="refunds", strategy=Pipeline(stages=(Stage(agent="books"), Stage(agent="a"))))
    books = Team(name="books", strategy=Pipeline(stages=(Stage(agent="b"),)))
    async with running_team([desk, refunds, books], [echo("a"), echo("b")]) as client:
        workflow = await client.submit("desk", "charge 7")
        assert (await workflow.outcome(20)).status == "completed"
        return await export_workflow(client.bus, client.subjects, workflow.id, datetime.now(UTC))


async def test_the_workflows_below_it_are_taken_along_and_drawn_as_they_were(family: Archive) -> None:
    client = Client(MemoryBroker(namespace="elsewhere").connect(), namespace="elsewhere")
    copy = read_archive(family.model_dump_json().encode())
    assert isinstance(copy, Archive)

    await import_workflow(client.bus, client.subjects, copy)

    assert [each.team for each in flatten(copy)] == ["desk", "refunds", "books"]
    assert {each.id for each in await client.list()} == {each.workflow_id for each in flatten(family)}
    assert {name for name in drawn(await client.trace(family.workflow_id)) if name.startswith("invoke_agent")} == {
        "invoke_agent refunds", "invoke_agent books", "invoke_agent a", "invoke_agent b",
    }  # fmt: skip
    assert [list(replay_log(commits_of(each))) for each in flatten(copy)] == [[], [], []]


async def test_when_one_below_it_is_there_already_nothing_is_stored(family: Archive) -> None:
    client = Client(MemoryBroker().connect())
    child = family.children[0].children[0]
    await import_workflow(client.bus, client.subjects, child)

    with pytest.raises(WorkflowExistsError, match=child.workflow_id):
        await import_workflow(client.bus, client.subjects, family)

    assert [each.id for each in await client.list()] == [child.workflow_id]


def test_a_file_from_before_children_were_taken_along_is_read(family: Archive) -> None:
    before = read_archive(family.model_dump_json(exclude={"children"}).encode())

    assert isinstance(before, Archive)
    assert list(flatten(before)) == [before]


def test_replay_judges_every_workflow_of_a_file_and_says_which_one_differs(
    family: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "family.json"
    file.write_text(family.model_dump_json())
    same = replay(file, json=False)
    told = capsys.readouterr().out
    child = family.children[0]
    last = [record for record in child.records if ".log." in record.subject][-1]
    other = last.model_copy(update={"body": last.body.replace('"status":"completed"', '"status":"partial"')})
    records = tuple(other if record is last else record for record in child.records)
    edited = child.model_copy(update={"records": records})
    file.write_text(family.model_copy(update={"children": (edited,)}).model_dump_json())

    different = replay(file, json=False)

    assert (same, different) == (Code.OK, Code.FAILED)
    assert told.startswith("3 workflows, ")
    told = capsys.readouterr().out
    assert child.workflow_id in told
    assert family.workflow_id not in told


def drawn(node: TraceNode) -> list[str]:
    return [node.name, *(name for child in node.children for name in drawn(child))]


async def test_one_that_is_there_already_is_refused(archive: Archive) -> None:
    client = Client(MemoryBroker().connect())
    await import_workflow(client.bus, client.subjects, archive)

    with pytest.raises(WorkflowExistsError, match=r"already.*--namespace"):
        await import_workflow(client.bus, client.subjects, archive)


async def test_second_concurrent_import_is_refused(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(MemoryBroker().connect())
    await import_workflow(client.bus, client.subjects, archive)

    async def nothing_yet(stream: str, subject: str) -> None:
        return None

    monkeypatch.setattr(client.bus, "last", nothing_yet)

    with pytest.raises(WorkflowExistsError, match=archive.workflow_id):
        await import_workflow(client.bus, client.subjects, archive)


async def test_archived_workflow_accepts_no_action(archive: Archive) -> None:
    running = archive.model_copy(update={"records": archive.records[:2]})  # as of one that had not ended
    async with factory.team(TEAM, [planner_of(), synthesizer, echo("a")], settled=True) as client:
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

    with pytest.raises(NotReplayableError):
        await letters.replay(letter)


async def test_it_is_decided_again_as_it_was(archive: Archive) -> None:
    assert all(commit.decision_context for commit in commits_of(archive))
    assert list(replay_log(commits_of(archive))) == []


async def test_unknown_workflow_cannot_be_exported() -> None:
    client = Client(MemoryBroker().connect())

    with pytest.raises(NotFoundError):
        await export_workflow(client.bus, client.subjects, "wf_1", datetime.now(UTC))


@pytest.mark.parametrize("text", [b"", b"{}", b"hello", b'{"number": 1}', b'{"format": "pointsman.workflow"}'])
def test_invalid_archive_is_refused_with_a_reason(text: bytes) -> None:
    with pytest.raises(ConfigurationError, match="this is no"):
        read_archive(text)


async def test_an_archive_of_a_later_version_is_refused(archive: Archive) -> None:
    text = archive.model_dump_json().replace('"version":1', '"version":2').encode()

    with pytest.raises(ConfigurationError, match="version"):
        read_archive(text)
