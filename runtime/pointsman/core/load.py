"""How busy an agent is, as far as its supervisor knows."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Load"]


@dataclass(frozen=True, slots=True)
class Load:
    """`ahead` are the handoffs in its queue and those it works on; `seconds` what one took lately, None when none
    did."""

    ahead: int = 0
    seconds: float | None = None

    def wait(self, more: int, slots: int, usual: float) -> float:
        """Seconds until a task would be done that is handed over after `more` others, by an agent that works on `slots`
        at a time; `usual` where nobody knows what one takes."""
        return (1 + (self.ahead + more) / slots) * (usual if self.seconds is None else self.seconds)
