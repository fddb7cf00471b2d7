"""Store the cards of a `MemoryBroker`. A card is removed when it is withdrawn, or when its time to live ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pointsman.bus.validation import encode_card
from pointsman.ports.clock import Clock
from pointsman_schemas.card import AgentCard

__all__ = ["MemoryRegistry"]


class MemoryRegistry:
    """Registry that all connections to a broker share. `time_to_live` is in seconds."""

    def __init__(self, clock: Clock, time_to_live: float) -> None:
        self._clock = clock
        self._time_to_live = time_to_live
        self._cards: dict[tuple[str, str], tuple[AgentCard, float]] = {}

    async def announce(self, card: AgentCard) -> None:
        encode_card(card)
        self._cards[card.name, card.instance] = card, self._clock.monotonic() + self._time_to_live

    async def withdraw(self, card: AgentCard) -> None:
        self._cards.pop((card.name, card.instance), None)

    async def cards(self) -> Sequence[AgentCard]:
        now = self._clock.monotonic()
        self._cards = {key: entry for key, entry in self._cards.items() if entry[1] > now}
        return [self._cards[key][0] for key in sorted(self._cards)]

    async def refused(self) -> Mapping[str, str]:
        return {}
