"""Make an MCP server that offers teams as tools, workflows as tasks, and outcomes and files as resources."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from importlib.metadata import version
from typing import Any, TypeAlias, TypeVar

import mcp.types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError

from pointsman.errors import ContractError, NotFoundError, PeerError
from pointsman.gateway.mcp.backend import Backend, CallRefusedError
from pointsman.gateway.mcp.calls import begin_workflow, serve_call
from pointsman.gateway.mcp.resources import TEMPLATES, list_resources, read_resource
from pointsman.gateway.mcp.status_messages import StatusMessages
from pointsman.gateway.mcp.tasks import (
    EXTENSION,
    TaskParams,
    TaskUpdateParams,
    cancel_task,
    create_task,
    declares_tasks,
    get_task,
    update_task,
)
from pointsman.gateway.mcp.tools import error_result

__all__ = ["BackendOf", "make_server"]

RequestContext: TypeAlias = "ServerRequestContext[Any, Any]"
BackendOf: TypeAlias = "Callable[[RequestContext], Backend]"
"""Returns the backend with the operations for the caller of a request."""

_Params = TypeVar("_Params")
_Result = TypeVar("_Result")

_INSTRUCTIONS = (
    "Each tool is a team of agents. A call sends the whole request and returns the answer of the team. A call may "
    "take minutes, so ask for progress notifications, or declare the Tasks extension. The team may put questions to a "
    "person."
)


def make_server(backend_of: BackendOf) -> Server[dict[str, Any]]:
    """Make a server.

    Args:
        backend_of: Returns the backend with the operations for the caller of a request.

    Returns:
        The server. The only state that it keeps for clients is status messages, and another server can make these
        again.
    """
    messages = StatusMessages()

    async def list_tools(ctx: RequestContext, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool.as_tool() for tool in await backend_of(ctx).tools()])

    async def call_tool(ctx: RequestContext, params: types.CallToolRequestParams) -> Any:
        backend = backend_of(ctx)
        if not declares_tasks(ctx) or params.request_state is not None:
            return await serve_call(ctx, params, backend)
        try:
            workflow = await begin_workflow(params, backend)
        except (ContractError, CallRefusedError, PeerError) as error:
            return error_result(str(error))
        return await create_task(workflow, backend, messages)

    async def resources(ctx: RequestContext, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        return await list_resources(params, backend_of(ctx))

    async def templates(
        ctx: RequestContext, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=TEMPLATES)

    async def read(ctx: RequestContext, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        return await read_resource(params, backend_of(ctx))

    async def get(ctx: RequestContext, params: TaskParams) -> dict[str, Any]:
        return await get_task(ctx, params, backend_of(ctx), messages)

    async def update(ctx: RequestContext, params: TaskUpdateParams) -> dict[str, Any]:
        return await update_task(ctx, params, backend_of(ctx))

    async def cancel(ctx: RequestContext, params: TaskParams) -> dict[str, Any]:
        return await cancel_task(ctx, params, backend_of(ctx))

    server: Server[dict[str, Any]] = Server(
        "pointsman",
        version=version("pointsman"),
        instructions=_INSTRUCTIONS,
        on_list_tools=_with_errors(list_tools),
        on_call_tool=_with_errors(call_tool),
        on_list_resources=_with_errors(resources),
        on_list_resource_templates=templates,
        on_read_resource=_with_errors(read),
    )
    server.extensions[EXTENSION] = {}
    server.add_request_handler("tasks/get", TaskParams, _with_errors(get))
    server.add_request_handler("tasks/update", TaskUpdateParams, _with_errors(update))
    server.add_request_handler("tasks/cancel", TaskParams, _with_errors(cancel))
    return server


def _with_errors(
    handler: Callable[[RequestContext, _Params], Awaitable[_Result]],
) -> Callable[[RequestContext, _Params], Awaitable[_Result]]:
    """Return a handler that converts errors of Pointsman to errors of MCP.

    The client gets the text of an error that the client can correct. If the broker has failed, the client gets only the
    advice to try again.
    """

    @wraps(handler)
    async def handle(ctx: RequestContext, params: _Params) -> _Result:
        try:
            return await handler(ctx, params)
        except (ContractError, NotFoundError, CallRefusedError) as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from None
        except PeerError:
            raise MCPError(types.INTERNAL_ERROR, "the broker does not answer; try again later") from None

    return handle
