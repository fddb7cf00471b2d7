"""Create, list, pause, resume and cancel batches, and read the progress and the results of batches."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TypeAlias
from uuid import uuid4

from pointsman.batches.feed import BatchParts
from pointsman.batches.records import (
    BATCH_GROUP,
    MAX_PROBLEMS,
    BatchRecord,
    RowProblem,
    parse_record,
    problem_of,
    read_record,
    store_record,
    update_record,
)
from pointsman.batches.rows import RowBounds, store_rows
from pointsman.batches.runner import BatchRunner
from pointsman.bus.file_store import FileStore
from pointsman.client.batch import BatchRow
from pointsman.client.client import Client
from pointsman.clock import SystemClock
from pointsman.errors import ConflictError, ContractError, NotFoundError, PointsmanError
from pointsman.index.callers import CallerLimitError, CallerLimits, OpenCounts
from pointsman.index.workflows import WorkflowIndex
from pointsman.settings import Settings
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import Budget, Outcome, Usage
from pointsman_schemas.ids import derive_id
from pointsman_schemas.strict_json import parse

__all__ = ["MAX_CONCURRENCY", "BatchAction", "BatchConflictError", "BatchProgress", "Batches", "open_batches"]

BatchAction: TypeAlias = Literal["pause", "resume", "cancel"]
MAX_CONCURRENCY = 100
"""Largest number of workflows of a batch that run at the same time."""
_MAX_OPEN = 10  # largest number of batches of a caller that have not ended
_MAX_KEPT = 10_000  # largest number of batches of a caller, including batches that ended in the last seven days
_KEPT_RETRY_S = 3_600  # seconds after which a caller with too many stored batches may try again
_RETRY_S = 5  # seconds after which a caller with too many open batches may try again
_MAX_LISTED = 100
_READS = 16  # number of outcomes that are read at the same time


class BatchConflictError(PointsmanError):
    """The state of a batch does not allow the change. Nothing was changed.

    Args:
        kind: The cause as one word.
        message: The cause, and what the caller can do.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class BatchProgress(NamedTuple):
    """The progress of a batch.

    Attributes:
        counts: The number of rows for each status: `running`, `waiting`, `not_sent`, or the status of the outcome.
        usage: Usage of the rows that have ended.
        problems: The newest rows that ended but did not complete, at most `MAX_PROBLEMS`.
    """

    counts: Mapping[str, int]
    usage: Usage
    problems: Sequence[RowProblem]


