"""The operations that an MCP server needs for one caller, and an implementation with a client of the namespace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias, cast

from pydantic import JsonValue

from pointsman.client.client import Client
from pointsman.client.workflow import Workflow
from pointsman.errors import NotFoundError, PeerError, PointsmanError
from pointsman.gateway.mcp.tools import TeamTool
from pointsman.gateway.models import WorkflowItem, WorkflowStatus, WorkflowView
from pointsman.gateway.views import read_view
from pointsman_schemas.events import Delta, Outcome, Progress
from pointsman_schemas.log import Entry

__all__ = ["Backend", "CallRefusedError", "ClientBackend", "StreamItem", "find_tool"]

StreamItem: TypeAlias = Entry | Progress | Delta | Outcome | None
"""An entry of the log, a report of an agent, a piece of an agent's text, or the outcome.

None if nothing has happened for some seconds.
"""

ANSWER_GRACE_S = 5.0  # seconds after the deadline in which a team can still answer with partial results
_ENDED = ("completed", "partial", "failed", "cancelled")
_MAX_ITEMS = 1_000  # maximum number of items of a stream that are queued for a slow reader


class CallRefusedError(PointsmanError):
    """A refused call: the caller may not make the call, a limit is reached, or the workflow was imported."""


class Backend(Protocol):
    """The operations for one caller."""

    @property
    def client(self) -> Client:
        """The client of the namespace."""
        ...

    @property
    def actor(self) -> str | None:
        """The name of the caller for answers and cancellations; None for the user of the client."""
        ...

    @property
    def stopping(self) -> bool:
        """True if this process stops. Calls then end, but the workflows of the calls continue."""
        ...

    async def tools(self) -> Sequence[TeamTool]:
        """Return the teams that the caller may use."""
        ...

    async def submit(self, team: str, input: str | Mapping[str, JsonValue], key: str | None) -> Workflow:
        """Publish a request under an idempotency key, if there is one."""
        ...

    async def find(self, workflow: str) -> Workflow:
        """Find a workflow that the caller may see."""
        ...

    async def view(self, workflow: str) -> WorkflowView:
        """Read a workflow that the caller may see."""
        ...

    async def ended(self, before: str | None, most: int) -> tuple[Sequence[WorkflowItem], str | None]:
        """Return a page of the caller's ended workflows, the newest first, and the cursor of the next page."""
        ...

    def follow(self, workflow: Workflow) -> AsyncGenerator[StreamItem, None]:
        """Yield the entries, reports and texts of a workflow, and then the outcome. End early if this process stops."""
        ...


async def find_tool(backend: Backend, name: str) -> TeamTool | None:
    """Return the tool of a team that the caller may use.

    Args:
        backend: The operations for the caller.
        name: The name of the tool.

    Returns:
        The tool; None if the caller may use no team of this name.
    """
    return next((tool for tool in await backend.tools() if tool.name == name), None)


class ClientBackend:
    """The operations for the user of a client, with one team.

    Args:
        client: A connected client.
        team: The name of the team.
        deadline: The deadline of workflows, in seconds.
    """

    actor = None
    stopping = False

    def __init__(self, client: Client, team: str, deadline: float) -> None:
        self.client = client
        self._team = team
        self._deadline = deadline

    async def tools(self) -> Sequence[TeamTool]:
        """Return the tool of the team, even if no supervisor of the team is live."""
        found = [TeamTool.of(card) for card in await self.client.operations.teams() if card.name == self._team]
        return found[:1] or [TeamTool(self._team)]

    async def submit(self, team: str, input: str | Mapping[str, JsonValue], key: str | None) -> Workflow:
        """Publish a request.

        Args:
            team: The team.
            input: The request.
            key: The idempotency key, if there is one.

        Returns:
            The workflow.
        """
        return await self.client.submit(team, input, request_id=key, deadline=self._deadline)

    async def find(self, workflow: str) -> Workflow:
        """Find a workflow of the team.

        Args:
            workflow: The workflow.

        Returns:
            The workflow.
        """
        await self.view(workflow)
        return await self.client.workflow(workflow)

    async def view(self, workflow: str) -> WorkflowView:
        """Read a workflow of the team.

        Args:
            workflow: The workflow.

        Returns:
            The view.

        Raises:
            NotFoundError: The team has no such workflow.
        """
        view = await read_view(self.client, workflow)
        if view is None or view.team != self._team:
            raise NotFoundError(f"the team {self._team} has no workflow {workflow!r}; check the id")
        return view

    async def ended(self, before: str | None, most: int) -> tuple[Sequence[WorkflowItem], str | None]:
        """Return the newest workflows of the team that have ended, on a single page.

        Args:
            before: Not used, because there is no second page.
            most: The greatest number of workflows.

        Returns:
            The workflows, and no cursor.
        """
        found = await self.client.list(team=self._team, status=_ENDED, limit=most)
        return [
            WorkflowItem(
                id=each.id,
                team=each.team,
                status=cast("WorkflowStatus", each.status),
                correlation_id=each.correlation_id,
                caller=each.caller,
                created_at=each.started_at,
                ended_at=each.ended_at,
            )
            for each in found
        ], None

    async def follow(self, workflow: Workflow) -> AsyncGenerator[StreamItem, None]:
        """Yield the entries, reports and texts of a workflow, as far as the user may read them, and then the outcome.

        Args:
            workflow: The workflow.

        Yields:
            The items. The last item is the outcome.

        Raises:
            PeerError: The workflow has not ended in time.
        """
        items: asyncio.Queue[StreamItem] = asyncio.Queue(_MAX_ITEMS)
        limit = self._deadline + ANSWER_GRACE_S

        async def read_events() -> None:
            with suppress(PointsmanError):  # the outcome is read separately, so lost events are harmless
                async for event in workflow.events():
                    await items.put(event)

        async def read_texts() -> None:
            with suppress(PointsmanError):
                async with await workflow.stream_text(add_text):
                    await asyncio.Event().wait()

        async def add_text(piece: Delta) -> None:
            with suppress(asyncio.QueueFull):  # the outcome contains the whole text
                items.put_nowait(piece)

        async def read_outcome() -> None:
            await items.put(await workflow.outcome(limit))

        reading = [asyncio.create_task(each()) for each in (read_events, read_outcome, read_texts)]
        try:
            while True:
                taking = asyncio.create_task(items.get())
                try:
                    # wait for `read_outcome` too, because its error must end the stream if no item arrives
                    await asyncio.wait({taking, reading[1]}, return_when=asyncio.FIRST_COMPLETED)
                    if not taking.done() and items.empty():
                        reading[1].result()
                    item = await taking
                finally:
                    taking.cancel()
                yield item
                if isinstance(item, Outcome):
                    return
        except TimeoutError:
            raise PeerError(
                f"workflow {workflow.id} of {workflow.team} has not ended after {limit:g} s; check the supervisor "
                f"with `pointsman doctor {workflow.team}`"
            ) from None
        finally:
            for each in reading:
                each.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
