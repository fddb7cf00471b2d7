"""Serve the Tasks extension of MCP.

The id of a task is the id of its workflow. Each replica of the gateway can read the workflow from the log, so any
replica can serve any task.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal

import mcp.types as types
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver.server import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from pydantic import Field

from pointsman.client.workflow import Workflow
from pointsman.errors import NotFoundError
from pointsman.gateway.mcp.backend import Backend
from pointsman.gateway.mcp.calls import cancel_workflow, cancelling, result_files
from pointsman.gateway.mcp.elicitation import answer_questions, elicitation_of, open_questions
from pointsman.gateway.mcp.status_messages import StatusMessages
from pointsman.gateway.mcp.tools import outcome_result
from pointsman.gateway.models import OutcomeView, WorkflowStatus, WorkflowView
from pointsman_schemas.ids import is_token

__all__ = ["EXTENSION", "TaskParams", "TaskUpdateParams", "cancel_task", "create_task", "declares_tasks", "get_task",
           "update_task"]  # fmt: skip

EXTENSION = "io.modelcontextprotocol/tasks"
"""The identifier of the extension."""

_IMMEDIATE_S = 0.5  # seconds to wait for the outcome; if the workflow ends within this time, no task is created
_POLL_INTERVAL_MS = 1_000
"""Milliseconds that a client is asked to wait between two requests for the state of a task."""

TaskStatus = Literal["working", "input_required", "completed", "cancelled"]


class TaskParams(types.RequestParams):
    """The parameters of tasks/get and tasks/cancel."""

    task_id: str = Field(alias="taskId", description="The id of the task, which is the id of its workflow.")


class TaskUpdateParams(TaskParams):
    """The parameters of tasks/update."""

    input_responses: dict[str, Any] = Field(
        default={}, alias="inputResponses", description="Responses to elicitations, by the ids of the questions."
    )


def declares_tasks(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Return True if the client declares the extension.

    Args:
        ctx: The context of the request.
    """
    capabilities = ctx.session.client_capabilities
    return EXTENSION in ((capabilities.extensions if capabilities else None) or {})


async def create_task(
    workflow: Workflow, backend: Backend, messages: StatusMessages
) -> types.CallToolResult | dict[str, Any]:
    """Answer a call with a task, or with the result if the workflow ends at once.

    The request of the workflow is already stored, so tasks/get finds the task at once at any replica.

    Args:
        workflow: The workflow.
        backend: The operations for the caller.
        messages: The status messages of the server.

    Returns:
        The result of the call, or the task.
    """
    with suppress(TimeoutError):
        # A client that disconnects here has not received the id of a task, so it can never ask for the result. In this
        # case, `cancelling` cancels the workflow.
        async with cancelling(workflow, backend):
            outcome = await workflow.outcome(_IMMEDIATE_S)
        return outcome_result(workflow.id, OutcomeView.of(outcome), await result_files(backend, workflow.id))
    messages.follow(workflow, backend)
    now = datetime.now(UTC)
    return {"resultType": "task", **_task(workflow.id, "working", now, now)}


async def get_task(
    ctx: ServerRequestContext[Any, Any], params: TaskParams, backend: Backend, messages: StatusMessages
) -> dict[str, Any]:
    """Return the state of a task, with the result if the task has ended, and with the open questions.

    The status message of a running task is the newest line about the work, as in a progress notification.

    Args:
        ctx: The context of the request.
        params: The parameters.
        backend: The operations for the caller.
        messages: The status messages of the server.

    Returns:
        The task.
    """
    view = await _view(ctx, params, backend)
    status = _status(view.status)
    more: dict[str, Any] = {}
    if view.outcome is not None and status == "completed":
        result = outcome_result(view.id, view.outcome, await result_files(backend, view.id))
        more["result"] = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    elif view.outcome is not None:
        more["statusMessage"] = view.outcome.reason
    elif status == "input_required":
        asked = await open_questions(backend, view.id)
        if asked:
            more["inputRequests"] = {
                each.id: elicitation_of(each).model_dump(mode="json", by_alias=True, exclude_none=True)
                for each in asked
            }
        else:
            status = "working"  # the workflow waits, but its question is not stored yet, so it cannot be answered yet
    updated_at = await _updated_at(view, backend)
    if status == "working" and (message := await messages.newest(view.id, backend)) is not None:
        more["statusMessage"] = message.text
        updated_at = max(updated_at, message.at)
    return _task(view.id, status, view.created_at, updated_at) | more


async def update_task(
    ctx: ServerRequestContext[Any, Any], params: TaskUpdateParams, backend: Backend
) -> dict[str, Any]:
    """Answer questions of the workflow with the responses to elicitations.

    Args:
        ctx: The context of the request.
        params: The parameters.
        backend: The operations for the caller.

    Returns:
        An empty result.

    Raises:
        MCPError: A response is not valid, so its question is still open.
    """
    view = await _view(ctx, params, backend)
    responses: dict[str, types.ElicitResult] = {}
    questions = await open_questions(backend, view.id)
    for question in questions:
        if (given := params.input_responses.get(question.id)) is not None:
            responses[question.id] = types.ElicitResult.model_validate(given)
    problems = await answer_questions(backend, questions, responses)
    if problems:
        raise MCPError(types.INVALID_PARAMS, "; ".join(f"{id}: {text}" for id, text in problems.items()))
    return {}


async def cancel_task(ctx: ServerRequestContext[Any, Any], params: TaskParams, backend: Backend) -> dict[str, Any]:
    """Request the cancellation of the workflow of a task. A task that has ended stays unchanged.

    Args:
        ctx: The context of the request.
        params: The parameters.
        backend: The operations for the caller.

    Returns:
        An empty result.
    """
    view = await _view(ctx, params, backend)
    if view.outcome is None:
        await cancel_workflow(await backend.find(view.id), backend, "the MCP client cancelled the task")
    return {}


async def _view(ctx: ServerRequestContext[Any, Any], params: TaskParams, backend: Backend) -> WorkflowView:
    require_client_extension(ctx, EXTENSION)
    headers = getattr(ctx.request, "headers", None)
    if headers is not None and decode_header_value(headers.get(MCP_NAME_HEADER)) not in (None, params.task_id):
        raise MCPError(types.HEADER_MISMATCH, "the header Mcp-Name is not the taskId of the body; send equal values")
    if is_token(params.task_id):
        try:
            return await backend.view(params.task_id)
        except NotFoundError:
            pass
    raise MCPError(types.INVALID_PARAMS, f"you have no task {params.task_id[:100]!r}; check the taskId")


def _status(status: WorkflowStatus) -> TaskStatus:
    match status:
        case "completed" | "partial" | "failed":
            # In MCP, an error of a tool is a result. So the task of a failed workflow is completed, too.
            return "completed"
        case "cancelled":
            return "cancelled"
        case "waiting_for_answer":
            return "input_required"
        case _:
            return "working"


async def _updated_at(view: WorkflowView, backend: Backend) -> datetime:
    newest = await backend.client.bus.last("log", backend.client.subjects.workflow_log(view.id))
    return view.created_at if newest is None else max(newest.at, view.created_at)


def _task(id: str, status: TaskStatus, created_at: datetime, updated_at: datetime) -> dict[str, Any]:
    return {
        "taskId": id,
        "status": status,
        "createdAt": created_at.isoformat(),
        "lastUpdatedAt": updated_at.isoformat(),
        "ttlMs": None,  # no limit here, but retention of the log removes the workflow some days after its end
        "pollIntervalMs": _POLL_INTERVAL_MS,
    }
