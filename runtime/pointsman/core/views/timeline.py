"""Render a workflow as lines: one line for each entry of its log and for each report of its agents."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias, assert_never

from pointsman.core.views.formatting import format_seconds, format_usage, pickup_delay, start_delay
from pointsman_schemas.card import Role
from pointsman_schemas.events import ATTEMPT_STARTED, ErrorKind, Progress, Usage
from pointsman_schemas.log import (
    Entry,
    QuestionAsked,
    TaskSucceeded,
)

__all__ = ["Timeline", "TimelineLine", "Tone", "label"]

Tone: TypeAlias = Literal["plain", "good", "bad", "warn", "busy"]

_EPOCH = datetime.min.replace(tzinfo=UTC)
_END_TONES: dict[str, Tone] = {"completed": "good", "partial": "warn", "cancelled": "warn"}


@dataclass(frozen=True, slots=True)
class TimelineLine:
    """One line of the timeline.

    `mark` is a short sign that can replace the text: `✓ fitter t1` means `fitter finished t1`. A line without a mark is
    a detail that a short view may leave out.
    """

    at: datetime
    mark: str
    tone: Tone
    actor: str
    text: str
    detail: str


class Timeline:
    """Renderer of a log. The renderer stores the agent of each task, because not every entry names the agent."""

    def __init__(self) -> None:
        self._agents: dict[str, str] = {}
        self._missing_deps = ""
        self._last_at = _EPOCH
        self._roles: dict[str, Role] = {}
        self._dispatched_at: dict[tuple[str, int], datetime] = {}  # by task and attempt, as in `_reports`
        self._reports: dict[tuple[str, int], list[Progress]] = {}

    def render(self, event: Entry | Progress) -> TimelineLine:
        """Return the line about `event`. Call this method with all events in order: a line may use earlier events."""
        if isinstance(event, Progress):
            attempt = event.task_id, event.attempt
            self._reports.setdefault(attempt, []).append(event)
            if event.kind == "progress" and event.name == ATTEMPT_STARTED:
                handed = self._dispatched_at.get(attempt, event.started_at)
                late = start_delay(handed, event.started_at, self._reports[attempt])
                what = _join(self._task(event.task_id), late)
                at = max(self._last_at, event.started_at)  # a report may arrive late, but lines keep their order
                line = TimelineLine(at, "·" if late else "", "plain", event.agent, "is at work on", what)
            else:
                line = _report_line(event)
        else:
            mark, tone, who, does, what = self._entry(event)
            line = TimelineLine(event.at, mark, tone, who, does, what)
        self._last_at = line.at
        return line

    def _entry(self, entry: Entry) -> tuple[str, Tone, str, str, str]:
        match entry.kind:
            case "workflow_started":
                return "▶", "plain", entry.team, "took the request", ""
            case "task_added":
                self._agents[entry.task_id], self._roles[entry.task_id] = entry.agent, entry.role
                return "", "plain", entry.agent, "is asked to", entry.role
            case "plan_accepted":
                plan, count = entry.plan, len(entry.plan.tasks)
                self._agents.update({task.id: task.agent for task in plan.tasks})
                does = f"has {count} task{'' if count == 1 else 's'}:" if count else ""
                return "≡", "plain", f"plan {entry.revision}", does, plan.goal or plan.cannot
            case "plan_rejected":
                return "✗", "bad", f"plan {entry.revision}", "is", "refused: " + "; ".join(entry.problems)
            case "task_dispatched":
                self._agents[entry.task_id] = entry.agent
                self._dispatched_at[entry.task_id, entry.attempt] = entry.at
                nth = f", attempt {entry.attempt}" if entry.attempt > 1 else ""
                nth += f", in place of {entry.fallback_for}" if entry.fallback_for else ""
                return "→", "busy", entry.agent, "is handed", self._task(entry.task_id) + nth
            case "task_held":
                held = format_seconds((entry.until - entry.at).total_seconds())
                what = f"{self._task(entry.task_id)} held for {held}: {entry.reason}"
                return "‖", "warn", self._agent(entry.task_id), "has", what
            case "task_succeeded":
                took = format_seconds((entry.result.ended_at - entry.result.started_at).total_seconds())
                what = _join(
                    f"{self._task(entry.task_id)} in {took}", format_usage(entry.result.usage), self._late_result(entry)
                )
                return "✓", "good", entry.result.agent, "finished", what
            case "attempt_failed" if entry.error.kind == ErrorKind.NEEDS_ANSWER:
                what = f"{self._task(entry.task_id)}, attempt {entry.attempt}: {entry.error.message}"
                return "‖", "warn", self._agent(entry.task_id), "waits in", what
            case "attempt_failed":
                nth = f"{self._task(entry.task_id)}, attempt {entry.attempt}"
                what = f"{nth}: {entry.error.kind.replace('_', ' ')}: {entry.error.for_operators}"
                return "✗", "bad", self._agent(entry.task_id), "failed at", what
            case "retry_scheduled":
                self._agents[entry.task_id] = entry.agent
                self._dispatched_at[entry.task_id, entry.attempt] = entry.not_before
                wait = format_seconds(max(0.0, (entry.not_before - entry.at).total_seconds()))
                why = f": {entry.reason}" if entry.reason else ""
                what = f"{self._task(entry.task_id)}, attempt {entry.attempt} in {wait}{why}"
                return "↻", "warn", entry.agent, "gets", what
            case "budget_awaited":
                what = f"{self._task(entry.task_id)} waiting: all {entry.limit} are reserved for other tasks"
                return "…", "warn", entry.agent, "has", what
            case "task_refined":
                agent, task = self._agent(entry.task_id), self._task(entry.task_id)
                if not entry.intent:
                    return "", "plain", agent, "gets", f"{task} with the same intent"
                return "↻", "warn", agent, "gets", f"{task} with a new intent: {entry.intent}"
            case "refinement_requested":
                return (
                    "",
                    "plain",
                    self._agent(entry.refiner_task),
                    "must rewrite",
                    self._task(entry.task_id),
                )
            case "review_requested":
                return "", "plain", entry.judge, "must review", self._task(entry.task_id)
            case "task_failed":
                attempts = f"{entry.attempts} attempt{'' if entry.attempts == 1 else 's'}"
                what = f"{self._task(entry.task_id)} after {attempts}: {entry.error.for_operators}"
                return "✗", "bad", self._agent(entry.task_id), "failed", what
            case "task_expanded":
                agent, count = self._agent(entry.task_id), len(entry.items)
                self._agents.update(dict.fromkeys(entry.items, agent))
                what = f"{self._task(entry.task_id)} for {count} item{'' if count == 1 else 's'}"
                return "≡", "plain", agent, "gets", what
            case "items_gathered":
                without = f", without {', '.join(entry.missing)}" if entry.missing else ""
                return "✓", "good", self._agent(entry.task_id), "finished", self._task(entry.task_id) + without
            case "task_skipped":
                what = f"{self._task(entry.task_id)} skipped: {entry.reason or entry.unmet_dependency}"
                return "-", "warn", self._agent(entry.task_id), "has", what
            case "task_abandoned":
                what = f"{self._task(entry.task_id)} abandoned: {entry.reason}"
                return "-", "warn", self._agent(entry.task_id), "has", what
            case "task_reopened":
                what = f"{self._task(entry.task_id)} reopened{' by ' + entry.by if entry.by else ''}"
                return "↻", "warn", self._agent(entry.task_id), "has", what
            case "result_ignored":
                what = f"a result for {entry.task_id}, attempt {entry.attempt}, ignored: {entry.reason}"
                return "-", "warn", entry.agent, "has", what
            case "question_asked":
                about = label(entry, self._task(entry.task_id or ""))
                waits = "asks:" if entry.about == "information" else "waits for approval of"
                return "?", "warn", entry.agent or "plan", waits, about
            case "question_answered":
                why = f": {entry.reason}" if entry.reason else ""
                edited = ", edited" if entry.verdict == "approved" and entry.input is not None else ""
                tone: Tone = "good" if entry.verdict in ("approved", "answered") else "bad"
                return "?", tone, entry.by or "timer", "answered:", f"{entry.verdict} {entry.question}{edited}{why}"
            case "message_received":
                return "✉", "plain", entry.by or "a client", "says:", entry.text
            case "control_ignored":
                return "-", "warn", entry.action, "is", f"ignored: {entry.reason}"
            case "limit_reached":
                return "!", "warn", entry.limit, "", entry.detail
            case "timer_armed" if entry.reason not in ("", self._missing_deps):  # else a repeated check
                self._missing_deps = entry.reason
                return "…", "warn", "the request", "waits:", entry.reason
            case "timer_armed":
                return "", "plain", "supervisor", "will check again at", f"{entry.due:%H:%M:%S}"
            case "workflow_resumed":
                again = ", ".join(entry.tasks) or "the answer"
                why = f": {entry.reason}" if entry.reason else ""
                return "▶", "plain", entry.by or "a client", "resumed the workflow, to do again:", again + why
            case "workflow_ended":
                status = entry.outcome.status
                return "■", _END_TONES.get(status, "bad"), status, "is the end:", entry.outcome.reason
            case _:
                assert_never(entry)

    def _late_result(self, entry: TaskSucceeded) -> str:
        attempt = (entry.task_id, entry.attempt)
        handed = self._dispatched_at.get(attempt, entry.result.started_at)
        return pickup_delay(entry.result, handed, self._reports.pop(attempt, ()))

    def _task(self, task: str) -> str:
        """Return the name of a task. The name of a role's task is the role."""
        return str(self._roles.get(task, task))

    def _agent(self, task: str) -> str:
        return self._agents.get(task, "supervisor")


def label(question: QuestionAsked, task: str) -> str:
    """Return a text that names the thing a question is about. `task` is the name of its task."""
    match question.about:
        case "plan":
            return "the plan"
        case "task":
            return f"the task {task}"
        case "information":
            return question.text
        case "tool":
            return f"the call of {question.tool} in {task}"


def _report_line(report: Progress) -> TimelineLine:
    at = report.ended_at or report.started_at
    took = f" {format_seconds((at - report.started_at).total_seconds())}" if report.ended_at else ""
    called = f"{report.name}{took}" + (f": {report.error}" if report.error else "")
    tone: Tone = "bad" if report.error else "plain"
    match report.kind:
        case "tool":
            return TimelineLine(at, "⚒", tone, report.agent, "used", called)
        case "chat":
            return TimelineLine(
                at, "✎", tone, report.agent, "asked", _join(called, format_usage(report.usage or Usage()))
            )
        case _:
            return TimelineLine(at, "·", tone, report.agent, "", report.message or report.name or report.kind)


def _join(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
