"""Compute the state of one workflow for a page, from the log and from the reports of agents."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from time import monotonic
from typing import Any

from pointsman.client.client import Client
from pointsman.client.workflow import read_progress
from pointsman.engine.log.reader import follow_workflow, read_commit
from pointsman.ports.bus import StoredMessage
from pointsman.web import views
from pointsman.web.projections.timeline import TimelineRow, TimelineRows
from pointsman.web.sse import batches
from pointsman_schemas.events import Progress
from pointsman_schemas.log import Entry, WorkflowStarted

__all__ = ["Change", "LiveWorkflow"]

_MIN_PAUSE_S = 0.1  # seconds in which messages are gathered before the state is computed
_MAX_PAUSE_S = 1.0  # longest time between two states of a large plan, in seconds


@dataclass(frozen=True, slots=True)
class Change:
    """The new lines of a workflow, and its state. `view` is None for an unchanged state, and before the log begins."""

    lines: Sequence[TimelineRow]
    view: dict[str, Any] | None


class LiveWorkflow:
    """The state of one workflow.

    Args:
        client: The client.
        workflow: The workflow.
        team: The team of the workflow; None if the team is unknown.
    """

    def __init__(self, client: Client, workflow: str, team: str | None = None) -> None:
        self._client = client
        self._workflow = workflow
        self._team = team
        self._rows = TimelineRows()
        self._entries: list[Entry] = []
        self._reports: list[Progress] = []
        self.notes: dict[str, str] = {}
        """The newest progress report of each task."""

    async def changes(self) -> AsyncGenerator[Change, None]:
        """Yield a change after each batch of messages of the workflow, and sometimes without a message.

        Without a message, the state changes if an agent starts or stops, or if a retry becomes due.

        Yields:
            The changes. A change without lines and view lets the caller keep the connection open.

        Raises:
            ContractError: The log cannot be read.
        """
        pause, quiet = _MIN_PAUSE_S, inf
        known: object = None
        bus, subjects = self._client.bus, self._client.subjects
        followed = follow_workflow(bus, subjects, self._workflow, team=self._team)
        async with aclosing(batches(followed, lambda: pause, lambda: quiet)) as grouped:
            async for batch in grouped:
                lines = [line for stored in batch for line in self._apply(stored)]
                began = monotonic()
                view = await self._view()
                dues = [task["due"] - view["now"] for task in view["tasks"] if "due" in task] if view else []
                quiet = min((left.total_seconds() for left in dues if left > timedelta()), default=inf)
                states = view and [(task["status"], task.get("detail")) for task in view["tasks"]]
                changed = view is not None and (bool(batch) or states != known)
                known = states if changed else known
                yield Change(lines, view if changed else None)
                # A large plan takes longer to compute and to draw, so it is sent less often.
                pause = min(_MAX_PAUSE_S, max(_MIN_PAUSE_S, 3 * (monotonic() - began)))

    async def _view(self) -> dict[str, Any] | None:
        if not self._entries or not isinstance(self._entries[0], WorkflowStarted):
            return None
        return views.workflow_json(self._entries, self._reports, await self._client.operations.live_names())

    def _apply(self, stored: StoredMessage) -> Sequence[TimelineRow]:
        if self._client.subjects.kind_of(stored.subject) == "event":
            if (report := read_progress(stored)) is None:
                return ()
            self._reports.append(report)
            if report.kind == "progress" and report.message:
                self.notes[report.task_id] = report.message
            return (self._rows.from_report(stored, report),)
        found = read_commit(stored).entries
        self._entries.extend(found)
        return tuple(self._rows.from_commit(stored, found))
