"""Follow the workflows of the tasks that clients ask for, and keep a status message for each of these tasks.

The status message is the newest line about the work. The text of an agent is not stored, so a process has only the text
that arrived while the process followed the workflow. So each tasks/get request of a client makes the process follow the
workflow for some seconds. If a client changes to another replica of the gateway, its first tasks/get there gets no
status message, but makes the replica follow the workflow. Its next tasks/get gets the newest line.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import NamedTuple

from pointsman.client.workflow import Workflow
from pointsman.errors import PointsmanError
from pointsman.gateway.mcp.backend import Backend
from pointsman.gateway.mcp.tools import Narrator
from pointsman.telemetry import get_logger
from pointsman_schemas.events import Outcome

__all__ = ["StatusMessage", "StatusMessages"]

_log = get_logger(__name__)

_MAX_FOLLOWED = (
    200  # number of workflows that one process follows; each needs two subscriptions and up to 4,000 characters of text
)
_IDLE_S = 15.0  # seconds for which a workflow is followed after the last tasks/get of a client


class StatusMessage(NamedTuple):
    """The newest line about the work of a workflow, and the time of the line."""

    text: str
    at: datetime


class StatusMessages:
    """Keeps the status messages for the tasks of one server."""

    def __init__(self) -> None:
        self._followed: dict[str, _Followed] = {}

    def follow(self, workflow: Workflow, backend: Backend) -> None:
        """Follow a workflow until it ends, or until no client has asked for it for `_IDLE_S` seconds.

        Do nothing if the server already follows `_MAX_FOLLOWED` workflows. The task then has no status message.

        Args:
            workflow: The workflow.
            backend: The operations for a caller that may see the workflow.
        """
        if workflow.id not in self._followed and len(self._followed) < _MAX_FOLLOWED:
            followed = self._followed[workflow.id] = _Followed(workflow, backend)
            followed.task.add_done_callback(lambda _: self._followed.pop(workflow.id))

    async def newest(self, workflow: str, backend: Backend) -> StatusMessage | None:
        """Return the newest line about a running workflow, and follow the workflow from now on.

        Args:
            workflow: The workflow.
            backend: The operations for a caller that may see the workflow.

        Returns:
            The line; None if no line has arrived yet.
        """
        if workflow not in self._followed and len(self._followed) < _MAX_FOLLOWED:
            with suppress(PointsmanError):  # raised, for example, for an imported workflow, which cannot be followed
                self.follow(await backend.find(workflow), backend)
        if (followed := self._followed.get(workflow)) is None:
            return None
        followed.keep()
        return followed.message


class _Followed:
    """A workflow that is followed."""

    def __init__(self, workflow: Workflow, backend: Backend) -> None:
        self.message: StatusMessage | None = None
        self.task = asyncio.create_task(self._run(workflow, backend))
        self._end = self._schedule_end()

    def keep(self) -> None:
        """Follow the workflow for `_IDLE_S` seconds from now on."""
        self._end.cancel()
        self._end = self._schedule_end()

    def _schedule_end(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(_IDLE_S, self.task.cancel)

    async def _run(self, workflow: Workflow, backend: Backend) -> None:
        narrator = Narrator()
        try:
            async with aclosing(backend.follow(workflow)) as items:
                async for item in items:
                    if item is None or isinstance(item, Outcome):
                        continue
                    if line := narrator.line(item):
                        self.message = StatusMessage(line, datetime.now(UTC))
        except PointsmanError as error:
            hint = "the task has no status message until the client asks again"
            _log.info("mcp_status_lost", workflow=workflow.id, error=str(error), hint=hint)
        finally:
            self._end.cancel()
