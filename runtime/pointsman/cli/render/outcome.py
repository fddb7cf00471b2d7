"""Render workflows, questions and dead letters for a terminal. The functions do no I/O."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime

from pydantic import JsonValue
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pointsman.cli.render.output import escape_control, one_line, with_connection_options
from pointsman.client.client import WorkflowSummary
from pointsman.core.evolve import fold_entries, open_questions
from pointsman.core.tasks.handoff_input import question_subject
from pointsman.core.views import timeline
from pointsman.core.views.formatting import format_dollars, format_seconds, format_usage, request_text
from pointsman.core.views.trace import TraceNode, build_trace
from pointsman.core.views.trace_status import WAITING_FOR_AGENT, WAITING_FOR_RETRY, at_time
from pointsman.engine.operations.dead_letter_entry import DeadLetterEntry
from pointsman_schemas.events import DeadLetter, Gap, Outcome, Progress, Question
from pointsman_schemas.log import (
    Entry,
    WorkflowEnded,
    WorkflowStarted,
)

__all__ = [
    "NARROW_WIDTH",
    "STYLE",
    "body_text",
    "dead_letter_table",
    "question_table",
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
    "imported": "dim",
    "handed over": "dim",
    "in review": "cyan",
    "being refined": "cyan",
    "expanded": "cyan",
    "held": "yellow",
    "waiting": "dim",
    "waiting for an agent": "yellow",
    "waiting for a retry": "yellow",
    "asked a person": "yellow",
    "waiting for an answer": "bold yellow",
    "waiting for admission": "bold yellow",
    "asked to end": "yellow",
    "skipped": "yellow",
    "abandoned": "yellow",
    "cancelled": "yellow",
    "failed": "red",
}
_DEFAULT_WIDTH = 80  # default columns of a terminal
NARROW_WIDTH = 112  # in a terminal with fewer columns, tables leave out details


def render_answer(outcome: Outcome) -> str:
    """Return the answer of an outcome as text.

    Args:
        outcome: The outcome.

    Returns:
        The answer, or the reason if there is no answer.
    """
    if outcome.answer is None:
        return f"No answer: {escape_control(outcome.reason) or outcome.status}."
    return value_text(outcome.answer, pretty=True)


def render_outcome(outcome: Outcome) -> RenderableType:
    """Render the gaps, the status, the time and the usage of an outcome.

    Args:
        outcome: The outcome.

    Returns:
        The lines.
    """
    parts: list[RenderableType] = []
    if outcome.gaps:
        parts.append(Text("Not answered:", style="yellow"))
        parts += _gap_lines(outcome.gaps)
    if outcome.ignored_fields:
        names = ", ".join(one_line(name, limit=200) for name in outcome.ignored_fields)
        parts.append(Text(f"Ignored fields of the request: {names}", style="yellow"))
    if outcome.files:
        names = ", ".join(file.name for file in outcome.files)
        command = with_connection_options(f"`pointsman files {outcome.workflow_id} --save DIR`")
        parts.append(Text(f"Files: {one_line(names, limit=400)} ({command})"))
    line = Text(outcome.status, style=STYLE[outcome.status])
    if outcome.reason and outcome.reason not in render_answer(outcome) and not _is_redundant(outcome):
        line.append(f" ({one_line(outcome.reason, limit=400)})")
    line.append(f" in {format_seconds(outcome.elapsed)}")
    if outcome.sequential > outcome.elapsed:  # shown only if tasks ran in parallel
        line.append(f"; one after another: {format_seconds(outcome.sequential)}")
    if tokens := format_usage(outcome.usage):
        line.append(f"; {tokens}")
    parts.append(line)
    return Group(*parts)


def _gap_lines(gaps: Sequence[Gap]) -> Iterator[Text]:
    """Yield a line for each reason, with all tasks that are missing for this reason."""
    tasks: dict[tuple[str, str], list[str]] = {}
    for gap in gaps:
        tasks.setdefault((gap.agent, gap.reason), []).append(gap.task_id)
    for (agent, reason), names in tasks.items():
        yield Text(f"  {one_line(', '.join(names), limit=400)} ({agent}): {one_line(reason, limit=400)}")


def _is_redundant(outcome: Outcome) -> bool:
    """Return True if the reason only repeats the gaps."""
    reason = outcome.reason
    for gap in outcome.gaps:
        reason = reason.replace(f"{gap.task_id}: {gap.reason}", "", 1)
    return not reason.strip("; ")


def workflow_table(summaries: Sequence[WorkflowSummary], now: datetime, width: int = 140) -> RenderableType:
    """Render the table of `list`. In a narrow terminal, it has only the id, the status, the request and the duration.

    The duration is left out if the terminal has fewer than 80 columns.

    Args:
        summaries: The workflows.
        now: The current time.
        width: Columns of the terminal. Default: 140.

    Returns:
        The table.
    """
    columns = ["workflow", "team", "status", "started", "took", "request"]
    if width < NARROW_WIDTH:
        columns = ["workflow", "status", *(("took",) if width >= _DEFAULT_WIDTH else ()), "request"]
    table = _table(*columns)
    for workflow in summaries:
        took = ((workflow.ended_at or now) - workflow.started_at).total_seconds()
        cells: dict[str, str | Text] = {
            "workflow": workflow.id,
            "team": workflow.team,
            "status": Text(workflow.status, style=STYLE.get(workflow.status, "")),
            "started": workflow.started_at.astimezone().strftime("%Y-%m-%d %H:%M:%S"),
            "took": format_seconds(took),
            "request": Text(one_line(request_text(workflow.input), limit=400), no_wrap=True, overflow="ellipsis"),
        }
        table.add_row(*(cells[column] for column in columns))
    set_no_wrap(table, 0, columns.index("status"))
    return table


def render_workflow(
    entries: Sequence[Entry], reports: Sequence[Progress], now: datetime, alive: Collection[str]
) -> RenderableType:
    """Render a workflow with its status, request, plans, tasks, results and outcome.

    Args:
        entries: The log of the workflow.
        reports: The reports of the agents.
        now: The current time.
        alive: The names of live agents and teams.

    Returns:
        The page.
    """
    parts: list[RenderableType] = []
    results: dict[str, JsonValue] = {}
    asked: dict[str, str] = {}
    errors: dict[str, None] = {}  # the text of each error once, in order
    own: set[str] = set()  # tasks of the planner and other roles: their results are shown as the plan and the answer
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
                    after += [f"if {task.when}"] if task.when else []
                    after += [f"for each of {task.for_each.items}"] if task.for_each else []
                    intent = Text(one_line(task.intent, limit=200))
                    table.add_row(task.id, task.agent or task.skill, intent, one_line(", ".join(after), limit=200))
                goal = entry.plan.goal or entry.plan.cannot
                parts += [Text(f"\nPlan {entry.revision}: {one_line(goal, limit=400)}", style="bold")]
                parts += [table] if entry.plan.tasks else []
            case "plan_rejected":
                parts.append(Text(f"\nPlan {entry.revision} refused: {one_line('; '.join(entry.problems))}", "red"))
            case "question_asked":
                about = timeline.label(entry, entry.task_id or "")
                asked[entry.question] = about[0].upper() + about[1:]
            case "question_answered":
                by, why = f" by {entry.by}" if entry.by else "", f": {entry.reason}" if entry.reason else ""
                what = one_line(f"{asked.get(entry.question, entry.question)}: {entry.verdict}{by}{why}", limit=400)
                parts.append(Text(f"\n{what}", "green" if entry.verdict in ("approved", "answered") else "red"))
            case "task_added":
                own.add(entry.task_id)
            case "attempt_failed" | "task_failed" if entry.error.detail:
                errors.setdefault(f"{entry.task_id}: {entry.error.for_operators}")
            case "task_succeeded" if entry.task_id not in own:
                results[entry.task_id] = entry.result.output
    if top and top.children:
        parts += [Text("\nTasks", style="bold"), _task_table(top, now)]
        parts += [
            Text(f"{task.task_id} was skipped: {one_line(task.detail, limit=400)}", "yellow")
            for task in top.children
            if task.status == "skipped"
        ]
    if errors:
        parts += [Text("\nErrors", style="bold"), *(Text(one_line(each, limit=800), "red") for each in errors)]
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
        waiting = open_questions(entries)
        state, style = ("waiting for an answer", "bold yellow") if waiting else ("still running", "cyan")
        parts.append(Text(f"\nThe workflow is {state}.", style))
        parts += _question_lines(entries) if waiting else ()
        waits = [
            task for task in (top.children if top else ()) if task.status in (WAITING_FOR_AGENT, WAITING_FOR_RETRY)
        ]
        parts += [Text(f"{task.task_id} is {task.detail}", style="yellow") for task in waits]
    return Group(*parts)


def _question_lines(log: Sequence[Entry]) -> Iterator[Text]:
    """Yield the open questions, with their subjects and the commands that answer them."""
    if (state := fold_entries(log)) is None:
        return
    for pending in state.questions.values():
        yield Text(f"\n{pending.id}: the {pending.about} {pending.tool or pending.task_id or ''}".rstrip())
        reject = f"`pointsman reject {pending.id}`"
        if pending.about == "information":
            yield Text(body_text(pending.text))
            yield Text(
                with_connection_options(f"Answer with `pointsman answer {pending.id} ANSWER` or {reject}."), "dim"
            )
            continue
        yield Text(body_text(question_subject(state, pending)))
        yield Text(with_connection_options(f"Answer with `pointsman approve {pending.id}` or {reject}."), "dim")


def _task_table(top: TraceNode, now: datetime) -> Table:
    costly = top.usage.cost > 0
    table = _table("task", "agent", "version", "status", "attempts", "took", "tokens", *(("cost",) if costly else ()))
    for column in table.columns[4:]:
        column.justify = "right"
    for task in top.children:
        begun = task.started_at if task.attempt else None  # a skipped task has no duration
        took = format_seconds(((task.ended_at or now) - begun).total_seconds()) if begun else ""
        used = [f"{task.usage.tokens:,}" if task.usage.tokens else ""]
        used += [format_dollars(task.usage.cost) if task.usage.cost else ""] if costly else []
        status = Text(task.status, style=STYLE.get(task.status, ""))
        # `revision` is the version of the agent in the newest attempt; empty for a team.
        table.add_row(task.task_id, task.agent, task.revision, status, str(task.attempt or ""), took, *used)
    return table


def question_table(questions: Sequence[Question], now: datetime) -> RenderableType:
    """Render the table of `questions`.

    Args:
        questions: The open questions.
        now: The current time.

    Returns:
        The table.
    """
    table = _table("question", "team", "about", "agent", "left", "what")
    for each in questions:
        about = f"{each.about} {each.tool or each.task_id or ''}".rstrip()
        parts = (each.text,) if each.about == "information" else (each.intent, value_text(each.input))
        what = one_line(": ".join(filter(None, parts)), limit=400)
        left = format_seconds(max(0.0, (each.expires_at - now).total_seconds()))
        table.add_row(each.id, each.team, about, each.agent or "", left, Text(what, no_wrap=True, overflow="ellipsis"))
    set_no_wrap(table, 0)
    return table


def dead_letter_table(letters: Sequence[DeadLetterEntry], width: int = 140) -> RenderableType:
    """Render the table of `dead list`. In a narrow terminal, the second line of each dead letter has the cause.

    Args:
        letters: The dead letters.
        width: Columns of the terminal. Default: 140.

    Returns:
        The table.
    """
    if width < NARROW_WIDTH:
        return Group(*(line for letter in letters for line in _two_lines(letter.content)))
    table = _table("dead letter", "workflow", "origin", "at", "task", "attempts", "cause")
    for letter in letters:
        of = letter.content
        at = of.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        cause = Text(_cause(of), no_wrap=True, overflow="ellipsis")
        table.add_row(of.id, of.workflow_id or "", of.origin, at, of.task_id or "", str(of.attempts), cause)
    set_no_wrap(table, 0, 1)
    return table


def _two_lines(letter: DeadLetter) -> tuple[Text, Text]:
    at = letter.at.astimezone().strftime("%m-%d %H:%M:%S")
    cause = f"{letter.origin}  {_cause(letter)}"
    return (
        Text("  ".join(filter(None, (letter.id, letter.workflow_id)))),
        Text.assemble((f"  {at}  ", "dim"), cause, no_wrap=True, overflow="ellipsis"),
    )


def _cause(letter: DeadLetter) -> str:
    return one_line(f"{letter.cause.kind}: {letter.cause.for_operators}", limit=400)


def value_text(value: JsonValue, *, pretty: bool = False) -> str:
    """Return JSON data as text for a reader.

    Args:
        value: The data. A string is returned without quotes. If an object has one field with a string, only this string
            is returned.
        pretty: True to write other data in several indented lines. Default: one line.

    Returns:
        The text, without control characters.
    """
    if isinstance(value, dict) and len(value) == 1:
        (only,) = value.values()
        value = only if isinstance(only, str) else value
    if pretty or isinstance(value, str):
        return body_text(value)
    return escape_control(json.dumps(value, ensure_ascii=False))


def body_text(value: JsonValue) -> str:
    """Return JSON data as indented text with all its keys; a string without quotes."""
    return escape_control(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2))


def set_no_wrap(table: Table, *columns: int) -> None:
    """Do not cut columns in a narrow terminal, because a cut id cannot be copied.

    Args:
        table: The table, with all its rows.
        *columns: The indexes of the columns.
    """
    for index in columns:
        column = table.columns[index]
        column.no_wrap = True
        column.min_width = max(len(str(cell)) for cell in (column.header, *column.cells))


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column)
    return table
