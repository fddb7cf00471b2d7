"""Ownership of workflows among the supervisors of a team, by rendezvous hashing over the live instances.

The leader is the supervisor that started first. While the leader can handle all inputs, it gets all inputs and owns all
workflows. This saves work, because one process can fold, send and acknowledge several inputs together. While the leader
uses nearly one CPU, the workflows are shared among all supervisors.

Ownership is a preference, not a lock. If supervisors disagree after a change of the instances, compare-and-set prevents
conflicting commits, at the cost of one read of the log.
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
"""CPU share (of one core) above which the leader starts sharing workflows."""
_IDLE_CPU_SHARE = 0.5
"""CPU share (of one core) below which the leader stops sharing. The measured share is multiplied by the number of
supervisors first, because the leader would then do the work of all supervisors."""
_MAX_PRIORITY = 9
"""The largest rank at a consumer. The broker prefers the processes with the lowest rank."""


class Ownership:
    """The ownership of a team's workflows, from the view of one supervisor.

    Args:
        bus: The bus.
        clock: The clock.
        team: The team.
        instance: The id of this supervisor's instance.
        period: The time between two measurements of the load, in seconds.
    """

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
        """Return the number of supervisors with a higher priority for inputs than this supervisor."""
        return min(self._instances.index(self._instance), _MAX_PRIORITY)

    @property
    def balanced(self) -> bool:
        """Return True if the workflows are shared.

        The leader decides this by its load. For any other supervisor, a forwarded input shows that the leader shares.
        """
        if self._instances[0] == self._instance:
            return self._is_busy and len(self._instances) > 1
        return self._clock.monotonic() < self._balanced_until

    @property
    def may_forward(self) -> bool:
        """Return True if an input might belong to another supervisor."""
        return self.balanced or self._instances[0] != self._instance

    async def refresh(self) -> None:
        """Read the live supervisors from the registry."""
        seen = await self._bus.registry.cards()
        if seen is self._cards:  # the usual case, because the registry makes a new list only after a change
            return
        self._cards = seen
        cards = [card for card in seen if card.team and card.name == self._team]
        cards.sort(key=lambda card: (card.started_at is None, card.started_at, card.instance))
        alive = [card.instance for card in cards]
        self._instances = alive if self._instance in alive else [*alive, self._instance]

    def measure_load(self) -> None:
        """Measure the CPU time of this process since the last measurement. Decide from it if the process is busy."""
        now, used = self._clock.monotonic(), process_time()
        if now > self._measured_at:
            sharers = len(self._instances) if self._is_busy else 1
            alone = sharers * (used - self._cpu_time) / (now - self._measured_at)
            self._is_busy = alone > (_IDLE_CPU_SHARE if self._is_busy else _BUSY_CPU_SHARE)
        self._measured_at, self._cpu_time = now, used

    def record_forwarded(self) -> None:
        """Record that another supervisor forwarded an input to this supervisor."""
        self._balanced_until = self._clock.monotonic() + 2 * self._period

    async def forward(self, workflow: str, delivery: Delivery) -> bool:
        """Forward a delivery to the owner of `workflow`, if another supervisor is the owner.

        A redelivery is not forwarded, because its first receiver may have crashed on this input. While workflows are
        not shared, a request is not forwarded to the leader. The leader has no free slot, because with a free slot the
        leader would have received the request from the broker.

        Args:
            workflow: The workflow's id.
            delivery: The delivery.

        Returns:
            True if the delivery was forwarded.
        """
        if delivery.delivered > 1 or (not self.balanced and delivery.message.subject.split(".", 2)[1] == "request"):
            return False
        other = owner(workflow, self._instances) if self.balanced else self._instances[0]
        return other != self._instance and await delivery.forward(other)


def owner(workflow: str, instances: Sequence[str]) -> str:
    """Return the instance that owns `workflow`. If an instance starts or stops, only its own workflows change owner.

    Args:
        workflow: The workflow's id.
        instances: The live instances.
    """
    return max(instances, key=lambda instance: blake2b(f"{instance}/{workflow}".encode(), digest_size=8).digest())
