"""Keep the newest workflows of a namespace, read from the log.

The index is bounded: it starts near the end of a long log and drops the oldest workflows. Rows change in the order of
the log, so a page that has seen everything up to a sequence can ask for later changes, also after a reconnect.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence

from pointsman.core.views.formatting import request_text
from pointsman.engine.log.reader import is_imported, read_commit, read_workflow_started
from pointsman.errors import ContractError, NotFoundError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.telemetry import get_logger
from pointsman.web.projections.activity import activity_of
from pointsman.web.projections.projection import Projection
from pointsman.web.projections.rows import (
    SEARCHED_CHARS,
    SHOWN_CHARS,
    AgentRecord,
    Page,
    Search,
    Totals,
    WorkflowRow,
    percentile,
)
from pointsman_schemas.events import ErrorKind
from pointsman_schemas.log import AttemptFailed, Entry, TaskSucceeded, WorkflowStarted
from pointsman_schemas.subjects import Subjects

__all__ = ["WorkflowIndex"]

_log = get_logger(__name__)

_MAX_ROWS = 20_000  # twice the 10,000 workflows for which a page must be fast; a row has about 2 kB
_MAX_HISTORY = 300_000  # messages of the log read at the start: about 30 for each workflow, with its agents' reports


class WorkflowIndex(Projection):
    """The workflows of one namespace, as rows, and the records of its agents."""

    def __init__(self, bus: Bus, subjects: Subjects, *, kept: int = _MAX_ROWS) -> None:
        super().__init__(bus, "log", subjects.team_logs(), history=_MAX_HISTORY)
        self._subjects = subjects
        self._limit = kept
        self._rows: dict[str, WorkflowRow] = {}  # in the order they began
        self._changed: dict[str, WorkflowRow] = {}  # in the order they changed
        self._teams: dict[str, int] = {}
        self.agents: dict[str, AgentRecord] = {}

    @property
    def teams(self) -> Sequence[str]:
        return sorted(self._teams)

    def __contains__(self, workflow: str) -> bool:
        return workflow in self._rows

    def page(self, search: Search, *, offset: int = 0, limit: int = 100) -> Page:
        """Return at most `limit` rows that match, without the first `offset`, and the totals of all that match."""
        fitting = [row for row in reversed(self._rows.values()) if search.matches(row)]
        of = Counter([row.status for row in fitting])
        took = sorted([row.elapsed for row in fitting if row.elapsed is not None])
        since = search.since.timestamp() if search.since else None
        totals = Totals(
            count=len(fitting),
            running=of["running"],
            failed=of["failed"] + of["partial"],
            tokens=sum([row.usage.tokens for row in fitting]),
            cost=sum([row.usage.cost for row in fitting]),
            median_seconds=percentile(took, 0.5),
            p95_seconds=percentile(took, 0.95),
            activity=activity_of([(row.started_tasks, row.status) for row in fitting], since=since, now=time.time()),
        )
        return Page(fitting[offset : offset + limit], totals, self.sequence)

    def changed_since(self, sequence: int) -> Iterator[WorkflowRow]:
        """Yield the rows that changed after `sequence`, the newest change first."""
        for row in reversed(self._changed.values()):
            if row.sequence <= sequence:
                return
            yield row

    async def apply(self, stored: StoredMessage) -> None:
        try:
            entries = read_commit(stored).entries
        except ContractError as error:  # written by another release: the workflow's page shows the reason
            _log.warning("commit_unreadable", subject=stored.subject, sequence=stored.sequence, error=str(error))
            entries = ()
        workflow = stored.subject.rpartition(".")[2]
        row = self._rows.get(workflow) or await self._add_row(stored, entries)
        if row is not None:
            for entry in entries:
                self._count(row, entry)
                row.apply(entry)
            if row.ended_at is None and is_imported(stored):
                row.status = "imported"
            row.sequence = stored.sequence
            self._changed.pop(row.id, None)
            self._changed[row.id] = row

    async def _add_row(self, stored: StoredMessage, entries: Sequence[Entry]) -> WorkflowRow | None:
        first = entries[0] if entries else None
        if not isinstance(first, WorkflowStarted):
            # The workflow began before the first message that was read. During the initial reading these workflows are
            # the oldest, so they are left out.
            if self.progress < 1:
                return None
            try:
                first = await read_workflow_started(self._bus, self._subjects, stored.subject)
            except (NotFoundError, ContractError):
                return None
        asked = request_text(first.input)
        row = WorkflowRow(
            id=first.workflow_id,
            team=first.team,
            first_sequence=stored.sequence,
            sequence=stored.sequence,
            started_at=first.at,
            input=asked[:SHOWN_CHARS],
            search_text=f"{first.workflow_id} {first.correlation_id} {asked[:SEARCHED_CHARS]}".casefold(),
        )
        self._rows[row.id] = row
        self._teams[row.team] = self._teams.get(row.team, 0) + 1
        while len(self._rows) > self._limit:
            self._drop(next(iter(self._rows)))
        return row

    def _drop(self, workflow: str) -> None:
        dropped = self._rows.pop(workflow)
        self._changed.pop(workflow, None)
        self._teams[dropped.team] -= 1
        if not self._teams[dropped.team]:
            del self._teams[dropped.team]

    def reset(self) -> None:
        for known in (self._rows, self._changed, self._teams, self.agents):
            known.clear()

    def _count(self, row: WorkflowRow, entry: Entry) -> None:
        match entry.kind:
            case "task_added":
                self._agent(entry.agent).role = entry.role.value
            case "task_succeeded":
                self._attempt(row, entry, succeeded=True)
            case "attempt_failed" if entry.result is not None:
                asks = entry.error.kind == ErrorKind.NEEDS_ANSWER
                self._attempt(row, entry, succeeded=None if asks else False)

    def _attempt(self, row: WorkflowRow, entry: TaskSucceeded | AttemptFailed, *, succeeded: bool | None) -> None:
        """Add an attempt to its agent's record. An attempt that asked a person has neither succeeded nor failed."""
        result = entry.result
        assert result is not None
        if (entry.task_id, entry.attempt) in row.delegated:
            return
        record = self._agent(result.agent)
        if succeeded is not None:
            record.succeeded += succeeded
            record.failed += not succeeded
            record.recent.append(succeeded)
        record.usage += result.usage
        record.last_at = result.ended_at
        record.work_seconds.append((result.ended_at - result.started_at).total_seconds())
        handed = row.dispatched.pop((entry.task_id, entry.attempt), None)
        if handed is not None:
            record.queue_seconds.append(max(0.0, (result.started_at - handed).total_seconds()))

    def _agent(self, name: str) -> AgentRecord:
        return self.agents.setdefault(name, AgentRecord(name))
