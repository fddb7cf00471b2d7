"""A bounded cache of the ids of recently ended workflows."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timedelta

from pointsman.ports.clock import Clock

__all__ = ["EndedWorkflows"]

_MAX_ENTRIES = 10_000
_MAX_AGE = timedelta(hours=1)
"""Lifetime of an entry, which is longer than any late timer takes to arrive."""


class EndedWorkflows:
    """Recently ended workflows. A late timer of such a workflow needs no read of the log.

    An entry is removed after `retention / 2` at the latest, so before the log is removed. After the log is removed, the
    same request may begin the workflow again, and the inputs of the new workflow must be processed.

    Args:
        clock: The clock.
        retention: The retention period of logs.
    """

    def __init__(self, clock: Clock, retention: timedelta) -> None:
        self._clock = clock
        self._max_age = min(_MAX_AGE, retention / 2)
        self._ended_at: OrderedDict[str, datetime] = OrderedDict()

    def __contains__(self, workflow: str) -> bool:
        at = self._ended_at.get(workflow)
        return at is not None and self._clock.now() - at < self._max_age

    def add(self, workflow: str, at: datetime) -> None:
        """Add a workflow that ended at the time `at`."""
        self._ended_at[workflow] = at
        self._ended_at.move_to_end(workflow)
        while len(self._ended_at) > _MAX_ENTRIES:
            self._ended_at.popitem(last=False)

    def discard(self, workflow: str) -> None:
        """Remove a workflow that begins again."""
        self._ended_at.pop(workflow, None)

    def evict(self) -> None:
        """Remove the entries that are too old."""
        while self._ended_at and next(iter(self._ended_at)) not in self:
            self._ended_at.popitem(last=False)
