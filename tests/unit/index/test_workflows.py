"""The index follows the log. It has a row for each of the newest workflows, with or without details."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest
from support.history import TEAM, WORKFLOW, completed, started, store
from support.waiting import until

from pointsman.bus.memory.bus import MemoryBus
from pointsman.client.client import Client
from pointsman.errors import BusUnavailableError
from pointsman.index.rows import Search
from pointsman.index.workflows import WorkflowIndex
from pointsman.ports.bus import StoredMessage, StreamKind
from pointsman_schemas.subjects import Subjects


@asynccontextmanager
async def following(index: WorkflowIndex) -> AsyncIterator[WorkflowIndex]:
    running = asyncio.create_task(index.run())
    try:
        await index.current.wait()
        yield index
    finally:
        running.cancel()


def is_at(index: WorkflowIndex, sequence: int) -> bool:
    return index.sequence >= sequence


@pytest.mark.parametrize("details", [False, True])
async def test_rows_have_the_status_of_the_newest_commit(details: bool) -> None:
    bus = MemoryBus()
    last = await store(bus, started(), open_questions=(f"{WORKFLOW}-1",))
    async with following(WorkflowIndex(bus, Subjects(), details=details)) as index:
        row = index.find(WORKFLOW)
        assert row is not None
        seen = []
        for number, (entries, open) in enumerate([((), ("q",)), ((), ()), (completed()[1:], ())], 2):
            last = await store(bus, *entries, number=number, open_questions=open)
            await until(partial(is_at, index, last))
            seen.append(row.status)

    assert seen == ["waiting for an answer", "running", "completed"]
    assert (row.caller, row.correlation_id, row.usage.calls, row.sequence) == ("ada", "c-1", 3, last)
    assert (row.input, row.total) == (("mend it", 2) if details else ("", 0))


async def test_the_oldest_workflows_are_dropped_and_the_rest_is_listed_newest_first() -> None:
    bus = MemoryBus()
    for number in (1, 2, 3):
        await store(bus, started(f"w{number}"), workflow=f"w{number}")
    async with following(WorkflowIndex(bus, Subjects(), kept=2)) as index:
        assert [row.id for row in index.matching(Search())] == ["w3", "w2"]
        assert [row.id for row in index.matching(Search(caller="ada"), before=3)] == ["w2"]
        assert [row.id for row in index.matching(Search(caller="bob"))] == []
        assert (index.find("w1"), index.callers.running("ada")) == (None, 2)
        assert dict(index.teams) == {TEAM: 2}


@pytest.mark.parametrize("details", [False, True])
async def test_a_dropped_workflow_that_changes_again_has_its_whole_log(details: bool) -> None:
    bus = MemoryBus()
    await store(bus, *completed())
    await store(bus, started("w2"), workflow="w2")
    async with following(WorkflowIndex(bus, Subjects(), kept=1, details=details)) as index:
        last = await store(bus, number=2)
        await until(partial(is_at, index, last))
        row = index.find(WORKFLOW)

        assert row is not None
        assert (row.status, row.usage.calls, index.callers.running("ada")) == ("completed", 3, 0)


async def test_a_log_of_another_release_changes_no_row() -> None:
    bus = MemoryBus()
    await store(bus, started())
    async with following(WorkflowIndex(bus, Subjects())) as index:
        last = await bus.publish(Subjects().log(TEAM, WORKFLOW), b'"workflow_ended"', {})
        await until(partial(is_at, index, last))

        assert [row.status for row in index.matching(Search())] == ["running"]


async def test_recreated_log_is_read_from_its_start() -> None:
    old, new = MemoryBus(), MemoryBus()
    for number in range(1, 4):
        await store(old, started(f"wf_{number}"), workflow=f"wf_{number}")
    await store(new, started("wf_9"), workflow="wf_9")

    class Restored(MemoryBus):
        """A bus whose log is replaced during an outage."""

        here = old

        async def last(self, stream: StreamKind, subject: str) -> StoredMessage | None:
            return await self.here.last(stream, subject)

        async def follow(
            self, stream: StreamKind, subjects: Sequence[str], *, after: int = 0
        ) -> AsyncGenerator[StoredMessage, None]:
            async for stored in self.here.follow(stream, subjects, after=after):
                yield stored
                if self.here is old and stored.sequence == 3:
                    self.here = new
                    raise BusUnavailableError("away")

    bus = Restored()
    index = WorkflowIndex(bus, Client(bus).subjects)
    folding = asyncio.create_task(index.run())

    async def read_again() -> bool:
        return index.epoch == 1 and index.sequence == 1

    await until(read_again)
    folding.cancel()

    assert [row.id for row in index.page(Search()).rows] == ["wf_9"]


async def test_an_index_is_current_if_the_newest_commit_is_deleted_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Deleting(MemoryBus):
        deleted = False

        async def last(self, stream: StreamKind, subject: str) -> StoredMessage | None:
            found = await super().last(stream, subject)
            if found is not None and not self.deleted:
                self.deleted = True
                await self.delete(stream, found.sequence)
            return found

    monkeypatch.setattr("pointsman.engine.log.follower._RETRY_PAUSE_S", 0.01)
    bus = Deleting()
    for number in range(2):
        await store(bus, started(f"wf_{number}"), workflow=f"wf_{number}")

    async with asyncio.timeout(10), following(WorkflowIndex(bus, Subjects())) as index:
        assert [row.id for row in index.matching(Search())] == ["wf_0"]