class Batches(BatchRunner):
    """The batches of a namespace.

    Args:
        parts: The parts of the process.
        max_rows: Largest number of rows of a batch.
        max_bytes: Largest size of the rows of a batch, in bytes.
    """

    def __init__(self, parts: BatchParts, *, max_rows: int, max_bytes: int) -> None:
        super().__init__(parts)
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        # batches whose rows are being stored; they have no record yet, so `_check_open` must count them here
        self._uploads = OpenCounts()

    def id_of(self, caller: str, key: str) -> str:
        """Return the id of the batch to which a caller has given a key.

        Args:
            caller: The caller.
            key: The key, which is the caller's own name for the batch.
        """
        return f"batch-{derive_id('batch', caller, key)}"

    async def create(
        self,
        caller: str,
        team: str,
        pieces: AsyncIterable[bytes],
        *,
        key: str | None = None,
        limits: CallerLimits | None = None,
        name: str = "",
        max_row_bytes: int,
        concurrency: int,
        deadline: float | None = None,
        budget: Budget | None = None,
    ) -> BatchRecord:
        """Check and store the rows of a batch. A gateway or dashboard of the namespace then sends the rows.

        Args:
            caller: The caller of the requests.
            team: The team.
            pieces: The rows, with one JSON text or object per line.
            key: The caller's own name for the batch. If the caller has a batch with this key, and its rows and options
                are the same, the call returns that batch.
            limits: The limits of the caller. Rows wait while a limit is reached. Default: none.
            name: The name of the file of the rows.
            max_row_bytes: Largest size of a row, in bytes.
            concurrency: Largest number of workflows that run at the same time, 1 to 100.
            deadline: Seconds from the admission of a row to the deadline of its workflow.
            budget: Limits of each workflow.

        Returns:
            The batch.

        Raises:
            ContractError: The concurrency is not between 1 and 100.
            RowsRefusedError: A row is not a request, there is no row, or the rows are too many or too large.
            CallerLimitError: The caller has too many batches that have not ended, or too many stored batches.
            BatchConflictError: The caller has a batch with this key, but with other rows or options.
        """
        if not 1 <= concurrency <= MAX_CONCURRENCY:
            raise ContractError(f"the concurrency is {concurrency}; use 1 to {MAX_CONCURRENCY}")
        id = self.id_of(caller, key) if key else f"batch-{uuid4().hex[:24]}"
        if not key or await read_record(self._bucket, id) is None:
            self._check_open(caller)
        bounds = RowBounds(self._max_rows, self._max_bytes, max_row_bytes)
        with self._uploads.one_more(caller):
            rows = await store_rows(self._parts.files, id, pieces, bounds)
            options = (team, str(concurrency), str(deadline), (budget or Budget()).model_dump_json())
            return await self._store(
                BatchRecord(
                    id=id,
                    caller=caller,
                    limits=limits or CallerLimits(),
                    team=team,
                    name=name,
                    digest=derive_id(rows.file.sha256, *options),
                    rows=rows.file,
                    total=rows.total,
                    concurrency=concurrency,
                    deadline=deadline,
                    budget=budget,
                    created_at=datetime.now(UTC),
                )
            )

    def listed(self, caller: str = "") -> Sequence[BatchRecord]:
        """Return the newest 100 batches, the newest first.

        Args:
            caller: Return only batches of this caller. Default: batches of all callers.
        """
        return [record for record in self.records() if caller in ("", record.caller)][:_MAX_LISTED]

    async def find(self, id: str, caller: str = "") -> BatchRecord:
        """Read a batch.

        Args:
            id: The batch.
            caller: The caller of the batch. Default: any caller.

        Returns:
            The batch.

        Raises:
            NotFoundError: There is no such batch, or the batch belongs to another caller.
        """
        found = await read_record(self._bucket, id)
        if found is None or caller not in ("", found.record.caller):
            raise NotFoundError(f"you have no batch {id!r}; list your batches to see their ids")
        return found.record

    async def change(self, id: str, action: BatchAction, *, actor: str) -> BatchRecord:
        """Pause, resume or cancel a batch.

        Args:
            id: The batch.
            action: `pause` sends no more rows, but running workflows continue; `resume` sends the remaining rows of a
                paused batch; `cancel` sends no more rows, and cancels the running workflows.
            actor: The user who acts. The logs of cancelled workflows name the user.

        Returns:
            The batch.

        Raises:
            BatchConflictError: The batch has ended.
        """
        update = {"cancelled": True, "cancelled_by": actor} if action == "cancel" else {"paused": action == "pause"}
        stored = await update_record(
            self._bucket,
            id,
            lambda found: None if found.ended_at or found.cancelled else found.model_copy(update=update),
        )
        if stored is None or stored.record.ended_at is not None:
            raise BatchConflictError("already_ended", "the batch has ended already")
        return stored.record

    def progress(self, record: BatchRecord) -> BatchProgress:
        """Return the progress of a batch.

        The record has the counts of the rows before `record.next`. The later rows are counted from the index.

        Args:
            record: The batch.
        """
        counts, usage, problems = Counter(record.counts), record.usage, list(record.problems)
        sent = range(record.next, record.sent + 1) if record.ended_at is None else range(0)
        for row, id in zip(sent, self._workflow_ids(record, sent), strict=True):
            found = self._parts.index.find(id)
            if found is None:
                continue
            counts["running" if found.ended_at is None else found.status] += 1
            if found.ended_at is not None:
                usage += found.usage
                if found.status != "completed":
                    problems.append(problem_of(row, id, found.status, found.reason))
        counts["waiting"] = record.total - counts.total()
        return BatchProgress(counts, usage, problems[-MAX_PROBLEMS:])

    async def results(self, record: BatchRecord, after: int = 0) -> AsyncGenerator[BatchRow, None]:
        """Yield the ended rows in order. Omit rows whose outcome retention has removed.

        Args:
            record: The batch.
            after: The number of a row. Only the rows after this row are returned. Default: all rows.

        Yields:
            The rows.
        """
        for first in range(after + 1, record.sent + 1, _READS):
            rows = range(first, min(first + _READS, record.sent + 1))
            ids = self._workflow_ids(record, rows)
            outcomes = await asyncio.gather(*(self._outcome(record.team, id) for id in ids))
            for row, id, outcome in zip(rows, ids, outcomes, strict=True):
                if outcome is not None:
                    yield BatchRow(row, record.request_id(row), id, outcome)

    def _check_open(self, caller: str) -> None:
        own = [each for each in self.records() if each.caller == caller]
        if len(own) >= _MAX_KEPT:
            raise CallerLimitError(
                "too_many_batches",
                f"{caller} has {len(own)} of {_MAX_KEPT} batches, and each batch is stored for seven days after its "
                f"end; send more rows in each batch",
                _KEPT_RETRY_S,
            )
        running = sum(1 for each in own if each.ended_at is None) + self._uploads[caller]
        if running >= _MAX_OPEN:
            raise CallerLimitError(
                "too_many_batches",
                f"{caller} has {running} of {_MAX_OPEN} open batches; wait until a batch ends, or cancel a batch",
                _RETRY_S,
            )

    async def _store(self, record: BatchRecord) -> BatchRecord:
        """Store a new record. If a record of the same batch exists, return that record."""
        while True:
            entry = await self._bucket.get(record.id)
            if (found := parse_record(entry)) is not None:
                if found.record.digest != record.digest:
                    raise BatchConflictError(
                        "key_taken", "another batch has this key; nothing was sent; use a new key for the new batch"
                    )
                return found.record
            with suppress(ConflictError):
                stored = await store_record(self._bucket, record, entry.revision if entry else 0)
                self.add(stored)
                return stored.record

    def _workflow_ids(self, record: BatchRecord, rows: range) -> list[str]:
        client = self._parts.client.for_user(record.caller)
        return [client.workflow_id(record.team, record.request_id(row)) for row in rows]

    async def _outcome(self, team: str, workflow: str) -> Outcome | None:
        stored = await self._parts.client.bus.last("log", self._parts.client.subjects.outcome(team, workflow))
        return None if stored is None else parse(Outcome, decode(stored.headers, stored.body)[1])


async def open_batches(client: Client, index: WorkflowIndex, settings: Settings) -> Batches:
    """Return the batches of a namespace, for a process that sends rows.

    Args:
        client: A connected client of the namespace.
        index: The index of the workflows.
        settings: The settings.

    Returns:
        The batches.
    """
    files = FileStore(client.bus, client.subjects.artifacts_bucket, SystemClock(), settings.max_file_bytes)
    bucket = await client.bus.key_value(client.subjects.gateway_bucket, BATCH_GROUP)
    parts = BatchParts(client, index, files, bucket, settings.heartbeat)
    return Batches(parts, max_rows=settings.batch_rows, max_bytes=settings.batch_bytes)
