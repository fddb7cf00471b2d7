"""Serve responses. Each response is a workflow and is read from the log. A response can run in the background."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from pointsman.client.workflow import Workflow
from pointsman.engine.log.reader import read_entries
from pointsman.errors import NotFoundError
from pointsman.gateway.callers import Caller
from pointsman.gateway.context import CallerArg, Context, ContextArg, derived_key
from pointsman.gateway.feed import StreamResetError
from pointsman.gateway.models import LenientBody
from pointsman.gateway.openai.attachments import files_of
from pointsman.gateway.openai.chat import IdempotencyKey, ThreadId, wait_for_outcome
from pointsman.gateway.openai.conversation import (
    BACKGROUND_METADATA,
    MESSAGE_METADATA,
    PREVIOUS_METADATA,
    history_before,
    response_errors,
    workflow_id,
)
from pointsman.gateway.openai.messages import Message, message_key, read_message, request_text, thread_key, turn_text
from pointsman.gateway.openai.models import require_model
from pointsman.gateway.openai.response_events import ResponseEvents, response_body
from pointsman.gateway.problems import openai_problems
from pointsman.gateway.streams import LogEvent
from pointsman.http.sse import KEEPALIVE_COMMENT, format_event
from pointsman_schemas.log import WorkflowEnded, WorkflowStarted

__all__ = ["router"]

router = APIRouter(prefix="/v1/responses", tags=["openai"])

_CANCEL_TIMEOUT_S = 10.0  # seconds to wait for the end of a cancelled workflow
_STATUSES = {
    "queued": "queued",
    "cancelling": "in_progress",
    "running": "in_progress",
    "waiting_for_answer": "in_progress",
    "completed": "completed",
    "partial": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "imported": "failed",
}
ResponsePath = Annotated[str, Path(min_length=1, max_length=64, description="The id of the response.")]


class ResponseRequest(LenientBody):
    """A request for a response. Unknown fields are ignored, because a team has its own models and tools."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1, description="The team.")
    input: str | list[dict[str, JsonValue]] = Field(
        description="The request: a text, or the messages of a conversation. Items that are not messages are ignored."
    )
    instructions: str | None = Field(default=None, description="Instructions for the team. They are sent as data.")
    previous_response_id: str | None = Field(
        default=None,
        description="The response that this request continues. The turns up to this response are sent as data.",
    )
    background: bool | None = Field(default=None, description="Respond at once, and continue in the background.")
    stream: bool | None = Field(default=None, description="Send the response as server-sent events.")


class ResponseObject(BaseModel):
    """A response, in the shape of OpenAI's API."""

    model_config = ConfigDict(extra="allow")

    id: str = Field(description="The id: `resp_` and the id of the workflow without `wf_`.")
    object: str = Field(description="Always `response`.")
    status: str = Field(description="`queued`, `in_progress`, `completed`, `failed` or `cancelled`.")
    model: str = Field(description="The team.")
    output: list[dict[str, Any]] = Field(description="The work of the team, and the answer of the team as `message`.")


_STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "The response."}
}


@router.post(
    "",
    summary="Create a response",
    description="Send a request to a team. With `background`, the response is returned at once; read the response "
    "later by its id. With `stream`, the response is a stream of server-sent events, which a client can "
    "resume. If the client disconnects, the workflow of a request without `background` and without an "
    "`Idempotency-Key` is cancelled.",
    response_model=ResponseObject,
    responses={**_STREAMED, **openai_problems(404, 409, 410)},
)
async def create_response(
    body: ResponseRequest,
    request: Request,
    context: ContextArg,
    caller: CallerArg,
    idempotency_key: IdempotencyKey = None,
    thread_id: ThreadId = None,
) -> Response:
    """Create a response."""
    team = await require_model(context, caller, body.model)
    messages = _messages(body)
    newest = next((each.text for each in reversed(messages) if each.role == "user"), "")
    metadata: dict[str, JsonValue] = {MESSAGE_METADATA: newest}
    if body.previous_response_id:
        messages = [*await history_before(context, caller, body.previous_response_id), *messages]
        metadata[PREVIOUS_METADATA] = body.previous_response_id
    if body.background:
        metadata[BACKGROUND_METADATA] = True
    headers = dict(request.headers)
    key = idempotency_key or message_key(headers)
    submitted = await context.submit(
        caller,
        team,
        turn_text(messages) if thread_id else request_text(messages),
        thread=thread_id,
        files=await files_of(context, caller, messages[-1:] if thread_id else messages),
        key=derived_key("response", key) if key else None,
        correlation_id=thread_key(headers, messages),
        internal=metadata,
    )
    workflow = submitted.workflow
    detached = bool(body.background) or idempotency_key is not None
    if body.stream:
        chunks = _chunks(context, caller, workflow, -1, detached=detached)
        return StreamingResponse(chunks, media_type="text/event-stream")
    if body.background:
        began = response_body(
            workflow.id,
            team,
            created_at=time.time(),
            status="queued",
            previous=body.previous_response_id,
            background=True,
        )
        return JSONResponse(began)
    await wait_for_outcome(context, caller, submitted, request, detached=detached)
    return JSONResponse(await _response(context, caller, workflow.id))


