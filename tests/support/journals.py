"""A journal in memory that stays after its worker ends."""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.errors import MAX_ERROR_CHARS, OversizeEventError
from pointsman_schemas.events import Step

__all__ = ["MemoryJournal"]


class MemoryJournal:
    """Stores steps of at most `room` characters and errors of any size, and counts reads."""

    def __init__(self, room: int = 1_000) -> None:
        self.steps: dict[str, Step] = {}
        self.room = room
        self.recalled = 0

    async def load(self) -> Mapping[str, Step]:
        self.recalled += 1
        return dict(self.steps)

    async def append(self, step: Step) -> Step:
        if not step.is_error and len(f"{step.data}{step.text}") > self.room:
            raise OversizeEventError("x" * 2 * MAX_ERROR_CHARS)
        return self.steps.setdefault(step.name, step)
