"""Serve chat completions. Each request is a workflow, and the work of the team is the reasoning of the model.

The team runs its own tools. Tool calls are never sent as `tool_calls`, because the client would try to run them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic_core import to_json

from pointsman.client.workflow import Workflow
from pointsman.gateway.callers import Caller
from pointsman.gateway.context import CallerArg, Context, ContextArg, Submitted, derived_key
from pointsman.gateway.feed import StreamResetError
from pointsman.gateway.models import LenientBody
from pointsman.gateway.openai.attachments import files_of
from pointsman.gateway.openai.commentary import Commentary
from pointsman.gateway.openai.housekeeping import housekeeping_answer
from pointsman.gateway.openai.messages import (
    answer_text,
    message_key,
    read_message,
    request_text,
    thread_key,
    turn_text,
)
from pointsman.gateway.openai.models import require_model
from pointsman.gateway.problems import ProblemError, openai_error, openai_problems
from pointsman.gateway.streams import LogEvent
from pointsman.http.sse import KEEPALIVE_COMMENT
from pointsman_schemas.events import Delta, Outcome, Progress, Usage
from pointsman_schemas.ids import MAX_CALLER_ID_CHARS, TOKEN_PATTERN
from pointsman_schemas.log import WorkflowEnded

__all__ = ["IdempotencyKey", "ThreadId", "check_outcome", "router", "wait_for_outcome"]

router = APIRouter(prefix="/v1/chat", tags=["openai"])

_PIECE_CHARS = 200  # largest number of characters of the answer in one chunk
_NO_RETRY = {"x-should-retry": "false"}  # SDKs of OpenAI repeat a request after 409 and 5xx if this header is missing

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=MAX_CALLER_ID_CHARS,
        description="Your name for the request. A repetition of the request with the same key starts no second "
        "workflow. With a key, the workflow continues when the client disconnects.",
    ),
]


ThreadId = Annotated[
    str | None,
    Header(
        alias="x-pointsman-thread",
        pattern=TOKEN_PATTERN,
        description="The id of one of your threads. The request becomes the next turn of the thread. Earlier messages "
        "of the request are ignored, because the thread contains the earlier turns.",
    ),
]


class ChatMessage(BaseModel):
    """A message. Unknown fields are ignored."""

    model_config = ConfigDict(extra="allow")

    role: str = Field(min_length=1, max_length=50, description="The role, such as `system`, `user` or `assistant`.")
    content: str | list[dict[str, JsonValue]] | None = Field(
        default=None,
        description="The text, or a list of parts. Parts are texts and files.",
    )


class StreamOptions(BaseModel):
    """Options of a stream. Unknown fields are ignored."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool | None = Field(default=None, description="Send a last chunk with the usage.")


