"""Serve a call of a tool: begin a workflow, report progress, put questions to the client, and return the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from time import monotonic
from typing import Any, TypeAlias

import anyio
import mcp.types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from pointsman.client.workflow import Workflow
from pointsman.errors import BusUnavailableError, ContractError, NotFoundError, PeerError, PointsmanError
from pointsman.gateway.mcp.backend import Backend, CallRefusedError, find_tool
from pointsman.gateway.mcp.elicitation import answer_questions, elicitation_of, form_of, may_elicit, open_questions
from pointsman.gateway.mcp.tools import META_PREFIX, Narrator, TeamTool, error_result, outcome_result
from pointsman.gateway.models import OutcomeView
from pointsman.telemetry import get_logger
from pointsman_schemas.events import Outcome, Question
from pointsman_schemas.files import File
from pointsman_schemas.ids import is_token
from pointsman_schemas.log import QuestionAsked

__all__ = ["CallResult", "begin_workflow", "cancel_workflow", "cancelling", "result_files", "serve_call"]

_log = get_logger(__name__)

CallResult: TypeAlias = "types.CallToolResult | types.InputRequiredResult"

_CANCEL_TIMEOUT_S = 10.0  # seconds to send the cancellation of an abandoned call
_QUESTION_TIMEOUT_S = 10.0  # seconds to wait until a question that the log names is stored
_POLL_INTERVAL_S = 0.1
_RESTART_S = 3.0  # seconds to wait for a supervisor of the team
_MAX_KEY_CHARS = 200
_FIRST_WITH_INPUT_REQUIRED = "2026-07-28"  # the first version of MCP in which a result may ask for input


async def serve_call(
    ctx: ServerRequestContext[Any, Any], params: types.CallToolRequestParams, backend: Backend
) -> CallResult:
    """Serve a call up to the outcome, or up to a question that the client must put to a person.

    If the call is cancelled, the workflow is cancelled. If the process stops, the call ends and the workflow continues.
    The client then calls again with the request state of the result.

    Args:
        ctx: The context of the request.
        params: The parameters of the call.
        backend: The operations for the caller.

    Returns:
        The result.
    """
    problems: dict[str, str] = {}
    try:
        if params.request_state is None:
            workflow = await begin_workflow(params, backend)
            since = None
        else:
            workflow, problems = await _resume(params, backend)
            since = datetime.now(UTC)
    except (ContractError, CallRefusedError, PeerError) as error:
        return error_result(str(error))
    return await _wait(
        ctx, workflow, backend, since=since, answered=frozenset(params.input_responses or ()) - set(problems),
        problems=problems,
    )  # fmt: skip


async def begin_workflow(params: types.CallToolRequestParams, backend: Backend) -> Workflow:
    """Publish the request of a call.

    Args:
        params: The parameters of the call.
        backend: The operations for the caller.

    Returns:
        The workflow.

    Raises:
        MCPError: There is no such tool for the caller.
    """
    tool = await _tool(params, backend)
    given = dict(params.meta or {}).get(f"{META_PREFIX}idempotencyKey")
    key = given if isinstance(given, str) and 0 < len(given) <= _MAX_KEY_CHARS else None
    return await backend.submit(tool.name, tool.request_of(params.arguments or {}), key)


async def _wait(
    ctx: ServerRequestContext[Any, Any],
    workflow: Workflow,
    backend: Backend,
    *,
    since: datetime | None = None,
    answered: frozenset[str] = frozenset(),
    problems: Mapping[str, str] | None = None,
) -> CallResult:
    """Wait for the outcome of a workflow, or for a question that the client must put to a person.

    Args:
        ctx: The context of the request.
        workflow: The workflow.
        backend: The operations for the caller.
        since: Report the progress of entries after this time. Default: all entries.
        answered: Questions that this call does not put to the person again, because the person has answered them or
            closed their forms.
        problems: By question, the reason why an answer was not accepted. The reason is shown with the question.

    Returns:
        The result.
    """
    follower = _Follower(ctx, workflow, backend, since, answered, dict(problems or {}))
    try:
        async with cancelling(workflow, backend):
            return await follower.run()
    except PointsmanError as error:
        return error_result(str(error), workflow.id)


@asynccontextmanager
async def cancelling(workflow: Workflow, backend: Backend) -> AsyncIterator[None]:
    """Cancel a workflow if the call that waits for the workflow is cancelled. Do nothing if the whole process stops.

    Args:
        workflow: The workflow.
        backend: The operations for the caller.

    Yields:
        Nothing; wait here.
    """
    try:
        yield
    except anyio.get_cancelled_exc_class():
        if not backend.stopping:
            with anyio.move_on_after(_CANCEL_TIMEOUT_S, shield=True):
                await cancel_workflow(workflow, backend, "the MCP client cancelled the call")
        raise


async def cancel_workflow(workflow: Workflow, backend: Backend, reason: str) -> None:
    """Request the end of a workflow. A workflow that has ended stays unchanged.

    Args:
        workflow: The workflow.
        backend: The operations for the caller.
        reason: The reason.
    """
    try:
        await workflow.cancel(reason, actor=backend.actor)
    except (BusUnavailableError, NotFoundError) as error:
        _log.info("mcp_cancel_failed", workflow=workflow.id, error=str(error), hint="the deadline ends the workflow")


async def result_files(backend: Backend, workflow: str) -> list[File]:
    """Return the files that the tasks of a workflow returned.

    Args:
        backend: The operations for the caller.
        workflow: The workflow.

    Returns:
        The files, in the order of the log; an empty list if the caller may not read the log.
    """
    with suppress(PointsmanError):
        return [each.file for each in await backend.client.files(workflow) if each.origin != "request"]
    return []


async def _tool(params: types.CallToolRequestParams, backend: Backend) -> TeamTool:
    """Return the tool of a call.

    A tool is missing for some seconds while its supervisor restarts or just after the gateway has started, so wait up
    to `_RESTART_S`.

    Raises:
        MCPError: There is no such tool for the caller.
    """
    until = monotonic() + _RESTART_S
    while True:
        if (tool := await find_tool(backend, params.name)) is not None:
            return tool
        if monotonic() >= until:
            break
        await asyncio.sleep(_POLL_INTERVAL_S)
    raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name[:80]!r} for you; tools/list lists your tools")


async def _resume(params: types.CallToolRequestParams, backend: Backend) -> tuple[Workflow, dict[str, str]]:
    """Find the workflow that the request state names, and answer its questions with the responses of this call.

    The state is the id of the workflow. The state needs no signature, because a caller can only find its own workflows.

    Returns:
        The workflow, and by question the reason why an answer was not accepted.

    Raises:
        MCPError: The state names no workflow of the tool.
    """
    state = params.request_state or ""
    workflow: Workflow | None = None
    with suppress(NotFoundError):
        workflow = await backend.find(state) if is_token(state) else None
    if workflow is None or workflow.team != params.name:
        raise MCPError(
            types.INVALID_PARAMS, "this tool has not sent this request state; call again without a request state"
        )
    problems: dict[str, str] = {}
    if params.input_responses:
        questions = await open_questions(backend, workflow.id)
        problems = await answer_questions(backend, questions, params.input_responses)
    return workflow, problems


class _Follower:
    """Follows one workflow for one call."""

    def __init__(
        self,
        ctx: ServerRequestContext[Any, Any],
        workflow: Workflow,
        backend: Backend,
        since: datetime | None,
        answered: frozenset[str],
        problems: dict[str, str],
    ) -> None:
        self._ctx = ctx
        self._workflow = workflow
        self._backend = backend
        self._since = since
        self._answered = answered
        self._problems = problems
        self._elicits = may_elicit(ctx)
        self._reports = 0
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> CallResult:
        narrator = Narrator()
        outcome: Outcome | None = None
        try:
            async with aclosing(self._backend.follow(self._workflow)) as items:
                async for item in items:
                    if isinstance(item, Outcome):
                        outcome = item
                    elif item is not None:
                        await self._report(narrator.line(item), item)
                        if isinstance(item, QuestionAsked) and (asked := await self._ask(item.question)) is not None:
                            return asked
        finally:
            for task in self._asking.values():
                task.cancel()
        if outcome is None:
            return self._given_up()
        view = OutcomeView.of(outcome)
        return outcome_result(self._workflow.id, view, await result_files(self._backend, self._workflow.id))

    async def _report(self, line: str, item: object) -> None:
        at = getattr(item, "at", None)
        if not line or (self._since is not None and at is not None and at < self._since):
            return
        self._reports += 1
        await self._ctx.session.report_progress(float(self._reports), message=line)

    async def _ask(self, id: str) -> types.InputRequiredResult | None:
        """Put a question to a person: by a request to the client if possible, otherwise as the result of this call."""
        if not self._elicits or id in self._answered:
            return None
        question = await self._find(id)
        if question is None:
            return None  # the question has already been answered
        if self._ctx.session.can_send_request:
            self._asking[id] = asyncio.create_task(self._elicit(question))
            return None
        if self._ctx.protocol_version < _FIRST_WITH_INPUT_REQUIRED:
            return None
        return types.InputRequiredResult(
            input_requests={
                each.id: elicitation_of(each, self._problems.get(each.id, ""))
                for each in await open_questions(self._backend, self._workflow.id)
                if each.id not in self._answered
            },
            request_state=self._workflow.id,
        )

    async def _find(self, id: str) -> Question | None:
        """Return an open question. The log names a question before the question is stored, so wait until then."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_QUESTION_TIMEOUT_S):
                while id in (await self._backend.view(self._workflow.id)).questions:
                    for question in await open_questions(self._backend, self._workflow.id):
                        if question.id == id:
                            return question
                    await asyncio.sleep(_POLL_INTERVAL_S)
        return None

    async def _elicit(self, question: Question) -> None:
        problem = ""
        while True:
            try:
                request = elicitation_of(question, problem)
                assert isinstance(request.params, types.ElicitRequestFormParams)
                response = await self._ctx.session.elicit_form(
                    request.params.message, form_of(question), self._ctx.request_id
                )
                problems = await answer_questions(self._backend, [question], {question.id: response})
            except (MCPError, PointsmanError) as error:
                _log.info(
                    "mcp_question_not_put",
                    question=question.id,
                    error=str(error),
                    hint="answer the question with `pointsman answer`",
                )
                return
            if not (problem := problems.get(question.id, "")):
                return

    def _given_up(self) -> CallResult:
        """Return the result of a call that ends because the process stops. The workflow continues."""
        if self._ctx.protocol_version >= _FIRST_WITH_INPUT_REQUIRED:
            return types.InputRequiredResult(request_state=self._workflow.id)
        return error_result(
            f"the gateway stops, and workflow {self._workflow.id} continues; read its outcome as a resource later",
            self._workflow.id,
        )
