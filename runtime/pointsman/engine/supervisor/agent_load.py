"""The load of agents: the depth of their queues and the time of their recent tasks, for the selection of an agent.

Two supervisors may measure different loads. The difference causes no error, because the log records the selected agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from pointsman.core.model.agent_health import Load
from pointsman.core.model.state import State, in_review
from pointsman.engine.process.consumers import consumer_name
from pointsman.errors import PeerError
from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock
from pointsman_schemas.events import Result
from pointsman_schemas.log import Entry

__all__ = ["AgentLoads"]

_MAX_AGE_S = 1.0  # lifetime of a measured depth; meanwhile this process adds its handoffs and subtracts its results
_AVERAGE_WEIGHT = 0.2  # weight of the newest result in the moving average; the newest ten together have a weight of 0.9
_FORGET_AFTER_S = 60.0  # seconds after which a measured time is dropped, so an agent that was slow is tried again


class AgentLoads:
    """The loads of the agents that decisions compare.

    Args:
        bus: The bus.
        clock: The clock.
    """

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._queued_by_agent: dict[str, Load] = {}
        self._refreshed_at: dict[str, float] = {}
        self._durations: dict[str, tuple[float, float]] = {}
        self._refreshing = asyncio.Lock()

    @property
    def known(self) -> Mapping[str, Load]:
        """Return the measured loads by agent."""
        return self._queued_by_agent

    async def refresh(self, agents: Iterable[str]) -> bool:
        """Measure the queues of `agents`. Each queue is measured at most once a second.

        Args:
            agents: The agents.

        Returns:
            True if a load was measured.
        """
        if not self._stale(agents):
            return False
        async with self._refreshing:
            stale = self._stale(agents)
            ahead = await asyncio.gather(*(self._queued(name) for name in stale))
            now = self._clock.monotonic()
            for name, count in zip(stale, ahead, strict=True):
                seconds, at = self._durations.get(name, (None, now))
                self._queued_by_agent[name] = Load(count, seconds if now - at < _FORGET_AFTER_S else None)
                self._refreshed_at[name] = now
        return True

    def record_decision(self, entries: Iterable[Entry]) -> None:
        """Count the attempts of a decision before its commit, because concurrent decisions must use the new load.

        If the commit is lost, the next refresh corrects the count.
        """
        for entry in entries if self._queued_by_agent else ():
            if entry.kind == "task_dispatched" or entry.kind == "retry_scheduled":
                self._add(entry.agent, 1)

    def record_commit(self, before: State | None, entries: Iterable[Entry]) -> None:
        """Update the loads from committed entries; `before` is the state before the commit."""
        for entry in entries:
            match entry.kind:
                case "task_succeeded" | "attempt_failed" if in_review(before, entry.task_id):
                    pass  # no count, because the agent had answered before the review
                case "task_succeeded" | "review_requested":
                    self._record_duration(entry.result)
                    self._add(entry.result.agent, -1)
                case "attempt_failed" if entry.result is not None:
                    self._add(entry.result.agent, -1)
                case _:
                    pass

    def _stale(self, agents: Iterable[str]) -> list[str]:
        now = self._clock.monotonic()
        return sorted(name for name in agents if now - self._refreshed_at.get(name, -_MAX_AGE_S) >= _MAX_AGE_S)

    async def _queued(self, agent: str) -> int:
        with suppress(PeerError):  # the decision does not wait for a missing depth
            if (depth := await self._bus.depth(consumer_name(agent), "handoffs")) is not None:
                return depth.pending + depth.in_flight
        return 0

    def _add(self, agent: str, more: int) -> None:
        if (load := self._queued_by_agent.get(agent)) is not None:
            self._queued_by_agent[agent] = replace(load, queued=max(load.queued + more, 0))

    def _record_duration(self, result: Result) -> None:
        """Record the time of a success. Failures do not count, because an agent that fails at once would seem fast."""
        seconds = max((result.ended_at - result.started_at).total_seconds(), 0.0)
        now = self._clock.monotonic()
        before, at = self._durations.get(result.agent, (seconds, now))
        mean = seconds if now - at >= _FORGET_AFTER_S else before + _AVERAGE_WEIGHT * (seconds - before)
        self._durations[result.agent] = mean, now
        if (load := self._queued_by_agent.get(result.agent)) is not None:
            self._queued_by_agent[result.agent] = replace(load, seconds=mean)