class ChatRequest(LenientBody):
    """A chat completion. Unknown fields are ignored, because a team has its own models and tools."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1, description="The team.")
    messages: list[ChatMessage] = Field(
        min_length=1, description="The conversation. The newest message of the user is the request."
    )
    stream: bool | None = Field(default=None, description="Send the completion as server-sent events.")
    stream_options: StreamOptions | None = Field(default=None, description="Options of the stream.")


class ChatAnswer(BaseModel):
    """The message of a completion."""

    role: Literal["assistant"] = Field(default="assistant", description="Always `assistant`.")
    content: str = Field(description="The answer of the team.")
    reasoning_content: str | None = Field(default=None, description="The work of the team, one line for each event.")


class ChatChoice(BaseModel):
    """The only choice of a completion."""

    index: int = Field(default=0, description="Always 0.")
    message: ChatAnswer = Field(description="The message.")
    finish_reason: Literal["stop"] = Field(default="stop", description="Always `stop`.")


class ChatUsage(BaseModel):
    """Numbers of tokens of all model calls of a workflow."""

    prompt_tokens: int = Field(description="Tokens of the prompts.")
    completion_tokens: int = Field(description="Tokens of the answers.")
    total_tokens: int = Field(description="Tokens of prompts and answers.")

    @classmethod
    def of(cls, usage: Usage) -> ChatUsage:
        """Return the usage of a workflow.

        Args:
            usage: The usage.
        """
        return cls(prompt_tokens=usage.input_tokens, completion_tokens=usage.output_tokens, total_tokens=usage.tokens)


class ChatCompletion(BaseModel):
    """A completion."""

    id: str = Field(description="The id: `chatcmpl-` and the id of the workflow.")
    object: Literal["chat.completion"] = Field(default="chat.completion", description="Always `chat.completion`.")
    created: int = Field(description="Time in seconds since 1970.")
    model: str = Field(description="The team.")
    choices: list[ChatChoice] = Field(description="The only choice.")
    usage: ChatUsage = Field(description="Usage of the workflow.")


@router.post(
    "/completions",
    summary="Complete a chat",
    description="Send the newest message of a conversation to a team, with the earlier messages as data. With "
    "`stream`, the response is a stream of server-sent events, with the work of the team as "
    "`reasoning_content` and then the answer as `content`. If the client disconnects, the workflow of a request "
    "without an `Idempotency-Key` is cancelled.",
    response_model=ChatCompletion,
    responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "The completion."},
        **openai_problems(404, 409, 410),
    },
)
async def complete_chat(
    body: ChatRequest,
    request: Request,
    context: ContextArg,
    caller: CallerArg,
    idempotency_key: IdempotencyKey = None,
    thread_id: ThreadId = None,
) -> Response:
    """Complete a chat."""
    team = await require_model(context, caller, body.model)
    messages = [read_message(each.role, each.content) for each in body.messages]
    usage = bool(body.stream_options and body.stream_options.include_usage)
    local = housekeeping_answer(messages)
    if local is not None:
        return _local_response(_Completion("chatcmpl-local", team), local, stream=bool(body.stream), usage=usage)
    headers = dict(request.headers)
    key = message_key(headers)
    thread = thread_key(headers, messages)
    submitted = await context.submit(
        caller,
        team,
        turn_text(messages) if thread_id else request_text(messages),
        thread=thread_id,
        files=await files_of(context, caller, messages[-1:] if thread_id else messages),
        key=derived_key("chat", idempotency_key or key or "") if idempotency_key or key else None,
        correlation_id=thread,
    )
    workflow = submitted.workflow
    completion = _Completion(f"chatcmpl-{workflow.id}", team)
    detached = idempotency_key is not None
    named = {"x-workflow-id": workflow.id}
    if body.stream:
        status = any(name.startswith("x-openwebui-") for name in headers)
        chunks = _chunks(context, caller, workflow, completion, usage=usage, status=status, detached=detached)
        return StreamingResponse(chunks, media_type="text/event-stream", headers=named)
    outcome = await wait_for_outcome(context, caller, submitted, request, detached=detached)
    check_outcome(outcome)
    return JSONResponse(completion.whole(answer_text(outcome), outcome.usage), headers=named)


async def wait_for_outcome(
    context: Context, caller: Caller, submitted: Submitted, request: Request, *, detached: bool
) -> Outcome:
    """Wait for the outcome of a workflow.

    Args:
        context: The parts of the gateway.
        caller: The caller.
        submitted: The workflow.
        request: The HTTP request. Read its body first, because this function discards what the client sends.
        detached: True if the workflow continues when the client disconnects.

    Returns:
        The outcome.

    Raises:
        ProblemError: The client disconnected before the outcome.
    """
    waiting = asyncio.ensure_future(context.outcome(submitted))
    leaving = asyncio.ensure_future(_client_left(request))
    try:
        await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done() and not detached:
            context.cancel_later(caller, submitted.workflow)
        if not waiting.done():
            raise ProblemError(499, "client_left", "the client has disconnected before the answer")
        return waiting.result()
    finally:
        for task in (waiting, leaving):
            task.cancel()


async def _client_left(request: Request) -> None:
    """Return when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def check_outcome(outcome: Outcome) -> None:
    """Refuse an outcome without an answer.

    Args:
        outcome: The outcome.

    Raises:
        ProblemError: The workflow failed or was cancelled.
    """
    if outcome.status in ("failed", "cancelled"):
        raise ProblemError(
            500 if outcome.status == "failed" else 409,
            f"workflow_{outcome.status}",
            f"workflow {outcome.workflow_id} {outcome.status}: {outcome.reason}",
            headers=_NO_RETRY,
        )


