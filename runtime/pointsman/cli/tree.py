"""A trace in a terminal: a tree, each node with a bar to scale on one time axis. Values in, a renderable out."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from pointsman.cli.output import one_line
from pointsman.cli.render import NARROW, STYLE
from pointsman.core.trace import TraceNode
from pointsman.core.words import dollars, seconds

__all__ = ["tree"]

_MARK = {"succeeded": "✓", "completed": "✓", "failed": "✗", "running": "…", "waiting": "·"}
_BAR = {"attempt": "━", "chat": "▪", "tool": "▪"}
_NAME_WIDTH = 44  # columns of the tree: five levels and the longest name of a shipped tool
_BAR_WIDTH = 32  # columns of the time axis
_NUMBERS = 20  # columns that how long it took and the tokens need, with their margins
_COST = 9  # columns of money, with their margin: $12.3456


def tree(root: TraceNode, now: datetime, width: int = 140) -> RenderableType:
    """The tree, each node with a bar to scale on one time axis, how long it took and the tokens it used, on `width`
    columns. Where they are few, the details are left out. What goes on ends `now`."""
    narrow = width < NARROW
    bars = max(10, min(_BAR_WIDTH, width - _NUMBERS - _NAME_WIDTH)) if narrow else _BAR_WIDTH
    names = max(20, min(_NAME_WIDTH, width - _NUMBERS - bars))
    costly = root.usage.cost > 0
    if costly:
        names = max(20, names - _COST)
    start = root.started_at or now
    end = max([start, *(node.ended_at or now for node in _walk(root) if node.started_at)])
    table = Table(box=None, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False, header_style="dim")
    table.add_column(f"trace {root.trace_id[:16]}", no_wrap=True, overflow="ellipsis", width=names)
    table.add_column(f"0 to {seconds((end - start).total_seconds())}", no_wrap=True, width=bars)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("tokens", justify="right", no_wrap=True)
    if costly:
        table.add_column("cost", justify="right", no_wrap=True)
    if not narrow:
        room = width - names - bars - _NUMBERS - 1 - (_COST if costly else 0)
        table.add_column("", no_wrap=True, overflow="ellipsis", max_width=room)
    for prefix, node in _rows(root, "", ""):
        name = Text(prefix, style="dim")
        name.append(f"{_MARK.get(node.status, '-')} ", style=STYLE.get(node.status, ""))
        name.append(one_line(node.name, limit=80))
        if node.kind == "task" and (node.attempt or 1) > 1:
            name.append(f" x{node.attempt}", style="yellow")
        took = "" if node.kind == "publish" else seconds(node.seconds) if node.seconds is not None else ""
        tokens = f"{node.usage.tokens:,}" if node.usage.tokens and node.kind != "publish" else ""
        paid = (dollars(node.usage.cost) if node.usage.cost and node.kind != "publish" else "",) if costly else ()
        failed = node.status in ("failed", "skipped", "abandoned")
        said = Text(one_line(node.detail, limit=120), style=STYLE[node.status] if failed else "dim")
        table.add_row(name, _bar(node, start, end, now, bars), took, tokens, *paid, *([] if narrow else [said]))
    return table


def _rows(node: TraceNode, here: str, below: str) -> Iterator[tuple[str, TraceNode]]:
    yield here, node
    for index, child in enumerate(node.children):
        last = index == len(node.children) - 1
        yield from _rows(child, below + ("└ " if last else "├ "), below + ("  " if last else "│ "))


def _bar(node: TraceNode, start: datetime, end: datetime, now: datetime, width: int) -> Text:
    if node.started_at is None:
        return Text("")
    style = STYLE.get(node.status, "")
    if node.kind == "publish":
        return Text("●", style="dim")
    whole = (end - start).total_seconds() or 1.0
    scale = width / whole
    left = min(width - 1, max(0, int((node.started_at - start).total_seconds() * scale)))
    right = (max(node.started_at, node.ended_at or now) - start).total_seconds() * scale
    length = max(1, min(width, round(right)) - left)
    return Text(" " * left).append(_BAR.get(node.kind, "█") * length, style=style)


def _walk(node: TraceNode) -> Iterator[TraceNode]:
    yield node
    for child in node.children:
        yield from _walk(child)
