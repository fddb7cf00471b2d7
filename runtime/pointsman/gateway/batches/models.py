"""The bodies of the REST API of batches."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, BeforeValidator, FailFast, Field, JsonValue, TypeAdapter
from pydantic_core import PydanticCustomError

from pointsman.batches.records import BatchRecord, BatchStatus
from pointsman.batches.service import MAX_CONCURRENCY, BatchProgress
from pointsman.gateway.models import FILE_ID_PATTERN, Body, BudgetRequest, OutcomeView, UsageView
from pointsman_schemas.events import MAX_DEADLINE_S, RequestInput
from pointsman_schemas.ids import TeamName

__all__ = ["BatchCounts", "BatchOptions", "BatchPage", "BatchRequest", "BatchResult", "BatchView"]

Inputs = Annotated[list[RequestInput], Field(min_length=1)]
_INPUTS: TypeAdapter[list[str | dict[str, JsonValue]]] = TypeAdapter(Annotated[Inputs, FailFast()])


def _rows_or_upload(value: object) -> object:
    """Validate rows and the id of an upload separately, because a union would report the errors of both types."""
    if not isinstance(value, str):
        return _INPUTS.validate_python(value)
    if not re.fullmatch(FILE_ID_PATTERN, value):
        raise PydanticCustomError("rows_or_upload", "a list of requests, or the id of an upload, is expected")
    return value


RowsOrUpload = Annotated[Inputs | Annotated[str, Field(pattern=FILE_ID_PATTERN)], BeforeValidator(_rows_or_upload)]
Deadline = Annotated[float, Field(strict=True, ge=0.001, le=MAX_DEADLINE_S)]


class BatchOptions(Body):
    """The options of a batch."""

    team: TeamName = Field(description="The team that is to serve the rows.")
    concurrency: Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)] = Field(
        default=10, description="Largest number of workflows that run at the same time."
    )
    deadline: Annotated[float, Field(ge=0.001, le=MAX_DEADLINE_S)] | None = Field(
        default=None, description="Seconds from the admission of a row to its deadline. Default: the team's deadline."
    )


class BatchRequest(Body):
    """A batch with its rows, or with an upload that contains the rows."""

    team: TeamName = Field(description="The team that is to serve the rows.")
    inputs: RowsOrUpload = Field(
        description="A list of rows, which are texts, or objects for teams that expect fields; or the id of an upload "
        "with one JSON text or object per line."
    )
    concurrency: Annotated[int, Field(strict=True, ge=1, le=MAX_CONCURRENCY)] = Field(
        default=10, description="Largest number of workflows that run at the same time."
    )
    deadline: Deadline | None = Field(
        default=None, description="Seconds from the admission of a row to its deadline. Default: the team's deadline."
    )
    budget: BudgetRequest | None = Field(default=None, description="Limits of each workflow.")


class BatchCounts(BaseModel):
    """Numbers of the rows of a batch."""

    completed: int = Field(default=0, description="Number of rows that have completed.")
    partial: int = Field(default=0, description="Number of rows with an incomplete answer.")
    failed: int = Field(default=0, description="Number of rows that have failed.")
    cancelled: int = Field(default=0, description="Number of rows that were cancelled.")
    running: int = Field(default=0, description="Number of rows whose workflow runs.")
    waiting: int = Field(
        default=0, description="Number of rows that are not sent yet, or whose request waits for admission."
    )
    not_sent: int = Field(default=0, description="Number of rows that are never sent, because the batch has ended.")


class BatchView(BaseModel):
    """A batch."""

    id: str = Field(description="The id of the batch, which is also the correlation id of the workflows.")
    team: str = Field(description="The team.")
    status: BatchStatus = Field(description="The status; `completed` as soon as each row has ended with any status.")
    total: int = Field(description="Number of rows.")
    counts: BatchCounts = Field(description="Numbers of rows by status.")
    usage: UsageView = Field(description="Usage of the rows that have ended.")
    concurrency: int = Field(description="Largest number of workflows that run at the same time.")
    caller: str = Field(description="The caller.")
    created_at: AwareDatetime = Field(description="Time at which the batch was created.")
    ended_at: AwareDatetime | None = Field(default=None, description="Time at which the batch ended.")
    reason: str = Field(default="", description="The reason why the batch ended before all rows were done.")
    warning: str | None = Field(
        default=None, description="A warning if the team has no live supervisor and no known workflow."
    )

    @classmethod
    def of(cls, record: BatchRecord, progress: BatchProgress) -> BatchView:
        """Return the view of a batch.

        Args:
            record: The record.
            progress: The progress.
        """
        return cls(
            **record.model_dump(
                include={"id", "team", "total", "concurrency", "caller", "created_at", "ended_at", "reason"}
            ),
            status=record.status,
            counts=BatchCounts(**progress.counts),
            usage=UsageView.of(progress.usage),
        )


class BatchPage(BaseModel):
    """Batches, the newest first."""

    batches: list[BatchView] = Field(description="The batches.")


class BatchResult(OutcomeView):
    """The result of a row, as a line of JSON."""

    row: int = Field(description="The number of the row, from 1.")
    workflow_id: str = Field(description="The workflow.")