class _Completion:
    """Writes the chunks of one completion."""

    def __init__(self, id: str, model: str) -> None:
        self._head: dict[str, Any] = {"id": id, "created": int(time.time()), "model": model}

    def chunk(self, delta: Mapping[str, Any], *, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _frame({**self._head, "object": "chat.completion.chunk", "choices": [choice]})

    def answer(self, text: str, usage: Usage | None) -> list[bytes]:
        pieces = [text[start : start + _PIECE_CHARS] for start in range(0, len(text), _PIECE_CHARS)]
        frames = [self.chunk({"content": piece}) for piece in pieces]
        frames.append(self.chunk({}, finish="stop"))
        if usage is not None:
            counted = ChatUsage.of(usage).model_dump()
            frames.append(_frame({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": counted}))
        return [*frames, b"data: [DONE]\n\n"]

    def whole(self, text: str, usage: Usage) -> dict[str, Any]:
        completion = ChatCompletion(
            **self._head, choices=[ChatChoice(message=ChatAnswer(content=text))], usage=ChatUsage.of(usage)
        )
        return completion.model_dump(mode="json", exclude_none=True)


def _local_response(completion: _Completion, text: str, *, stream: bool, usage: bool) -> Response:
    if not stream:
        return JSONResponse(completion.whole(text, Usage()))
    begin = completion.chunk({"role": "assistant", "content": ""})
    frames = [begin, *completion.answer(text, Usage() if usage else None)]
    return Response(b"".join(frames), media_type="text/event-stream")


async def _chunks(
    context: Context,
    caller: Caller,
    workflow: Workflow,
    completion: _Completion,
    *,
    usage: bool,
    status: bool,
    detached: bool,
) -> AsyncGenerator[bytes, None]:
    """Yield the work as reasoning, and then the answer. With `status`, also yield status frames for Open WebUI."""
    ended = False
    commentary = Commentary()
    try:
        yield completion.chunk({"role": "assistant", "content": ""})
        async with aclosing(context.streams.follow(workflow, live=True)) as items:
            async for item in items:
                match item:
                    case None:
                        yield KEEPALIVE_COMMENT
                    case Delta():
                        yield completion.chunk({"reasoning_content": item.text})
                    case Progress() if item.kind == "tool":
                        yield completion.chunk({"reasoning_content": f"{item.agent} uses {item.name}\n"})
                    case LogEvent(entry=WorkflowEnded() as end):
                        ended = True
                        if status:
                            yield _status("Done", done=True)
                        try:
                            check_outcome(end.outcome)
                        except ProblemError as problem:
                            yield _frame(openai_error(problem))
                            continue
                        for frame in completion.answer(answer_text(end.outcome), end.outcome.usage if usage else None):
                            yield frame
                    case LogEvent():
                        if line := commentary.line(item.entry):
                            yield completion.chunk({"reasoning_content": f"{line}\n"})
                            if status:
                                yield _status(line, done=False)
    except StreamResetError:
        ended = True  # the gateway stops, so the workflow is not cancelled
        detail = "the gateway stops; send the request again; with an Idempotency-Key, use the same key"
        yield _frame(openai_error(ProblemError(503, "gateway_stopping", detail)))
    finally:
        if not ended and not detached:
            context.cancel_later(caller, workflow)


def _status(description: str, *, done: bool) -> bytes:
    return _frame({"event": {"type": "status", "data": {"description": description, "done": done}}})


def _frame(data: object) -> bytes:
    return b"data: " + to_json(data) + b"\n\n"
