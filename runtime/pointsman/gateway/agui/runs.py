"""Run a team for a front end that uses AG-UI.

A run begins a workflow and streams its events. If the workflow waits for answers, the run ends with interrupts. A later
run of the thread has the answers in `resume`, and continues the same workflow.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated

from ag_ui.core import BaseEvent, ResumeEntry, RunAgentInput
from ag_ui.encoder import EventEncoder
from fastapi import APIRouter, Path
from pydantic import ConfigDict, Field, JsonValue, ValidationError
from starlette.responses import StreamingResponse

from pointsman.client.workflow import Workflow
from pointsman.gateway.agui.events import RunEvents
from pointsman.gateway.callers import Caller
from pointsman.gateway.context import CallerArg, Context, ContextArg, derived_key
from pointsman.gateway.feed import StreamResetError
from pointsman.gateway.models import LenientBody
from pointsman.gateway.openai.attachments import files_of
from pointsman.gateway.openai.chat import IdempotencyKey
from pointsman.gateway.openai.messages import read_message, request_text
from pointsman.gateway.openai.models import require_model
from pointsman.gateway.problems import ProblemError, problems
from pointsman.gateway.streams import LogEvent, Position
from pointsman.http.sse import KEEPALIVE_COMMENT
from pointsman_schemas.events import Question
from pointsman_schemas.ids import TOKEN_PATTERN
from pointsman_schemas.log import QuestionAsked, WorkflowEnded
from pointsman_schemas.strict_json import describe, first_fault_validator

__all__ = ["router"]

router = APIRouter(prefix="/v1/agui", tags=["agui"])

_ANSWER_TIMEOUT_S = 10.0  # seconds to wait until a supervisor has read an answer
_ROLES = ("system", "developer", "user", "assistant")
_encoder = EventEncoder()


class RunInput(LenientBody):
    """A `RunAgentInput` of AG-UI 1.0, with all fields of the protocol."""

    model_config = ConfigDict(extra="allow")

    threadId: str = Field(description="The conversation.")
    runId: str = Field(description="The id of the run: your name for the request within the conversation.")
    messages: list[dict[str, JsonValue]] = Field(description="The conversation so far, as messages of AG-UI.")
    resume: list[dict[str, JsonValue]] | None = Field(
        default=None, description="The answers to all interrupts of an earlier run."
    )


@router.post(
    "/{team}",
    summary="Run a team",
    description="Run a team through the Agent User Interaction Protocol (AG-UI 1.0). The response is a stream of AG-UI "
    "events. A repeated request with the same `runId` and thread starts no second workflow. A run that waits for "
    "answers finishes with the outcome `interrupt`. A later run with `resume` answers all interrupts and continues "
    "the workflow. When the client disconnects, the workflow is cancelled, unless the request has an "
    "`Idempotency-Key`.",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}, **problems(404, 409, 410)},
)
async def run(
    team: Annotated[str, Path(pattern=TOKEN_PATTERN, description="The team.")],
    given: RunInput,
    context: ContextArg,
    caller: CallerArg,
    idempotency_key: IdempotencyKey = None,
) -> StreamingResponse:
    """Run a team."""
    await require_model(context, caller, team)
    body = _parse(given.model_dump())
    shown: Sequence[LogEvent] = ()
    if body.resume:
        workflow, shown = await _resume(context, caller, team, body.resume)
    else:
        messages = [read_message(each.role, _content(each)) for each in body.messages if each.role in _ROLES]
        submitted = await context.submit(
            caller,
            team,
            request_text(messages),
            key=derived_key("agui", body.thread_id, idempotency_key or body.run_id),
            correlation_id=None,
            files=await files_of(context, caller, messages),
        )
        workflow = submitted.workflow
    events = RunEvents(body.thread_id, body.run_id, workflow.id, workflow.team)
    for each in shown:
        events.recall(each.entry)
    after = shown[-1].position if shown else None
    return StreamingResponse(
        _stream(context, caller, workflow, events, after, detached=idempotency_key is not None),
        media_type=_encoder.get_content_type(),
        headers={"x-workflow-id": workflow.id},
    )


def _parse(given: Mapping[str, JsonValue]) -> RunAgentInput:
    try:
        run: RunAgentInput = first_fault_validator(RunAgentInput).validate_python(given)
    except ValidationError as error:
        raise ProblemError(
            422, "invalid_request", f"the body is not a RunAgentInput of AG-UI: {describe(error)}"
        ) from None
    return run


def _content(message: object) -> object:
    content = getattr(message, "content", None)
    if not isinstance(content, list):
        return content
    return [part.model_dump(by_alias=True) for part in content]


async def _stream(
    context: Context, caller: Caller, workflow: Workflow, events: RunEvents, after: Position | None, *, detached: bool
) -> AsyncGenerator[bytes, None]:
    ended = False
    try:
        for event in events.start():
            yield _frame(event)
        async with aclosing(context.streams.follow(workflow, after=after, live=True)) as items:
            async for item in items:
                if item is None:
                    yield KEEPALIVE_COMMENT
                    continue
                for event in events.entry(item.entry) if isinstance(item, LogEvent) else events.live(item):
                    yield _frame(event)
                if not isinstance(item, LogEvent):
                    continue
                ended = isinstance(item.entry, WorkflowEnded)
                if isinstance(item.entry, QuestionAsked):
                    while not (waiting := await _open_questions(context, workflow)):
                        if context.streams.stopping.is_set() or not await _is_asking(context, workflow):
                            break
                        yield KEEPALIVE_COMMENT  # the supervisor has committed the question, but stores it late
                    if waiting:
                        ended = True
                        for event in events.interrupt(waiting):
                            yield _frame(event)
                        return
    except StreamResetError:
        ended = True  # the gateway stops, so the workflow is not cancelled
        for event in events.fail("the gateway stops; send the run again", "gateway_stopping"):
            yield _frame(event)
    finally:
        if not ended and not detached:
            context.cancel_later(caller, workflow)


async def _open_questions(context: Context, workflow: Workflow) -> Sequence[Question]:
    """Return the open questions of a workflow.

    The list is empty if all questions have been answered by now, or if no question was stored within some seconds.
    """
    return await context.client.operations.questions(workflow.id)


async def _is_asking(context: Context, workflow: Workflow) -> bool:
    """Return True if the log of a workflow names an open question."""
    details = await context.client.details(workflow.id)
    return details is not None and bool(details.questions)


def _frame(event: BaseEvent) -> bytes:
    return _encoder.encode(event).encode()


async def _resume(
    context: Context, caller: Caller, team: str, answers: Sequence[ResumeEntry]
) -> tuple[Workflow, Sequence[LogEvent]]:
    """Answer the interrupts of a workflow.

    Returns:
        The workflow, and the entries of the log up to the newest answered question.

    Raises:
        ProblemError: The answers belong to several workflows or to another team, an open question has no answer, or an
            answer is too late.
        NotFoundError: There is no such workflow.
    """
    ids = {each.interrupt_id: each for each in answers}
    # the id of an interrupt is the id of a question, which begins with the id of the workflow
    workflows = {name.rpartition("-")[0] or name for name in ids}
    if len(workflows) != 1:
        raise ProblemError(
            422, "several_workflows", "resume answers the interrupts of several runs; answer the interrupts of one run"
        )
    workflow = await context.find(caller, workflows.pop())
    if workflow.team != team:
        raise ProblemError(422, "wrong_team", f"the interrupts belong to the team {workflow.team}, and not to {team}")
    waiting = {question.id: question for question in await context.client.operations.questions(workflow.id)}
    if missing := sorted(waiting.keys() - ids.keys()):
        raise ProblemError(
            409, "interrupts_open", f"resume has no answer to {', '.join(missing)}; answer all open interrupts together"
        )
    history = [event async for event in context.streams.history(workflow)]
    asked = {event.entry.question: at for at, event in enumerate(history) if isinstance(event.entry, QuestionAsked)}
    if unknown := sorted(ids.keys() - asked.keys()):
        raise ProblemError(404, "unknown_interrupt", f"the workflow has no question {', '.join(unknown)}")
    for name, entry in ids.items():
        if (question := waiting.get(name)) is not None:
            await _answer(context, caller, question, entry)
    return workflow, history[: max(asked[name] for name in ids) + 1]


async def _answer(context: Context, caller: Caller, question: Question, entry: ResumeEntry) -> None:
    operations, actor, timeout = context.client.operations, caller.name, _ANSWER_TIMEOUT_S
    payload = entry.payload
    if entry.status == "cancelled":
        reason = "cancelled by the user"
        result = await operations.reject(question.id, reason=reason, actor=actor, timeout=timeout)
    elif question.about == "information":
        result = await operations.answer(question.id, payload, actor=actor, timeout=timeout)
    else:
        given = payload if isinstance(payload, Mapping) else {"approved": payload is not False}
        if given.get("approved", True):
            result = await operations.approve(question.id, input=given.get("input"), actor=actor, timeout=timeout)
        else:
            reason = str(given.get("reason", ""))
            result = await operations.reject(question.id, reason=reason, actor=actor, timeout=timeout)
    if result.counted is False:
        raise ProblemError(409, "answer_late", f"the answer to {question.id} does not count: {result.message}")
