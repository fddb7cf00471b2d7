"""Read and write the records of batches in a key-value bucket. One feeder at a time feeds a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from pointsman.errors import ConflictError, ContractError
from pointsman.index.callers import CallerLimits
from pointsman.ports.key_value import KeyValue, KeyValueEntry
from pointsman_schemas.events import Budget, Usage
from pointsman_schemas.files import File
from pointsman_schemas.ids import TeamName, Token
from pointsman_schemas.strict_json import dump, parse

__all__ = [
    "BATCH_GROUP",
    "MAX_PROBLEMS",
    "BatchRecord",
    "BatchStatus",
    "RowProblem",
    "StoredRecord",
    "parse_record",
    "problem_of",
    "read_record",
    "store_record",
    "update_record",
]

BatchStatus: TypeAlias = Literal["running", "paused", "cancelling", "completed", "cancelled", "failed"]
BATCH_GROUP = "batch"
"""The group of keys for batches in the gateway's bucket."""
MAX_PROBLEMS = 20
"""Largest number of problems in a record. If more rows have problems, the record has the problems of the last rows."""
_MAX_REASON_CHARS = 200


class RowProblem(BaseModel):
    """A row that did not complete."""

    model_config = ConfigDict(frozen=True)

    row: int = Field(description="The number of the row, from 1.")
    workflow_id: str = Field(
        description="The id of the workflow. If the row was not sent, there is no workflow with this id."
    )
    status: str = Field(
        description="The status of the outcome; `not_sent` if the request was not sent; `running` if the workflow had "
        "not ended when the batch ended."
    )
    reason: str = Field(
        description=f"The reason why the row did not complete, cut to its first {_MAX_REASON_CHARS} characters."
    )


class BatchRecord(BaseModel):
    """A batch, with its rows, its options, and the process that feeds the batch."""

    model_config = ConfigDict(frozen=True)

    id: Token = Field(description="The id. The id of a request is this id and the number of the row.")
    caller: Token = Field(description="The caller of the requests.")
    limits: CallerLimits = Field(description="The limits of the caller.")
    team: TeamName = Field(description="The team.")
    name: str = Field(default="", description="The name of the file with the rows; empty for rows without a file.")
    digest: str = Field(description="The digest of the rows and the options. Equal batches have equal digests.")
    rows: File = Field(description="The file with the requests, one JSON text or object per line.")
    total: int = Field(ge=1, description="Number of rows.")
    concurrency: int = Field(ge=1, description="Largest number of workflows that run at the same time.")
    deadline: float | None = Field(
        default=None, description="Seconds from the admission of each workflow to its deadline."
    )
    budget: Budget | None = Field(default=None, description="Limits of each workflow.")
    created_at: AwareDatetime = Field(description="Time at which the batch was created.")
    feeder: str = Field(default="", description="The process that feeds the batch; empty without a feeder.")
    beat: int = Field(
        default=0, ge=0, description="Number of writes of the feeder. A new write shows that the feeder runs."
    )
    sent: int = Field(
        default=0,
        ge=0,
        description="Upper bound of the sent rows: no row with a number above this value was sent. Rows up to this "
        "value may have been sent.",
    )
    next: int = Field(default=1, ge=1, description="Every row with a smaller number has ended.")
    counts: dict[str, int] = Field(default={}, description="Number of rows by status, for the rows before `next`.")
    usage: Usage = Field(default=Usage(), description="Usage of the rows before `next`.")
    problems: tuple[RowProblem, ...] = Field(
        default=(), description="The last rows before `next` that did not complete."
    )
    paused: bool = Field(default=False, description="True while the batch is paused.")
    cancelled: bool = Field(default=False, description="True if the batch was cancelled.")
    cancelled_by: str = Field(default="", description="The user who cancelled the batch.")
    ended_at: AwareDatetime | None = Field(default=None, description="Time at which the batch ended, or null.")
    reason: str = Field(default="", description="The reason why the batch ended early.")

    @property
    def status(self) -> BatchStatus:
        """The status of the batch. `completed` means that all rows have ended, also if some rows did not complete."""
        if self.ended_at is not None:
            return "cancelled" if self.cancelled else "failed" if self.reason else "completed"
        return "cancelling" if self.cancelled else "paused" if self.paused else "running"

    def request_id(self, row: int) -> str:
        """Return the id of the request of a row.

        Args:
            row: The number of the row, from 1.
        """
        return f"{self.id}-{row}"


def problem_of(row: int, workflow: str, status: str, reason: str) -> RowProblem:
    """Return the problem of a row that did not complete.

    Args:
        row: The number of the row, from 1.
        workflow: The workflow.
        status: The status of the outcome, `not_sent` or `running`.
        reason: The reason. Only its first 200 characters are stored.
    """
    return RowProblem(row=row, workflow_id=workflow, status=status, reason=reason[:_MAX_REASON_CHARS])


class StoredRecord(NamedTuple):
    """A record, and the revision of the record for compare-and-set."""

    record: BatchRecord
    revision: int


def parse_record(entry: KeyValueEntry | None) -> StoredRecord | None:
    """Return the record of an entry; None for a deleted or unreadable entry.

    Args:
        entry: The entry.
    """
    if entry is None or entry.value is None:
        return None
    try:
        return StoredRecord(parse(BatchRecord, entry.value), entry.revision)
    except ContractError:  # a different release wrote the record
        return None


async def read_record(bucket: KeyValue, id: str) -> StoredRecord | None:
    """Read a record.

    Args:
        bucket: The bucket.
        id: The batch.

    Returns:
        The record; None for an unknown batch.
    """
    return parse_record(await bucket.get(id))


async def store_record(bucket: KeyValue, record: BatchRecord, expect: int) -> StoredRecord:
    """Store a record.

    Args:
        bucket: The bucket.
        record: The record.
        expect: The revision of the stored record that `record` replaces; 0 for a new record.

    Returns:
        The record with its revision.

    Raises:
        ConflictError: Another process has changed the record.
    """
    return StoredRecord(record, await bucket.put(record.id, dump(record), expect=expect))


async def update_record(
    bucket: KeyValue, id: str, change: Callable[[BatchRecord], BatchRecord | None]
) -> StoredRecord | None:
    """Change a record, also while other processes change the record.

    Args:
        bucket: The bucket.
        id: The batch.
        change: Returns the changed record, or None to change nothing. After a conflict, `change` is called again.

    Returns:
        The record; None for an unknown batch.
    """
    while (found := await read_record(bucket, id)) is not None:
        changed = change(found.record)
        if changed is None:
            return found
        try:
            return await store_record(bucket, changed, found.revision)
        except ConflictError:
            continue
    return None
