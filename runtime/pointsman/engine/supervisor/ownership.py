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

__all__ = ["Ownership", "owner"]

_BUSY_CPU_SHARE = 0.8
"""Of one CPU, what the first takes when it begins to share."""
_IDLE_CPU_SHARE = 0.5
"""What it would take alone, by its share, when it ends that."""
_MAX_PRIORITY = 9
"""The last rank a consumer knows."""


class Ownership:
    """The supervisors of `team` as the one called `instance` sees them; it measures itself every `period` seconds."""

    def __init__(self, bus: Bus, clock: Clock, team: str, instance: str, period: float) -> None:
        self._bus = bus
        self._clock = clock
        self._team = team
        self._instance = instance
        self._cards: Sequence[AgentCard] = ()
        self._instances: Sequence[str] = (instance,)
        self._is_busy = False
        self._measured_at, self._cpu_time = clock.monotonic(), process_time()
        self._balanced_until = clock.monotonic()
        self._period = period

    @property
    def priority(self) -> int:
        """How many are to be delivered everything before this one."""
        return min(self._instances.index(self._instance), _MAX_PRIORITY)

    @property
    def balanced(self) -> bool:
        """Whether the workflows are spread over all: the first says so by handing on what others have in hand."""
        if self._instances[0] == self._instance:
            return self._is_busy and len(self._instances) > 1
        return self._clock.monotonic() < self._balanced_until

    @property
    def may_forward(self) -> bool:
        """Whether anything may be another one's."""
        return self.balanced or self._instances[0] != self._instance

    async def refresh(self) -> None:
        """See who is there now."""
        seen = await self._bus.registry.cards()
        if seen is self._cards:  # as nearly always: the registry makes another one when anything has changed
            return
        self._cards = seen
        cards = [card for card in seen if card.team and card.name == self._team]
        cards.sort(key=lambda card: (card.started_at is None, card.started_at, card.instance))
        alive = [card.instance for card in cards]
        self._instances = alive if self._instance in alive else [*alive, self._instance]

    def measure_load(self) -> None:
        """See how busy this process has been since it was last asked."""
        now, used = self._clock.monotonic(), process_time()
        if now > self._measured_at:
            sharers = len(self._instances) if self._is_busy else 1
            alone = sharers * (used - self._cpu_time) / (now - self._measured_at)
            self._is_busy = alone > (_IDLE_CPU_SHARE if self._is_busy else _BUSY_CPU_SHARE)
        self._measured_at, self._cpu_time = now, used

    def record_forwarded(self) -> None:
        """Something was handed on to this one."""
        self._balanced_until = self._clock.monotonic() + 2 * self._period

    async def forward(self, workflow: str, delivery: Delivery) -> bool:
        """Whether it was handed on to the supervisor that has `workflow` in hand. What came before is dealt with by
        whoever gets it: the one it was handed to may have died of it. A request that comes to who is not the first,
        while that has everything in hand, has come because the first has no room for it."""
        if delivery.delivered > 1 or (not self.balanced and delivery.message.subject.split(".", 2)[1] == "request"):
            return False
        other = owner(workflow, self._instances) if self.balanced else self._instances[0]
        return other != self._instance and await delivery.forward(other)


def owner(workflow: str, instances: Sequence[str]) -> str:
    """The one of `instances` that has `workflow` in hand. When one comes or goes, only its own share moves."""
    return max(instances, key=lambda instance: blake2b(f"{instance}/{workflow}".encode(), digest_size=8).digest())
