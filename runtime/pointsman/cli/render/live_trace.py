"""Build the trace of a running workflow and its child workflows from their events."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from pointsman.client.client import Client, Workflow
from pointsman.core.views.trace import TraceNode, build_trace, child_workflows
from pointsman_schemas.events import Progress
from pointsman_schemas.ids import child_id_for
from pointsman_schemas.log import Entry, RetryScheduled, TaskDispatched

__all__ = ["LiveTrace"]


@dataclass(slots=True)
class _WorkflowRecord:
    entries: list[Entry] = field(default_factory=list)
    reports: list[Progress] = field(default_factory=list)


class LiveTrace:
    """The trace of a running workflow. `follow` reads the events, and `trace` returns the tree so far."""

    def __init__(self, client: Client, workflow: Workflow) -> None:
        """Create a trace without events.

        Args:
            client: The client.
            workflow: The workflow.
        """
        self._client = client
        self._workflow = workflow
        self._records: dict[str, _WorkflowRecord] = {}
        self._built: TraceNode | None = None
        self._changed = False

    async def follow(self) -> None:
        """Read events until the workflow has ended. Child workflows that still run are not read any further."""
        async with asyncio.TaskGroup() as group:
            children: list[asyncio.Task[None]] = []
            await self._read(self._workflow, group, children)
            for task in children:
                task.cancel()

    def trace(self) -> TraceNode | None:
        """Return the tree of all events so far; None before the first event."""
        if self._changed:
            self._built, self._changed = self._trace_of(self._workflow.id), False
        return self._built

    async def _read(self, workflow: Workflow, group: asyncio.TaskGroup, children: list[asyncio.Task[None]]) -> None:
        record = self._records[workflow.id] = _WorkflowRecord()
        async for event in workflow.events():
            self._changed = True
            if isinstance(event, Progress):
                record.reports.append(event)
                continue
            record.entries.append(event)
            if isinstance(event, TaskDispatched | RetryScheduled) and event.team:
                id = child_id_for(event.agent, workflow.id, event.task_id, event.attempt)
                if id not in self._records:
                    client = self._client
                    child = Workflow(
                        client.bus, client.subjects, id, event.agent, source=client.source, user=client.user
                    )
                    children.append(group.create_task(self._read(child, group, children)))

    def _trace_of(self, workflow: str) -> TraceNode | None:
        record = self._records.get(workflow)
        if record is None or not record.entries:
            return None
        children = {
            child: node for child in child_workflows(record.entries) if (node := self._trace_of(child)) is not None
        }
        return build_trace(record.entries, record.reports, children)
