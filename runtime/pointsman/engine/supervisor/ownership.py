"""Which of a team's supervisors has a workflow in hand: each finds the same one from who is alive, asking nobody.

The first of them, who is alive the longest, is delivered everything, and has everything in hand for as long as it can
do that alone: what one does is folded, sent and acknowledged together. While its process is nearly all of one CPU the
workflows are spread over all of them.

It is a preference and no lock. Two that disagree for a while, because one has just come or gone, settle it by
compare-and-set as ever, and pay for reading the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from time import process_time

from pointsman.ports.bus import Bus, Delivery
from pointsman.ports.clock import Clock
from pointsman_schemas.card import AgentCard

__all__ = ["Sharing", "holder"]

_PRESSED = 0.8
"""Of one CPU, what the first takes when it begins to share."""
_RELIEVED = 0.5
"""What it would take alone, by its share, when it ends that."""
_HIGHEST = 9
"""The last rank a consumer knows."""


class Sharing:
    """The supervisors of `team` as the one called `instance` sees them; it measures itself every `period` seconds."""

    def __init__(self, bus: Bus, clock: Clock, team: str, instance: str, period: float) -> None:
        self._bus = bus
        self._clock = clock
        self._team = team
        self._instance = instance
        self._seen: Sequence[AgentCard] = ()
        self._alive: Sequence[str] = (instance,)
        self._pressed = False
        self._since, self._used = clock.monotonic(), process_time()
        self._handed_until = clock.monotonic()
        self._period = period

    @property
    def rank(self) -> int:
        """How many are to be delivered everything before this one."""
        return min(self._alive.index(self._instance), _HIGHEST)

    @property
    def spread(self) -> bool:
        """Whether the workflows are spread over all: the first says so by handing on what others have in hand."""
        if self._alive[0] == self._instance:
            return self._pressed and len(self._alive) > 1
        return self._clock.monotonic() < self._handed_until

    @property
    def hands_on(self) -> bool:
        """Whether anything may be another one's."""
        return self.spread or self._alive[0] != self._instance

    async def look(self) -> None:
        """See who is there now."""
        seen = await self._bus.registry.cards()
        if seen is self._seen:  # as nearly always: the registry makes another one when anything has changed
            return
        self._seen = seen
        cards = [card for card in seen if card.team and card.name == self._team]
        cards.sort(key=lambda card: (card.started_at is None, card.started_at, card.instance))
        alive = [card.instance for card in cards]
        self._alive = alive if self._instance in alive else [*alive, self._instance]

    def measure(self) -> None:
        """See how busy this process has been since it was last asked."""
        now, used = self._clock.monotonic(), process_time()
        if now > self._since:
            sharers = len(self._alive) if self._pressed else 1
            alone = sharers * (used - self._used) / (now - self._since)
            self._pressed = alone > (_RELIEVED if self._pressed else _PRESSED)
        self._since, self._used = now, used

    def received(self) -> None:
        """Something was handed on to this one."""
        self._handed_until = self._clock.monotonic() + 2 * self._period

    async def hand_on(self, workflow: str, delivery: Delivery) -> bool:
        """Whether it was handed on to the supervisor that has `workflow` in hand. What came before is dealt with by
        whoever gets it: the one it was handed to may have died of it. A request that comes to who is not the first,
        while that has everything in hand, has come because the first has no room for it."""
        if delivery.delivered > 1 or (not self.spread and delivery.message.subject.split(".", 2)[1] == "request"):
            return False
        other = holder(workflow, self._alive) if self.spread else self._alive[0]
        return other != self._instance and await delivery.hand_on(other)


def holder(workflow: str, instances: Sequence[str]) -> str:
    """The one of `instances` that has `workflow` in hand. When one comes or goes, only its own share moves."""
    return max(instances, key=lambda instance: blake2b(f"{instance}/{workflow}".encode(), digest_size=8).digest())
