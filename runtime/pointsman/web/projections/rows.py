"""What is known of one workflow, of one agent, and what is asked for: the values that the index holds and gives."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pointsman.web.projections.activity import Course
from pointsman_schemas.card import Role
from pointsman_schemas.events import Usage
from pointsman_schemas.log import (
    ApprovalDecided,
    ApprovalRequested,
    AttemptFailed,
    Entry,
    PlanAccepted,
    RetryScheduled,
    TaskAbandoned,
    TaskDispatched,
    TaskFailed,
    TaskReopened,
    TaskSkipped,
    TaskSucceeded,
    TimerArmed,
    WorkflowEnded,
)

__all__ = ["SEARCHED", "SHOWN", "AgentRecord", "Page", "Row", "Search", "Totals", "share_of"]

SEARCHED = 1_000  # characters of a request that a search looks at
SHOWN = 200  # characters of it in the list

_SAMPLES = 200  # newest attempts of an agent that its latency is told from


@dataclass(slots=True)
class Row:
    """One workflow in the list. `sequence` is where in the log it changed last, `began` where it began."""

    id: str
    team: str
    began: int
    sequence: int
    started_at: datetime
    input: str
    hay: str
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
    handed: dict[tuple[str, int], datetime] = field(default_factory=dict)
    delegated: set[tuple[str, int]] = field(default_factory=set)
    """The attempts of teams: what they do is told by workflows of their own."""
    asked: set[str] = field(default_factory=set)
    """Approvals that it waits for."""
    begun: float = field(init=False)
    """Seconds since 1970."""
    took: float | None = None
    """Seconds, once it has ended."""

    def __post_init__(self) -> None:
        self.begun = self.started_at.timestamp()

    def take(self, entry: Entry) -> None:
        match entry:
            case PlanAccepted():
                for task in entry.plan.tasks:
                    self.work.setdefault(task.id, "open")
            case TaskDispatched():
                self.handed[entry.task_id, entry.attempt] = entry.at
                self._gets(entry)
            case RetryScheduled():
                self._gets(entry)
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
            case TimerArmed():
                self.reason = entry.reason  # who must come before it can begin
                return
            case WorkflowEnded():
                outcome = entry.outcome
                self.status, self.reason, self.usage = outcome.status, outcome.reason, outcome.usage
                self.ended_at, self.took = entry.at, entry.at.timestamp() - self.begun
                for kept in (self.work, self.handed, self.delegated, self.asked):
                    kept.clear()
                return
            case _:
                return
        self.total = len(self.work)
        self.failed = sum(1 for state in self.work.values() if state == "failed")
        self.done = sum(1 for state in self.work.values() if state == "succeeded")

    def _gets(self, entry: TaskDispatched | RetryScheduled) -> None:
        if entry.team:
            self.delegated.add((entry.task_id, entry.attempt))
        if entry.agent.casefold() not in self.hay:
            self.hay += f" {entry.agent.casefold()}"

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
            "wait": share_of(self.waits, 0.5),
            "median": share_of(self.works, 0.5),
            "slow": share_of(self.works, 0.95),
        }


@dataclass(frozen=True, slots=True)
class Search:
    """What a page asks for. `text`, in folded case, is looked for in each row's `hay`."""

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
    waiting: int = 0
    failed: int = 0
    tokens: int = 0
    cost: float = 0.0
    usual: float | None = None
    """Seconds that half of those that have ended took at most."""
    slow: float | None = None
    """Seconds that all but the slowest twentieth took at most."""
    course: Course | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows that fit a search, newest first, and the sum of all that fit."""

    rows: Sequence[Row]
    totals: Totals
    sequence: int


def share_of(values: Sequence[float] | deque[float], share: float) -> float | None:
    """What that share of `values` is at most; None where there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
