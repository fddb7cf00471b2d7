"""Create, read, list, follow and cancel workflows."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from pointsman.client.workflow import Workflow
from pointsman.engine.log.reader import read_commit
from pointsman.errors import ContractError
from pointsman.gateway.callers import Caller
from pointsman.gateway.catalog import unserved_warning
from pointsman.gateway.context import CallerArg, Context, ContextArg
from pointsman.gateway.events import WorkflowEvent, event_view, live_view
from pointsman.gateway.feed import StreamResetError
from pointsman.gateway.files.uploads import usable_files
from pointsman.gateway.invalid_requests import CURSOR_PATTERN, EVENT_ID_PATTERN
from pointsman.gateway.models import (
    CancelRequest,
    MessageRequest,
    MessageView,
    OutcomeView,
    ResumeRequest,
    Timestamp,
    WorkflowPage,
    WorkflowRequest,
    WorkflowStatus,
    WorkflowView,
)
from pointsman.gateway.problems import ProblemError, problems
from pointsman.gateway.streams import LogEvent, Position
from pointsman.gateway.views import item_of, statuses_of
from pointsman.http.sse import KEEPALIVE_COMMENT, format_event
from pointsman.index.rows import Search, WorkflowRow, queued_row
from pointsman_schemas.events import Outcome
from pointsman_schemas.ids import MAX_CALLER_ID_CHARS, TOKEN_PATTERN
from pointsman_schemas.log import WorkflowEnded

__all__ = ["MAX_WAIT_S", "WorkflowPath", "router"]

router = APIRouter(prefix="/v1/workflows", tags=["workflows"])

MAX_WAIT_S = 60.0
"""Largest number of seconds that a request waits for the end of its workflow. Proxies close longer requests."""
_WAIT = re.compile(r"(?:^|[,;\s])wait=([0-9]{1,6})(?:$|[,;\s])")
_MAX_QUEUED = 100  # largest number of waiting requests of each team in a list

WorkflowPath = Annotated[str, Path(pattern=TOKEN_PATTERN, description="The id of the workflow.")]
_LOCATION = {"Location": {"description": "The path of the workflow.", "schema": {"type": "string"}}}


class ListQuery(BaseModel):
    """The filters of a list."""

    model_config = ConfigDict(extra="forbid")

    team: Annotated[str, Field(pattern=TOKEN_PATTERN)] | None = Field(
        default=None, description="The team. Default: all teams."
    )
    status: list[WorkflowStatus] = Field(
        default=[], description="A list of statuses. Workflows with one of them are listed. Default: any status."
    )
    since: Timestamp | None = Field(default=None, description="The earliest time of creation.")
    until: Timestamp | None = Field(default=None, description="The time before which a workflow was created.")
    correlation_id: Annotated[str, Field(min_length=1, max_length=MAX_CALLER_ID_CHARS)] | None = Field(
        default=None, description="The correlation id. Default: any."
    )
    limit: int = Field(default=20, ge=1, le=100, description="The greatest number of workflows.")
    cursor: Annotated[str, Field(pattern=CURSOR_PATTERN)] | None = Field(
        default=None, description="The `next_cursor` of the previous page."
    )


@router.post(
    "",
    status_code=202,
    summary="Create a workflow",
    response_model=WorkflowView,
    responses={
        200: {"model": WorkflowView, "description": "The workflow ended during the wait.", "headers": _LOCATION},
        202: {
            "description": "The request is stored, and its workflow will have exactly one outcome.",
            "headers": _LOCATION,
        },
        **problems(404, 410),
    },
)
async def create_workflow(
    body: WorkflowRequest,
    context: ContextArg,
    caller: CallerArg,
    response: Response,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=MAX_CALLER_ID_CHARS,
            description="Your name for the request. A repetition of the request with the same key starts no second "
            "workflow. A different request with the same key is refused.",
        ),
    ] = None,
    prefer: Annotated[
        str | None, Header(description="`wait=N`: wait up to N seconds, at most 60, for the end of the workflow.")
    ] = None,
) -> WorkflowView:
    """Store a request, and return the id of the workflow. The workflow begins when a supervisor admits the request."""
    submitted = await context.submit(
        caller,
        body.team,
        body.input,
        key=idempotency_key,
        correlation_id=body.correlation_id,
        deadline=body.deadline,
        budget=body.budget.as_budget() if body.budget else None,
        metadata=body.metadata,
        thread=body.thread,
        files=await usable_files(context.files, caller, body.files),
    )
    workflow = submitted.workflow
    response.headers["location"] = f"/v1/workflows/{workflow.id}"
    wait = _WAIT.search(prefer or "")
    if wait is not None and int(wait[1]):
        response.headers["preference-applied"] = f"wait={min(int(wait[1]), int(MAX_WAIT_S))}"
        with suppress(TimeoutError):
            outcome = await context.outcome(submitted, min(float(wait[1]), MAX_WAIT_S))
            response.status_code = 200
            return _ended_view(body, caller, outcome)
    if submitted.known or wait is not None:
        return await _with_warning(context, caller, await context.view(caller, workflow.id))
    view = WorkflowView(
        id=workflow.id,
        team=workflow.team,
        status="queued",
        correlation_id=body.correlation_id or "",
        caller=caller.name,
        created_at=datetime.now(UTC),
        input=body.input,
    )
    return await _with_warning(context, caller, view)


async def _with_warning(context: Context, caller: Caller, view: WorkflowView) -> WorkflowView:
    if view.status == "queued":
        view.warning = await unserved_warning(context, caller, view.team)
    return view


def _ended_view(body: WorkflowRequest, caller: Caller, outcome: Outcome) -> WorkflowView:
    """Return the view of a workflow that ended during the wait, without reading the log."""
    return WorkflowView(
        id=outcome.workflow_id,
        team=outcome.team,
        status=outcome.status,
        correlation_id=outcome.correlation_id,
        caller=caller.name,
        created_at=outcome.started_at,
        ended_at=outcome.ended_at,
        input=body.input,
        outcome=OutcomeView.of(outcome),
    )


@router.get(
    "",
    summary="List workflows",
    description="List your workflows, the newest first. An operator gets the workflows of all callers. The list "
    "covers the newest 20,000 workflows of the namespace. The first page also has the requests that wait "
    "for admission.",
    responses=problems(),
)
async def list_workflows(context: ContextArg, caller: CallerArg, query: Annotated[ListQuery, Query()]) -> WorkflowPage:
    """List your workflows, the newest first."""
    search = Search(
        team=query.team or "",
        statuses=statuses_of(query.status),
        since=query.since,
        until=query.until,
        caller="" if caller.operator else caller.name,
        correlation_id=query.correlation_id or "",
    )
    before = int(query.cursor) if query.cursor else None
    found = [] if before is not None else await _queued(context, search, query.limit)
    room = query.limit - len(found)
    rows = list(islice(context.index.matching(search, before=before), room + 1))
    cursor = None
    if len(rows) > room:
        cursor = str(rows[room - 1].first_sequence if room else rows[0].first_sequence + 1)
    return WorkflowPage(workflows=[item_of(row) for row in [*found, *rows[:room]]], next_cursor=cursor)


async def _queued(context: Context, search: Search, limit: int) -> list[WorkflowRow]:
    requests = await context.client.queued_requests(search.team or None, limit=_MAX_QUEUED)
    rows = [queued_row(each) for each in requests if context.index.find(each.id) is None]
    shown = [row for row in rows if search.matches(row)]
    return sorted(shown, key=lambda row: row.started_at, reverse=True)[:limit]


@router.get("/{workflow_id}", summary="Read a workflow", responses=problems(404))
async def get_workflow(workflow_id: WorkflowPath, context: ContextArg, caller: CallerArg) -> WorkflowView:
    """Read a workflow with its outcome."""
    return await _with_warning(context, caller, await context.view(caller, workflow_id))


@router.post("/{workflow_id}/cancel", status_code=202, summary="Cancel a workflow", responses=problems(404, 409))
async def cancel_workflow(
    workflow_id: WorkflowPath, body: CancelRequest, context: ContextArg, caller: CallerArg
) -> WorkflowView:
    """Request the cancellation of a workflow. The workflow then ends with the status `cancelled`."""
    workflow = await context.find(caller, workflow_id)
    ended = await workflow.cancel(body.reason, actor=caller.name)
    if ended is not None:
        raise ProblemError(409, "already_ended", f"the workflow has ended already: {ended.status}")
    return await context.view(caller, workflow_id)


@router.post(
    "/{workflow_id}/messages", status_code=202, summary="Send a message to a workflow", responses=problems(404, 409)
)
async def tell_workflow(
    workflow_id: WorkflowPath,
    body: MessageRequest,
    context: ContextArg,
    caller: CallerArg,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=MAX_CALLER_ID_CHARS,
            description="Your name for the message. Messages with the same key count once.",
        ),
    ] = None,
) -> MessageView:
    """Send a message to a running workflow. A message to an ended turn of a thread becomes the thread's next turn."""
    workflow = await context.find(caller, workflow_id)
    told = await context.tell(caller, workflow, body.text, key=idempotency_key)
    return MessageView(workflow_id=workflow_id, number=told.number, next_turn=told.next_turn, detail=told.message)


