"""How busy the agents are that one supervisor chooses among: their queues as the broker has them, and what one task
takes by the results seen here.

Another supervisor may see it otherwise. What is chosen stands in the log, so that does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from pointsman.core.model.agent_health import Load
from pointsman.core.model.state import State, in_review
from pointsman.engine.process.handoff_codec import consumer_name
from pointsman.errors import PeerError
from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock
from pointsman_schemas.events import Result
from pointsman_schemas.log import Entry

__all__ = ["AgentLoads"]

_MAX_AGE_S = 1.0  # seconds a look at a queue is good for: what is sent and answered here meanwhile is counted
_AVERAGE_WEIGHT = 0.2  # of the newest result in the moving average: ten results later nine tenths of it are new
_FORGET_AFTER_S = 60.0  # seconds: an agent that is not chosen for having been slow is tried again after that


class AgentLoads:
    """The loads of the agents that were looked at."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._queued_by_agent: dict[str, Load] = {}
        self._refreshed_at: dict[str, float] = {}
        self._durations: dict[str, tuple[float, float]] = {}
        self._refreshing = asyncio.Lock()

    @property
    def known(self) -> Mapping[str, Load]:
        return self._queued_by_agent

    async def refresh(self, agents: Iterable[str]) -> bool:
        """Whether there is something new to know of `agents`: the broker is asked for queues once a second at most."""
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
        """Count what is about to be committed: workflows that are decided meanwhile choose by it, too. Should it not
        be, that is put right by the next look."""
        for entry in entries:
            if entry.kind == "task_dispatched" or entry.kind == "retry_scheduled":
                self._add(entry.agent, 1)

    def record_commit(self, before: State | None, entries: Iterable[Entry]) -> None:
        """Learn from what was committed; `before` is the workflow before it."""
        for entry in entries:
            match entry.kind:
                case "task_succeeded" | "attempt_failed" if in_review(before, entry.task_id):
                    pass  # its agent had answered when the judge was asked
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
        with suppress(PeerError):  # a figure that is missing is no reason to wait
            if (depth := await self._bus.depth(consumer_name(agent), "handoffs")) is not None:
                return depth.pending + depth.in_flight
        return 0

    def _add(self, agent: str, more: int) -> None:
        if (load := self._queued_by_agent.get(agent)) is not None:
            self._queued_by_agent[agent] = replace(load, queued=max(load.queued + more, 0))

    def _record_duration(self, result: Result) -> None:
        """A failure says nothing of how long the work takes: who fails at once would be the quickest."""
        seconds = max((result.ended_at - result.started_at).total_seconds(), 0.0)
        now = self._clock.monotonic()
        before, at = self._durations.get(result.agent, (seconds, now))
        mean = seconds if now - at >= _FORGET_AFTER_S else before + _AVERAGE_WEIGHT * (seconds - before)
        self._durations[result.agent] = mean, now
        if (load := self._queued_by_agent.get(result.agent)) is not None:
            self._queued_by_agent[result.agent] = replace(load, seconds=mean)
