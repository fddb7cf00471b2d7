"""Serve MCP over streamable HTTP. Requests need no session, so any replica can serve each request."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from itertools import islice
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from pointsman.client.client import Client
from pointsman.client.workflow import Workflow
from pointsman.gateway.callers import Caller
from pointsman.gateway.catalog import teams_of
from pointsman.gateway.context import Context
from pointsman.gateway.feed import StreamResetError
from pointsman.gateway.mcp.backend import CallRefusedError, StreamItem
from pointsman.gateway.mcp.server import make_server
from pointsman.gateway.mcp.tools import TeamTool
from pointsman.gateway.models import WorkflowItem, WorkflowView
from pointsman.gateway.problems import ProblemError
from pointsman.gateway.protected_resource import MCP_PATH, METADATA_PATHS, protected_resource
from pointsman.gateway.streams import LogEvent, Position
from pointsman.gateway.views import item_of
from pointsman.index.rows import Search
from pointsman_schemas.events import Outcome
from pointsman_schemas.log import WorkflowEnded

__all__ = ["mcp_routes"]

_ENDED = ("completed", "partial", "failed", "cancelled")


def mcp_routes(context: Context) -> Sequence[BaseRoute]:
    """Return the routes of the endpoint.

    Args:
        context: The parts of the gateway.

    Returns:
        The routes.
    """
    routes: list[BaseRoute] = [Route(MCP_PATH, _Endpoint(context))]
    if context.settings.gateway_oidc_issuer:

        async def metadata(request: Request) -> Response:
            return JSONResponse(protected_resource(context.settings, request.scope))

        routes += [Route(path, metadata, methods=["GET"]) for path in METADATA_PATHS]
    return routes


class _Endpoint:
    """An ASGI application. Each request has its own transport, which ends with the request."""

    def __init__(self, context: Context) -> None:
        def backend_of(ctx: ServerRequestContext[Any, Any]) -> GatewayBackend:
            request: Request = ctx.request  # type: ignore[assignment]  # each message of this transport has a request
            return GatewayBackend(context, request.state.caller)

        self._context = context
        self._server = make_server(backend_of)
        # the SDK logs two lines for each request, so only its warnings are logged
        logging.getLogger("mcp.server.streamable_http_manager").setLevel(logging.WARNING)
        logging.getLogger("mcp.server.streamable_http").setLevel(logging.WARNING)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            # Without sessions, there is no stream to open by GET, and no session to delete.
            raise ProblemError(405, "method_not_allowed", "send each message by POST", headers={"allow": "POST"})
        manager = StreamableHTTPSessionManager(
            self._server, stateless=True, max_request_body_size=self._context.settings.gateway_max_body
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)


class GatewayBackend:
    """The operations for a caller of the gateway.

    Args:
        context: The parts of the gateway.
        caller: The caller.
    """

    def __init__(self, context: Context, caller: Caller) -> None:
        self._context = context
        self._caller = caller

    @property
    def client(self) -> Client:
        """The client of the namespace."""
        return self._context.client

    @property
    def actor(self) -> str:
        """The name of the caller."""
        return self._caller.name

    @property
    def stopping(self) -> bool:
        """True if the gateway stops."""
        return self._context.streams.stopping.is_set()

    async def tools(self) -> Sequence[TeamTool]:
        """Return the teams with a live supervisor that the caller may use."""
        return [
            TeamTool(team.name, team.description, team.input_schema)
            for team in await teams_of(self._context, self._caller)
        ]

    async def submit(self, team: str, input: str | Mapping[str, JsonValue], key: str | None) -> Workflow:
        """Publish a request.

        Args:
            team: The team.
            input: The request.
            key: The idempotency key, if there is one.

        Returns:
            The workflow.

        Raises:
            CallRefusedError: The caller may not use the team, or a limit is reached.
        """
        with _problems_as_refusals():
            return (await self._context.submit(self._caller, team, input, key=key)).workflow

    async def find(self, workflow: str) -> Workflow:
        """Find a workflow of the caller.

        Args:
            workflow: The workflow.

        Returns:
            The workflow.

        Raises:
            CallRefusedError: The workflow was imported.
        """
        with _problems_as_refusals():
            return await self._context.find(self._caller, workflow)

    async def view(self, workflow: str) -> WorkflowView:
        """Read a workflow of the caller.

        Args:
            workflow: The workflow.

        Returns:
            The view.
        """
        return await self._context.view(self._caller, workflow)

    async def ended(self, before: str | None, most: int) -> tuple[Sequence[WorkflowItem], str | None]:
        """Return a page of the caller's ended workflows, the newest first.

        Args:
            before: The cursor of the page; None for the first page.
            most: The greatest number of workflows.

        Returns:
            The workflows, and the cursor of the next page; None after the last page.
        """
        search = Search(statuses=_ENDED, caller="" if self._caller.operator else self._caller.name)
        rows = list(islice(self._context.index.matching(search, before=int(before) if before else None), most + 1))
        cursor = str(rows[most - 1].first_sequence) if len(rows) > most else None
        return [item_of(row) for row in rows[:most]], cursor

    async def follow(self, workflow: Workflow) -> AsyncGenerator[StreamItem, None]:
        """Yield the entries, reports and texts of a workflow, and then the outcome. End early if the gateway stops.

        Args:
            workflow: The workflow.

        Yields:
            The items. The last item is the outcome.
        """
        position: Position | None = None
        outcome: Outcome | None = None
        while not self.stopping:
            try:
                followed = self._context.streams.follow(workflow, after=position, live=True)
                async with aclosing(followed) as items:
                    async for item in items:
                        if isinstance(item, LogEvent):
                            position = item.position
                            if isinstance(item.entry, WorkflowEnded):
                                outcome = item.entry.outcome
                            yield item.entry
                        else:
                            yield item
            except StreamResetError:  # if the gateway stops, the loop ends; otherwise continue after `position`
                continue
            break
        if outcome is not None:
            yield outcome


@contextmanager
def _problems_as_refusals() -> Iterator[None]:
    """Convert a problem of the gateway to `CallRefusedError`."""
    try:
        yield
    except ProblemError as problem:
        raise CallRefusedError(problem.detail) from None
