"""A trace in a terminal: a tree, each node with a bar to scale on one time axis. Values in, a renderable out.

A task's bar is thick while somebody works on it, in the colour of what came of it, and thin while it waits: for its
turn, and for a worker until one says that it has begun. An only attempt is no line of its own: what was called in it
stands below the task.
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
    "asked for approval": "‖",
    "waiting for approval": "‖",
}
_BAR_SIGNS = {"attempt": "━", "chat": "▪", "tool": "▪"}
_UNDONE_STATUSES = ("failed", "skipped", "abandoned")
_NAME_WIDTH = 44  # columns of the tree: five levels and the longest name of a shipped tool
_SHORT_NAME_WIDTH = 40  # columns of the tree below which who is told, not what it is called in a trace
_OPERATION_PREFIXES = {"workflow": "invoke_workflow ", "task": "invoke_agent ", "tool": "execute_tool "}
_BAR_WIDTH = 32  # columns of the time axis
_NUMBERS_WIDTH = 20  # columns that how long it took and the tokens need, with their margins
_MAX_NOTE_WIDTH = 120  # columns of what there is to say of a node
_COST_WIDTH = 9  # columns of money, with their margin: $12.3456


def render_tree(root: TraceNode, now: datetime, width: int = 140) -> RenderableType:
    """The tree, each node with a bar to scale on one time axis, how long it took and the tokens it used, on `width`
    columns. Where they are few, the details are left out, but what went wrong is told below it. What goes on ends
    `now`."""
    narrow = width < NARROW_WIDTH
    bars = max(10, min(_BAR_WIDTH, width - _NUMBERS_WIDTH - _NAME_WIDTH)) if narrow else _BAR_WIDTH
    names = max(20, min(_NAME_WIDTH, width - _NUMBERS_WIDTH - bars))
    costly = root.usage.cost > 0
    if costly:
        names = max(20, names - _COST_WIDTH)
    room = (
        0
        if narrow
        else min(_MAX_NOTE_WIDTH, width - names - bars - _NUMBERS_WIDTH - 1 - (_COST_WIDTH if costly else 0))
    )
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
        counted = node.kind != "publish"  # the workflow below it is the same
        took = _duration_text(node, now) if counted else ""
        tokens = f"{node.usage.tokens:,}" if counted and node.usage.tokens else ""
        paid = (format_dollars(node.usage.cost) if counted and node.usage.cost else "",) if costly else ()
        style = STYLE[node.status] if node.status in _UNDONE_STATUSES else "dim"
        said = () if narrow else (Text(one_line(_detail(node), limit=_MAX_NOTE_WIDTH), style=style),)
        table.add_row(
            _name(prefix, node, short=names < _SHORT_NAME_WIDTH),
            _bar(node, start, end, now, bars),
            took,
            tokens,
            *paid,
            *said,
        )
    return Group(table, *_problems(root, room))


def tree_height(root: TraceNode) -> int:
    """How many lines the tree has, without its head and what stands below it."""
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
    mark = _STATUS_MARKS.get(node.status, "-" if node.ended_at else "·")  # what has no end and nobody at work waits
    name.append(f"{mark} ", style=STYLE.get(node.status, ""))
    what = node.name.removeprefix(_OPERATION_PREFIXES.get(node.kind, "")) if short else node.name
    name.append(one_line(what, limit=80))
    if node.kind == "task" and (node.attempt or 1) > 1:
        name.append(f" x{node.attempt}", style="yellow")
    if node.kind == "task" and node.role is Role.WORK and node.task_id and node.task_id != node.agent:
        name.append(f" {one_line(node.task_id, limit=64)}", style="dim")
    return name


def _duration_text(node: TraceNode, now: datetime) -> Text | str:
    """How long, until now where it goes on; nothing of what never began."""
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
    """What went wrong, each once and whole, where `room` beside the tree was not enough for it."""
    told: dict[str, Text] = {}
    for node in _walk(root):
        wrong = node.kind not in ("publish", "workflow") and node.status in _UNDONE_STATUSES
        if not wrong or len(node.detail) <= room or node.detail in told:
            continue
        who = f"{node.agent or 'nobody'} {node.task_id or ''}".rstrip()
        who += "" if node.kind == "task" else f", {node.name}"
        line = Text().append(f"{_STATUS_MARKS.get(node.status, '-')} ", style=STYLE[node.status]).append(one_line(who))
        told[node.detail] = line.append(f": {one_line(node.detail, limit=1_000)}")
    return [Text(), *told.values()] if told else []


def _walk(node: TraceNode) -> Iterator[TraceNode]:
    yield node
    for child in node.children:
        yield from _walk(child)
