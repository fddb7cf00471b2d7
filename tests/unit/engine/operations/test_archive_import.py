"""An import stores all messages of the archive's workflows or none, and nothing else. They are only for reading."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs
from support import factory
from support.factory import echo, planner_of, synthesizer
from support.waiting import until

from pointsman.bus.memory.bus import MemoryBroker, MemoryBus
from pointsman.client.client import Client
from pointsman.engine.log.reader import ImportedLogError
from pointsman.engine.operations.archive import Archive, Record, flatten
from pointsman.engine.operations.archive_export import export_workflow
from pointsman.engine.operations.archive_import import WorkflowExistsError, import_workflow
from pointsman.engine.operations.archive_reader import is_importable, read_archive
from pointsman.engine.operations.dead_letter_replay import NotReplayableError
from pointsman.engine.operations.dead_letters import DeadLetters
from pointsman.engine.supervisor.stream_integrity import find_lost_work
from pointsman.errors import BusUnavailableError, ConfigurationError, PublishOutcomeUnknownError
from pointsman.ports.bus import StoredMessage, StreamKind
from pointsman.testing.clock import VirtualClock
from pointsman_schemas.events import Control, Request
from pointsman_schemas.log import Commit, WorkflowEnded
from pointsman_schemas.strict_json import dump
from pointsman_schemas.team import Limits, Team

TEAM = Team(name="crew", limits=Limits(deadline=30))
Edit = Callable[[tuple[Record, ...]], Sequence[Record]]


def elsewhere(bus: type[MemoryBus] = MemoryBus) -> Client:
    return Client(bus(broker=MemoryBroker(namespace="elsewhere")), namespace="elsewhere")


def stored(client: Client) -> list[StoredMessage]:
    """Return all messages of the client's namespace."""
    assert isinstance(client.bus, MemoryBus)
    kinds: tuple[StreamKind, ...] = ("requests", "controls", "results", "work", "log", "dead", "limits")
    return sorted(
        (each for kind in kinds for each in client.bus.broker.stream(kind).select(">")), key=lambda each: each.at
    )


def is_commit(record: Record) -> bool:
    return record.subject.split(".")[1] == "log"


def with_records(archive: Archive, records: Sequence[Record]) -> Archive:
    return archive.model_copy(update={"records": tuple(records)})


def unfinished(archive: Archive, commits: int = 2) -> Archive:
    """Return the archive of a workflow after this number of commits."""
    log = [record for record in archive.records if is_commit(record)][:commits]
    return with_records(archive, log)


def record(archive: Archive, stream: str, subject: str, body: str = "{}", **changes: Any) -> Record:
    """Return a record to add to an archive by hand."""
    given = {
        "stream": stream, "subject": subject.format(ns=archive.namespace, wf=archive.workflow_id), "sequence": 99,
        "at": archive.exported_at, "headers": {}, "body": body, **changes,
    }  # fmt: skip
    return Record.model_validate(given)


REQUEST, CANCEL = dump(Request(input="run this")), dump(Control(action="cancel", reason="not yours"))


