"""Render threads for a terminal. The functions do no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pointsman.cli.render.output import escape_control, one_line
from pointsman_schemas.threads import Thread

__all__ = ["thread_table", "thread_view"]


def thread_table(threads: Sequence[Thread]) -> Table:
    """Render the table of `threads list`.

    Args:
        threads: The threads.

    Returns:
        The table.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("thread", "team", "caller", "turns", "changed", "last request"):
        table.add_column(column, no_wrap=column != "last request")
    for each in threads:
        last = each.turns[-1].request if each.turns else ""
        said = f"deleted by {each.deleted_by}" if each.deleted_at else one_line(last, limit=200)
        turns = len(each.turns) + len(each.earlier)
        table.add_row(each.thread, each.team, each.caller, str(turns), f"{each.changed_at:%Y-%m-%d %H:%M}", Text(said))
    return table


def thread_view(thread: Thread) -> RenderableType:
    """Render a thread. The summary of its older turns comes first, and then its turns, oldest first.

    Args:
        thread: The thread.

    Returns:
        The view.
    """
    return Group(*_lines(thread))


def _lines(thread: Thread) -> Iterator[Text]:
    if thread.deleted_at is not None:
        yield Text(f"The thread was deleted by {thread.deleted_by} at {thread.deleted_at:%Y-%m-%d %H:%M}.", "yellow")
    if thread.summary:
        yield Text(f"Summary of the turns up to {thread.summarized}", "bold")
        yield Text(escape_control(thread.summary))
    for turn in thread.turns:
        state = turn.outcome or turn.status
        yield Text(f"\n{turn.number}  {turn.workflow_id}  {state}", "dim")
        yield Text(f"> {escape_control(turn.request)}", "bold")
        if turn.answer:
            yield Text(escape_control(turn.answer))
