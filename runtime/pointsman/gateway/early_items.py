"""Keep live items that arrive before the log entry that starts their attempt.

An item is a report of an agent, or a piece of text. Items and entries of the log reach a gateway on different ways. If
the gateway is late with the log, for example just after its start, an agent works before its attempt is known here.
"""

from __future__ import annotations

from collections.abc import Sequence

from pointsman_schemas.events import Delta, Progress

__all__ = ["EarlyItems"]

_MAX_KEPT = 256  # maximum number of items; further items are lost


class EarlyItems:
    """The early items of one workflow, for one reader."""

    def __init__(self) -> None:
        self._started: dict[str, int] = {}  # by task: the newest attempt
        self._kept: list[Progress | Delta] = []
        self._ready: list[Progress | Delta] = []

    def keep(self, item: Progress | Delta) -> bool:
        """Keep an item if its attempt has not started yet.

        Args:
            item: The item.

        Returns:
            True if the item is early, so the reader must not use the item now.
        """
        if item.attempt <= self._started.get(item.task_id, 0):
            return False
        if len(self._kept) < _MAX_KEPT:
            self._kept.append(item)
        return True

    def start(self, task: str, attempt: int) -> None:
        """Start an attempt. `take` then returns the early items of the attempt.

        Args:
            task: The task.
            attempt: The number of the attempt.
        """
        self._started[task] = max(attempt, self._started.get(task, 0))
        kept, self._kept = self._kept, []
        for each in kept:
            (self._ready if each.task_id == task and each.attempt == attempt else self._kept).append(each)

    def take(self) -> Sequence[Progress | Delta]:
        """Remove and return the early items of the attempts that have started, in the order of their arrival."""
        ready, self._ready = self._ready, []
        return ready
