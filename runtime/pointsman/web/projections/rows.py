"""What is known of one workflow, of one agent, and what is asked for: the values that the index holds and gives."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pointsman.web.projections.activity import Activity
from pointsman_schemas.card import Role
from pointsman_schemas.events import Usage
from pointsman_schemas.log import (
    ApprovalRequested,
    Entry,
    RetryScheduled,
    TaskDispatched,
)

__all__ = ["SEARCHED_CHARS", "SHOWN_CHARS", "AgentRecord", "Page", "Search", "Totals", "WorkflowRow", "percentile"]

SEARCHED_CHARS = 1_000  # characters of a request that a search looks at
SHOWN_CHARS = 200  # characters of it in the list

_MAX_SAMPLES = 200  # newest attempts of an agent that its latency is told from


@dataclass(slots=True)
class WorkflowRow:
    """One workflow in the list. `sequence` is where in the log it changed last, `first_sequence` where it began."""

    id: str
    team: str
    first_sequence: int
    sequence: int
    started_at: datetime
    input: str
    search_text: str
    """What a search for text looks at: the id, the correlation id, the request, the agents that had a part in it."""
    status: str = "running"
    reason: str = ""
    ended_at: datetime | None = None
    usage: Usage = field(default_factory=Usage)
    work: dict[str, str] = field(default_factory=dict)
    """The tasks of its plans: open, succeeded or failed. Emptied at the end; the counts stay."""
    done: int = 0
    total: int = 0
    failed: int = 0
    dispatched: dict[tuple[str, int], datetime] = field(default_factory=dict)
    delegated: set[tuple[str, int]] = field(default_factory=set)
    """The attempts of teams: what they do is told by workflows of their own."""
    pending_approvals: set[str] = field(default_factory=set)
    """Approvals that it waits for."""
    started_tasks: float = field(init=False)
    """Seconds since 1970."""
    elapsed: float | None = None
    """Seconds, once it has ended."""

    def __post_init__(self) -> None:
        self.started_tasks = self.started_at.timestamp()

    def apply(self, entry: Entry) -> None:
        match entry.kind:
            case "plan_accepted":
                for task in entry.plan.tasks:
                    self.work.setdefault(task.id, "open")
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
            case "approval_requested" | "approval_decided":
                wanted = isinstance(entry, ApprovalRequested)
                self.pending_approvals.add(entry.approval) if wanted else self.pending_approvals.discard(entry.approval)
                self.status = "waiting for approval" if self.pending_approvals else "running"
            case "timer_armed":
                self.reason = entry.reason  # who must come before it can begin
                return
            case "workflow_ended":
                outcome = entry.outcome
                self.status, self.reason, self.usage = outcome.status, outcome.reason, outcome.usage
                self.ended_at, self.elapsed = entry.at, entry.at.timestamp() - self.started_tasks
                for kept in (self.work, self.dispatched, self.delegated, self.pending_approvals):
                    kept.clear()
                return
            case _:
                return
        self.total = len(self.work)
        self.failed = sum(1 for state in self.work.values() if state == "failed")
        self.done = sum(1 for state in self.work.values() if state == "succeeded")

    def _assign(self, entry: TaskDispatched | RetryScheduled) -> None:
        if entry.team:
            self.delegated.add((entry.task_id, entry.attempt))
        if entry.agent.casefold() not in self.search_text:
            self.search_text += f" {entry.agent.casefold()}"

    def _set_task_state(self, task: str, state: str) -> None:
        if task in self.work:
            self.work[task] = state

    def as_json(self) -> dict[str, object]:
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
            "began": self.first_sequence,
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
    """What a page asks for. `text`, in folded case, is looked for in each row's `search_text`."""

    team: str = ""
    status: str = ""
    text: str = ""
    since: datetime | None = None

    def matches(self, row: WorkflowRow) -> bool:
        if self.team and row.team != self.team:
            return False
        if self.status and row.status != self.status:
            return False
        if self.since is not None and row.started_at < self.since:
            return False
        return self.text in row.search_text


@dataclass(slots=True)
class Totals:
    """What fits a search, added up."""

    count: int = 0
    running: int = 0
    waiting: int = 0
    failed: int = 0
    tokens: int = 0
    cost: float = 0.0
    median_seconds: float | None = None
    """Seconds that half of those that have ended took at most."""
    p95_seconds: float | None = None
    """Seconds that all but the slowest twentieth took at most."""
    activity: Activity | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows that fit a search, newest first, and the sum of all that fit."""

    rows: Sequence[WorkflowRow]
    totals: Totals
    sequence: int


def percentile(values: Sequence[float] | deque[float], share: float) -> float | None:
    """What that share of `values` is at most; None where there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