@pytest.mark.parametrize(
    ("stream", "subject", "body"),
    [
        ("requests", "{ns}.request.crew.anonymous", REQUEST),
        ("log", "{ns}.request.crew.anonymous", REQUEST),
        ("dead", "{ns}.request.crew.anonymous", REQUEST),
        ("controls", "{ns}.control.crew.wf_innocent.cancel.ada.c", CANCEL),
        ("log", "{ns}.control.crew.wf_innocent.cancel.ada.c", CANCEL),
        ("log", "{ns}.control.crew.{wf}.cancel.ada.c", CANCEL),
        ("log", "{ns}.handoff.a.crew.{wf}.t1.1", b"{}"),
        ("handoffs", "{ns}.handoff.a.crew.wf_innocent.t1.1", b"{}"),
        ("work", "{ns}.schedule.crew.{wf}.timer.wake-1", b"{}"),
        ("results", "{ns}.step.a.crew.{wf}.t1.1.answer-1", b"{}"),
        ("results", "{ns}.result.crew.a.wf_innocent.t1.1.token", b"{}"),
        ("log", "{ns}.log.crew.wf_innocent", b"{}"),
        ("log", "{ns}.log.other.{wf}", b"{}"),
        ("results", "{ns}.event.crew.wf_innocent.a.news", b"{}"),
        ("log", "{ns}.event.crew.{wf}.a.news", b"{}"),
        ("log", "{ns}.outcome.crew.wf_innocent", b"{}"),
        ("results", "other.event.crew.{wf}.a.news", b"{}"),
        ("log", "$KV.POINTSMAN_AGENTS.a.b", b"{}"),
        ("results", "{ns}.event.crew.{wf}.a.*", b"{}"),
        ("results", "{ns}.event.crew.{wf}.a.a b", b"{}"),
        ("dead", "{ns}.dead.crew.wf_innocent.dl_1", b"{}"),
        ("limits", "{ns}.circuits", b"{}"),
        ("artifacts", "$O.POINTSMAN_ARTIFACTS.C.x", b"{}"),
    ],
)
async def test_a_record_of_anything_else_than_the_workflow_is_refused(
    archive: Archive, stream: str, subject: str, body: bytes
) -> None:
    client = elsewhere()
    foreign = record(archive, stream, subject, body.decode())

    with pytest.raises(ConfigurationError, match="nothing was imported"):
        await import_workflow(client.bus, client.subjects, with_records(archive, (*archive.records, foreign)))

    assert stored(client) == []


@pytest.mark.parametrize(
    "change",
    [
        {"headers": {"Nats-Rollup": "all"}},
        {"headers": {"nats-msg-id": "1"}},
        {"headers": {"a b": "1"}},
        {"headers": {"a": "1\r\nb: 2"}},
        {"encoding": "base64", "body": "?"},
        {"body": "x" * 9_000_000},
    ],
    ids=["order to the broker", "message id", "header name", "header value", "not base64", "too large"],
)
async def test_a_record_that_cannot_be_stored_is_refused_before_anything_is(
    archive: Archive, change: Mapping[str, Any]
) -> None:
    client = elsewhere()
    odd = record(archive, "results", "{ns}.event.crew.{wf}.a.news", **change)

    with pytest.raises(ConfigurationError):
        await import_workflow(client.bus, client.subjects, with_records(archive, (*archive.records, odd)))

    assert stored(client) == []


def drop_second(records: tuple[Record, ...]) -> Sequence[Record]:
    second = [each for each in records if is_commit(each)][1]
    return [each for each in records if each is not second]


def drop_first(records: tuple[Record, ...]) -> Sequence[Record]:
    first = next(each for each in records if is_commit(each))
    return [each for each in records if each is not first]


def drop_all(records: tuple[Record, ...]) -> Sequence[Record]:
    return [each for each in records if not is_commit(each)]


def double_second(records: tuple[Record, ...]) -> Sequence[Record]:
    second = [each for each in records if is_commit(each)][1]
    return [copy for each in records for copy in ([each, each] if each is second else [each])]


def swap(records: tuple[Record, ...]) -> Sequence[Record]:
    first, second, *rest = [each for each in records if is_commit(each)]
    return [second, first, *rest, *(each for each in records if not is_commit(each))]


def replace_second(records: tuple[Record, ...]) -> Sequence[Record]:
    first, second = [each for each in records if is_commit(each)][:2]
    other = Commit.model_validate_json(first.data).model_copy(update={"number": 2})
    return [each.model_copy(update={"body": dump(other).decode()}) if each is second else each for each in records]


def not_json(records: tuple[Record, ...]) -> Sequence[Record]:
    second = [each for each in records if is_commit(each)][1]
    return [each.model_copy(update={"body": "{"}) if each is second else each for each in records]


