"""An exported workflow can be imported completely into another namespace. No process there acts on it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from pointsman.bus.memory.bus import MemoryBroker
from pointsman.cli.commands.archive import replay
from pointsman.cli.render.output import Code
from pointsman.client.client import Client
from pointsman.core.replay.replayer import replay_log
from pointsman.core.views.trace import TraceNode
from pointsman.engine.operations.archive import Archive, flatten
from pointsman.engine.operations.archive_export import export_workflow
from pointsman.engine.operations.archive_import import import_workflow
from pointsman.engine.operations.archive_reader import commits_of, is_importable, read_archive
from pointsman.errors import ConfigurationError, NotFoundError


async def test_it_is_the_same_workflow_in_another_namespace(archive: Archive) -> None:
    client = Client(MemoryBroker(namespace="elsewhere").connect(), namespace="elsewhere")
    copy = read_archive(archive.model_dump_json().encode())
    assert isinstance(copy, Archive)

    count = await import_workflow(client.bus, client.subjects, copy)
    again = await export_workflow(client.bus, client.subjects, archive.workflow_id, archive.exported_at)

    assert [each.body for each in again.records] == [each.body for each in archive.records if is_importable(each)]
    assert count == len(again.records)
    assert {record.subject.split(".")[1] for record in archive.records} == {
        "log", "event", "outcome", "handoff", "result", "dead",
    }  # fmt: skip
    (listed,) = await client.list()
    assert (listed.id, listed.status) == (archive.workflow_id, "partial")
    root = await client.trace(archive.workflow_id)
    assert {child.name for child in root.children[0].children} >= {"invoke_agent a", "invoke_agent lost"}


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
    assert [line for line in told.splitlines() if line.startswith(family.workflow_id)] == []


def drawn(node: TraceNode) -> list[str]:
    return [node.name, *(name for child in node.children for name in drawn(child))]


async def test_it_is_decided_again_as_it_was(archive: Archive) -> None:
    assert all(commit.decision_context for commit in commits_of(archive))
    assert list(replay_log(commits_of(archive))) == []


async def test_unknown_workflow_cannot_be_exported() -> None:
    client = Client(MemoryBroker().connect())

    with pytest.raises(NotFoundError):
        await export_workflow(client.bus, client.subjects, "wf_1", datetime.now(UTC))


@pytest.mark.parametrize("text", [b"", b"{}", b"hello", b'{"number": 1}', b'{"format": "pointsman.workflow"}'])
def test_invalid_archive_is_refused_with_a_reason(text: bytes) -> None:
    with pytest.raises(ConfigurationError, match="this is not a"):
        read_archive(text)


async def test_an_archive_of_a_later_version_is_refused(archive: Archive) -> None:
    text = archive.model_dump_json().replace('"version":1', '"version":2').encode()

    with pytest.raises(ConfigurationError, match="version"):
        read_archive(text)