@router.get(
    "/{response_id}",
    summary="Read a response",
    description="Read a response. With `stream`, read the events after `starting_after`, also while the response is "
    "in progress.",
    response_model=ResponseObject,
    responses={**_STREAMED, **openai_problems(404)},
)
async def get_response(
    response_id: ResponsePath,
    context: ContextArg,
    caller: CallerArg,
    stream: Annotated[bool, Query(description="Send the response as server-sent events.")] = False,
    starting_after: Annotated[
        int | None, Query(ge=0, le=1_000_000_000, description="The sequence number of the newest event that you have.")
    ] = None,
) -> Response:
    """Read a response."""
    with response_errors(response_id):
        if not stream:
            return JSONResponse(await _response(context, caller, workflow_id(response_id)))
        workflow = await context.find(caller, workflow_id(response_id))
    after = -1 if starting_after is None else starting_after
    chunks = _chunks(context, caller, workflow, after, detached=True)
    return StreamingResponse(chunks, media_type="text/event-stream")


@router.post(
    "/{response_id}/cancel",
    summary="Cancel a response",
    response_model=ResponseObject,
    responses=openai_problems(404, 409),
)
async def cancel_response(response_id: ResponsePath, context: ContextArg, caller: CallerArg) -> Response:
    """Cancel a response in progress. A response that has ended stays unchanged."""
    with response_errors(response_id):
        workflow = await context.find(caller, workflow_id(response_id))
    if await workflow.cancel("cancelled by the client", actor=caller.name) is None:
        with suppress(TimeoutError):  # if the workflow has not ended in time, the answer has its present state
            await workflow.outcome(_CANCEL_TIMEOUT_S)
    return JSONResponse(await _response(context, caller, workflow.id))


def _messages(body: ResponseRequest) -> list[Message]:
    told = [Message("system", body.instructions)] if body.instructions else []
    if isinstance(body.input, str):
        return [*told, Message("user", body.input)]
    return [*told, *(message for item in body.input if (message := _message(item)) is not None)]


def _message(item: Mapping[str, JsonValue]) -> Message | None:
    """Return the message of an item of the input; None for an item of a different type, such as `reasoning`."""
    role = item.get("role")
    if item.get("type", "message") != "message" or not isinstance(role, str):
        return None
    return read_message(role[:50], item.get("content"))


async def _response(context: Context, caller: Caller, workflow: str) -> dict[str, Any]:
    """Read a response from the log of its workflow."""
    view = await context.view(caller, workflow)
    events = ResponseEvents(workflow, view.team)
    outcome, previous = None, None
    try:
        entries = await read_entries(context.client.bus, context.client.subjects, workflow)
    except NotFoundError:
        entries = ()  # the request waits for admission, so there is no log yet
    for entry in entries:
        events.of(entry)
        if isinstance(entry, WorkflowStarted):
            given = entry.metadata.get(PREVIOUS_METADATA)
            previous = given if isinstance(given, str) else None
        elif isinstance(entry, WorkflowEnded):
            outcome = entry.outcome
    status = _STATUSES[view.status]
    return response_body(
        workflow,
        view.team,
        created_at=view.created_at.timestamp(),
        status=status,
        previous=previous,
        outcome=outcome if status in ("completed", "failed", "cancelled") else None,
        work=events.work,
        background=events.background or status == "queued",  # only a response in the background is read while it waits
    )


async def _chunks(
    context: Context, caller: Caller, workflow: Workflow, after: int, *, detached: bool
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a response after a sequence number. If the gateway ends the stream, the client can resume."""
    events = ResponseEvents(workflow.id, workflow.team)
    ended = False
    try:
        async with aclosing(context.streams.follow(workflow)) as items:
            async for item in items:
                if item is None:
                    yield KEEPALIVE_COMMENT
                elif isinstance(item, LogEvent):
                    for event in events.of(item.entry):
                        if event["sequence_number"] > after:
                            yield format_event(event["type"], event)
                    ended = ended or isinstance(item.entry, WorkflowEnded)
    except StreamResetError:
        ended = True  # the gateway stops, so the workflow is not cancelled
    finally:
        if not ended and not detached:
            context.cancel_later(caller, workflow)