def after_the_end(records: tuple[Record, ...]) -> Sequence[Record]:
    last = [each for each in records if is_commit(each)][-1]
    commit = Commit.model_validate_json(last.data)
    assert isinstance(commit.entries[-1], WorkflowEnded)
    again = commit.model_copy(update={"number": commit.number + 1, "entries": commit.entries[-1:]})
    return [*records, last.model_copy(update={"body": dump(again).decode()})]


def two_outcomes(records: tuple[Record, ...]) -> Sequence[Record]:
    return [*records, *(each for each in records if ".outcome." in each.subject)]


DAMAGES = (
    drop_second, drop_first, drop_all, double_second, swap, replace_second, not_json, after_the_end, two_outcomes,
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
async def test_a_damaged_log_is_refused_by_every_reader_and_nothing_is_stored(archive: Archive, damage: Edit) -> None:
    client = elsewhere()
    damaged = with_records(archive, damage(archive.records))

    with pytest.raises(ConfigurationError, match=r"export the workflow again") as imported:
        await import_workflow(client.bus, client.subjects, damaged)
    with pytest.raises(ConfigurationError) as read:
        read_archive(damaged.model_dump_json().encode())

    assert str(imported.value) == str(read.value)
    assert stored(client) == []


@pytest.mark.parametrize("damage", [drop_second, drop_first, double_second, swap, after_the_end])
def test_a_damaged_bare_log_is_refused(archive: Archive, damage: Edit) -> None:
    lines = [each.data for each in damage(archive.records) if is_commit(each)]

    with pytest.raises(ConfigurationError, match="the log"):
        read_archive(b"\n".join(lines))


async def test_a_child_without_a_parent_task_is_refused(archive: Archive, family: Archive) -> None:
    client = elsewhere()

    for smuggled in ((archive,), (family.children[0], family.children[0])):
        with pytest.raises(ConfigurationError):
            await import_workflow(client.bus, client.subjects, family.model_copy(update={"children": smuggled}))

    assert stored(client) == []


async def test_a_log_of_another_workflow_under_its_name_is_refused(archive: Archive) -> None:
    client = elsewhere()
    records = [
        each.model_copy(update={"subject": each.subject.replace(archive.workflow_id, "wf_other")})
        for each in archive.records
        if is_commit(each)
    ]
    other = with_records(archive, records).model_copy(update={"workflow_id": "wf_other"})

    with pytest.raises(ConfigurationError, match=f"belongs to {archive.workflow_id}"):
        await import_workflow(client.bus, client.subjects, other)


async def test_work_of_the_workflow_is_in_the_archive_and_is_not_imported(archive: Archive) -> None:
    client = elsewhere()

    count = await import_workflow(client.bus, client.subjects, archive)

    work = {each.subject.split(".")[1] for each in archive.records if not is_importable(each)}
    assert work == {"handoff", "result"}
    assert await client.bus.last("work", ">") is None
    assert await client.bus.last("results", client.subjects.team_results("crew")) is None
    assert count == len(stored(client)) < len(archive.records)


async def test_events_come_between_the_commits_as_they_were_stored(archive: Archive) -> None:
    client = elsewhere()

    await import_workflow(client.bus, client.subjects, archive)

    kinds = [each.subject.split(".")[1] for each in stored(client)]
    assert kinds.index("event") < len(kinds) - kinds[::-1].index("log") - 1


async def test_an_existing_workflow_is_refused(archive: Archive) -> None:
    client = elsewhere()
    await import_workflow(client.bus, client.subjects, archive)
    before = stored(client)

    with pytest.raises(WorkflowExistsError, match=r"already.*--namespace"):
        await import_workflow(client.bus, client.subjects, archive)

    assert stored(client) == before


async def test_a_workflow_of_the_namespace_itself_is_refused(archive: Archive) -> None:
    client = Client(MemoryBroker(namespace="elsewhere").connect(), namespace="elsewhere")
    commit = next(each for each in archive.records if is_commit(each))
    await client.bus.publish(client.subjects.log("crew", archive.workflow_id), commit.data, commit.headers)
    before = stored(client)

    with pytest.raises(WorkflowExistsError, match=archive.workflow_id):
        await import_workflow(client.bus, client.subjects, archive)

    assert stored(client) == before


async def test_nothing_is_stored_if_a_child_exists(family: Archive) -> None:
    client = elsewhere()
    child = family.children[0].children[0]
    await import_workflow(client.bus, client.subjects, child)
    before = stored(client)

    with pytest.raises(WorkflowExistsError, match=child.workflow_id):
        await import_workflow(client.bus, client.subjects, family)

    assert stored(client) == before


async def test_of_two_imports_at_once_one_is_refused(archive: Archive) -> None:
    broker = MemoryBroker(namespace="elsewhere")
    clients = [Client(broker.connect(), namespace="elsewhere") for _ in range(2)]

    results = await asyncio.gather(
        *(import_workflow(each.bus, each.subjects, archive) for each in clients), return_exceptions=True
    )

    assert sorted(type(each).__name__ for each in results) == ["WorkflowExistsError", "int"]
    again = await export_workflow(clients[0].bus, clients[0].subjects, archive.workflow_id, archive.exported_at)
    assert len(again.records) == len(stored(clients[0]))


class Interrupted(MemoryBus):
    """A bus whose broker is lost after `left` messages, until `left` is set again."""

    left = 0
    stores_the_last = False

    async def publish(self, subject: str, *message: Any, **more: Any) -> int:
        if self.left == 0:
            if self.stores_the_last:
                self.left = -1
                await super().publish(subject, *message, **more)
                raise PublishOutcomeUnknownError("no answer")
            raise BusUnavailableError("the broker is away")
        self.left -= 1
        return await super().publish(subject, *message, **more)


@pytest.mark.parametrize("after", [0, 1, 3, 8])
async def test_an_interrupted_import_is_continued_by_the_next(family: Archive, after: int) -> None:
    client = elsewhere(Interrupted)
    assert isinstance(client.bus, Interrupted)
    client.bus.left = after
    with pytest.raises(BusUnavailableError):
        await import_workflow(client.bus, client.subjects, family)
    partial = len(stored(client))

    client.bus.left = -1
    count = await import_workflow(client.bus, client.subjects, family)

    assert partial == after
    assert count == len(stored(client))
    for each in flatten(family):
        again = await export_workflow(client.bus, client.subjects, each.workflow_id, each.exported_at)
        kept = [one.body for one in each.records if one.stream in ("log", "dead")]
        assert [one.body for one in again.records] == kept


async def test_a_publish_without_an_answer_is_not_stored_twice(archive: Archive) -> None:
    client = elsewhere(Interrupted)
    assert isinstance(client.bus, Interrupted)
    client.bus.left, client.bus.stores_the_last = 2, True

    count = await import_workflow(client.bus, client.subjects, archive)

    assert count == len(stored(client))


async def test_an_interrupted_import_is_not_continued_with_another_archive(archive: Archive) -> None:
    client = elsewhere()
    await import_workflow(client.bus, client.subjects, unfinished(archive))
    before = stored(client)
    first, second = unfinished(archive).records
    context = Commit.model_validate_json(second.data).model_copy(update={"decision_context": None})
    other = with_records(archive, (first, second.model_copy(update={"body": dump(context).decode()})))

    with pytest.raises(WorkflowExistsError):
        await import_workflow(client.bus, client.subjects, other)

    assert stored(client) == before


async def test_an_unfinished_workflow_looks_imported_and_not_alive(archive: Archive) -> None:
    client = elsewhere()
    await import_workflow(client.bus, client.subjects, unfinished(archive))
    workflow = await client.workflow(archive.workflow_id)

    (listed,) = await client.list()
    events = [event async for event in workflow.events()]
    with pytest.raises(ImportedLogError, match=f"{archive.workflow_id} was imported from the namespace 'pointsman'"):
        await workflow.cancel("stop")
    with pytest.raises(ImportedLogError):
        await workflow.outcome()

    assert (listed.status, listed.ended_at) == ("imported", None)
    assert events
    assert not any(isinstance(event, WorkflowEnded) for event in events)
    assert await client.bus.last("work", ">") is None


async def test_a_finished_workflow_shows_its_outcome(archive: Archive) -> None:
    client = elsewhere()
    await import_workflow(client.bus, client.subjects, archive)
    workflow = await client.workflow(archive.workflow_id)

    events = [event async for event in workflow.events()]
    outcome = await workflow.outcome()

    assert isinstance(events[-1], WorkflowEnded)
    assert await workflow.cancel("stop") == outcome
    assert [each.status for each in await client.list()] == [outcome.status]


async def test_an_imported_approval_is_not_listed_and_takes_no_answer(approval_archive: Archive) -> None:
    client = elsewhere()
    await import_workflow(client.bus, client.subjects, approval_archive)
    pending = Commit.model_validate_json(last_commit(approval_archive))

    assert pending.open_questions
    assert await client.operations.questions() == []
    assert [each.status for each in await client.list()] == ["imported"]
    with pytest.raises(ImportedLogError, match="nothing was sent"):
        await client.operations.approve(pending.open_questions[0])
    assert await client.bus.last("work", ">") is None


def last_commit(archive: Archive) -> bytes:
    return [each for each in archive.records if is_commit(each)][-1].data


async def test_a_supervisor_acts_on_no_input_of_an_imported_workflow(archive: Archive) -> None:
    async with factory.team(TEAM, [planner_of(), synthesizer, echo("a")], settled=True) as client:
        await import_workflow(client.bus, client.subjects, unfinished(archive))
        before = await client.entries(archive.workflow_id)

        await client.bus.publish(client.subjects.control("crew", archive.workflow_id, "cancel", "ada", "c"), CANCEL, {})
        letters = DeadLetters(client.bus, client.subjects)

        async def refused() -> bool:
            return [each.content.cause.kind for each in await letters.list()] == ["imported_log"]

        await until(refused)
        assert await client.entries(archive.workflow_id) == before
        assert await client.bus.last("work", "pointsman.handoff.>") is None


@pytest.mark.parametrize("commits", [2, 4, 99], ids=str)
async def test_the_next_supervisor_reports_no_loss(archive: Archive, commits: int) -> None:
    broker = MemoryBroker()
    client = Client(broker.connect())
    await import_workflow(client.bus, client.subjects, unfinished(archive, commits))

    with capture_logs() as lines:
        async with factory.team(TEAM, [planner_of(), synthesizer, echo("a")], broker=broker) as running:
            outcome = await (await running.submit("crew", "go on")).outcome(10)

    assert outcome.workflow_id != archive.workflow_id
    assert [line["event"] for line in lines if "rolled_back" in line["event"]] == []
    assert await find_lost_work(client.bus, client.subjects, "crew", VirtualClock(), 30.0) == ()


async def test_imported_dead_letters_are_shown_and_not_replayed(archive: Archive) -> None:
    client = elsewhere()
    await import_workflow(client.bus, client.subjects, archive)
    letters = DeadLetters(client.bus, client.subjects)
    (letter,) = await letters.list()

    for as_new in (False, True):
        with pytest.raises(NotReplayableError, match="was imported from the namespace 'pointsman'"):
            await letters.replay(letter, as_new=as_new)

    assert await client.bus.last("work", ">") is None


async def test_a_binary_body_is_imported_unchanged(archive: Archive) -> None:
    client = elsewhere()
    body = base64.b64encode(b"\xff\x00").decode()
    odd = record(archive, "results", "{ns}.event.crew.{wf}.a.news", encoding="base64").model_copy(update={"body": body})

    await import_workflow(client.bus, client.subjects, with_records(archive, (*archive.records, odd)))

    found = await client.bus.last("results", client.subjects.event("crew", archive.workflow_id, "a", "news"))
    assert found is not None
    assert found.body == b"\xff\x00"
