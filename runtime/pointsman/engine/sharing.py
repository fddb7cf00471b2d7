"""Which of a team's supervisors has a workflow in hand: each finds the same one from who is alive, asking nobody.

It is a preference and no lock. Two that disagree for a while, because one has just come or gone, settle it by
compare-and-set as ever, and pay for reading the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from pointsman.ports import Bus, Delivery

__all__ = ["Sharing", "holder"]


class Sharing:
    """The supervisors of `team` as the one called `instance` sees them."""

    def __init__(self, bus: Bus, team: str, instance: str) -> None:
        self._bus = bus
        self._team = team
        self._instance = instance
        self._others: Sequence[str] = ()

    @property
    def shared(self) -> bool:
        """Whether there are others, to hand anything on to."""
        return bool(self._others)

    async def look(self) -> None:
        """See who is there now."""
        cards = await self._bus.registry.cards()
        alive = (card.instance for card in cards if card.team and card.name == self._team)
        self._others = [instance for instance in alive if instance != self._instance]

    async def hand_on(self, workflow: str, delivery: Delivery) -> bool:
        """Whether it was handed on to the supervisor that has `workflow` in hand. What came before is dealt with by
        whoever gets it: the one it was handed to may have died of it."""
        if delivery.delivered > 1:
            return False
        other = holder(workflow, [self._instance, *self._others])
        return other != self._instance and await delivery.hand_on(other)


def holder(workflow: str, instances: Sequence[str]) -> str:
    """The one of `instances` that has `workflow` in hand. When one comes or goes, only its own share moves."""
    return max(instances, key=lambda instance: blake2b(f"{instance}/{workflow}".encode(), digest_size=8).digest())
