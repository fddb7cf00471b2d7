"""Model the values of the index: rows of workflows, records of agents, searches and pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pointsman.client.summaries import WorkflowSummary
from pointsman.core.views.formatting import request_text
from pointsman.index.activity import Activity
from pointsman_schemas.card import Role
from pointsman_schemas.events import Usage
from pointsman_schemas.log import (
    Entry,
    RetryScheduled,
    TaskDispatched,
)

__all__ = [
    "SHOWN_CHARS",
    "AgentRecord",
    "Page",
    "Search",
    "Totals",
    "WorkflowRow",
    "percentile",
    "queued_row",
    "search_text",
]

_SEARCHED_CHARS = 1_000  # number of characters of a request in which searches look
SHOWN_CHARS = 200  # number of characters of a request in the list

_NO_USAGE = Usage()  # immutable, so all rows share this value
_MAX_SAMPLES = 200  # number of newest attempts of an agent from which the latencies are computed


@dataclass(slots=True)
class WorkflowRow:
    """One workflow in the list. `first_sequence` and `sequence` are the positions of its first and last log message."""

    id: str
    team: str
    first_sequence: int
    sequence: int
    started_at: datetime
    input: str
    """The beginning of the request; empty in an index without details."""
    caller: str = ""
    correlation_id: str = ""
    thread: str = ""
    """The thread of which the request is a turn."""
    search_text: str = ""
    """Case-folded text for searches: the id, the correlation id, the request, and the agents that took part."""
    imported: bool = False
    status: str = "running"
    """A status of `WORKFLOW_STATUSES`."""
    reason: str = ""
    refused: bool = False
    """True for a workflow that failed without a task."""
    updated_at: datetime = field(init=False)
    """Time of the end; before the end, time of the last message."""
    ended_at: datetime | None = None
    usage: Usage = _NO_USAGE
    earlier_usage: Usage = _NO_USAGE
    """Usage of the rounds that have ended."""
    work: dict[str, str] = field(default_factory=dict)
    """State of each planned task: open, succeeded or failed.

    The states are deleted at the end of the workflow. `done`, `total` and `failed` keep their values.
    """
    earlier_done: int = 0
    """Number of tasks that succeeded in earlier rounds."""
    done: int = 0
    total: int = 0
    failed: int = 0
    dispatched: dict[tuple[str, int], datetime] = field(default_factory=dict)
    delegated: set[tuple[str, int]] = field(default_factory=set)
    """Attempts, as task and number, that teams handle in child workflows."""
    started_seconds: float = field(init=False)
    """Start of the workflow in seconds since 1970."""
    elapsed: float | None = None
    """Duration in seconds of a workflow that has ended."""

    def __post_init__(self) -> None:
        self.updated_at, self.started_seconds = self.started_at, self.started_at.timestamp()

    def apply(self, entry: Entry) -> None:
        """Apply the end or the resumption of the workflow. Ignore any other entry."""
        match entry.kind:
            case "workflow_resumed":
                self.reason, self.refused, self.ended_at, self.elapsed = "", False, None, None
            case "workflow_ended":
                outcome = entry.outcome
                self.status, self.reason, self.usage = outcome.status, outcome.reason, outcome.usage
                self.refused = outcome.status == "failed" and not outcome.tasks
                self.ended_at = self.updated_at = entry.at
                self.elapsed = entry.at.timestamp() - self.started_seconds
            case _:
                return

    def count(self, entry: Entry) -> None:
        """Apply an entry to the numbers of tasks and to the usage so far. `apply` sets the usage at the end."""
        match entry.kind:
            case "plan_accepted":
                for task in entry.plan.tasks:
                    self.work.setdefault(task.id, "open")
            case "task_expanded":
                for name in entry.items:
                    self.work.setdefault(name, "open")
            case "items_gathered":
                self._set_task_state(entry.task_id, "succeeded")
            case "task_dispatched":
                self.dispatched[entry.task_id, entry.attempt] = entry.at
                self._assign(entry)
            case "retry_scheduled":
                self._assign(entry)
            case "task_succeeded":
                self.usage += entry.result.usage
                self._set_task_state(entry.task_id, "succeeded")
            case "attempt_failed" if entry.result is not None:
                self.usage += entry.result.usage
            case "task_failed" | "task_skipped" | "task_abandoned":
                self._set_task_state(entry.task_id, "failed")
            case "task_reopened":
                self._set_task_state(entry.task_id, "open")
            case "timer_armed":
                self.reason = entry.reason  # the agents that must be live before the workflow can begin
                return
            case "workflow_resumed":
                self.earlier_done = max(0, self.total - len(entry.tasks))
                self.work = dict.fromkeys(entry.tasks, "open")
            case "workflow_ended":
                for kept in (self.work, self.dispatched, self.delegated):
                    kept.clear()
                return
            case _:
                return
        self.total = self.earlier_done + len(self.work)
        self.failed = sum(1 for state in self.work.values() if state == "failed")
        self.done = self.earlier_done + sum(1 for state in self.work.values() if state == "succeeded")

    def _assign(self, entry: TaskDispatched | RetryScheduled) -> None:
        if entry.team:
            self.delegated.add((entry.task_id, entry.attempt))
        if entry.agent.casefold() not in self.search_text:
            self.search_text += f" {entry.agent.casefold()}"

    def _set_task_state(self, task: str, state: str) -> None:
        if task in self.work:
            self.work[task] = state

    def as_json(self) -> dict[str, object]:
        """Return the row as data for the page."""
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
            "began": self.first_sequence,
        }


@dataclass(slots=True)
class AgentRecord:
    """Statistics of an agent from the log. Latencies are in seconds, and include only the newest attempts."""

    name: str
    role: str = Role.WORK.value
    succeeded: int = 0
    failed: int = 0
    usage: Usage = field(default_factory=Usage)
    last_at: datetime | None = None
    queue_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))
    work_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))

    def as_json(self) -> dict[str, object]:
        return {
            "role": self.role,
            "succeeded": self.succeeded,
            "failed": self.failed,
            "failing": self.recent.count(False) / len(self.recent) if self.recent else 0.0,
            "tokens": self.usage.tokens,
            "cost": self.usage.cost,
            "last_at": self.last_at,
            "wait": percentile(self.queue_seconds, 0.5),
            "median": percentile(self.work_seconds, 0.5),
            "slow": percentile(self.work_seconds, 0.95),
        }


@dataclass(frozen=True, slots=True)
class Search:
    """The search in a list. An empty field matches each row.

    Attributes:
        team: The team.
        statuses: The statuses.
        text: A text that must be in the `search_text` of a row. It must be case-folded, as `search_text` is.
        since: The earliest time of the start.
        until: The time before which the workflow began.
        caller: The caller.
        correlation_id: The correlation id.
    """

    team: str = ""
    statuses: Collection[str] = ()
    text: str = ""
    since: datetime | None = None
    until: datetime | None = None
    caller: str = ""
    correlation_id: str = ""

    def matches(self, row: WorkflowRow) -> bool:
        """Return True if a row matches."""
        if self.team and row.team != self.team:
            return False
        if self.statuses and row.status not in self.statuses:
            return False
        if self.caller and row.caller != self.caller:
            return False
        if self.correlation_id and row.correlation_id != self.correlation_id:
            return False
        if self.since is not None and row.started_at < self.since:
            return False
        if self.until is not None and row.started_at >= self.until:
            return False
        return self.text in row.search_text


@dataclass(slots=True)
class Totals:
    """Sums over all rows that match a search."""

    count: int = 0
    running: int = 0
    waiting: int = 0
    failed: int = 0
    tokens: int = 0
    cost: float = 0.0
    median_seconds: float | None = None
    """Median duration of the ended workflows."""
    p95_seconds: float | None = None
    """95th percentile of the durations of the ended workflows."""
    activity: Activity | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the rows that match a search, newest first, and the sums over all matching rows."""

    rows: Sequence[WorkflowRow]
    totals: Totals
    sequence: int


def percentile(values: Sequence[float] | deque[float], share: float) -> float | None:
    """Return the percentile of `values` at `share` (0 to 1); None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def queued_row(request: WorkflowSummary, reason: str = "") -> WorkflowRow:
    """Return the row of a request that waits for admission.

    Args:
        request: The request.
        reason: The reason why the request waits.
    """
    asked = request_text(request.input)
    return WorkflowRow(
        id=request.id,
        team=request.team,
        first_sequence=0,
        sequence=0,
        started_at=request.started_at,
        input=asked[:SHOWN_CHARS],
        caller=request.caller,
        correlation_id=request.correlation_id,
        thread=request.thread,
        search_text=search_text(request.id, request.correlation_id, asked),
        status=request.status,
        reason=reason,
    )


def search_text(workflow: str, correlation_id: str, asked: str) -> str:
    """Return the case-folded text in which searches look.

    Args:
        workflow: The workflow.
        correlation_id: The correlation id.
        asked: The request.
    """
    return f"{workflow} {correlation_id} {asked[:_SEARCHED_CHARS]}".casefold()
