"""List recently active workflows and the requests that wait for admission.

The log stream is read backwards in growing windows, because NATS has no query for the newest message of each subject.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime

from pointsman.client.summaries import WorkflowSummary, summarize, summarize_queued
from pointsman.engine.log.reader import as_async_generator, gather_batched, read_commit
from pointsman.ports.bus import Bus, StoredMessage
from pointsman_schemas.subjects import Subjects

__all__ = ["Selection", "find_by_prefix", "list_queued", "list_workflows"]

_LIST_WINDOW = 20
"""Number of messages of the log stream in the first read of `list`, for each workflow to list. A workflow of three
tasks writes about this number of messages, so the first read is often enough. Each further read covers four times as
many messages."""
_SEARCH_WINDOW = 500
"""Number of the most recently active workflows whose ids `find_by_prefix` compares. Older workflows are left out,
because people usually give the ids of recent workflows."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The conditions that a workflow must meet to be listed.

    Args:
        status: Only workflows with one of these statuses; empty means all.
        since: Only workflows that started at this time or later.
        until: Only workflows that started before this time.
        correlation_id: Only workflows with this correlation id.
    """

    status: Collection[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    correlation_id: str | None = None

    @property
    def is_whole(self) -> bool:
        """True if all workflows match."""
        return not (self.status or self.since or self.until or self.correlation_id)

    def matches(self, summary: WorkflowSummary) -> bool:
        """Return True if a workflow matches.

        Args:
            summary: The summary of the workflow.
        """
        return (
            (not self.status or summary.status in self.status)
            and (self.since is None or summary.started_at >= self.since)
            and (self.until is None or summary.started_at < self.until)
            and self.correlation_id in (None, summary.correlation_id)
        )


async def list_workflows(
    bus: Bus, subjects: Subjects, team: str | None, selection: Selection, limit: int
) -> Sequence[WorkflowSummary]:
    """List the most recently active workflows, and the requests that wait for admission.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        team: Only workflows of this team; None for all teams.
        selection: The conditions that a workflow must meet.
        limit: The largest number of workflows.

    Returns:
        The workflows, most recently active first.
    """
    found: list[tuple[datetime, WorkflowSummary]] = []
    admitted: set[str] = set()
    async with aclosing(_newest_logs(bus, subjects.team_logs(team), limit)) as batches:
        async for batch in batches:
            summaries = await gather_batched(summarize(bus, subjects, read_commit(stored), stored) for stored in batch)
            admitted |= {summary.id for summary in summaries}
            pairs = zip(batch, summaries, strict=True)
            found += [(stored.at, each) for stored, each in pairs if selection.matches(each)]
            if len(found) >= limit or (selection.since is not None and batch[-1].at < selection.since):
                break
    queued = await list_queued(bus, subjects, team, limit if selection.is_whole else None)
    found += [(each.started_at, each) for each in queued if each.id not in admitted and selection.matches(each)]
    found.sort(key=lambda each: each[0], reverse=True)
    return [summary for _, summary in found[:limit]]


async def list_queued(bus: Bus, subjects: Subjects, team: str | None, limit: int | None) -> Sequence[WorkflowSummary]:
    """List the requests that wait for admission.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        team: Only requests to this team; None for all teams.
        limit: The largest number of requests of each team; None means no limit.

    Returns:
        The newest requests of each team. They are grouped by team, and the oldest comes first in each group.
    """
    from pointsman.engine.operations.queued_requests import list_queued_requests

    return [summarize_queued(each) for each in await list_queued_requests(bus, subjects, team, limit)]


async def find_by_prefix(bus: Bus, subjects: Subjects, text: str) -> Sequence[str]:
    """Find recently active workflows and queued requests by the beginning of their id.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        text: The beginning of the id.

    Returns:
        The ids, newest first.
    """
    ids: list[str] = []
    async with aclosing(_newest_logs(bus, subjects.team_logs(), _SEARCH_WINDOW)) as batches:
        async for batch in batches:
            ids += [stored.subject.rpartition(".")[2] for stored in batch]
            break
    ids += [each.id for each in await list_queued(bus, subjects, None, None)]
    return [each for each in dict.fromkeys(ids) if each.startswith(text)]


async def _newest_logs(bus: Bus, subject: str, size: int) -> AsyncGenerator[Sequence[StoredMessage], None]:
    """Yield the newest message of each workflow's log, in batches of `size`. The most recent message comes first."""
    last = await bus.last("log", subject)
    above, window = last.sequence + 1 if last else 0, size * _LIST_WINDOW
    seen: set[str] = set()
    batch: list[StoredMessage] = []
    while above > 1:
        lower = max(0, above - 1 - window)
        found: dict[str, StoredMessage] = {}
        async with aclosing(as_async_generator(bus.read("log", subject, after=lower))) as messages:
            async for stored in messages:
                if stored.sequence >= above:
                    break
                found[stored.subject] = stored
        batch += sorted(
            (stored for name, stored in found.items() if name not in seen),
            key=lambda stored: stored.sequence,
            reverse=True,
        )
        seen |= found.keys()
        while len(batch) >= size:
            yield batch[:size]
            batch = batch[size:]
        above, window = lower + 1, window * 4
    if batch:
        yield batch
