"""Create, read, list and cancel batches, and read their results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from pydantic_core import to_json

from pointsman.errors import ConflictError, ContractError, NotFoundError
from pointsman.gateway.batches.models import BatchOptions, BatchPage, BatchRequest, BatchResult, BatchView
from pointsman.gateway.batches.records import (
    BatchRecord,
    StoredRecord,
    parse_record,
    read_record,
    store_record,
    update_record,
)
from pointsman.gateway.batches.rows import store_rows
from pointsman.gateway.batches.runner import BatchRunner
from pointsman.gateway.callers import Caller
from pointsman.gateway.context import CallerArg, Context, ContextArg
from pointsman.gateway.files.uploads import usable_files
from pointsman.gateway.models import CancelRequest, OutcomeView
from pointsman.gateway.problems import ProblemError, problems
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import Budget, Outcome
from pointsman_schemas.ids import MAX_CALLER_ID_CHARS, TOKEN_PATTERN, derive_id
from pointsman_schemas.strict_json import describe, dump, parse, parse_json

__all__ = ["router"]


async def _batches(request: Request) -> BatchRunner:
    runner: BatchRunner = request.app.state.batches
    return runner


BatchesArg = Annotated[BatchRunner, Depends(_batches)]

router = APIRouter(prefix="/v1/batches", tags=["batches"])

_MAX_OPEN = 10  # batches of a caller that have not ended
_MAX_LISTED = 100
_READS = 16  # outcomes that are read at a time
_LINES = "application/jsonl"

BatchPath = Annotated[str, Path(pattern=TOKEN_PATTERN, description="The id of the batch.")]
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/BatchRequest"}},
            _LINES: {"schema": {"type": "string", "description": "One JSON text or object a line."}},
        },
    }
}
_RESULTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One BatchResult a line, in the order of the rows.",
        "content": {_LINES: {"schema": {"$ref": "#/components/schemas/BatchResult"}}},
    },
    **problems(404),
}


@router.post(
    "",
    status_code=202,
    summary="Create a batch",
    description="Send each row as a request of its own. The body is a list in JSON, or one JSON text or object a line "
    "with the type `application/jsonl` and the options in the query. All rows are checked and stored first: a batch "
    "with an invalid row is refused as a whole. The gateways then send the rows, and each row is done once.",
    openapi_extra=_BODY,
    responses={
        202: {
            "description": "The batch is stored, and goes on without the client.",
            "headers": {"Location": {"description": "The path of the batch.", "schema": {"type": "string"}}},
        },
        **problems(404, 408, 409, 410, 415),
    },
)
async def create_batch(
    request: Request,
    context: ContextArg,
    caller: CallerArg,
    batches: BatchesArg,
    response: Response,
    team: Annotated[str | None, Query(description="For lines: the team.")] = None,
    concurrency: Annotated[int | None, Query(description="For lines: workflows at a time, at most 100.")] = None,
    deadline: Annotated[float | None, Query(description="For lines: seconds for each row.")] = None,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=MAX_CALLER_ID_CHARS,
            description="Your name for the batch. The same batch again under the same key is the same batch, and a "
            "different batch is refused.",
        ),
    ] = None,
) -> BatchView:
    """Store a batch."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    budget: Budget | None = None
    if kind == _LINES:
        given = {"team": team, "concurrency": concurrency, "deadline": deadline}
        options = _parse_options({name: value for name, value in given.items() if value is not None})
        pieces: AsyncIterator[bytes] = request.stream()
        caller.require_team(options.team)
    elif kind == "application/json":
        body = await _parse_body(request, context.settings.gateway_max_body)
        options = BatchOptions(team=body.team, concurrency=body.concurrency, deadline=body.deadline)
        caller.require_team(options.team)
        budget = body.budget.as_budget() if body.budget else None
        pieces = await _pieces_of(body, context, caller)
    else:
        raise ProblemError(415, "unknown_format", f"the content type is {kind[:100]!r}; send {_LINES} or JSON")
    id = f"batch-{derive_id('batch', caller.name, idempotency_key) if idempotency_key else uuid4().hex[:24]}"
    if idempotency_key is None or await read_record(batches.bucket, id) is None:
        _check_open(batches, caller)
    rows = await store_rows(
        context.files,
        id,
        pieces,
        max_bytes=context.settings.gateway_batch_bytes,
        max_rows=context.settings.gateway_batch_rows,
        max_row_bytes=context.settings.gateway_max_body,
    )
    record = BatchRecord(
        id=id,
        caller=caller.name,
        limits=caller.limits,
        team=options.team,
        digest=derive_id(rows.file.sha256, options.model_dump_json(), (budget or Budget()).model_dump_json()),
        rows=rows.file,
        total=rows.total,
        concurrency=options.concurrency,
        deadline=options.deadline,
        budget=budget,
        created_at=datetime.now(UTC),
    )
    stored = await _store(batches, record)
    response.headers["location"] = f"/v1/batches/{id}"
    return _view(context, stored.record)


@router.get("", summary="List batches", responses=problems())
async def list_batches(context: ContextArg, caller: CallerArg, batches: BatchesArg) -> BatchPage:
    """List your newest 100 batches; as an operator, those of all callers."""
    found = [record for record in batches.records() if caller.operator or record.caller == caller.name]
    return BatchPage(batches=[_view(context, record) for record in found[:_MAX_LISTED]])


@router.get("/{batch_id}", summary="Read a batch", responses=problems(404))
async def get_batch(batch_id: BatchPath, context: ContextArg, caller: CallerArg, batches: BatchesArg) -> BatchView:
    """Read the progress of a batch."""
    return _view(context, await _find(batches, caller, batch_id))


