"""Fit a growing trace to the height of a terminal. If it is too high, tasks that are done or wait are grouped."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.cli.render.tree import tree_height
from pointsman.core.views.trace import TraceNode
from pointsman.core.views.trace_status import WAITING_FOR_AGENT, WAITING_FOR_RETRY
from pointsman_schemas.events import Usage

__all__ = ["fit_to_lines"]

_GROUP_TEXT = {
    "succeeded": "done",
    WAITING_FOR_RETRY: WAITING_FOR_RETRY,
    WAITING_FOR_AGENT: WAITING_FOR_AGENT,
    "handed over": "handed over",
    "waiting": "waiting",
}
"""The text of the line that stands for a group of tasks, by the status of the tasks."""


def fit_to_lines(root: TraceNode, lines: int) -> TraceNode:
    """Shorten a trace, step by step, until the trace fits into the lines.

    The first step leaves out the calls of finished attempts. The second step groups the tasks of each workflow that
    have succeeded, were handed over, or wait: each of these statuses gets one line.

    Args:
        root: The trace.
        lines: Lines of the terminal.

    Returns:
        The trace. It can still have more lines than the terminal.
    """
    shown = root
    for shorter in (_without_calls, _group_similar):
        if tree_height(shown) <= lines:
            break
        shown = shorter(shown)
    return shown


def _without_calls(node: TraceNode) -> TraceNode:
    ended = node.kind == "attempt" and node.ended_at is not None
    children = () if ended else tuple(_without_calls(child) for child in node.children)
    return node.model_copy(update={"children": children})


def _group_similar(node: TraceNode) -> TraceNode:
    tasks: dict[str, list[TraceNode]] = {status: [] for status in _GROUP_TEXT}
    others: list[TraceNode] = []
    for child in node.children:
        of = tasks.get(child.status) if child.kind == "task" else None
        others.append(_group_similar(child)) if of is None else of.append(child)
    done, *waiting = (_group_node(tasks[status], text) for status, text in _GROUP_TEXT.items())
    return node.model_copy(update={"children": (*done, *others, *(each for of in waiting for each in of))})


def _group_node(tasks: Sequence[TraceNode], text: str) -> Sequence[TraceNode]:
    if len(tasks) < 2:
        return tasks
    usage = Usage()
    for task in tasks:
        usage += task.usage
    return [
        TraceNode(
            name=f"{len(tasks)} tasks {text}",
            kind="task",
            status=tasks[0].status,
            started_at=min((task.started_at for task in tasks if task.started_at), default=None),
            ended_at=max((task.ended_at for task in tasks if task.ended_at), default=None),
            usage=usage,
        )
    ]
