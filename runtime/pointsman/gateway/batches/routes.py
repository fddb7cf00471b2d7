"""Create, read, list and cancel batches, and read the results of batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from pydantic_core import to_json

from pointsman.batches.records import BatchRecord
from pointsman.batches.rows import MEDIA_TYPE as _LINES
from pointsman.batches.service import BatchAction, Batches
from pointsman.errors import ContractError
from pointsman.gateway.batches.models import BatchOptions, BatchPage, BatchRequest, BatchResult, BatchView
from pointsman.gateway.callers import Caller
from pointsman.gateway.catalog import unserved_warning
from pointsman.gateway.context import CallerArg, Context, ContextArg
from pointsman.gateway.files.uploads import usable_files
from pointsman.gateway.models import Body, CancelRequest, OutcomeView
from pointsman.gateway.problems import ProblemError, problems
from pointsman_schemas.events import Budget
from pointsman_schemas.ids import MAX_CALLER_ID_CHARS, TOKEN_PATTERN
from pointsman_schemas.strict_json import describe, dump, parse_json

__all__ = ["router"]


async def _batches(request: Request) -> Batches:
    batches: Batches = request.app.state.batches
    return batches


BatchesArg = Annotated[Batches, Depends(_batches)]

router = APIRouter(prefix="/v1/batches", tags=["batches"])

BatchPath = Annotated[str, Path(pattern=TOKEN_PATTERN, description="The id of the batch.")]
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/BatchRequest"}},
            _LINES: {"schema": {"type": "string", "description": "One JSON text or object per line."}},
        },
    }
}
_RESULTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One BatchResult per line, in the order of the rows.",
        "content": {_LINES: {"schema": {"$ref": "#/components/schemas/BatchResult"}}},
    },
    **problems(404),
}


@router.post(
    "",
    status_code=202,
    summary="Create a batch",
    description="Send each row as a separate request. The body is a JSON object with a list of rows. Or the body has "
    "the type `application/jsonl` with one JSON text or object per line, and the options are in the "
    "query. All rows are first checked and stored, so a batch with an invalid row is refused as a whole. "
    "The gateways then send each row once.",
    openapi_extra=_BODY,
    responses={
        202: {
            "description": "The batch is stored. The batch continues without the client.",
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
    team: Annotated[str | None, Query(description="For `application/jsonl`: the team.")] = None,
    concurrency: Annotated[
        int | None,
        Query(
            description="For `application/jsonl`: largest number of workflows that run at the same time, at most 100."
        ),
    ] = None,
    deadline: Annotated[
        float | None,
        Query(description="For `application/jsonl`: seconds from the admission of a row to its deadline."),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=MAX_CALLER_ID_CHARS,
            description="Your name for the batch. A repeated request with the same key creates no second batch. A "
            "different batch with the same key is refused.",
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
    record = await batches.create(
        caller.name,
        options.team,
        pieces,
        key=idempotency_key,
        limits=caller.limits,
        max_row_bytes=context.settings.gateway_max_body,
        concurrency=options.concurrency,
        deadline=options.deadline,
        budget=budget,
    )
    response.headers["location"] = f"/v1/batches/{record.id}"
    return await _view_with_warning(context, caller, batches, record)


@router.get("", summary="List batches", responses=problems())
async def list_batches(caller: CallerArg, batches: BatchesArg) -> BatchPage:
    """List your newest 100 batches. An operator gets the batches of all callers."""
    return BatchPage(batches=[_view(batches, record) for record in batches.listed(_owner(caller))])


@router.get("/{batch_id}", summary="Read a batch", responses=problems(404))
async def get_batch(batch_id: BatchPath, context: ContextArg, caller: CallerArg, batches: BatchesArg) -> BatchView:
    """Read the progress of a batch."""
    return await _view_with_warning(context, caller, batches, await batches.find(batch_id, _owner(caller)))


@router.get(
    "/{batch_id}/results",
    summary="Read the results of a batch",
    description="Read the results of the rows that have ended, in the order of the rows. Rows that have not ended are "
    "missing. Read the results again later to get the missing rows.",
    response_class=StreamingResponse,
    responses=_RESULTS,
)
async def get_results(
    batch_id: BatchPath,
    caller: CallerArg,
    batches: BatchesArg,
    after: Annotated[
        int, Query(ge=0, le=1_000_000_000, description="The number of a row. Only later rows are sent.")
    ] = 0,
) -> Response:
    """Send the results of a batch."""
    record = await batches.find(batch_id, _owner(caller))
    return StreamingResponse(_results(batches, record, after), media_type=_LINES)


@router.post("/{batch_id}/pause", status_code=202, summary="Pause a batch", responses=problems(404, 409))
async def pause_batch(batch_id: BatchPath, body: Body, caller: CallerArg, batches: BatchesArg) -> BatchView:
    """Send no more rows until the batch is resumed. Running workflows continue."""
    return await _change(batches, caller, batch_id, "pause")


@router.post("/{batch_id}/resume", status_code=202, summary="Resume a batch", responses=problems(404, 409))
async def resume_batch(batch_id: BatchPath, body: Body, caller: CallerArg, batches: BatchesArg) -> BatchView:
    """Resume a paused batch."""
    return await _change(batches, caller, batch_id, "resume")


@router.post("/{batch_id}/cancel", status_code=202, summary="Cancel a batch", responses=problems(404, 409))
async def cancel_batch(batch_id: BatchPath, body: CancelRequest, caller: CallerArg, batches: BatchesArg) -> BatchView:
    """Send no more rows, and cancel the running workflows."""
    return await _change(batches, caller, batch_id, "cancel")


def _parse_options(given: dict[str, Any]) -> BatchOptions:
    try:
        return BatchOptions.model_validate(given)
    except ValidationError as error:
        raise ProblemError(422, "invalid_request", f"the query is not valid for a batch: {describe(error)}") from None


async def _parse_body(request: Request, max_bytes: int) -> BatchRequest:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > max_bytes:
            raise ProblemError(
                413,
                "too_large",
                f"the body has more than {max_bytes} bytes; send the rows as {_LINES}, or upload the rows",
                headers={"connection": "close"},
            )
    try:
        return BatchRequest.model_validate(parse_json(bytes(body)))
    except ValidationError as error:
        raise ProblemError(422, "invalid_request", f"the body is not a batch: {describe(error)}") from None
    except ContractError as error:
        raise ProblemError(422, "invalid_request", f"the body is not a batch: {error}") from None


async def _pieces_of(body: BatchRequest, context: Context, caller: Caller) -> AsyncIterator[bytes]:
    inputs = body.inputs
    if isinstance(inputs, str):
        (file,) = await usable_files(context.files, caller, [inputs])
        return context.files.read(file)

    async def lines() -> AsyncIterator[bytes]:
        for each in inputs:
            yield to_json(each) + b"\n"

    return lines()


def _owner(caller: Caller) -> str:
    """Return the caller whose batches may be read; empty for an operator, who may read the batches of all callers."""
    return "" if caller.operator else caller.name


def _view(batches: Batches, record: BatchRecord) -> BatchView:
    return BatchView.of(record, batches.progress(record))


async def _view_with_warning(context: Context, caller: Caller, batches: Batches, record: BatchRecord) -> BatchView:
    view = _view(batches, record)
    if view.ended_at is None:
        view.warning = await unserved_warning(context, caller, view.team)
    return view


async def _change(batches: Batches, caller: Caller, id: str, action: BatchAction) -> BatchView:
    record = await batches.find(id, _owner(caller))
    return _view(batches, await batches.change(record.id, action, actor=caller.name))


async def _results(batches: Batches, record: BatchRecord, after: int) -> AsyncIterator[bytes]:
    async with aclosing(batches.results(record, after)) as rows:
        async for row in rows:
            assert row.outcome is not None
            view = OutcomeView.of(row.outcome)
            yield dump(BatchResult(row=row.row, workflow_id=row.workflow_id, **dict(view))) + b"\n"
