"""The port of a clock."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

__all__ = ["Clock"]


class Clock(Protocol):
    """A clock. Use `now` for times that other processes read, and `monotonic` for durations inside one process."""

    def now(self) -> datetime:
        """Return the time.

        Returns:
            The time, with zone UTC.
        """
        ...

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start. The value never decreases.

        Returns:
            The seconds.
        """
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait.

        Args:
            seconds: The duration in seconds.
        """
        ...
