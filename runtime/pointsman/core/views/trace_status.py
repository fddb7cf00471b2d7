"""Mark the nodes of a trace that wait for an agent or a retry, because the log alone does not show these waits."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from operator import is_
from typing import Final

from pointsman.core.views.trace import TraceNode

__all__ = ["WAITING_FOR_AGENT", "WAITING_FOR_RETRY", "at_time", "tasks_without_agent"]

_WITH_AGENT_STATUSES = ("handed over", "running")
WAITING_FOR_AGENT: Final = "waiting for an agent"
WAITING_FOR_RETRY: Final = "waiting for a retry"
_OPEN_STATUSES = (*_WITH_AGENT_STATUSES, WAITING_FOR_RETRY)


def at_time(root: TraceNode, now: datetime, alive: Collection[str]) -> TraceNode:
    """Return the trace with the statuses that its nodes have at the time `now`.

    A node whose agent is not live waits for an agent. A node whose next attempt is due later waits for a retry. The
    reason is in `detail`.

    Args:
        root: The root of the trace.
        now: The time.
        alive: The names of the live agents.

    Returns:
        The root; the same object if no status changes.
    """
    due = root.due if root.due and root.due > now else None
    if root.kind == "attempt" and due:
        return root.model_copy(update={"status": WAITING_FOR_RETRY, "started_at": None})
    children = tuple(at_time(child, now, alive) for child in root.children)
    if root.kind == "task" and root.status in _WITH_AGENT_STATUSES and root.agent not in alive:
        left = tuple(
            each.model_copy(update={"status": WAITING_FOR_AGENT}) if each.status in _OPEN_STATUSES else each
            for each in children
        )
        why = f"waiting for an agent named {root.agent}: none is alive"
        return root.model_copy(update={"status": WAITING_FOR_AGENT, "detail": why, "children": left})
    if due:
        why = f"waiting for attempt {root.attempt}, at {due.astimezone(UTC):%H:%M:%S} UTC"
        return root.model_copy(update={"status": WAITING_FOR_RETRY, "detail": why, "children": children})
    same = all(map(is_, children, root.children))  # the usual case, at each refresh of a page
    return root if same else root.model_copy(update={"children": children})


def tasks_without_agent(root: TraceNode) -> Iterator[TraceNode]:
    """Return the tasks that wait for an agent, from a trace of `at_time`."""
    if root.kind == "task" and root.status == WAITING_FOR_AGENT:
        yield root
    for child in root.children:
        yield from tasks_without_agent(child)
