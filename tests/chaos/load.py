"""A continuous load of workflows, the faults during it, and a report of the results."""

from __future__ import annotations

import asyncio
import itertools
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from support.checker import problems
from support.crew import steps
from support.processes import System

from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.client.client import Client
from pointsman.engine.process.consumers import agent_consumer, input_consumers, request_consumer
from pointsman.errors import BusUnavailableError
from pointsman_schemas.ids import workflow_id_for

__all__ = ["TEAM", "Load", "Report", "percentile"]

TEAM = "crew"
_AGAIN = 0.2  # seconds between two tries to submit while the broker is unavailable
_LEADER_TIMEOUT_S = 60.0


def percentile(values: Sequence[float], part: float) -> float:
    """Return the quantile `part` (0 to 1) of `values`, or 0 without values."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * int(part * 100) // 100) - 1)] if ordered else 0.0


@dataclass(slots=True)
class Report:
    """The faults and the findings of one form of chaos. Times are in seconds."""

    form: str
    workflows: int = 0
    kills: int = 0
    redeliveries: int = 0
    refused: int = 0
    """Messages that were published again and refused by the broker as duplicates."""
    recoveries: list[float] = field(default_factory=list)
    """Seconds from each fault to the next commit of any workflow."""
    stalls: list[float] = field(default_factory=list)
    """Seconds from each fault to the next commit of each running workflow."""
    until_ready: list[float] = field(default_factory=list)
    """Seconds from the first answer of each restarted process until it reported ready."""
    statuses: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def lines(self) -> list[str]:
        outcomes = ", ".join(f"{count} {status}" for status, count in sorted(self.statuses.items()))
        return [
            f"{self.form}: {self.workflows} workflows in {self.seconds:.0f} s ({outcomes}), {self.kills} blows",
            f"  lost {self.workflows - self.statuses.total()}, redeliveries {self.redeliveries}, "
            f"duplicates refused {self.refused}",
            f"  blow to next progress: p50 {percentile(self.recoveries, 0.5):.2f} s, "
            f"p99 {percentile(self.recoveries, 0.99):.2f} s; of each running workflow: "
            f"p50 {percentile(self.stalls, 0.5):.2f} s, p99 {percentile(self.stalls, 0.99):.2f} s",
            *(
                [f"  not ready for {', '.join(f'{each:.1f}' for each in self.until_ready)} s"]
                if self.until_ready
                else []
            ),
            *(f"  WRONG: {problem}" for problem in self.problems[:20]),
        ]


class Load:
    """Keeps `running` workflows of the crew running on a system until the block ends, and counts them."""

    def __init__(self, system: System, report: Report, *, running: int, chance: Random) -> None:
        self._system = system
        self._report = report
        self._room = asyncio.Semaphore(running)
        self._least = running
        self._chance = chance
        self._asked: list[str] = []
        self._outcomes: dict[str, str] = {}
        self._all_ended = asyncio.Event()
        self._over = False
        self._all_asked = False  # a submission may take longer than the block if the broker was just killed
        self._blows: list[float] = []

    def blow(self) -> None:
        """Record the time of a fault."""
        self._blows.append(time.time())
        self._report.kills += 1

    @asynccontextmanager
    async def running(self, *, patience: float) -> AsyncIterator[None]:
        """Submit workflows during the block. Then wait up to `patience` seconds until all end, and check them."""
        began = time.monotonic()
        client = self._system.client
        following = asyncio.create_task(self._follow(client))
        submitting = asyncio.create_task(self._submit(client))
        try:
            yield
            self._over = True
            await submitting
            self._all_asked = True
            self._check_all_ended()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_ended.wait(), patience)
        finally:
            for task in (following, submitting):
                task.cancel()
            await asyncio.gather(following, submitting, return_exceptions=True)
        report = self._report
        report.seconds = time.monotonic() - began
        report.workflows = len(self._asked)
        report.statuses = Counter(self._outcomes.values())
        report.problems += await problems(client.bus, client.subjects, TEAM, self._asked)
        await self._count(client)

    def _request(self) -> dict[str, Any]:
        chance = self._chance
        seconds = chance.choice([0.0, 0.02, 0.1, 0.4])
        names = [f"t{number}" for number in range(chance.randint(1, 4))]
        request = steps(*names, serial=chance.random() < 0.5, seconds=seconds)
        if chance.random() < 0.2:
            request["tasks"][-1]["input"]["from_attempt"] = 2
        return request

    async def _submit(self, client: Client) -> None:
        for number in itertools.count():
            await self._room.acquire()
            if self._over and number >= self._least:  # a slow machine submits the least number after the block, too
                return
            request, request_id = self._request(), f"r{number}"
            while True:
                try:
                    await client.submit(TEAM, request, request_id=request_id)
                    break
                except BusUnavailableError:  # same id: one workflow, even if the broker stored the last try
                    await asyncio.sleep(_AGAIN)
            self._asked.append(workflow_id_for(client.subjects.request(TEAM, client.user), request_id, client.source))

    async def _follow(self, client: Client) -> None:
        async for stored in client.bus.follow("log", [client.subjects.team_outcomes(TEAM)]):
            workflow = stored.subject.rpartition(".")[2]
            if workflow not in self._outcomes:
                self._room.release()
            self._outcomes[workflow] = stored.body.partition(b'"status":"')[2].partition(b'"')[0].decode()
            self._check_all_ended()

    def _check_all_ended(self) -> None:
        if self._all_asked and len(self._outcomes) >= len(self._asked):
            self._all_ended.set()

    async def _count(self, client: Client) -> None:
        report, subjects = self._report, client.subjects
        commits: dict[str, list[float]] = defaultdict(list)
        async for stored in client.bus.read("log", subjects.team_logs(TEAM)):
            commits[stored.subject].append(stored.at.timestamp())
        everything = sorted(moment for moments in commits.values() for moment in moments)
        for blow in self._blows:
            report.recoveries += _next_after(blow, everything)
            for moments in commits.values():
                if moments[0] < blow:
                    report.stalls += _next_after(blow, moments)
        for service in self._system.services:
            report.refused += sum(line["already_there"] for line in service.lines("outbox_republished"))
        assert isinstance(client.bus, JetStreamBus)
        consumers = [request_consumer(subjects, TEAM), *input_consumers(subjects, TEAM)]
        consumers += [agent_consumer(subjects, name) for name in ("planner", "worker", "synthesizer")]
        for name, kind, _ in consumers:
            stream = client.bus.stream_name(kind)
            info = await _ask(client.bus, f"CONSUMER.INFO.{stream}.{name}")
            given = info["delivered"]["consumer_seq"]
            wanted = {"subjects_filter": info["config"]["filter_subject"]}
            held = await _ask(client.bus, f"STREAM.INFO.{stream}", wanted)
            distinct = sum(held["state"].get("subjects", {}).values()) - info["num_pending"]
            report.redeliveries += max(0, given - distinct)


async def _ask(bus: JetStreamBus, verb: str, payload: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Repeat a request until a leader answers. After a kill, a stream or consumer has no leader for some seconds."""
    async with asyncio.timeout(_LEADER_TIMEOUT_S):
        while True:
            try:
                return await bus.api(verb, payload)
            except BusUnavailableError:
                await asyncio.sleep(_AGAIN)


def _next_after(blow: float, moments: Sequence[float]) -> list[float]:
    place = bisect_right(moments, blow)
    return [moments[place] - blow] if place < len(moments) else []
