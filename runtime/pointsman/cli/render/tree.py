"""Render a trace as a tree. Each node has a bar on a common time axis.

The bar of a task is thick while an agent works on it, in the colour of the attempt's status, and thin while the task
waits. If a task has one attempt, the attempt has no separate line. The calls of the attempt are then shown below the
task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pointsman.cli.render.outcome import NARROW_WIDTH, STYLE
from pointsman.cli.render.output import one_line
from pointsman.core.views.formatting import format_dollars, format_seconds
from pointsman.core.views.trace import TraceNode
from pointsman_schemas.card import Role

__all__ = ["render_tree", "tree_height"]

_STATUS_MARKS = {
    "succeeded": "✓",
    "completed": "✓",
    "failed": "✗",
    "running": "…",
    "in review": "…",
    "asked a person": "‖",
    "waiting for an answer": "‖",
}
_BAR_SIGNS = {"attempt": "━", "chat": "▪", "tool": "▪"}
_UNDONE_STATUSES = ("failed", "skipped", "abandoned")
_NAME_WIDTH = 44  # columns of the names; enough for five levels and the longest name of a shipped tool
_SHORT_NAME_WIDTH = 40  # if names have fewer columns, the operation, such as `invoke_agent`, is left out
_OPERATION_PREFIXES = {"workflow": "invoke_workflow ", "task": "invoke_agent ", "tool": "execute_tool "}
_BAR_WIDTH = 32  # columns of the time axis
_NUMBERS_WIDTH = 20  # columns of the duration and the tokens, with margins
_MAX_NOTE_WIDTH = 120  # largest number of columns for the detail of a node
_COST_WIDTH = 9  # columns of the cost, such as $12.3456, with the margin


def render_tree(root: TraceNode, now: datetime, width: int = 140) -> RenderableType:
    """Render a trace as a tree with bars, durations, tokens and costs.

    Details that do not fit into the width are left out. The details of failed tasks follow below the tree.

    Args:
        root: The trace.
        now: The current time, at which the bars of running tasks end.
        width: Columns of the terminal. Default: 140.

    Returns:
        The tree.
    """
    narrow = width < NARROW_WIDTH
    bars = max(10, min(_BAR_WIDTH, width - _NUMBERS_WIDTH - _NAME_WIDTH)) if narrow else _BAR_WIDTH
    names = max(20, min(_NAME_WIDTH, width - _NUMBERS_WIDTH - bars))
    costly = root.usage.cost > 0
    if costly:
        names = max(20, names - _COST_WIDTH)
    rest = width - names - bars - _NUMBERS_WIDTH - 1 - (_COST_WIDTH if costly else 0)
    room = 0 if narrow else min(_MAX_NOTE_WIDTH, rest)
    start = root.started_at or now
    end = max([start, *(node.ended_at or now for node in _walk(root) if node.started_at)])
    table = Table(box=None, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False, header_style="dim")
    table.add_column(f"trace {root.trace_id[:16]}", no_wrap=True, overflow="ellipsis", width=names)
    until = format_seconds((end - start).total_seconds())
    table.add_column(f"0 to {until}" if len(until) + 5 <= bars else f"to {until}", no_wrap=True, width=bars)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("tokens", justify="right", no_wrap=True)
    if costly:
        table.add_column("cost", justify="right", no_wrap=True)
    if not narrow:
        table.add_column("", no_wrap=True, overflow="ellipsis", max_width=room)
    for prefix, node in _rows(root, "", ""):
        counted = node.kind != "publish"  # no numbers for a publish node, because its child, the workflow, has them
        took = _duration_text(node, now) if counted else ""
        tokens = f"{node.usage.tokens:,}" if counted and node.usage.tokens else ""
        paid = (format_dollars(node.usage.cost) if counted and node.usage.cost else "",) if costly else ()
        style = STYLE[node.status] if node.status in _UNDONE_STATUSES else "dim"
        notes = () if narrow else (Text(one_line(_detail(node), limit=_MAX_NOTE_WIDTH), style=style),)
        table.add_row(
            _name(prefix, node, short=names < _SHORT_NAME_WIDTH),
            _bar(node, start, end, now, bars),
            took,
            tokens,
            *paid,
            *notes,
        )
    return Group(table, *_problems(root, room))


def tree_height(root: TraceNode) -> int:
    """Return the number of lines of the tree, without the header and without the failures below the tree."""
    return sum(1 for _ in _rows(root, "", ""))


def _rows(node: TraceNode, here: str, below: str) -> Iterator[tuple[str, TraceNode]]:
    yield here, node
    children = node.children[0].children if _has_only_attempt(node) else node.children
    for index, child in enumerate(children):
        last = index == len(children) - 1
        yield from _rows(child, below + ("└ " if last else "├ "), below + ("  " if last else "│ "))


def _has_only_attempt(node: TraceNode) -> bool:
    return node.kind == "task" and len(node.children) == 1


def _name(prefix: str, node: TraceNode, *, short: bool) -> Text:
    name = Text().append(prefix, style="dim")
    mark = _STATUS_MARKS.get(node.status, "-" if node.ended_at else "·")
    name.append(f"{mark} ", style=STYLE.get(node.status, ""))
    what = node.name.removeprefix(_OPERATION_PREFIXES.get(node.kind, "")) if short else node.name
    name.append(one_line(what, limit=80))
    if node.kind == "task" and (node.attempt or 1) > 1:
        name.append(f" x{node.attempt}", style="yellow")
    if node.kind == "task" and node.role is Role.WORK and node.task_id and node.task_id != node.agent:
        name.append(f" {one_line(node.task_id, limit=64)}", style="dim")
    if node.revision and not short and (node.kind == "attempt" or _has_only_attempt(node)):
        name.append(f" {one_line(node.revision, limit=40)}", style="dim")
    return name


def _duration_text(node: TraceNode, now: datetime) -> Text | str:
    """Return the duration of a node. For a running node, this is the time from its start until now.

    The text is empty if the node has not started or was skipped.
    """
    if node.started_at is None or node.status == "skipped":
        return ""
    if node.ended_at is None:
        return Text(format_seconds(max(0.0, (now - node.started_at).total_seconds())), style=STYLE.get(node.status, ""))
    return format_seconds((node.ended_at - node.started_at).total_seconds())


def _detail(node: TraceNode) -> str:
    if not _has_only_attempt(node) or node.children[0].detail in node.detail:
        return node.detail
    return f"{node.detail}; {node.children[0].detail}" if node.detail else node.children[0].detail


def _bar(node: TraceNode, start: datetime, end: datetime, now: datetime, width: int) -> Text:
    if node.started_at is None or node.status == "skipped":
        return Text("")
    if node.kind == "publish":
        return Text("●", style="dim")
    scale = width / ((end - start).total_seconds() or 1.0)

    def cells(of: TraceNode) -> range:
        begun = of.started_at or now
        left = min(width - 1, max(0, int((begun - start).total_seconds() * scale)))
        right = round((max(begun, of.ended_at or now) - start).total_seconds() * scale)
        return range(left, max(left + 1, min(width, right)))

    whole = cells(node)
    drawn = dict.fromkeys(whole, (_BAR_SIGNS.get(node.kind, "█"), STYLE.get(node.status, "")))
    if node.kind == "task" and node.children:
        drawn = dict.fromkeys(whole, ("─", "dim"))
        for attempt in node.children:
            if attempt.started_at is None or attempt.status.startswith("waiting"):
                continue
            drawn |= dict.fromkeys(cells(attempt), ("█", STYLE.get(attempt.status, "")))
    line = Text()
    for column in range(max(drawn) + 1):
        line.append(*drawn.get(column, (" ", "")))
    return line


def _problems(root: TraceNode, room: int) -> Sequence[Text]:
    """Return the distinct failures whose details did not fit beside the tree, with their whole details."""
    lines: dict[str, Text] = {}
    for node in _walk(root):
        failed = node.kind not in ("publish", "workflow") and node.status in _UNDONE_STATUSES
        if not failed or len(node.detail) <= room or node.detail in lines:
            continue
        name = f"{node.agent or '(no agent)'} {node.task_id or ''}".rstrip()
        name += "" if node.kind == "task" else f", {node.name}"
        line = Text().append(f"{_STATUS_MARKS.get(node.status, '-')} ", style=STYLE[node.status]).append(one_line(name))
        lines[node.detail] = line.append(f": {one_line(node.detail, limit=1_000)}")
    return [Text(), *lines.values()] if lines else []


def _walk(node: TraceNode) -> Iterator[TraceNode]:
    yield node
    for child in node.children:
        yield from _walk(child)
