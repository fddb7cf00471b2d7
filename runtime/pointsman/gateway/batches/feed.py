"""Feed one batch: send its rows, a bounded number at a time, and write its progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Any

from pointsman.client.batch import BatchInput, BatchRow, run_batch
from pointsman.client.workflow import Workflow
from pointsman.errors import BodyLostError, ConflictError, NotFoundError
from pointsman.gateway.batches.records import BatchRecord, StoredRecord, read_record, store_record
from pointsman.gateway.batches.rows import read_rows
from pointsman.gateway.context import Context
from pointsman.index.callers import CallerLimitError
from pointsman.ports.key_value import KeyValue
from pointsman_schemas.events import Budget, Usage
from pointsman_schemas.subjects import Subjects

__all__ = ["BatchFeed", "FeedLostError"]

_RESERVED_ROWS = 100  # rows that a feeder may send before it writes the record again
_LIMIT_PAUSE_S = 0.25  # seconds before a row is tried again that a limit of the caller has held back
_CANCELS = 16  # cancellations at a time
_CANCEL_PAUSE_S = 0.5  # seconds before rows are cancelled again whose requests were not found
_SETTLE_TIMEOUT_S = 30.0  # seconds in which cancelled rows end


class FeedLostError(Exception):
    """Another gateway feeds the batch."""


class BatchFeed:
    """Feeds one batch while this gateway is its feeder.

    Args:
        context: The parts of the gateway.
        bucket: The bucket of the records.
        stored: The record, with this gateway as the feeder.
    """

    def __init__(self, context: Context, bucket: KeyValue, stored: StoredRecord) -> None:
        self._context = context
        self._bucket = bucket
        self._stored = stored
        self._writing = asyncio.Lock()
        self._cancelled = asyncio.Event()
        self._ended: dict[int, tuple[str, Usage]] = {}  # rows that ended before a row with a smaller number
        record = stored.record
        self._client = context.client.for_user(record.caller)

    @property
    def subjects(self) -> Subjects:
        """The subjects of the namespace."""
        return self._client.subjects

    async def run(self) -> None:
        """Feed the batch to its end.

        Raises:
            FeedLostError: Another gateway feeds the batch.
            BusUnavailableError: The broker does not answer. Any gateway goes on with the batch.
        """
        if self._stored.record.cancelled:
            self._cancelled.set()
        beating = asyncio.create_task(self._beat())
        feeding = asyncio.create_task(self._feed())
        stopping = asyncio.create_task(self._cancelled.wait())
        tasks: tuple[asyncio.Task[Any], ...] = (beating, feeding, stopping)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if beating.done():
                beating.result()
            reason = ""
            if self._cancelled.is_set():
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
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

    def cancel(self) -> None:
        """End the batch: send no more rows, and cancel those that run."""
        self._cancelled.set()

    async def release(self) -> None:
        """Let another gateway go on with the batch at once."""
        with suppress(FeedLostError):
            await self._write(lambda record: {"feeder": ""})

    async def submit(
        self, team: str, input: BatchInput, *, request_id: str, deadline: float | None, budget: Budget | None
    ) -> Workflow:
        """Publish the request of a row, once the limits of the caller allow it.

        Args:
            team: The team.
            input: The request.
            request_id: The id of the request.
            deadline: The time for the workflow, in seconds.
            budget: Limits of the workflow.

        Returns:
            The workflow.
        """
        row = int(request_id.rpartition("-")[2])
        if row > self._stored.record.sent:
            await self._write(lambda record: {"sent": max(record.sent, min(record.total, row + _RESERVED_ROWS - 1))})
        record, workflow = self._stored.record, self._client.workflow_id(team, request_id)
        while self._context.index.find(workflow) is None:
            try:
                self._context.index.callers.check(record.caller, record.limits)
                break
            except CallerLimitError:  # running workflows, or tokens or cost of the day
                await asyncio.sleep(_LIMIT_PAUSE_S)
        if self._context.index.find(workflow) is None:
            self._context.index.callers.submitted(record.caller, workflow)
        return await self._client.submit(
            team, input, request_id=request_id, correlation_id=record.id, deadline=deadline, budget=budget
        )

    async def _feed(self) -> str:
        """Send the rows and wait for their ends. Return the reason if the batch ended early."""
        record = self._stored.record
        rows = run_batch(
            _From(self, record.next - 1),
            record.team,
            read_rows(self._context.files, record.rows, record.next),
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
        """Cancel the workflows of the rows that were sent and have not ended."""
        record = self._stored.record
        room = asyncio.Semaphore(_CANCELS)

        async def cancel(row: int) -> int | None:
            async with room:
                workflow = await self._client.workflow(self._workflow_id(row), record.team)
                try:
                    await workflow.cancel("the batch was cancelled")
                except NotFoundError:
                    return row
                return None

        rows: list[int] = [row for row in range(record.next, record.sent + 1) if row not in self._ended]
        for _ in range(2):  # the request of a row may have been on its way
            found = await asyncio.gather(*(cancel(row) for row in rows))
            rows = [row for row in found if row is not None]
            if not rows:
                return
            await asyncio.sleep(_CANCEL_PAUSE_S)

    async def _settle(self) -> None:
        """Count each row that has no end yet. Rows that were cancelled have some time to end."""
        record, index = self._stored.record, self._context.index
        left = [row for row in range(record.next, record.total + 1) if row not in self._ended]
        until = asyncio.get_running_loop().time() + _SETTLE_TIMEOUT_S
        while left:
            rest: list[int] = []
            for row in left:
                found = index.find(self._workflow_id(row)) if row <= record.sent else None
                if found is None:
                    self._ended[row] = "not_sent", Usage()
                elif found.ended_at is not None:
                    self._ended[row] = found.status, found.usage
                else:
                    rest.append(row)
            left = rest
            if left and asyncio.get_running_loop().time() > until:
                self._ended |= dict.fromkeys(left, ("running", Usage()))
                return
            await asyncio.sleep(_LIMIT_PAUSE_S if left else 0)

    def _workflow_id(self, row: int) -> str:
        record = self._stored.record
        return self._client.workflow_id(record.team, record.request_id(row))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._context.settings.heartbeat)
            await self._write(lambda record: {})

    async def _write(self, change: Callable[[BatchRecord], dict[str, Any]]) -> None:
        """Write the progress and a change. A cancellation that came between is kept."""
        async with self._writing:
            while True:
                record, revision = self._stored
                counts, usage, following = dict(record.counts), record.usage, record.next
                counted: list[int] = []
                while (end := self._ended.get(following)) is not None:
                    counts[end[0]] = counts.get(end[0], 0) + 1
                    usage += end[1]
                    counted.append(following)
                    following += 1
                update = {"beat": record.beat + 1, "counts": counts, "usage": usage, "next": following}
                changed = record.model_copy(update={**update, **change(record)})
                try:
                    self._stored = await store_record(self._bucket, changed, revision)
                except ConflictError:
                    found = await read_record(self._bucket, record.id)
                    if found is None or found.record.feeder != record.feeder or found.record.ended_at is not None:
                        raise FeedLostError from None
                    self._stored = found
                    if found.record.cancelled:
                        self._cancelled.set()
                    continue
                for row in counted:
                    del self._ended[row]
                return


class _From:
    """Submits rows whose numbers begin after an offset: earlier rows have ended, and are not read again."""

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


def _end_of(row: BatchRow) -> tuple[str, Usage]:
    return ("not_sent", Usage()) if row.outcome is None else (row.outcome.status, row.outcome.usage)
