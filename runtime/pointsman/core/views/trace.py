"""Build the trace of a workflow from its log alone: the tree of its spans, without a telemetry backend.

publish request.{team}.{caller}
└ invoke_workflow {team}
  ├ plan {planner}                attempts, with the model calls and tools of each, as below
  ├ invoke_agent {agent}          a task: dispatch to result, all attempts
  │  └ attempt 1                  the worker's time, from the result, or from the reports if no result exists
  │     ├ chat {model}
  │     └ execute_tool {tool}
  ├ invoke_agent {team}           a team; the team's workflow is below the attempt, from the log of that workflow
  └ synthesize {synthesizer}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, TypeAlias, assert_never

from pydantic import AwareDatetime, JsonValue

from pointsman.core.evolve import open_questions
from pointsman.core.views.formatting import pickup_delay, start_delay
from pointsman_schemas.base import Frozen
from pointsman_schemas.card import Role
from pointsman_schemas.events import ATTEMPT_STARTED, AttemptError, ErrorKind, Progress, Result, Usage
from pointsman_schemas.ids import child_id_for, span_id_for
from pointsman_schemas.log import (
    Entry,
    WorkflowEnded,
    WorkflowStarted,
)

__all__ = ["NodeKind", "TraceNode", "build_trace", "child_workflows"]

NodeKind: TypeAlias = Literal["publish", "workflow", "task", "attempt", "chat", "tool"]

_DISPATCHED = "handed over"
_WAITING_FOR_ANSWER = "waiting for an answer"
_ASKED = "asked a person"
_IN_REVIEW = "in review"
_FAR_FUTURE = datetime.max.replace(tzinfo=UTC)

_OPERATION_NAMES = {
    Role.PLAN: "plan",
    Role.CLASSIFY: "classify",
    Role.SYNTHESIZE: "synthesize",
    Role.REFINE: "refine",
    Role.JUDGE: "judge",
    Role.SUMMARIZE: "summarize",
    Role.WORK: "invoke_agent",
}


class TraceNode(Frozen):
    """One line of the tree.

    `ended_at` is None while the node is running. `started_at` is None before the start, and for an attempt without a
    known start. `status` is `waiting`, `handed over` until a worker reports the start, `running`, `held`, `waiting for
    an answer`, `being refined`, `in review`, `expanded`, `succeeded`, `failed`, `skipped` or `abandoned`. An attempt
    that ended with a question is `asked a person`. A workflow is `running`, `waiting for an answer` or has the status
    of its outcome. `due` is the time of a delayed handoff. `detail` is a remark in one line, such as the reason for a
    failure. `usage` includes all nodes below. `revision` is the version of the agent that made an attempt, and a digest
    of its code.
    """

    name: str
    kind: NodeKind
    status: str
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    due: AwareDatetime | None = None
    detail: str = ""
    role: Role | None = None
    agent: str | None = None
    task_id: str | None = None
    item_of: str | None = None
    attempt: int | None = None
    revision: str = ""
    span_id: str = ""
    trace_id: str = ""
    usage: Usage = Usage()
    children: tuple[TraceNode, ...] = ()

    @property
    def seconds(self) -> float | None:
        """Duration in seconds; None if the start or the end is missing."""
        if self.started_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.started_at).total_seconds()


def child_workflows(entries: Iterable[Entry]) -> tuple[str, ...]:
    """Return the ids of the child workflows that the tasks of this workflow have started."""
    view = _TraceBuilder.from_entries(entries)
    return tuple(
        child_id_for(attempt.agent, view.started.workflow_id, task.id, attempt.number)
        for task in view.tasks.values()
        for attempt in task.attempts.values()
        if attempt.team
    )


def build_trace(
    entries: Iterable[Entry],
    progress: Iterable[Progress] = (),
    children: Mapping[str, TraceNode] | None = None,
) -> TraceNode:
    """Build the trace of a workflow, running or ended.

    The log lacks the present time and the live agents. `trace_status.at_time` changes the statuses that depend on them.

    Args:
        entries: All log entries, in order.
        progress: The reports of the workflow's agents.
        children: The known traces of child workflows, by id.

    Returns:
        The root of the tree.

    Raises:
        ValueError: The entries do not begin with `WorkflowStarted`.
    """
    log = tuple(entries)
    view = _TraceBuilder.from_entries(log)
    for report in progress:
        view.report(report)
    return view.tree(children or {}, _WAITING_FOR_ANSWER if open_questions(log) else "running")


@dataclass(slots=True)
class _Attempt:
    number: int
    agent: str
    dispatched_at: datetime
    team: bool = False
    due: datetime | None = None
    ended_at: datetime | None = None
    status: str = "running"
    detail: str = ""
    usage: Usage = field(default_factory=Usage)
    reports: list[Progress] = field(default_factory=list)
    last_signs: list[Progress] = field(default_factory=list)  # all reports; each shows that the attempt is running
    result: Result | None = None

    def end(self, at: datetime, status: str, result: Result | None, detail: str = "") -> None:
        self.ended_at, self.status, self.detail = at, status, detail
        if result is not None:
            self.result = result
            self.ended_at, self.usage = result.ended_at, result.usage

    def started_at(self) -> datetime | None:
        """Return the start of the attempt, from its result or its reports; None if it has neither.

        A team without a result has started at its dispatch.
        """
        if self.result is not None:
            return self.result.started_at
        if self.team:
            return self.dispatched_at
        return min((sign.started_at for sign in self.last_signs), default=None)

    def node(self, workflow_id: str, task_id: str, children: Mapping[str, TraceNode]) -> TraceNode:
        spans = {report.span_id for report in self.reports if report.span_id}
        tops = [report for report in self.reports if report.parent_span_id not in spans]
        left = list(self.reports)
        calls = [self._call_node(report, task_id, left) for report in tops]
        while left:  # the remaining reports name each other as parents, so any of them may become the top
            calls.append(self._call_node(left[0], task_id, left))
        if self.team and (child := children.get(child_id_for(self.agent, workflow_id, task_id, self.number))):
            calls.extend(child.children)  # without the child's publish node: the attempt already shows the handoff
        began = self.started_at()
        if self.result is not None:
            late = pickup_delay(self.result, self.dispatched_at, self.last_signs)
        else:
            begun = [
                sign.started_at for sign in self.last_signs if sign.kind == "progress" and sign.name == ATTEMPT_STARTED
            ]
            late = start_delay(self.dispatched_at, max(begun, default=began), self.last_signs) if began else ""
        return TraceNode(
            name=f"attempt {self.number}",
            kind="attempt",
            status=_DISPATCHED if began is None and self.status == "running" else self.status,
            started_at=began,
            ended_at=self.ended_at,
            due=self.due if self.ended_at is None and (self.team or began is None) else None,
            detail="; ".join(part for part in (self.detail, late) if part),
            agent=self.agent,
            task_id=task_id,
            attempt=self.number,
            revision=self.result.revision if self.result else "",
            span_id=span_id_for(workflow_id, task_id, self.number),
            usage=self.usage,
            children=tuple(calls),
        )

    def _call_node(self, report: Progress, task_id: str, left: list[Progress]) -> TraceNode:
        """Return the node of `report` with the nodes of the calls below it. Remove all their reports from `left`."""
        left.remove(report)
        below = [other for other in left if report.span_id and other.parent_span_id == report.span_id]
        tool = report.kind == "tool"
        return TraceNode(
            name=f"{'execute_tool' if tool else 'chat'} {report.name}".rstrip(),
            kind="tool" if tool else "chat",
            status="failed" if report.error else "running" if report.ended_at is None else "succeeded",
            started_at=report.started_at,
            ended_at=report.ended_at,
            detail=report.error or report.message,
            agent=report.agent,
            task_id=task_id,
            attempt=report.attempt,
            span_id=report.span_id,
            usage=report.usage or Usage(),
            children=tuple(self._call_node(other, task_id, left) for other in below if other in left),
        )


@dataclass(slots=True)
class _Task:
    id: str
    role: Role
    agent: str
    intent: str
    status: str = "waiting"
    detail: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    span_id: str = ""
    waits_for: str = ""  # the id of the open question
    refused: str = ""  # the verdict and the person, after a rejection
    reason: str = ""  # the reason for which the task waits
    item_of: str = ""  # the task with `for_each` whose item this task does
    attempts: dict[int, _Attempt] = field(default_factory=dict)

    def dispatch(self, number: int, agent: str, at: datetime, team: bool, due: datetime | None = None) -> None:
        self.agent, self.status, self.ended_at, self.reason = agent, "running", None, ""
        self.started_at = self.started_at or at
        self.attempts[number] = _Attempt(number, agent, at, team, due)

    def wait(self, status: str, why: str = "") -> None:
        self.status, self.reason = status, why

    def end(self, at: datetime, status: str, detail: str = "") -> None:
        self.started_at, self.ended_at, self.status, self.reason = self.started_at or at, at, status, ""
        self.detail = detail or self.detail
        for attempt in self.attempts.values():
            if attempt.ended_at is None:
                # An attempt without a result has no recorded end, so the attempt ends with its task.
                attempt.end(max(at, attempt.dispatched_at), status, None, detail)
            elif attempt.status == _IN_REVIEW:
                attempt.status = status

    def node(self, workflow_id: str, children: Mapping[str, TraceNode]) -> TraceNode:
        attempts = [self.attempts[number] for number in sorted(self.attempts)]
        usage = Usage()
        for attempt in attempts:
            usage += attempt.usage
        below = tuple(attempt.node(workflow_id, self.id, children) for attempt in attempts)
        return TraceNode(
            name=f"{_OPERATION_NAMES[self.role]} {self.agent}".rstrip(),
            kind="task",
            status=_DISPATCHED if self.status == "running" and below[-1].status == _DISPATCHED else self.status,
            started_at=self.started_at,
            ended_at=self.ended_at,
            due=below[-1].due if self.status == "running" else None,
            detail=self.reason or self.detail or self.intent,
            role=self.role,
            agent=self.agent,
            task_id=self.id,
            item_of=self.item_of or None,
            attempt=len(attempts) or None,
            revision=below[-1].revision if below else "",
            span_id=self.span_id,
            usage=usage,
            children=below,
        )


class _TraceBuilder:
    """Fold the log into the tasks and attempts of the tree."""

    def __init__(self, started: WorkflowStarted) -> None:
        self.started = started
        self.tasks: dict[str, _Task] = {}
        self._ended: WorkflowEnded | None = None
        self._limit = ""
        self._asking: dict[str, _Task | None] = {}  # the task, by question; None if no planner wrote the plan
        self._refused = ""

    @classmethod
    def from_entries(cls, entries: Iterable[Entry]) -> _TraceBuilder:
        ordered = list(entries)
        if not ordered or not isinstance(ordered[0], WorkflowStarted):
            raise ValueError("a log begins with workflow_started; give every entry of the workflow, in order")
        view = cls(ordered[0])
        for entry in ordered:
            view.apply(entry)
        return view

    def apply(self, entry: Entry) -> None:
        match entry.kind:
            case "task_added":
                self.tasks[entry.task_id] = _Task(entry.task_id, entry.role, entry.agent, entry.intent)
            case "plan_accepted":
                for planned in entry.plan.tasks:
                    self.tasks.setdefault(planned.id, _Task(planned.id, Role.WORK, planned.agent, planned.intent))
                count = len(entry.plan.tasks)
                cannot = f": {entry.plan.cannot}" if not count and entry.plan.cannot else ""
                self._annotate_planner(f"plan {entry.revision}, {count} task{'' if count == 1 else 's'}{cannot}")
            case "plan_rejected":
                planner = self._annotate_planner("plan refused: " + "; ".join(entry.problems))
                if planner is not None and planner.refused:
                    planner.detail = f"{planner.refused}; {planner.detail}"
            case "task_dispatched":
                task = self._task(entry.task_id, entry.agent)
                task.dispatch(entry.attempt, entry.agent, entry.at, entry.team)
                task.span_id = task.span_id or entry.span_id
                if entry.fallback_for is not None:
                    task.detail = f"in place of {entry.fallback_for}, which kept failing"
            case "task_held":
                self._task(entry.task_id, "").wait("held", entry.reason)
            case "budget_awaited":
                why = f"all {entry.limit} are reserved for other tasks"
                self._task(entry.task_id, entry.agent).wait("waiting", why)
            case "refinement_requested":
                self._task(entry.task_id, "").wait("being refined")
            case "retry_scheduled":
                task, due = self._task(entry.task_id, entry.agent), entry.not_before
                task.dispatch(entry.attempt, entry.agent, due, entry.team, due)
            case "task_succeeded":
                task = self._task(entry.task_id, entry.result.agent)
                self._attempt(task, entry.attempt, entry.result).end(entry.at, "succeeded", entry.result)
                task.end(entry.at, "succeeded", _review_text(entry.result.output) if task.role is Role.JUDGE else "")
            case "review_requested":
                task = self._task(entry.task_id, entry.result.agent)
                task.wait(_IN_REVIEW)
                self._attempt(task, entry.attempt, entry.result).end(entry.at, _IN_REVIEW, entry.result)
            case "attempt_failed":
                task = self._task(entry.task_id, "")
                attempt = self._attempt(task, entry.attempt, entry.result)
                if entry.error.kind == ErrorKind.NEEDS_ANSWER:
                    attempt.end(entry.at, _ASKED, entry.result, entry.error.message)
                else:
                    attempt.end(entry.at, "failed", entry.result, _error_text(entry.error))
            case "task_failed":
                task = self._task(entry.task_id, "")
                task.end(entry.at, "failed", "; ".join(filter(None, (task.refused, _error_text(entry.error)))))
            case "task_expanded":
                whole, count = self._task(entry.task_id, ""), len(entry.items)
                whole.started_at = whole.started_at or entry.at
                whole.wait("expanded", f"{count} item{'' if count == 1 else 's'}")
                for name in entry.items:
                    self.tasks[name] = _Task(name, Role.WORK, whole.agent, whole.intent, item_of=whole.id)
            case "items_gathered":
                missing = f"without {', '.join(entry.missing)}" if entry.missing else ""
                self._task(entry.task_id, "").end(entry.at, "succeeded", missing)
            case "task_skipped":
                self._task(entry.task_id, "").end(
                    entry.at, "skipped", entry.reason or f"{entry.unmet_dependency} did not succeed"
                )
            case "task_abandoned":
                self._task(entry.task_id, "").end(entry.at, "abandoned", entry.reason)
            case "task_reopened":
                task = self._task(entry.task_id, "")
                task.wait("waiting")
                if (parent := self.tasks.get(task.item_of)) is not None and parent.status == "failed":
                    parent.wait("expanded")
                    parent.ended_at = None
                task.ended_at, task.detail = None, f"reopened{' by ' + entry.by if entry.by else ''}"
            case "result_ignored":
                if (found := self.tasks.get(entry.task_id)) is not None:
                    ignored = f"a result of attempt {entry.attempt} ignored: {entry.reason}"
                    found.detail = f"{found.detail}; {ignored}" if found.detail else ignored
            case "limit_reached":
                self._limit = f"limit {entry.limit}: {entry.detail}"
            case "workflow_ended":
                self._ended = entry
                for task in self.tasks.values():
                    if task.ended_at is None and task.attempts:
                        task.end(entry.at, "abandoned", task.detail or "the workflow ended first")
            case "workflow_resumed":
                self._ended, self._limit, self._refused = None, "", ""
                by = f" by {entry.by}" if entry.by else ""
                for task_id in entry.tasks:
                    task = self._task(task_id, "")
                    task.wait("waiting")
                    task.ended_at, task.detail = None, f"done again in round {entry.round}, resumed{by}"
            case "question_asked":
                waits = f"waits for an answer to {entry.question}"
                if entry.task_id is None:
                    asking = self._annotate_planner(waits)
                else:
                    asking = self._task(entry.task_id, entry.agent or "")
                    asking.wait(_WAITING_FOR_ANSWER)
                    asking.detail = waits
                if asking is not None:
                    asking.waits_for = entry.question
                self._asking[entry.question] = asking
            case "question_answered":
                said = f"{entry.verdict}{' by ' + entry.by if entry.by else ''}"
                refused = said if entry.verdict == "rejected" else ""
                if (asked := self._asking.get(entry.question)) is None:
                    self._refused = refused
                    return
                asked.refused = refused or asked.refused
                if asked.waits_for == entry.question:
                    asked.detail, asked.waits_for = said, ""
            case "task_refined":
                task = self._task(entry.task_id, "")
                task.intent = entry.intent or task.intent
            case "message_received" | "control_ignored" | "workflow_started" | "timer_armed":
                pass
            case _:
                assert_never(entry)

    def report(self, report: Progress) -> None:
        """Add a report. Model and tool calls become nodes; other reports only show that the attempt is running."""
        task = self.tasks.get(report.task_id)
        if task is None or report.attempt not in task.attempts:
            return
        attempt = task.attempts[report.attempt]
        attempt.last_signs.append(report)
        if report.kind in ("chat", "tool"):
            attempt.reports.append(report)

    def tree(self, below: Mapping[str, TraceNode], going_on: str) -> TraceNode:
        """Return the root of the tree; `going_on` is the status of a workflow that has not ended."""
        started, ended = self.started, self._ended
        by_start = sorted(self.tasks.values(), key=lambda task: task.started_at or _FAR_FUTURE)
        children = [task.node(started.workflow_id, below) for task in by_start]
        usage = Usage()
        for child in children:
            usage += child.usage
        outcome = ended.outcome if ended else None
        status = outcome.status if outcome else going_on
        workflow = TraceNode(
            name=f"invoke_workflow {started.team}",
            kind="workflow",
            status=status,
            started_at=started.at,
            ended_at=ended.at if ended else None,
            detail="; ".join(filter(None, (self._refused, (outcome.reason if outcome else "") or self._limit))),
            span_id=started.trace.span_id,
            usage=outcome.usage if outcome else usage,
            children=tuple(children),
        )
        return TraceNode(
            name=f"publish request.{started.team}.{started.caller}",
            kind="publish",
            status=status,
            started_at=started.at,
            ended_at=workflow.ended_at,
            detail=f"correlation {started.correlation_id}",
            trace_id=started.trace.trace_id,
            span_id=started.trace.parent_span_id or "",
            usage=workflow.usage,
            children=(workflow,),
        )

    def _annotate_planner(self, detail: str) -> _Task | None:
        """Add a remark to the task of the newest planner, because the entries of a plan do not name that task."""
        planners = [task for task in self.tasks.values() if task.role in (Role.PLAN, Role.CLASSIFY)]
        if not planners:
            return None
        planners[-1].detail = detail
        return planners[-1]

    def _task(self, task_id: str, agent: str) -> _Task:
        return self.tasks.setdefault(task_id, _Task(task_id, Role.WORK, agent, ""))

    def _attempt(self, task: _Task, number: int, result: Result | None) -> _Attempt:
        if number not in task.attempts:
            at = result.started_at if result else task.started_at or self.started.at
            task.attempts[number] = _Attempt(number, task.agent, at)
        return task.attempts[number]


def _review_text(output: JsonValue) -> str:
    """Return the verdict and the reason of a review. The output of a judge may also be a ruling on a conflict.

    For a ruling, return an empty text, because the outcome has the ruling.
    """
    if not isinstance(output, dict) or "verdict" not in output:
        return ""
    return ": ".join(str(part) for part in (output["verdict"], output.get("reason")) if part)


def _error_text(error: AttemptError) -> str:
    return f"{error.kind.replace('_', ' ')}: {error.for_operators}"
