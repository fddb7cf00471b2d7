"""Follow a stream and keep the state of a page in memory, so a page need not read the stream."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.engine.log.follower import StreamFollower
from pointsman.ports.bus import Bus, StreamKind
from pointsman.util.signal import Signal

__all__ = ["Projection"]


class Projection(Signal, StreamFollower):
    """State that is computed from the messages on `subject`. At the start, at most `history` messages are read.

    `changes` increases with each change.
    """

    def __init__(self, bus: Bus, stream: StreamKind, subject: str, *, history: int) -> None:
        Signal.__init__(self)
        StreamFollower.__init__(self, bus, stream, subject, history=history)

    def moved(self) -> None:
        """Wake the tasks that wait for a change."""
        self.notify()

    async def missing(self, subjects: Sequence[str]) -> Sequence[str]:
        """Return the subjects whose message is no longer in the stream, for example because the message has expired."""
        present = set(await self._bus.subjects(self._stream, self._subject)) if subjects else set[str]()
        return [subject for subject in subjects if subject not in present]
