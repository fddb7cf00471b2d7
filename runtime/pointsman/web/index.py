"""The newest workflows of a namespace, folded from the log as it grows, so that a page costs no reading of it.

The index is bounded: it begins near the end of a long log and forgets the oldest workflows. Rows change in the order of
the log, so whoever has seen everything up to a sequence can ask for what changed since, however often he was away.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime

from pointsman.engine.history import closeable, commit_of, started_of
from pointsman.errors import BusUnavailable, ContractError, NotFound
from pointsman.ports import Bus, Stored
from pointsman.telemetry import get_logger
from pointsman_schemas.card import Role
from pointsman_schemas.events import Usage
from pointsman_schemas.log import (
    ApprovalDecided,
    ApprovalRequested,
    AttemptFailed,
    Entry,
    PlanAccepted,
    TaskAbandoned,
    TaskAdded,
    TaskDispatched,
    TaskFailed,
    TaskReopened,
    TaskSkipped,
    TaskSucceeded,
    WorkflowEnded,
    WorkflowStarted,
)
from pointsman_schemas.strict_json import compact
from pointsman_schemas.subjects import Subjects

__all__ = ["AgentRecord", "Page", "Row", "Search", "Totals", "WorkflowIndex"]

_log = get_logger(__name__)

_KEPT = 20_000  # workflows: twice the 10,000 that must stay quick; a row is about 2 kB
_HISTORY = 300_000  # messages of the log read at the start: about 30 a workflow, its agents' reports among them
_SAMPLES = 200  # newest attempts of an agent that its latency is told from
_SEARCHED = 1_000  # characters of a request that a search looks at
_SHOWN = 200  # characters of it in the list
_BREATH = 200  # commits folded before others get the loop: 5 ms
_PAUSE = 1.0  # seconds before the log is followed again after the broker refused


@dataclass(slots=True)
class Row:
    """One workflow in the list. `sequence` is where in the log it changed last, `began` where it began."""

    id: str
    team: str
    began: int
    sequence: int
    started_at: datetime
    input: str
    correlation_id: str
    hay: str
    """What a search for text looks at."""
    status: str = "running"
    reason: str = ""
    ended_at: datetime | None = None
    usage: Usage = field(default_factory=Usage)
    work: dict[str, str] = field(default_factory=dict)
    """The tasks of its plans: open, succeeded or failed. Emptied at the end; the counts stay."""
    done: int = 0
    total: int = 0
    failed: int = 0
    handed: dict[tuple[str, int], datetime] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    """Approvals that it waits for."""

    def take(self, entry: Entry) -> None:
        match entry:
            case PlanAccepted():
                for task in entry.plan.tasks:
                    self.work.setdefault(task.id, "open")
            case TaskDispatched():
                self.handed[entry.task_id, entry.attempt] = entry.at
            case TaskSucceeded():
                self.usage += entry.result.usage
                self._settle(entry.task_id, "succeeded")
            case AttemptFailed() if entry.result is not None:
                self.usage += entry.result.usage
            case TaskFailed() | TaskSkipped() | TaskAbandoned():
                self._settle(entry.task_id, "failed")
            case TaskReopened():
                self._settle(entry.task_id, "open")
            case ApprovalRequested() | ApprovalDecided():
                wanted = isinstance(entry, ApprovalRequested)
                self.asked.add(entry.approval) if wanted else self.asked.discard(entry.approval)
                self.status = "waiting for approval" if self.asked else "running"
            case WorkflowEnded():
                outcome = entry.outcome
                self.status, self.reason, self.usage = outcome.status, outcome.reason, outcome.usage
                self.ended_at = entry.at
                for kept in (self.work, self.handed, self.asked):
                    kept.clear()
                return
            case _:
                return
        self.total = len(self.work)
        self.failed = sum(1 for state in self.work.values() if state == "failed")
        self.done = sum(1 for state in self.work.values() if state == "succeeded")

    def _settle(self, task: str, state: str) -> None:
        if task in self.work:
            self.work[task] = state

    def shown(self) -> dict[str, object]:
        """The row as the page gets it."""
        return {
            "id": self.id,
            "team": self.team,
            "status": self.status,
            "reason": self.reason,
            "input": self.input,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "done": self.done,
            "failed": self.failed,
            "total": self.total,
            "tokens": self.usage.tokens,
            "cost": self.usage.cost,
            "began": self.began,
        }


@dataclass(slots=True)
class AgentRecord:
    """What the log says of an agent. Latencies are in seconds, over the newest attempts only."""

    name: str
    role: str = Role.WORK.value
    succeeded: int = 0
    failed: int = 0
    usage: Usage = field(default_factory=Usage)
    last_at: datetime | None = None
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    works: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=_SAMPLES))

    def shown(self) -> dict[str, object]:
        return {
            "role": self.role,
            "succeeded": self.succeeded,
            "failed": self.failed,
            "failing": self.recent.count(False) / len(self.recent) if self.recent else 0.0,
            "tokens": self.usage.tokens,
            "cost": self.usage.cost,
            "last_at": self.last_at,
            "wait": _middle(self.waits),
            "median": _middle(self.works),
            "slow": _at(self.works, 0.95),
        }


@dataclass(frozen=True, slots=True)
class Search:
    """What a page asks for. `text`, in folded case, is looked for in the id, the correlation id and the request."""

    team: str = ""
    status: str = ""
    text: str = ""
    since: datetime | None = None

    def fits(self, row: Row) -> bool:
        if self.team and row.team != self.team:
            return False
        if self.status and row.status != self.status:
            return False
        if self.since is not None and row.started_at < self.since:
            return False
        return self.text in row.hay


@dataclass(slots=True)
class Totals:
    """What fits a search, added up."""

    count: int = 0
    running: int = 0
    failed: int = 0
    tokens: int = 0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows that fit a search, newest first, and the sum of all that fit."""

    rows: Sequence[Row]
    totals: Totals
    sequence: int


