"""Keep the caller and the status of each workflow, and the usage of each caller today, from the log.

The ledger is a projection of the log. So all gateways count the same, also after a restart, without a store of their
own. Only commits in which a workflow starts, ends or is resumed are parsed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from time import monotonic

from pointsman.engine.log.reader import is_imported, read_commit
from pointsman.errors import ContractError
from pointsman.gateway.callers import Caller
from pointsman.gateway.models import WorkflowStatus
from pointsman.gateway.problems import ProblemError
from pointsman.ports.bus import StoredMessage
from pointsman_schemas.events import Usage
from pointsman_schemas.log import WorkflowEnded, WorkflowResumed, WorkflowStarted

__all__ = ["Ledger", "WorkflowRow"]

_MAX_ROWS = 20_000  # newest workflows; a row has about 1 kB
_MAX_UNSEEN_S = 3_600.0  # seconds after which a request without a log does not count as running any more
_MARKS = b'"workflow_started"', b'"workflow_ended"', b'"workflow_resumed"'
_WAITS = b'"open_questions":["'


@dataclass(slots=True)
class WorkflowRow:
    """One workflow of the ledger. `sequence` is that of its first message in the log, `updated_at` of the newest."""

    id: str
    team: str
    caller: str
    correlation_id: str
    sequence: int
    started_at: datetime
    updated_at: datetime
    status: WorkflowStatus = "running"
    ended_at: datetime | None = None
    usage: Usage = field(default_factory=Usage)
    thread: str | None = None
    refused: bool = False


class Ledger:
    """The newest workflows of a namespace, and the usage of each caller."""

    def __init__(self, *, kept: int = _MAX_ROWS) -> None:
        self._limit = kept
        self._rows: dict[str, WorkflowRow] = {}  # in the order they began
        self._running: dict[str, set[str]] = {}
        self._teams: Counter[str] = Counter()
        self._unseen: dict[str, tuple[str, float]] = {}  # requests of this gateway without a log: caller and time
        self._day = date.min
        self._used: dict[str, Usage] = {}

    def find(self, workflow: str) -> WorkflowRow | None:
        """Return the row of a workflow.

        Args:
            workflow: The workflow.

        Returns:
            The row; None for a workflow that is not among the newest.
        """
        return self._rows.get(workflow)

    @property
    def teams(self) -> Mapping[str, int]:
        """The teams of the rows, with the number of their rows."""
        return self._teams

    def newest_first(self, *, before: int | None = None) -> Iterator[WorkflowRow]:
        """Yield the rows, the newest first.

        Args:
            before: Only rows with a sequence below this one. Default: all.

        Yields:
            The rows.
        """
        for row in reversed(self._rows.values()):
            if before is None or row.sequence < before:
                yield row

    def running(self, caller: str) -> int:
        """Count the running workflows of a caller, and the requests of this gateway that have not begun.

        Args:
            caller: The caller.

        Returns:
            The number.
        """
        limit = monotonic() - _MAX_UNSEEN_S
        self._unseen = {id: seen for id, seen in self._unseen.items() if seen[1] > limit}
        unseen = sum(1 for name, _ in self._unseen.values() if name == caller)
        return len(self._running.get(caller, ())) + unseen

    def used_today(self, caller: str) -> Usage:
        """Return the usage of the workflows of a caller that ended today (UTC).

        Args:
            caller: The caller.

        Returns:
            The usage.
        """
        return self._used.get(caller, Usage()) if self._day == datetime.now(UTC).date() else Usage()

    def check(self, caller: Caller) -> None:
        """Refuse a request for a new workflow that exceeds a limit of the caller.

        Args:
            caller: The caller.

        Raises:
            ProblemError: A limit is reached.
        """
        limits = caller.limits
        if limits.running is not None and (running := self.running(caller.name)) >= limits.running:
            raise ProblemError(
                429, "too_many_running", f"{running} workflows of {caller.name} run, and {limits.running} may; wait "
                "for one to end, or cancel one", headers={"retry-after": "5"},
            )  # fmt: skip
        used = self.used_today(caller.name)
        for name, amount, limit in (
            ("calls", used.calls, limits.daily_calls),
            ("tokens", used.tokens, limits.daily_tokens),
            ("cost", used.cost, limits.daily_cost),
        ):
            if limit is not None and amount >= limit:
                raise ProblemError(
                    429, f"daily_{name}_used", f"{caller.name} has used {amount:g} of {limit:g} {name} today (UTC); "
                    "the limit begins again at midnight", headers={"retry-after": str(_seconds_to_midnight())},
                )  # fmt: skip

    def submitted(self, caller: str, workflow: str) -> None:
        """Count a request of this gateway as running until its log is seen.

        Args:
            caller: The caller.
            workflow: The workflow of the request.
        """
        if workflow not in self._rows:
            self._unseen[workflow] = caller, monotonic()

    def observe(self, stored: StoredMessage) -> None:
        """Apply one message of the log.

        Args:
            stored: The message.
        """
        id = stored.subject.rpartition(".")[2]
        body = stored.body
        if not any([mark in body for mark in _MARKS]):
            row = self._rows.get(id)
            if row is not None and row.ended_at is None and row.status != "imported":
                row.status = "waiting_for_answer" if _WAITS in body else "running"
                row.updated_at = stored.at
            return
        try:
            entries = read_commit(stored).entries
        except ContractError:  # another release wrote the log
            return
        for entry in entries:
            if isinstance(entry, WorkflowStarted):
                self._start(stored, entry)
            elif isinstance(entry, WorkflowEnded):
                self._end(id, entry)
            elif isinstance(entry, WorkflowResumed):
                self._resume(id, stored.at)

    def reset(self) -> None:
        """Forget everything: the log is read again."""
        self._rows.clear()
        self._running.clear()
        self._teams.clear()
        self._used.clear()

    def _start(self, stored: StoredMessage, entry: WorkflowStarted) -> None:
        self._unseen.pop(entry.workflow_id, None)
        caller = entry.caller
        row = WorkflowRow(
            entry.workflow_id, entry.team, caller, entry.correlation_id, stored.sequence, entry.at,
            thread=entry.thread.thread if entry.thread else None, updated_at=entry.at,
        )  # fmt: skip
        self._rows[row.id] = row
        self._teams[row.team] += 1
        if is_imported(stored):
            row.status = "imported"
        else:
            self._running.setdefault(caller, set()).add(row.id)
        while len(self._rows) > self._limit:
            self._forget(next(iter(self._rows)))

    def _end(self, id: str, entry: WorkflowEnded) -> None:
        self._unseen.pop(id, None)
        row = self._rows.get(id)
        if row is None:
            return
        self._stop_running(row)
        imported = row.status == "imported"
        before = row.usage  # of earlier rounds; the outcome has the usage of all rounds
        row.status, row.ended_at, row.usage = entry.outcome.status, entry.at, entry.outcome.usage
        row.updated_at, row.refused = entry.at, entry.outcome.status == "failed" and not entry.outcome.tasks
        today = datetime.now(UTC).date()
        if today != self._day:
            self._day = today
            self._used.clear()
        if entry.at.astimezone(UTC).date() == today and not imported:
            self._used[row.caller] = self._used.get(row.caller, Usage()) + (entry.outcome.usage - before)

    def _resume(self, id: str, stored_at: datetime) -> None:
        row = self._rows.get(id)
        if row is not None and row.status != "imported":
            row.status, row.ended_at, row.updated_at = "running", None, stored_at
            self._running.setdefault(row.caller, set()).add(id)

    def _forget(self, id: str) -> None:
        row = self._rows.pop(id)
        self._stop_running(row)
        self._teams[row.team] -= 1
        if not self._teams[row.team]:
            del self._teams[row.team]

    def _stop_running(self, row: WorkflowRow) -> None:
        if (ids := self._running.get(row.caller)) is not None:
            ids.discard(row.id)
            if not ids:
                del self._running[row.caller]


def _seconds_to_midnight() -> int:
    now = datetime.now(UTC)
    return int((datetime.combine(now.date() + timedelta(days=1), datetime.min.time(), UTC) - now).total_seconds()) + 1
