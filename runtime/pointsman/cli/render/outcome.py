"""How a workflow looks in a terminal. Nothing here reads or waits: values in, renderables out."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime

from pydantic import JsonValue
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pointsman.cli.render.output import escape_control, one_line
from pointsman.client.client import WorkflowEvent, WorkflowSummary
from pointsman.core.evolve import fold_entries, pending_approvals
from pointsman.core.tasks.handoff_input import approval_subject
from pointsman.core.views import timeline
from pointsman.core.views.formatting import format_dollars, format_seconds, format_usage, request_text
from pointsman.core.views.trace import TraceNode, build_trace
from pointsman.core.views.trace_status import WAITING_FOR_AGENT, WAITING_FOR_RETRY, at_time
from pointsman.engine.operations.dead_letters import DeadLetterEntry
from pointsman_schemas.events import Approval, DeadLetter, Delta, Gap, Outcome, Progress
from pointsman_schemas.log import (
    ApprovalRequested,
    Entry,
    PlanAccepted,
    WorkflowEnded,
    WorkflowStarted,
)
from pointsman_schemas.plan import PlannedTask

__all__ = [
    "NARROW_WIDTH",
    "STYLE",
    "EventPrinter",
    "approval_table",
    "body_text",
    "dead_letter_table",
    "render_answer",
    "render_outcome",
    "render_workflow",
    "set_no_wrap",
    "value_text",
    "workflow_table",
]

STYLE = {
    "completed": "green",
    "succeeded": "green",
    "partial": "yellow",
    "running": "cyan",
    "handed over": "dim",
    "in review": "cyan",
    "being refined": "cyan",
    "held": "yellow",
    "waiting": "dim",
    "waiting for an agent": "yellow",
    "waiting for a retry": "yellow",
    "asked for approval": "yellow",
    "waiting for approval": "bold yellow",
    "waiting for admission": "bold yellow",
    "asked to end": "yellow",
    "skipped": "yellow",
    "abandoned": "yellow",
    "cancelled": "yellow",
    "failed": "red",
}
_TONE_STYLES = {"plain": "", "good": "green", "bad": "red", "warn": "yellow", "busy": "cyan"}
_PROMINENT_MARKS = "▶≡■?"  # the lines that are looked for first
_UNCUT_MARKS = "✗?!‖-"  # what goes wrong, and what waits for a person, is not cut at the edge of a terminal
_DELTA_LINE_CHARS = 72  # letters of a line of what is being written
_DEFAULT_WIDTH = 80  # columns of a terminal that nobody has made wider
NARROW_WIDTH = (
    112  # columns below which there is no room for the details, and the tree and the bars share what there is
)


class EventPrinter:
    """A workflow told line by line while it happens."""

    def __init__(self) -> None:
        self._start: datetime | None = None
        self._timeline = timeline.Timeline()
        self._partial_text: dict[str, str] = {}

    def delta_lines(self, delta: Delta) -> Iterator[Text]:
        """The lines of what agents are writing that are whole."""
        text = self._partial_text.pop(delta.agent, "") + delta.text
        while (end := _line_end(text)) > 0:
            line = Text(" " * 10, style="dim").append(f"┊ {one_line(delta.agent, limit=40):<14} ")
            yield line.append(one_line(text[:end], limit=400), style="italic")
            text = text[end:]
        if text:
            self._partial_text[delta.agent] = text

    def lines(self, event: WorkflowEvent) -> Iterator[Text]:
        """What there is to say about `event`: no line, one, or one per task of a plan."""
        line = self._timeline.render(event)
        if not line.mark:
            return
        what = line.detail
        match event:
            case WorkflowStarted():
                self._start = event.at
                what = f"{event.workflow_id}  {request_text(event.input)}"
            case ApprovalRequested():
                what = f"waits for approval of {what}: `pointsman approve {event.approval}` or `reject`"
        colour = _TONE_STYLES[line.tone]
        style = f"bold {colour}".strip() if line.mark in _PROMINENT_MARKS else colour or "dim"
        told = self._line(line.at, line.mark, line.actor, what, style)
        told.no_wrap = line.mark not in _UNCUT_MARKS
        yield told
        if isinstance(event, PlanAccepted):
            for task in event.plan.tasks:
                after = f"  (after {', '.join(task.depends_on)})" if task.depends_on else ""
                yield self._line(event.at, " ", task.id, f"{_task_target(task)}: {task.intent}{after}", "")

    def _line(self, at: datetime, mark: str, who: str, what: str, style: str) -> Text:
        since = (at - self._start).total_seconds() if self._start else 0.0
        line = Text().append(f"{since:8.3f}s ", style="dim")
        line.append(f"{mark} {one_line(who, limit=40):<14} ", style=style)
        line.append(one_line(what, limit=400))
        return line


def _task_target(task: PlannedTask) -> str:
    return f"whoever has {task.skill}" if task.skill else task.agent


def render_answer(of: Outcome) -> str:
    """The answer as a person reads it."""
    if of.answer is None:
        return f"No answer: {escape_control(of.reason) or of.status}."
    return value_text(of.answer, pretty=True)


def render_outcome(of: Outcome) -> RenderableType:
    """How it ended: status, gaps, and what running side by side saved."""
    parts: list[RenderableType] = []
    if of.gaps:
        parts.append(Text("Not answered:", style="yellow"))
        parts += _missing_lines(of.gaps)
    line = Text(of.status, style=STYLE[of.status])
    if of.reason and of.reason not in render_answer(of) and not _is_redundant(of.reason, of.gaps):
        line.append(f" ({one_line(of.reason, limit=400)})")
    line.append(f" in {format_seconds(of.elapsed)}")
    if of.sequential > of.elapsed:  # otherwise nothing was saved, and it would look like a loss
        line.append(f"; one after another: {format_seconds(of.sequential)}")
    if tokens := format_usage(of.usage):
        line.append(f"; {tokens}")
    parts.append(line)
    return Group(*parts)


def _missing_lines(gaps: Sequence[Gap]) -> Iterator[Text]:
    """Each reason once, with all that is missing for it."""
    tasks: dict[tuple[str, str], list[str]] = {}
    for gap in gaps:
        tasks.setdefault((gap.agent, gap.reason), []).append(gap.task_id)
    for (agent, reason), names in tasks.items():
        yield Text(f"  {one_line(', '.join(names), limit=400)} ({agent}): {one_line(reason, limit=400)}")


def _is_redundant(reason: str, gaps: Sequence[Gap]) -> bool:
    """Whether `reason` says no more than what is missing and why."""
    for gap in gaps:
        reason = reason.replace(f"{gap.task_id}: {gap.reason}", "", 1)
    return not reason.strip("; ")


def workflow_table(of: Sequence[WorkflowSummary], now: datetime, width: int = 140) -> RenderableType:
    """The table of `list`. Where there is room for few columns, it has the ids, the status, how long it took where that
    fits, and the request."""
    columns = ["workflow", "team", "status", "started", "took", "request"]
    if width < NARROW_WIDTH:
        columns = ["workflow", "status", *(("took",) if width >= _DEFAULT_WIDTH else ()), "request"]
    table = _table(*columns)
    for workflow in of:
        asked = request_text(workflow.input)
        took = ((workflow.ended_at or now) - workflow.started_at).total_seconds()
        cells: dict[str, str | Text] = {
            "workflow": workflow.id,
            "team": workflow.team,
            "status": Text(workflow.status, style=STYLE.get(workflow.status, "")),
            "started": workflow.started_at.astimezone().strftime("%Y-%m-%d %H:%M:%S"),
            "took": format_seconds(took),
            "request": Text(one_line(asked, limit=400), no_wrap=True, overflow="ellipsis"),
        }
        table.add_row(*(cells[column] for column in columns))
    set_no_wrap(table, 0, columns.index("status"))
    return table


def render_workflow(
    entries: Sequence[Entry], reports: Sequence[Progress], now: datetime, alive: Collection[str]
) -> RenderableType:
    """A workflow whole: how it stands, its request, every plan, its tasks as they are `now` with the agents that are
    `alive`, their results, its outcome."""
    parts: list[RenderableType] = []
    results: dict[str, JsonValue] = {}
    asked: dict[str, str] = {}
    own: set[str] = set()  # the orchestration's own tasks: their results are the plan and the answer
    begins = isinstance(entries[0], WorkflowStarted)
    top = at_time(build_trace(entries, reports), now, alive).children[0] if begins else None
    status = top.status if top else ""
    for entry in entries:
        match entry.kind:
            case "workflow_started":
                took = ((top and top.ended_at) or now) - entry.at
                line = Text(f"{entry.workflow_id}  ", style="bold").append(status, STYLE.get(status, ""))
                began = entry.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
                parts += [
                    line.append(
                        f" {'after' if top and top.ended_at else 'for'} {format_seconds(took.total_seconds())}",
                        "not bold",
                    ),
                    Text(f"team {entry.team}, since {began}"),
                    Text(f"correlation {escape_control(entry.correlation_id)}", style="dim"),
                    Text(f"trace {entry.trace.trace_id}", style="dim"),
                    Text("\nRequest", style="bold"),
                    Text(value_text(entry.input or request_text(entry.input), pretty=True)),
                ]
            case "plan_accepted":
                table = _table("task", "agent", "intent", "after")
                for task in entry.plan.tasks:
                    after = [*task.depends_on, *(f"{name}?" for name in task.optional_dependencies)]
                    table.add_row(task.id, task.agent, Text(one_line(task.intent, limit=200)), ", ".join(after))
                goal = entry.plan.goal or entry.plan.cannot
                parts += [Text(f"\nPlan {entry.revision}: {one_line(goal, limit=400)}", style="bold")]
                parts += [table] if entry.plan.tasks else []
            case "plan_rejected":
                parts.append(Text(f"\nPlan {entry.revision} refused: {one_line('; '.join(entry.problems))}", "red"))
            case "approval_requested":
                about = timeline.label(entry, entry.task_id or "")
                asked[entry.approval] = about[0].upper() + about[1:]
            case "approval_decided":
                by, why = f" by {entry.by}" if entry.by else "", f": {entry.reason}" if entry.reason else ""
                what = one_line(f"{asked.get(entry.approval, entry.approval)}: {entry.verdict}{by}{why}", limit=400)
                parts.append(Text(f"\n{what}", "green" if entry.verdict == "approved" else "red"))
            case "task_added":
                own.add(entry.task_id)
            case "task_succeeded" if entry.task_id not in own:
                results[entry.task_id] = entry.result.output
    if top and top.children:
        parts += [Text("\nTasks", style="bold"), _task_table(top, now)]
    for task_id, output in results.items():
        parts += [Text(f"\nResult of {task_id}", style="bold"), Text(value_text(output, pretty=True))]
    last = entries[-1]
    if isinstance(last, WorkflowEnded):
        parts += [
            Text("\nOutcome", style="bold"),
            Text(render_answer(last.outcome)),
            Text(),
            render_outcome(last.outcome),
        ]
    else:
        waiting = pending_approvals(entries)
        stands, style = ("waiting for approval", "bold yellow") if waiting else ("still running", "cyan")
        parts.append(Text(f"\nIt is {stands}.", style))
        parts += _approval_lines(entries) if waiting else ()
        waits = [
            task for task in (top.children if top else ()) if task.status in (WAITING_FOR_AGENT, WAITING_FOR_RETRY)
        ]
        parts += [Text(f"{task.task_id} is {task.detail}", style="yellow") for task in waits]
    return Group(*parts)


def _approval_lines(log: Sequence[Entry]) -> Iterator[Text]:
    """What a person is asked, about what, and the commands that answer."""
    if (state := fold_entries(log)) is None:
        return
    for it in state.approvals.values():
        yield Text(f"\n{it.id}: the {it.about} {it.tool or it.task_id or ''}".rstrip())
        yield Text(body_text(approval_subject(state, it)))
        yield Text(f"`pointsman approve {it.id}` allows it, `pointsman reject {it.id}` does not.", "dim")


def _task_table(top: TraceNode, now: datetime) -> Table:
    costly = top.usage.cost > 0
    table = _table("task", "agent", "status", "attempts", "took", "tokens", *(("cost",) if costly else ()))
    for column in table.columns[3:]:
        column.justify = "right"
    for task in top.children:
        begun = task.started_at if task.attempt else None  # a task that was skipped took no time
        took = format_seconds(((task.ended_at or now) - begun).total_seconds()) if begun else ""
        used = [f"{task.usage.tokens:,}" if task.usage.tokens else ""]
        used += [format_dollars(task.usage.cost) if task.usage.cost else ""] if costly else []
        status = Text(task.status, style=STYLE.get(task.status, ""))
        table.add_row(task.task_id, task.agent, status, str(task.attempt or ""), took, *used)
    return table


def approval_table(of: Sequence[Approval], now: datetime) -> RenderableType:
    """The table of `approvals`."""
    table = _table("approval", "team", "about", "agent", "left", "what")
    for it in of:
        about = f"{it.about} {it.tool or it.task_id or ''}".rstrip()
        what = one_line(": ".join(filter(None, (it.intent, value_text(it.input)))), limit=400)
        left = format_seconds(max(0.0, (it.expires_at - now).total_seconds()))
        table.add_row(it.id, it.team, about, it.agent or "", left, Text(what, no_wrap=True, overflow="ellipsis"))
    set_no_wrap(table, 0)
    return table


def dead_letter_table(of: Sequence[DeadLetterEntry], width: int = 140) -> RenderableType:
    """The table of `dead list`. Where there is room for few columns, each has two lines, the second with the cause."""
    if width < NARROW_WIDTH:
        return Group(*(line for letter in of for line in _two_line_table(letter.content)))
    table = _table("dead letter", "workflow", "origin", "at", "task", "attempts", "cause")
    for letter in of:
        it = letter.content
        at, cause = (
            it.at.astimezone().strftime("%Y-%m-%d %H:%M:%S"),
            Text(_cause(it), no_wrap=True, overflow="ellipsis"),
        )
        table.add_row(it.id, it.workflow_id or "", it.origin, at, it.task_id or "", str(it.attempts), cause)
    set_no_wrap(table, 0, 1)
    return table


def _two_line_table(of: DeadLetter) -> tuple[Text, Text]:
    at = of.at.astimezone().strftime("%m-%d %H:%M:%S")
    told = Text.assemble((f"  {at}  ", "dim"), f"{of.origin}  {_cause(of)}", no_wrap=True, overflow="ellipsis")
    return Text("  ".join(filter(None, (of.id, of.workflow_id)))), told


def _cause(of: DeadLetter) -> str:
    return one_line(f"{of.cause.kind}: {of.cause.message}", limit=400)


def value_text(value: JsonValue, *, pretty: bool = False) -> str:
    """JSON data as text: a string as it is, an object with one text as that text, anything else as JSON."""
    if isinstance(value, dict) and len(value) == 1:
        (only,) = value.values()
        value = only if isinstance(only, str) else value
    return (
        body_text(value) if pretty or isinstance(value, str) else escape_control(json.dumps(value, ensure_ascii=False))
    )


def body_text(value: JsonValue) -> str:
    """JSON data with every key it has, where a wrong one may be what there is to see; a string as it is."""
    return escape_control(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2))


def set_no_wrap(table: Table, *columns: int) -> None:
    """An id that is cut off is no id: whatever has to give way, these columns do not."""
    for index in columns:
        column = table.columns[index]
        column.no_wrap = True
        column.min_width = max(len(str(cell)) for cell in (column.header, *column.cells))


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column)
    return table


def _line_end(text: str) -> int:
    """Where the first line of a text that is still growing ends; 0 while it does not."""
    if (end := text.find("\n") + 1) > 0:
        return end
    return text.rfind(" ", 0, _DELTA_LINE_CHARS) + 1 if len(text) > _DELTA_LINE_CHARS else 0
