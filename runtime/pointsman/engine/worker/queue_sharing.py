"""Find the teams whose handoffs delay each other in the queue of an agent that belongs to no team."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["QueueSharing"]

_MIN_WAIT_S = 1.0  # seconds in the queue that count as a delay; if a slot is free, a handoff waits only milliseconds
_WINDOW_S = 60.0  # seconds after its last handoff for which a team counts as a user of the queue
_MAX_TEAMS = 100  # maximum number of remembered teams, which take some 10 kB


class QueueSharing:
    """The teams with handoffs for one agent. The agent's queue is first in, first out, so a team has no fair share."""

    def __init__(self) -> None:
        self._last_at: OrderedDict[str, float] = OrderedDict()  # by team, oldest first
        self._reported: set[str] = set()

    def record(self, team: str, waited: float, now: float) -> Sequence[str]:
        """Record a delivery.

        Args:
            team: The team of the handoff.
            waited: The time in the queue, in seconds.
            now: The time by a monotonic clock, in seconds.

        Returns:
            The teams that share the queue, if the handoff was delayed and at least one of these teams was not returned
            before. Otherwise no teams.
        """
        self._last_at[team] = now
        self._last_at.move_to_end(team)
        while len(self._last_at) > _MAX_TEAMS:
            self._reported.discard(self._last_at.popitem(last=False)[0])
        if waited < _MIN_WAIT_S or len(self._last_at) == 1:
            return ()
        teams = sorted(name for name, at in self._last_at.items() if now - at < _WINDOW_S)
        if len(teams) == 1 or self._reported.issuperset(teams):
            return ()
        self._reported.update(teams)
        return teams
