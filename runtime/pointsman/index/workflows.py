"""Keep the newest workflows of a namespace, read from the log.

The index is bounded: it starts near the end of a long log, and drops the oldest workflows. Rows change in the order of
the log, so a page that has all changes up to a sequence can request the later changes, also after a reconnect.
All processes with an index compute the same counts from the log, also after a restart.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import aclosing, suppress

from pointsman.core.views.formatting import request_text
from pointsman.engine.log.reader import as_async_generator, is_imported, read_commit
from pointsman.errors import ContractError
from pointsman.index.activity import activity_of
from pointsman.index.callers import CallerUsage
from pointsman.index.projection import Projection
from pointsman.index.rows import (
    SHOWN_CHARS,
    AgentRecord,
    Page,
    Search,
    Totals,
    WorkflowRow,
    percentile,
    search_text,
)
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.telemetry import get_logger
from pointsman_schemas.events import ErrorKind
from pointsman_schemas.log import AttemptFailed, Commit, Entry, TaskSucceeded, WorkflowStarted
from pointsman_schemas.subjects import Subjects

__all__ = ["WorkflowIndex"]

_log = get_logger(__name__)

_MAX_ROWS = 20_000  # number of rows: twice the 10,000 workflows with which a page must be fast; a row takes about 2 kB
# Number of newest messages of the log's stream that are read at the start. It is enough for 10,000 workflows that have
# 30 messages each.
_MAX_HISTORY = 300_000
_CATCH_UP_PAUSE_S = 0.02
_MARKS = b'"workflow_started"', b'"workflow_ended"', b'"workflow_resumed"', b'"open_questions":["'
"""Without details, only commits that contain one of these texts change a row. Other commits are not parsed, which saves
much time."""


class WorkflowIndex(Projection):
    """The workflows of one namespace, as rows, and the usage of each caller.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        kept: Largest number of workflows in the index.
        details: True to also store the requests, the number of tasks of each workflow, and the records of agents. This
            takes more time, because each commit must be parsed.
    """

    def __init__(self, bus: Bus, subjects: Subjects, *, kept: int = _MAX_ROWS, details: bool = False) -> None:
        super().__init__(bus, "log", subjects.team_logs(), history=_MAX_HISTORY)
        self._subjects = subjects
        self._limit = kept
        self._details = details
        self._rows: dict[str, WorkflowRow] = {}  # in the order they began
        self._changed: dict[str, WorkflowRow] = {}  # in the order they changed
        self._teams: Counter[str] = Counter()
        self.callers = CallerUsage()
        self.agents: dict[str, AgentRecord] = {}
        self.current = asyncio.Event()
        """Set once the history has been read."""

    @property
    def teams(self) -> Mapping[str, int]:
        """The teams of the rows, with the number of rows."""
        return self._teams

    def find(self, workflow: str) -> WorkflowRow | None:
        """Return the row of a workflow.

        Args:
            workflow: The workflow.

        Returns:
            The row; None for a workflow that is not in the index.
        """
        return self._rows.get(workflow)

    def matching(self, search: Search, *, before: int | None = None) -> Iterator[WorkflowRow]:
        """Yield the rows that match, the newest first.

        Args:
            search: The search.
            before: Yield only rows whose first message is before this sequence. Default: all rows.

        Yields:
            The rows.
        """
        for row in reversed(self._rows.values()):
            if (before is None or row.first_sequence < before) and search.matches(row):
                yield row

    def page(self, search: Search, *, offset: int = 0, limit: int = 100) -> Page:
        """Skip `offset` matching rows. Return at most the next `limit` rows, and the totals of all matching rows."""
        fitting = list(self.matching(search))
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
            activity=activity_of([(row.started_seconds, row.status) for row in fitting], since=since, now=time.time()),
        )
        return Page(fitting[offset : offset + limit], totals, self.sequence)

    def changed_since(self, sequence: int) -> Iterator[WorkflowRow]:
        """Yield the rows that changed after `sequence`, the newest change first."""
        for row in reversed(self._changed.values()):
            if row.sequence <= sequence:
                return
            yield row

    async def catch_up(self, timeout: float) -> None:
        """Wait until the present messages of the log are applied.

        Args:
            timeout: The longest wait, in seconds. After this time, the call returns in any case.
        """
        newest = await self._bus.last("log", self._subject)
        until = time.monotonic() + timeout
        while newest is not None and self.sequence < newest.sequence and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(_CATCH_UP_PAUSE_S)

    async def apply(self, stored: StoredMessage) -> None:
        """Apply one message of the log."""
        commit = self._read(stored)
        entries = commit.entries if commit else ()
        row = self._rows.get(stored.subject.rpartition(".")[2])
        if row is None:
            first = entries[0] if entries else None
            row = self._row_of(first, stored) if isinstance(first, WorkflowStarted) else await self._read_row(stored)
            if row is None:
                return
            self._add(row)
        for entry in entries:
            if self._details:
                self._count(row, entry)
            row.apply(entry)
            self.callers.apply(row, entry)
        if row.ended_at is None:
            waits = commit is not None and commit.open_questions
            row.status = "imported" if row.imported else "waiting for an answer" if waits else "running"
            row.updated_at = stored.at
        row.sequence = stored.sequence
        self._changed.pop(row.id, None)
        self._changed[row.id] = row

    def moved(self) -> None:
        """Wake the tasks that wait for a change, and set `current` when the history has been read."""
        super().moved()
        if self.progress >= 1:
            self.current.set()

    def reset(self) -> None:
        """Forget everything, because the log is read again."""
        for known in (self._rows, self._changed, self._teams, self.agents):
            known.clear()
        self.callers.reset()

    def _read(self, stored: StoredMessage) -> Commit | None:
        """Return the commit; None if the commit changes no row, or cannot be read."""
        if not self._details and not any([mark in stored.body for mark in _MARKS]):
            return None
        try:
            return read_commit(stored)
        # A different release wrote the commit. Only log the error, because the page of the workflow shows the reason.
        except ContractError as error:
            _log.warning("commit_unreadable", subject=stored.subject, sequence=stored.sequence, error=str(error))
            return None

    def _row_of(self, first: WorkflowStarted, stored: StoredMessage) -> WorkflowRow:
        asked = request_text(first.input) if self._details else ""
        return WorkflowRow(
            id=first.workflow_id,
            team=first.team,
            first_sequence=stored.sequence,
            sequence=stored.sequence,
            started_at=first.at,
            input=asked[:SHOWN_CHARS],
            caller=first.caller,
            correlation_id=first.correlation_id,
            thread=first.thread.thread if first.thread else "",
            search_text=search_text(first.workflow_id, first.correlation_id, asked) if self._details else "",
            imported=is_imported(stored),
        )

    async def _read_row(self, stored: StoredMessage) -> WorkflowRow | None:
        """Read the row of a workflow from the log, if the start was not read or the index has dropped the row."""
        row: WorkflowRow | None = None
        if self.progress < 1:  # in the history that is read at the start, these are the oldest workflows, so omit them
            return None
        with suppress(ContractError):
            async with aclosing(as_async_generator(self._bus.read("log", stored.subject))) as messages:
                async for earlier in messages:
                    if earlier.sequence >= stored.sequence:
                        break
                    for entry in read_commit(earlier).entries:
                        if row is None:
                            if not isinstance(entry, WorkflowStarted):
                                return None
                            row = self._row_of(entry, stored)
                        if self._details:
                            row.count(entry)
                        row.apply(entry)
                        row.earlier_usage = row.usage
        return row

    def _add(self, row: WorkflowRow) -> None:
        self._rows[row.id] = row
        self._teams[row.team] += 1
        if row.ended_at is None:
            self.callers.began(row)
        while len(self._rows) > self._limit:
            self._drop(next(iter(self._rows)))

    def _drop(self, workflow: str) -> None:
        dropped = self._rows.pop(workflow)
        self._changed.pop(workflow, None)
        self.callers.stopped(dropped)
        self._teams[dropped.team] -= 1
        if not self._teams[dropped.team]:
            del self._teams[dropped.team]

    def _count(self, row: WorkflowRow, entry: Entry) -> None:
        row.count(entry)
        match entry.kind:
            case "task_added":
                self._agent(entry.agent).role = entry.role.value
            case "task_succeeded":
                self._attempt(row, entry, succeeded=True)
            case "attempt_failed" if entry.result is not None:
                asks = entry.error.kind == ErrorKind.NEEDS_ANSWER
                self._attempt(row, entry, succeeded=None if asks else False)

    def _attempt(self, row: WorkflowRow, entry: TaskSucceeded | AttemptFailed, *, succeeded: bool | None) -> None:
        """Add an attempt to the agent's record. An attempt that asked a person has neither succeeded nor failed."""
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
