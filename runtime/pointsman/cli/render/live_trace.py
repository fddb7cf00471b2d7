"""A trace while it grows: what is known of a workflow that runs, and of those that teams run for it."""

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
    """The trace of `workflow` as far as it has been told. `follow` is told, until the workflow has ended."""

    def __init__(self, client: Client, workflow: Workflow) -> None:
        self._client = client
        self._workflow = workflow
        self._records: dict[str, _WorkflowRecord] = {}
        self._built: TraceNode | None = None
        self._news = False

    async def follow(self) -> None:
        """Until the workflow has ended; one that a team began for it and that goes on is left alone then."""
        async with asyncio.TaskGroup() as group:
            below: list[asyncio.Task[None]] = []
            await self._listen(self._workflow, group, below)
            for task in below:
                task.cancel()

    def trace(self) -> TraceNode | None:
        """None while nothing is known of it."""
        if self._news:
            self._built, self._news = self._trace_of(self._workflow.id), False
        return self._built

    async def _listen(self, to: Workflow, group: asyncio.TaskGroup, below: list[asyncio.Task[None]]) -> None:
        told = self._records[to.id] = _WorkflowRecord()
        async for event in to.events():
            self._news = True
            if isinstance(event, Progress):
                told.reports.append(event)
                continue
            told.entries.append(event)
            if isinstance(event, TaskDispatched | RetryScheduled) and event.team:
                child = child_id_for(event.agent, to.id, event.task_id, event.attempt)
                if child not in self._records:
                    team = Workflow(
                        self._client.bus, self._client.subjects, child, event.agent, source=self._client.source
                    )
                    below.append(group.create_task(self._listen(team, group, below)))

    def _trace_of(self, workflow: str) -> TraceNode | None:
        told = self._records.get(workflow)
        if told is None or not told.entries:
            return None
        children = {
            child: node for child in child_workflows(told.entries) if (node := self._trace_of(child)) is not None
        }
        return build_trace(told.entries, told.reports, children)
