"""How a model call asks for its share of a provider's limits, whoever keeps them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pointsman.ports import Model

__all__ = ["Admission", "Meters"]


@dataclass(frozen=True, slots=True)
class Admission:
    """A call that may be made now. `done` says that it is over: the tokens it used, and the seconds for which the
    provider wants no other call, if it said so. It never waits."""

    done: Callable[[int, float | None], None]


class Meters(Protocol):
    """The limits that all processes keep together."""

    async def admit(self, model: Model, tokens: int, patience: float) -> Admission | None:
        """Wait until a call of about `tokens` may be made; None when nothing limits `model`.

        Raises:
            ModelError: with kind `rate_limited`: that would take longer than `patience` seconds.
        """
        ...
