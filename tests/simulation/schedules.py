"""Simulate a world of schedules with killed supervisors, jumps of the broker's clock, faults and commands.

The seed determines the schedules, the processes, the jumps, the commands and every fault. The engines and the core are
real. The broker is the memory broker, and time is virtual.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Any

import structlog

from pointsman.authoring.agent import Agent, agent
from pointsman.bus.memory.bus import MemoryBroker
from pointsman.client.client import Client
from pointsman.core.schedules.runs import next_fires, schedule_of_request
from pointsman.core.schedules.times import upcoming
from pointsman.engine.log.reader import read_commit
from pointsman.engine.supervisor.engine import SupervisorEngine
from pointsman.engine.worker.engine import Worker
from pointsman.errors import BusUnavailableError, PointsmanError
from pointsman.settings import Settings
from pointsman.testing.faults import RATES, Faults, FaultyBus
from pointsman.testing.simulation import SimulatedClock, SimulatedProcess, simulate
from pointsman_schemas.log import Commit, WorkflowEnded, WorkflowStarted
from pointsman_schemas.schedules import Schedule
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Limits, Pipeline, Stage, Team

__all__ = ["ScheduleWorld"]

TEAM = Team(name="team", strategy=Pipeline(stages=(Stage(agent="a"),)), limits=Limits(deadline=160, task_timeout=100))
SUBJECTS = Subjects("sim")
SETTINGS = Settings(namespace="sim", ack_wait=3.0, heartbeat=4.0)
_QUIET_AFTER_S = 240.0  # seconds after which no new fault, jump or command starts
_REST_S = 200.0  # seconds in which the last runs end and two more fires happen
_START = datetime(2030, 3, 31, 0, 55, 20, tzinfo=UTC)
"""Shortly before clocks in Oslo are set forward at 01:00 UTC."""
_MAX_STEPS = 3_000_000
_FIRE = re.compile(r"\d{8}T\d{6}Z")
_CRONS = (("* * * * *", "UTC"), ("*/2 * * * *", "Europe/Oslo"), ("58,59 1,2,3 * * *", "Europe/Oslo"))


class BrokerWallClock(SimulatedClock):
    """The broker's clock, which a world can set forward and back."""

    def set_by(self, seconds: float) -> None:
        self._start += timedelta(seconds=seconds)


