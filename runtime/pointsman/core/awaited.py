"""Tasks that are handed over while nobody is alive who could do them: the log alone calls them running."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from operator import is_

from pointsman.core.trace import TraceNode

__all__ = ["awaited", "with_absent"]

_OUT = ("handed over", "running")


def with_absent(root: TraceNode, alive: Collection[str]) -> TraceNode:
    """`root`, in which what runs with an agent that is not among the names `alive` is `waiting` and says for whom."""
    children = tuple(with_absent(child, alive) for child in root.children)
    if root.kind != "task" or root.status not in _OUT or root.agent in alive:
        same = all(map(is_, children, root.children))  # as nearly always, and a page is told of it again and again
        return root if same else root.model_copy(update={"children": children})
    waits = {"status": "waiting"}
    left = tuple(child.model_copy(update=waits) if child.status in _OUT else child for child in children)
    detail = f"waiting for an agent named {root.agent}: none is alive"
    return root.model_copy(update={**waits, "detail": detail, "children": left})


def awaited(root: TraceNode) -> Iterator[TraceNode]:
    """The tasks of which `with_absent` says so. One that waits for other tasks was not handed over yet."""
    if root.kind == "task" and root.status == "waiting" and root.attempt:
        yield root
    for child in root.children:
        yield from awaited(child)
