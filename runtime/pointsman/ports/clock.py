"""The port of a clock."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

__all__ = ["Clock"]


class Clock(Protocol):
    """Time. `now` is for what crosses processes, `monotonic` for durations inside one."""

    def now(self) -> datetime:
        """The time, with zone UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start that never step back."""
        ...

    async def sleep(self, seconds: float) -> None: ...