@dataclass
class ScheduleWorld:
    """The world of `seed`."""

    seed: int
    problems: list[str] = field(default_factory=list)
    schedules: list[Schedule] = field(default_factory=list)
    faults: Faults = field(init=False)
    jumps: int = 0

    def __post_init__(self) -> None:
        self.chance = Random(f"{self.seed}/schedules")
        self.clock = BrokerWallClock(_START)
        self.broker = MemoryBroker("sim", self.clock, heartbeat=4.0)
        rates = {fault: rate * self.chance.choice([0, 0.5, 1, 2]) for fault, rate in RATES.items()}
        self.faults = Faults(
            Random(f"{self.seed}/faults"), rates, until=_QUIET_AFTER_S, crashes=self.chance.choice([0, 4, 12])
        )
        self.jumping = self.chance.random() < 0.5
        self.commanding = self.chance.random() < 0.5
        self.over = asyncio.Event()

    def run(self) -> ScheduleWorld:
        """Play the world. The problems include unexpected errors."""
        with self._capture_logs():
            simulate(self._play, steps=_MAX_STEPS)
        return self

    async def _play(self) -> None:
        client = Client(self.broker.connect(), namespace="sim", user="ada")
        async with asyncio.TaskGroup() as group:
            for number in range(self.chance.randint(1, 3)):
                group.create_task(self._keep_running(f"supervisor-{number}"))
            group.create_task(self._keep_running("worker"))
            names = await self._create(client)
            if self.jumping:
                group.create_task(self._jump(Random(f"{self.seed}/jumps")))
            if self.commanding:
                group.create_task(self._command(client, names, Random(f"{self.seed}/commands")))
            await asyncio.sleep(_QUIET_AFTER_S + _REST_S)
            self.schedules = [*await client.schedules.list()]
            self._audit()
            self.over.set()

    async def _create(self, client: Client) -> list[str]:
        names = []
        for number in range(self.chance.randint(1, 3)):
            cron, zone = self.chance.choice(_CRONS)
            names.append(f"s{number}")
            await client.schedules.create(
                names[-1],
                "team",
                "the report",
                cron=cron,
                timezone=zone,
                overlap=self.chance.choice(["skip", "queue", "allow"]),
                missed=self.chance.choice(["skip", "once"]),
                grace=self.chance.choice([5.0, 50.0]),
                timeout=200.0,
            )
        return names

    async def _jump(self, chance: Random) -> None:
        """Set the broker's clock forward and back."""
        for _ in range(chance.randint(1, 4)):
            await asyncio.sleep(chance.uniform(5.0, 90.0))
            self.clock.set_by(chance.choice([-7200.0, -600.0, -61.0, -2.0, 2.0, 61.0, 600.0, 7200.0]))
            self.jumps += 1

    async def _command(self, client: Client, names: list[str], chance: Random) -> None:
        for _ in range(chance.randint(1, 6)):
            await asyncio.sleep(chance.uniform(1.0, 60.0))
            schedules, name = client.schedules, chance.choice(names)
            call = chance.choice([schedules.pause, schedules.resume, schedules.run, schedules.run])
            try:
                await call(name, timeout=20.0)
            except PointsmanError:  # a manual run is refused while another run has not ended
                continue
        for name in names:
            await client.schedules.resume(name, timeout=200.0)

    async def _keep_running(self, name: str) -> None:
        """Start a process. Restart it after each end, until the world has ended."""
        chance, number = Random(f"{self.seed}/{name}"), 0
        while not self.over.is_set():
            number += 1
            process = SimulatedProcess(f"{name}.{number}")
            bus, stop = FaultyBus(self.broker.connect(), self.faults, process), asyncio.Event()
            part: SupervisorEngine | Worker
            instance = f"{name}-{number}"
            if name == "worker":
                part = Worker(
                    bus, [_slow(chance, self.faults)], SETTINGS, clock=SimulatedClock(), instance=f"{name}-{number}"
                )
            else:
                part = SupervisorEngine(bus, TEAM, SETTINGS, SimulatedClock(), instance=instance)
            main = process.start(part.run(stop))
            over = asyncio.create_task(self.over.wait())
            # Sometimes all supervisors are unavailable for longer than the allowed delay of a fire.
            leaves = chance.uniform(10.0, 150.0) if self.faults.active else None
            await asyncio.wait({main, over}, timeout=leaves, return_when=asyncio.FIRST_COMPLETED)
            stop.set()
            await asyncio.wait({main}, timeout=30.0)
            over.cancel()
            process.kill()
            await process.wait()
            error = None if main.cancelled() or not main.done() else main.exception()
            if error is not None and not _is_outage(error):
                self.problems.append(f"{process.name} ended with {error!r}")
            if not self.over.is_set():
                await asyncio.sleep(chance.choice([0.5, 3.0, 3.0, 90.0]) if self.faults.active else 0.5)

    # The invariants

    def _audit(self) -> None:
        logs: dict[str, list[tuple[int, Commit]]] = {}
        for stored in self.broker.stream("log").select(SUBJECTS.team_logs()):
            logs.setdefault(stored.subject.rpartition(".")[2], []).append((stored.sequence, read_commit(stored)))
        begun: dict[str, WorkflowStarted] = {}
        spans: dict[str, tuple[int, int]] = {}
        for workflow, commits in logs.items():
            entries = [(sequence, entry) for sequence, commit in commits for entry in commit.entries]
            first, started = entries[0]
            assert isinstance(started, WorkflowStarted)
            begun[workflow] = started
            ends = [sequence for sequence, entry in entries if isinstance(entry, WorkflowEnded)]
            if ends:
                spans[workflow] = first, ends[0]
        twice = [request for request, count in Counter(each.request_id for each in begun.values()).items() if count > 1]
        self.problems += [f"{request} became several workflows" for request in twice]
        self.problems += [f"{workflow} has not ended" for workflow in begun.keys() - spans.keys()]
        for schedule in self.schedules:
            own = {
                workflow: each
                for workflow, each in begun.items()
                if schedule_of_request(each.request_id) == schedule.name
            }
            self._audit_schedule(schedule, own, spans)

    def _audit_schedule(
        self, schedule: Schedule, begun: dict[str, WorkflowStarted], spans: dict[str, tuple[int, int]]
    ) -> None:
        name, spec, now = schedule.name, schedule.spec, self.clock.now()
        assert spec is not None
        for each in begun.values():
            stamp = each.request_id.rpartition("/")[2]
            if not _FIRE.fullmatch(stamp):
                continue  # a manual run has the id of its command
            due = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            if upcoming(spec, due - timedelta(seconds=1), 1) != [due]:
                self.problems.append(f"{name} fired at {due}, which is not a time of {spec.cron}")
        waiting = sum(run.status == "queued" for run in schedule.runs)
        if schedule.started - waiting != len(begun):
            self.problems.append(f"{name} counts {schedule.started} runs, {waiting} wait, {len(begun)} have workflows")
        for run in schedule.runs:
            if run.status == "queued":
                continue
            if run.status == "running" and run.workflow_id in spans:
                self.problems.append(f"the run {run.request_id} of {name} has ended, but its status is {run.status}")
            if run.workflow_id not in begun:
                self.problems.append(f"the run {run.request_id} of {name} has no workflow")
        if spec.overlap != "allow":  # compare sequences: after a jump, the clocks of supervisors differ
            ordered = sorted(spans[workflow] for workflow in begun if workflow in spans)
            for (_, end), (start, _) in pairwise(ordered):
                if start < end:
                    self.problems.append(f"two runs of {name} overlap at the sequence {start}")
        if schedule.wake is None or schedule.wake <= now - timedelta(seconds=5):
            self.problems.append(f"{name} has no armed timer at {now}; its next wake-up was {schedule.wake}")
        following = next_fires(schedule, now, 1)
        if not following or (schedule.wake and schedule.wake > following[0]):
            self.problems.append(f"{name} would miss {following}")
        if not self.jumping and not self.commanding:
            times = [fire for fire in upcoming(spec, schedule.created_at, 1_000) if fire <= schedule.through]
            if len(times) != schedule.started + schedule.skipped + schedule.missed:
                self.problems.append(
                    f"{name} had {len(times)} times, and {schedule.started} were started, {schedule.skipped} skipped, "
                    f"{schedule.missed} missed"
                )

    @contextmanager
    def _capture_logs(self) -> Iterator[None]:
        """Drop log lines, but add lines about bugs to the problems."""

        def hear(_: object, level: str, event: dict[str, Any]) -> Any:
            if event["event"] in ("schedule_failed", "inputs_failed", "input_body_unavailable", "listener_failed"):
                self.problems.append(f"logged {event}")
            raise structlog.DropEvent

        processors = structlog.get_config()["processors"]
        before = list(processors)
        processors[:] = [hear]
        try:
            yield
        finally:
            processors[:] = before


def _slow(chance: Random, faults: Faults) -> Agent:
    """Return an agent whose work often takes longer than the interval between two fires."""

    @agent(name="a", description="Writes the report")
    async def write(request: str) -> str:
        await asyncio.sleep(chance.choice([0.0, 0.0, 70.0]) if faults.active else 0.0)
        return request

    return write


def _is_outage(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_outage(each) for each in error.exceptions)
    return isinstance(error, BusUnavailableError)