@router.get(
    "/{batch_id}/results",
    summary="Read the results of a batch",
    description="Read the results of the rows that have ended, in the order of the rows. Rows that have not ended are "
    "left out: read the results again later, or after the newest row that you have without a gap.",
    response_class=StreamingResponse,
    responses=_RESULTS,
)
async def get_results(
    batch_id: BatchPath,
    context: ContextArg,
    caller: CallerArg,
    batches: BatchesArg,
    after: Annotated[int, Query(ge=0, le=1_000_000_000, description="Only rows after this one.")] = 0,
) -> Response:
    """Send the results of a batch."""
    record = await _find(batches, caller, batch_id)
    return StreamingResponse(_results(context, record, after), media_type=_LINES)


@router.post("/{batch_id}/cancel", status_code=202, summary="Cancel a batch", responses=problems(404, 409))
async def cancel_batch(
    batch_id: BatchPath, body: CancelRequest, context: ContextArg, caller: CallerArg, batches: BatchesArg
) -> BatchView:
    """Send no more rows, and cancel the workflows of those that run."""
    record = await _find(batches, caller, batch_id)
    stored = await update_record(
        batches.bucket,
        record.id,
        lambda found: found.model_copy(update={"cancelled": True}) if found.ended_at is None else None,
    )
    if stored is None or stored.record.ended_at is not None:
        raise ProblemError(409, "already_ended", "the batch has ended already")
    return _view(context, stored.record)


def _parse_options(given: dict[str, Any]) -> BatchOptions:
    try:
        return BatchOptions.model_validate(given)
    except ValidationError as error:
        raise ProblemError(422, "invalid_request", f"the query is not that of a batch: {describe(error)}") from None


async def _parse_body(request: Request, max_bytes: int) -> BatchRequest:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > max_bytes:
            raise ProblemError(
                413,
                "too_large",
                f"the body has more than {max_bytes} bytes; send the rows as {_LINES}, or upload them",
                headers={"connection": "close"},
            )
    try:
        return BatchRequest.model_validate(parse_json(bytes(body)))
    except ValidationError as error:
        raise ProblemError(422, "invalid_request", f"the body is no batch: {describe(error)}") from None
    except ContractError as error:
        raise ProblemError(422, "invalid_request", f"the body is no batch: {error}") from None


async def _pieces_of(body: BatchRequest, context: Context, caller: Caller) -> AsyncIterator[bytes]:
    inputs = body.inputs
    if isinstance(inputs, str):
        (file,) = await usable_files(context.files, caller, [inputs])
        return context.files.read(file)

    async def lines() -> AsyncIterator[bytes]:
        for each in inputs:
            yield to_json(each) + b"\n"

    return lines()


def _check_open(batches: BatchRunner, caller: Caller) -> None:
    running = [each for each in batches.records() if each.caller == caller.name and each.ended_at is None]
    if len(running) >= _MAX_OPEN:
        raise ProblemError(
            429, "too_many_batches", f"{len(running)} batches of {caller.name} run, and {_MAX_OPEN} may; wait for one "
            "to end, or cancel one", headers={"retry-after": "5"},
        )  # fmt: skip


async def _store(batches: BatchRunner, record: BatchRecord) -> StoredRecord:
    """Store a new record, unless the same batch exists.

    Returns:
        The record of the batch.

    Raises:
        ProblemError: The key belongs to another batch.
    """
    bucket = batches.bucket
    while True:
        entry = await bucket.get(record.id)
        if (found := parse_record(entry)) is not None:
            if found.record.digest != record.digest:
                raise ProblemError(
                    409, "key_taken", "another batch has this Idempotency-Key; nothing was sent; give the new batch a "
                    "new key",
                )  # fmt: skip
            return found
        with suppress(ConflictError):
            return await store_record(bucket, record, entry.revision if entry else 0)


async def _find(batches: BatchRunner, caller: Caller, id: str) -> BatchRecord:
    found = await read_record(batches.bucket, id)
    if found is None or not (caller.operator or found.record.caller == caller.name):
        raise NotFoundError(f"there is no batch {id!r} of yours; GET /v1/batches lists the ones there are")
    return found.record


def _workflow_ids(context: Context, record: BatchRecord, rows: Sequence[int] | range) -> list[str]:
    client = context.client.for_user(record.caller)
    return [client.workflow_id(record.team, record.request_id(row)) for row in rows]


def _view(context: Context, record: BatchRecord) -> BatchView:
    rows = range(record.next, record.sent + 1) if record.ended_at is None else range(0)
    return BatchView.of(record, context.index, _workflow_ids(context, record, rows))


async def _results(context: Context, record: BatchRecord, after: int) -> AsyncIterator[bytes]:
    for first in range(after + 1, record.sent + 1, _READS):
        rows = range(first, min(first + _READS, record.sent + 1))
        ids = _workflow_ids(context, record, rows)
        outcomes = await asyncio.gather(*(_outcome(context, record.team, id) for id in ids))
        for row, id, outcome in zip(rows, ids, outcomes, strict=True):
            if outcome is not None:
                view = OutcomeView.of(outcome)
                yield dump(BatchResult(row=row, workflow_id=id, **dict(view))) + b"\n"


async def _outcome(context: Context, team: str, workflow: str) -> Outcome | None:
    stored = await context.client.bus.last("log", context.client.subjects.outcome(team, workflow))
    return None if stored is None else parse(Outcome, decode(stored.headers, stored.body)[1])