class WorkflowIndex:
    """Rows and agents' records of one namespace. `run` keeps it current; everything else reads what is there."""

    def __init__(self, bus: Bus, subjects: Subjects, *, kept: int = _KEPT) -> None:
        self._bus = bus
        self._subjects = subjects
        self._limit = kept
        self._rows: dict[str, Row] = {}  # in the order they began
        self._changed: dict[str, Row] = {}  # in the order they changed
        self._teams: dict[str, int] = {}
        self._news = asyncio.Event()
        self.agents: dict[str, AgentRecord] = {}
        self.sequence = 0
        self.epoch = 0
        """How often the log began anew under this index: what was seen before says nothing then."""
        self._end = 0

    @property
    def read(self) -> float:
        """The share of the log's history that has been folded, 0 to 1."""
        return 1.0 if self.sequence >= self._end else self.sequence / max(1, self._end)

    @property
    def teams(self) -> Sequence[str]:
        return sorted(self._teams)

    async def run(self) -> None:
        """Fold the log and follow it, until cancelled. An unreachable broker is waited for."""
        while True:
            try:
                await self._follow()
            except BusUnavailable as error:
                if self._bus.closed:
                    raise
                _log.info("log_unavailable", error=str(error))
                await asyncio.sleep(_PAUSE)

    async def _follow(self) -> None:
        last = await self._bus.last("log", self._subjects.logs_of())
        self._end = last.sequence if last else 0
        after = max(self.sequence, self._end - _HISTORY)
        messages = closeable(self._bus.follow("log", [self._subjects.logs_of()], after=after))
        async with aclosing(messages):
            folded = 0
            async for stored in messages:
                await self._take(stored)
                folded += 1
                if folded % _BREATH == 0:
                    await asyncio.sleep(0)

    def page(self, search: Search, *, offset: int = 0, limit: int = 100) -> Page:
        """The rows from the `offset`th that fits on, at most `limit`, and the totals of all that fit."""
        totals, rows = Totals(), []
        for row in reversed(self._rows.values()):
            if not search.fits(row):
                continue
            if offset <= totals.count < offset + limit:
                rows.append(row)
            totals.count += 1
            totals.running += row.status == "running"
            totals.failed += row.status in ("failed", "partial")
            totals.tokens += row.usage.tokens
            totals.cost += row.usage.cost
        return Page(rows, totals, self.sequence)

    def changed_since(self, sequence: int) -> Iterator[Row]:
        """The rows that changed above `sequence`, the newest change first."""
        for row in reversed(self._changed.values()):
            if row.sequence <= sequence:
                return
            yield row

    async def news(self) -> None:
        """Return when anything was folded since the last call of anybody."""
        await self._news.wait()

    async def _take(self, stored: Stored) -> None:
        if stored.sequence <= self.sequence:
            self._forget()
        try:
            entries = commit_of(stored).entries
        except ContractError as error:  # another release wrote it: shown by its own page, with the reason
            _log.warning("commit_unreadable", subject=stored.subject, sequence=stored.sequence, error=str(error))
            entries = ()
        workflow = stored.subject.rpartition(".")[2]
        row = self._rows.get(workflow) or await self._begin(stored, entries)
        self.sequence = stored.sequence
        if row is not None:
            for entry in entries:
                self._count(row, entry)
                row.take(entry)
            row.sequence = stored.sequence
            self._changed.pop(row.id, None)
            self._changed[row.id] = row
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _begin(self, stored: Stored, entries: Sequence[Entry]) -> Row | None:
        first = entries[0] if entries else None
        if not isinstance(first, WorkflowStarted):
            # It began before what was read. While the history is read, these are the oldest: left out.
            if self.read < 1:
                return None
            try:
                first = await started_of(self._bus, self._subjects, stored.subject)
            except (NotFound, ContractError):
                return None
        asked = first.input if isinstance(first.input, str) else compact(first.input).decode()
        row = Row(
            id=first.workflow_id,
            team=first.team,
            began=stored.sequence,
            sequence=stored.sequence,
            started_at=first.at,
            input=asked[:_SHOWN],
            correlation_id=first.correlation_id,
            hay=f"{first.workflow_id} {first.correlation_id} {asked[:_SEARCHED]}".casefold(),
        )
        self._rows[row.id] = row
        self._teams[row.team] = self._teams.get(row.team, 0) + 1
        while len(self._rows) > self._limit:
            self._drop(next(iter(self._rows)))
        return row

    def _drop(self, workflow: str) -> None:
        gone = self._rows.pop(workflow)
        self._changed.pop(workflow, None)
        self._teams[gone.team] -= 1
        if not self._teams[gone.team]:
            del self._teams[gone.team]

    def _forget(self) -> None:
        """The log goes back: it was made anew, or lost its end. What was read is not what is there."""
        _log.warning("log_began_anew", was_at=self.sequence)
        for known in (self._rows, self._changed, self._teams, self.agents):
            known.clear()
        self.sequence, self._end = 0, 0
        self.epoch += 1

    def _count(self, row: Row, entry: Entry) -> None:
        match entry:
            case TaskAdded():
                self._agent(entry.agent).role = entry.role.value
            case TaskSucceeded():
                self._attempt(row, entry, succeeded=True)
            case AttemptFailed() if entry.result is not None:
                self._attempt(row, entry, succeeded=False)

    def _attempt(self, row: Row, entry: TaskSucceeded | AttemptFailed, *, succeeded: bool) -> None:
        result = entry.result
        assert result is not None
        record = self._agent(result.agent)
        record.succeeded += succeeded
        record.failed += not succeeded
        record.recent.append(succeeded)
        record.usage += result.usage
        record.last_at = result.ended_at
        record.works.append((result.ended_at - result.started_at).total_seconds())
        handed = row.handed.pop((entry.task_id, entry.attempt), None)
        if handed is not None:
            record.waits.append(max(0.0, (result.started_at - handed).total_seconds()))

    def _agent(self, name: str) -> AgentRecord:
        return self.agents.setdefault(name, AgentRecord(name))


def _middle(values: Sequence[float] | deque[float]) -> float | None:
    return _at(values, 0.5)


def _at(values: Sequence[float] | deque[float], share: float) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
