"""Feed one batch: send its rows, run a limited number of them at a time, and store the progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pointsman.batches.records import MAX_PROBLEMS, BatchRecord, StoredRecord, problem_of, read_record, store_record
from pointsman.batches.rows import read_rows
from pointsman.bus.file_store import FileStore
from pointsman.client.batch import BatchInput, BatchRow, run_batch
from pointsman.client.client import Client
from pointsman.client.workflow import Workflow
from pointsman.errors import BodyLostError, ConflictError, NotFoundError
from pointsman.index.callers import CallerLimitError
from pointsman.index.workflows import WorkflowIndex
from pointsman.ports.key_value import KeyValue
from pointsman_schemas.events import Budget, Usage
from pointsman_schemas.subjects import Subjects

__all__ = ["BatchFeed", "BatchParts", "FeedLostError"]

_RESERVED_ROWS = 100  # rows by which the bound `sent` of the record is raised at once, so not every row needs a write
_LIMIT_PAUSE_S = 0.25  # seconds between attempts to send a row while a limit of the caller is reached
_CANCELS = 16  # largest number of cancellations at the same time
_CANCEL_PAUSE_S = 0.5  # seconds until the second attempt to cancel the rows whose requests were not found
_SETTLE_TIMEOUT_S = 30.0  # longest wait for the end of cancelled rows, in seconds


class FeedLostError(Exception):
    """Another process feeds the batch."""


@dataclass(frozen=True, slots=True)
class BatchParts:
    """The parts of the process that feeds batches.

    Attributes:
        client: A connected client of the namespace.
        index: The index of the workflows.
        files: The files of the namespace.
        bucket: The bucket of the records.
        heartbeat: Seconds between two writes of a feeder.
    """

    client: Client
    index: WorkflowIndex
    files: FileStore
    bucket: KeyValue
    heartbeat: float


class _End(NamedTuple):
    """The end of a row. The reason is empty for a row that completed."""

    status: str
    usage: Usage = Usage()
    reason: str = ""


class BatchFeed:
    """Feeds one batch while this process is its feeder.

    Args:
        parts: The parts of the process.
        stored: The record, with this process as the feeder.
    """

    def __init__(self, parts: BatchParts, stored: StoredRecord) -> None:
        self._parts = parts
        self._bucket = parts.bucket
        self._stored = stored
        self._writing = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._ended: dict[int, _End] = {}  # by row: the ends that the record does not count yet
        self._client = parts.client.for_user(stored.record.caller)

    @property
    def caller(self) -> str:
        """The caller of the batch."""
        return self._stored.record.caller

    @property
    def subjects(self) -> Subjects:
        """The subjects of the namespace."""
        return self._client.subjects

    async def run(self) -> None:
        """Feed the batch until the batch ends or is paused.

        Raises:
            FeedLostError: Another process feeds the batch.
            BusUnavailableError: The broker does not answer. Another feeder can continue the batch.
        """
        if self._stored.record.cancelled:
            self._stopping.set()
        beating = asyncio.create_task(self._beat())
        feeding = asyncio.create_task(self._feed())
        stopping = asyncio.create_task(self._stopping.wait())
        tasks: tuple[asyncio.Task[Any], ...] = (beating, feeding, stopping)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if beating.done():
                beating.result()
            if self._stopping.is_set():
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
                # a paused batch has no feeder; a cancelled batch keeps its feeder until its workflows have ended
                await self._write(lambda record: {"feeder": record.feeder if record.cancelled else ""})
                if not self._stored.record.cancelled:
                    return
                await self._cancel_rows()
                reason = "the batch was cancelled"
            else:
                reason = feeding.result()
            await self._settle()
            await self._write(lambda record: {"ended_at": datetime.now(UTC), "reason": reason, "feeder": ""})
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """Send no more rows, because the batch was paused or cancelled."""
        self._stopping.set()

    async def release(self) -> None:
        """Release the batch, so another process can feed the batch at once."""
        with suppress(FeedLostError):
            await self._write(lambda record: {"feeder": ""})

    async def submit(
        self, team: str, input: BatchInput, *, request_id: str, deadline: float | None, budget: Budget | None
    ) -> Workflow:
        """Publish the request of a row as soon as the limits of the caller allow a request.

        Args:
            team: The team.
            input: The request.
            request_id: The id of the request.
            deadline: Seconds from the admission of the request to the deadline of the workflow.
            budget: Limits of the workflow.

        Returns:
            The workflow.
        """
        row = int(request_id.rpartition("-")[2])
        if row > self._stored.record.sent:
            await self._write(lambda record: {"sent": max(record.sent, min(record.total, row + _RESERVED_ROWS - 1))})
        record, workflow = self._stored.record, self._client.workflow_id(team, request_id)
        while self._parts.index.find(workflow) is None:
            try:
                self._parts.index.callers.check(record.caller, record.limits)
                break
            except CallerLimitError:  # too many running workflows, or too many tokens or costs today, so wait
                await asyncio.sleep(_LIMIT_PAUSE_S)
        if self._parts.index.find(workflow) is None:
            self._parts.index.callers.submitted(record.caller, workflow)
        return await self._client.submit(
            team, input, request_id=request_id, correlation_id=record.id, deadline=deadline, budget=budget
        )

    async def _feed(self) -> str:
        """Send the rows and wait until all rows have ended. Return the reason if the batch ended early, else ''."""
        record = self._stored.record
        rows = run_batch(
            _RowOffset(self, record.next - 1),
            record.team,
            read_rows(self._parts.files, record.rows, record.next),
            batch_id=record.id,
            concurrency=record.concurrency,
            deadline=record.deadline,
            budget=record.budget,
        )
        try:
            async with aclosing(rows):
                async for row in rows:
                    self._ended[row.row + record.next - 1] = _end_of(row)
        except BodyLostError as error:
            return str(error)
        return ""

    async def _cancel_rows(self) -> None:
        """Cancel the workflows of sent rows that have not ended."""
        record = self._stored.record
        room = asyncio.Semaphore(_CANCELS)

        async def cancel(row: int) -> int | None:
            async with room:
                workflow = await self._client.workflow(self._workflow_id(row), record.team)
                try:
                    await workflow.cancel("the batch was cancelled", actor=record.cancelled_by or record.caller)
                except NotFoundError:
                    return row
                return None

        rows: list[int] = [row for row in range(record.next, record.sent + 1) if row not in self._ended]
        for _ in range(2):  # twice, because the request of a row may not be stored yet at the first attempt
            found = await asyncio.gather(*(cancel(row) for row in rows))
            rows = [row for row in found if row is not None]
            if not rows:
                return
            await asyncio.sleep(_CANCEL_PAUSE_S)

    async def _settle(self) -> None:
        """Give an end to each row that has none, so that the record counts every row.

        Wait up to `_SETTLE_TIMEOUT_S` for running rows. After that time, their end is `running`.
        """
        record, index = self._stored.record, self._parts.index
        left = [row for row in range(record.next, record.total + 1) if row not in self._ended]
        until = asyncio.get_running_loop().time() + _SETTLE_TIMEOUT_S
        while left:
            rest: list[int] = []
            for row in left:
                found = index.find(self._workflow_id(row)) if row <= record.sent else None
                if found is None:
                    self._ended[row] = _End("not_sent")
                elif found.ended_at is not None:
                    self._ended[row] = _End(found.status, found.usage, found.reason)
                else:
                    rest.append(row)
            left = rest
            if left and asyncio.get_running_loop().time() > until:
                self._ended |= dict.fromkeys(left, _End("running"))
                return
            await asyncio.sleep(_LIMIT_PAUSE_S if left else 0)

    def _workflow_id(self, row: int) -> str:
        record = self._stored.record
        return self._client.workflow_id(record.team, record.request_id(row))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._parts.heartbeat)
            await self._write(lambda record: {})

    async def _write(self, change: Callable[[BatchRecord], dict[str, Any]]) -> None:
        """Store the progress, and the fields that `change` returns.

        After a conflict, both are applied to the newer record, so a cancellation or pause by another process is kept.

        Raises:
            FeedLostError: Another process feeds the batch.
        """
        async with self._writing:
            while True:
                record, revision = self._stored
                counts, usage, following = dict(record.counts), record.usage, record.next
                problems = list(record.problems)
                while (end := self._ended.get(following)) is not None:
                    counts[end.status] = counts.get(end.status, 0) + 1
                    usage += end.usage
                    if end.status != "completed":
                        problems.append(problem_of(following, self._workflow_id(following), end.status, end.reason))
                    following += 1
                update = {"beat": record.beat + 1, "counts": counts, "usage": usage, "next": following}
                update["problems"] = tuple(problems[-MAX_PROBLEMS:])
                changed = record.model_copy(update={**update, **change(record)})
                try:
                    self._stored = await store_record(self._bucket, changed, revision)
                except ConflictError:
                    found = await read_record(self._bucket, record.id)
                    if found is None or found.record.feeder != record.feeder or found.record.ended_at is not None:
                        raise FeedLostError from None
                    self._stored = found
                    if found.record.cancelled or found.record.paused:
                        self._stopping.set()
                    continue
                for row in range(record.next, following):
                    del self._ended[row]
                return


class _RowOffset:
    """Add an offset to the row numbers of `run_batch`.

    `run_batch` gives number 1 to the first row that it gets. If a batch is continued, this row may have a higher number
    in the batch.
    """

    def __init__(self, feed: BatchFeed, offset: int) -> None:
        self._feed = feed
        self._offset = offset
        self.subjects = feed.subjects

    async def submit(
        self, team: str, input: BatchInput, *, request_id: str, deadline: float | None, budget: Budget | None
    ) -> Workflow:
        batch, _, row = request_id.rpartition("-")
        return await self._feed.submit(
            team, input, request_id=f"{batch}-{int(row) + self._offset}", deadline=deadline, budget=budget
        )


def _end_of(row: BatchRow) -> _End:
    return _End(row.status, row.outcome.usage if row.outcome else Usage(), row.problem)
