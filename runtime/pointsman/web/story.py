"""What happened in a workflow, one line for each entry of its log and each report of its agents, in plain words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from pointsman.ports import Stored
from pointsman_schemas.card import Role
from pointsman_schemas.events import Progress
from pointsman_schemas.log import (
    AllowanceAwaited,
    ApprovalDecided,
    ApprovalRequested,
    AttemptFailed,
    ControlIgnored,
    Entry,
    LimitReached,
    PlanAccepted,
    PlanRejected,
    ResultIgnored,
    RetryScheduled,
    TaskAbandoned,
    TaskAdded,
    TaskDispatched,
    TaskFailed,
    TaskHeld,
    TaskReopened,
    TaskSkipped,
    TaskSucceeded,
    TimerArmed,
    WorkflowEnded,
    WorkflowStarted,
)

__all__ = ["Line", "Story"]

_LONGEST = 300  # characters of a line; the whole stands in the event's body


@dataclass(frozen=True, slots=True)
class Line:
    """One entry or report. `tone` is `plain`, `good`, `bad`, `warn` or `busy`."""

    sequence: int
    part: int
    at: Any
    kind: str
    tone: str
    who: str
    what: str
    task: str


class Story:
    """Lines need a memory: a result names its task, and which agent has it was said when it was handed over."""

    def __init__(self) -> None:
        self._agents: dict[str, str] = {}
        self._roles: dict[str, Role] = {}

    def of_commit(self, stored: Stored, entries: Iterable[Entry]) -> Iterator[Line]:
        for part, entry in enumerate(entries):
            tone, who, what = self._entry(entry)
            task = getattr(entry, "task_id", "")
            yield Line(stored.sequence, part, entry.at, entry.kind, tone, who, what[:_LONGEST], task)

    def of_report(self, stored: Stored, report: Progress) -> Line:
        at = report.ended_at or report.started_at
        took = f" {_seconds(report.started_at, report.ended_at)}" if report.ended_at else ""
        match report.kind:
            case "tool":
                kind, what = "tool_called", f"used {report.name}{took}"
            case "chat":
                kind, what = "model_called", f"asked {report.name}{took}"
            case _:
                kind, what = report.kind, report.message or report.name or report.kind
        if report.error:
            what += f": {report.error}"
        tone = "bad" if report.error else "plain"
        return Line(stored.sequence, 0, at, kind, tone, report.agent, what[:_LONGEST], report.task_id)

    def _entry(self, entry: Entry) -> tuple[str, str, str]:
        match entry:
            case WorkflowStarted():
                return "plain", entry.team, "took the request"
            case TaskAdded():
                self._agents[entry.task_id], self._roles[entry.task_id] = entry.agent, entry.role
                return "plain", entry.agent, f"is asked to {entry.role}"
            case PlanAccepted():
                self._agents.update({task.id: task.agent for task in entry.plan.tasks})
                count = len(entry.plan.tasks)
                said = f"{count} task{'' if count == 1 else 's'}" if count else entry.plan.cannot or "no task"
                return "plain", f"plan {entry.revision}", f"{said}: {entry.plan.goal}" if entry.plan.goal else said
            case PlanRejected():
                return "bad", f"plan {entry.revision}", "refused: " + "; ".join(entry.problems)
            case TaskDispatched():
                self._agents[entry.task_id] = entry.agent
                nth = f", attempt {entry.attempt}" if entry.attempt > 1 else ""
                nth += f", in place of {entry.instead_of}" if entry.instead_of else ""
                return "busy", entry.agent, f"is handed {self._task(entry.task_id)}{nth}"
            case TaskHeld():
                wait = _seconds(entry.at, entry.until)
                said = f"{self._task(entry.task_id)} is held for {wait}: {entry.reason}"
                return "warn", self._agent(entry.task_id), said
            case TaskSucceeded():
                took = _seconds(entry.result.started_at, entry.result.ended_at)
                return "good", entry.result.agent, f"finished {self._task(entry.task_id)} in {took}"
            case AttemptFailed():
                said = f"failed at {self._task(entry.task_id)}, attempt {entry.attempt}: {entry.error.message}"
                return "bad", self._agent(entry.task_id), said
            case RetryScheduled():
                self._agents[entry.task_id] = entry.agent
                wait = _seconds(entry.at, max(entry.at, entry.not_before))
                return "warn", entry.agent, f"gets attempt {entry.attempt} at {self._task(entry.task_id)} in {wait}"
            case AllowanceAwaited():
                said = f"{self._task(entry.task_id)} waits: all {entry.limit} there are, are set aside for others"
                return "warn", entry.agent, said
            case TaskFailed():
                said = f"{self._task(entry.task_id)} is given up after {entry.attempts}: {entry.error.message}"
                return "bad", self._agent(entry.task_id), said
            case TaskSkipped():
                said = f"{self._task(entry.task_id)} is skipped: {entry.reason or entry.cause}"
                return "warn", self._agent(entry.task_id), said
            case TaskAbandoned():
                said = f"{self._task(entry.task_id)} is no longer waited for: {entry.reason}"
                return "warn", self._agent(entry.task_id), said
            case TaskReopened():
                by = f" by {entry.by}" if entry.by else ""
                return "warn", self._agent(entry.task_id), f"{self._task(entry.task_id)} is tried again{by}"
            case ResultIgnored():
                said = f"a result for {entry.task_id}, attempt {entry.attempt}, counts for nothing: {entry.reason}"
                return "warn", entry.agent, said
            case ApprovalRequested():
                about = {"plan": "the plan", "task": f"task {entry.task_id}", "tool": f"the use of {entry.tool}"}
                return "warn", entry.agent or "supervisor", f"waits for a person's yes to {about[entry.about]}"
            case ApprovalDecided():
                edited = ", edited" if entry.input is not None else ""
                said = f"{entry.verdict}{edited}" + (f": {entry.reason}" if entry.reason else "")
                return "good" if entry.verdict == "approved" else "bad", entry.by or "nobody", said
            case LimitReached():
                return "warn", entry.limit, entry.detail
            case ApprovalRequested():
                return "warn", entry.agent or "plan", f"waiting for approval of the {entry.about}: {entry.approval}"
            case ApprovalDecided():
                tone = "good" if entry.verdict == "approved" else "bad"
                by, why = (f" by {entry.by}" if entry.by else ""), (f": {entry.reason}" if entry.reason else "")
                return tone, "approval", f"{entry.approval} {entry.verdict}{by}{why}"
            case ControlIgnored():
                return "warn", "control", f"{entry.action} counts for nothing: {entry.reason}"
            case TimerArmed():
                return "plain", "supervisor", f"will look again at {entry.due:%H:%M:%S}"
            case WorkflowEnded():
                tone = {"completed": "good", "partial": "warn"}.get(entry.outcome.status, "bad")
                return tone, entry.outcome.team, f"ended: {entry.outcome.status}. {entry.outcome.reason}".rstrip(". ")
        return _another(entry)

    def _task(self, task: str) -> str:
        role = self._roles.get(task)
        return task if role is None else f"{task} ({role})" if task != role.value else task

    def _agent(self, task: str) -> str:
        return self._agents.get(task, "supervisor")


def _another(entry: BaseModel) -> tuple[str, str, str]:
    """An entry without a line of its own: its name says the most, and the body has the rest."""
    content = entry.model_dump()
    who = content.get("agent") or content.get("by") or "supervisor"
    return "plain", str(who), str(content.get("kind", "event")).replace("_", " ")


def _seconds(start: Any, end: Any) -> str:
    value = (end - start).total_seconds()
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 60 else f"{value / 60:.1f} min"