@router.post("/{workflow_id}/resume", status_code=202, summary="Resume a workflow", responses=problems(404, 409))
async def resume_workflow(
    workflow_id: WorkflowPath, body: ResumeRequest, context: ContextArg, caller: CallerArg
) -> WorkflowView:
    """Repeat the failed tasks of a workflow in a new round. The workflow must have ended as `failed` or `partial`."""
    workflow = await context.find(caller, workflow_id)
    await context.resume(caller, workflow, body.reason)
    return await context.view(caller, workflow_id)


@router.get(
    "/{workflow_id}/events",
    summary="Follow a workflow",
    description="Send the events of a workflow from its start, or after `Last-Event-ID`, to its end. After an "
    "interruption, open the stream again at any gateway with the id of the newest event, and no event is "
    "lost.",
    response_class=StreamingResponse,
    response_model=None,
    responses={
        200: {
            "description": "Server-sent events. The data of an event are a WorkflowEvent, and the id of an event is "
            "its position in the log.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        204: {"description": "The client has all events of a workflow that has ended."},
        **problems(404),
    },
)
async def follow_workflow(
    workflow_id: WorkflowPath,
    context: ContextArg,
    caller: CallerArg,
    live: Annotated[
        bool,
        Query(
            description="Also send reports of agents and text of models. These events have no id and are not repeated."
        ),
    ] = False,
    last_event_id: Annotated[
        str | None,
        Header(
            pattern=EVENT_ID_PATTERN,
            description="The id of the newest event that you have. Only later events are sent.",
        ),
    ] = None,
) -> Response:
    """Send the events of a workflow."""
    workflow = await context.find(caller, workflow_id)
    after = Position.parse(last_event_id) if last_event_id else None
    if after is not None and await _has_all(context, workflow, after):
        return Response(status_code=204)
    return StreamingResponse(_chunks(context, workflow, after, live=live), media_type="text/event-stream")


async def _has_all(context: Context, workflow: Workflow, after: Position) -> bool:
    """Return True if the workflow has ended at or before a position."""
    newest = await context.client.bus.last("log", context.client.subjects.log(workflow.team, workflow.id))
    if newest is None:
        return False
    entries = read_commit(newest).entries
    return isinstance(entries[-1], WorkflowEnded) and after >= Position(newest.sequence, len(entries) - 1)


async def _chunks(
    context: Context, workflow: Workflow, after: Position | None, *, live: bool
) -> AsyncGenerator[bytes, None]:
    yield b"retry: 1000\n\n"
    try:
        async with aclosing(context.streams.follow(workflow, after=after, live=live)) as items:
            async for item in items:
                if item is None:
                    yield KEEPALIVE_COMMENT
                elif isinstance(item, LogEvent):
                    yield _format(item.entry.kind, event_view(workflow.id, item), str(item.position))
                else:
                    view = live_view(workflow.id, item)
                    yield _format(view.type, view)
    except (StreamResetError, ContractError):
        return  # the client opens the stream again


def _format(kind: str, view: WorkflowEvent, id: str | None = None) -> bytes:
    return format_event(kind, view.model_dump(mode="json", exclude_none=True), id=id)
