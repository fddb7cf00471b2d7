"""Simulate a world. Its seed determines the team, the processes, the requests, the disturbances and every fault.

`World(seed).run()` plays the world to its end and returns the observations. The engines and the core are real. The
broker is the memory broker, and time is virtual.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate
from random import Random
from typing import Any
from unittest import mock
from uuid import UUID

import structlog

from pointsman.engine.log import requests, workflow_log
from pointsman.engine.log.requests import read_request
from pointsman.engine.process import retrying
from pointsman.engine.process.consumers import consumer_name
from pointsman.engine.supervisor import ended_cache, ownership, retention
from pointsman.engine.supervisor.engine import SupervisorEngine
from pointsman.engine.worker import progress_publisher
from pointsman.engine.worker.engine import Worker
from pointsman.errors import BusUnavailableError
from pointsman.ports.bus import StoredMessage, StreamKind
from pointsman.settings import Settings
from pointsman.telemetry import traces
from pointsman.testing.faults import RATES, Faults, FaultyBus
from pointsman.testing.simulation import EndlessSimulationError, SimulatedClock, SimulatedProcess, simulate
from pointsman_schemas.events import Control
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import (
    Team,
)
from simulation.audit import audit, check_head, describe
from simulation.broker import OutsideBus, SimulatedBroker
from simulation.crew import CARDS, SimulatedAgent, SimulatedAgents
from simulation.draws import asking, judged, talking, teams
from simulation.outsiders import Outsiders

__all__ = ["World", "WorldReport"]

_HISTORY_STREAMS: tuple[StreamKind, ...] = ("handoffs", "requests", "controls", "results", "work", "log", "dead")
_QUIET_AFTER_S = 20.0  # seconds after which no new fault starts, so that every workflow must end
_MAX_SIMULATED_S = 1_200.0  # seconds: twice the time of five requests in sequence that each reach their deadline
_MAX_STEPS = 400_000  # steps of the event loop; a world needs about 10,000
_CHECK_INTERVAL_S = 0.5  # seconds between two checks for the end of all work
_LEAVE_TIMEOUT_S = 30.0  # seconds until a stopping process must have ended

_SETTINGS = Settings(namespace="sim", ack_wait=3.0, heartbeat=4.0)

_Body = Callable[[SimulatedProcess, FaultyBus, asyncio.Event], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class WorldReport:
    """The result of a world. `problems` are the broken invariants; `digest` is a hash of all events in order."""

    seed: int
    problems: list[str]
    digest: str
    history: list[str]
    faults: Counter[str]
    workflows: int
    steps: int
    seconds: float


@dataclass
class World:
    """The world of `seed`."""

    seed: int
    notes: list[tuple[float, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    foreign: set[tuple[StreamKind, int]] = field(default_factory=set)
    """The messages of outsiders, by stream and sequence."""
    engines: dict[str, SupervisorEngine] = field(default_factory=dict)
    processes: dict[str, SimulatedProcess] = field(default_factory=dict)
    """The running process of each name."""
    down_until: float = 0.0
    """The simulated time until which no process restarts."""
    answers: dict[str, Control] = field(default_factory=dict)
    """The controls of people by event id."""
    told: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """The messages to workflows by event id: workflow, actor and text."""

    def __post_init__(self) -> None:
        chance = self.chance = Random(f"{self.seed}/world")
        self.subjects = Subjects("sim")
        self.clock = SimulatedClock()
        # In every other world, a body that does not fit into a message is stored separately; in the others it is
        # refused.
        bound = [1_048_576, 8_388_608][self.seed % 2]
        # In half of the worlds handoffs are not synced, and in most of these worlds the power fails.
        self.power = Random(f"{self.seed}/power")
        apart = self.power.random() < 0.5
        self.cuts = self.power.choice([0, 1, 2, 4]) if apart else 0
        self.broker = SimulatedBroker("sim", self.clock, bound, unsynced_handoffs=apart)
        self.outside = OutsideBus(self.broker, self.foreign)
        # Each world has only some kinds of faults, because with all kinds each kind would be rare.
        rates = {fault: rate * chance.choice([0, 0.5, 1, 1, 3]) for fault, rate in RATES.items()}
        self.faults = Faults(
            Random(f"{self.seed}/faults"), rates, until=_QUIET_AFTER_S, crashes=chance.choice([0, 3, 12]), log=self.note
        )
        ill = Random(f"{self.seed}/circuits").choice([(0, 10.0), (1, 2.0), (2, 2.0), (5, 10.0)])
        # In some worlds ended work is removed from the work stream almost at once. Not in worlds with power cuts,
        # because a power cut must reuse only recent sequences.
        self.trims = Random(f"{self.seed}/trimming")
        self.trim_pause = 3600.0 if self.cuts else self.trims.choice([3600.0, 1.0, 1.0])
        # In half of these worlds logs are also deleted soon after the end of their workflow. Not in worlds in which
        # retention runs only after the end, because a late resume waits until retention deletes the log.
        kept = Random(f"{self.seed}/retention").choice([2_592_000.0, 2_592_000.0, 6.0, 15.0])
        kept = 2_592_000.0 if self.trim_pause == 3600.0 else kept
        self.settings = _SETTINGS.model_copy(
            update={
                "grace": chance.choice([0.0, 2.0]),
                "max_running": chance.choice([1, 2, 1000, 1000]),
                "circuit_failures": ill[0],
                "circuit_open": ill[1],
                "retention_days": kept / 86_400,
            }
        )
        self.team, self.below = teams(chance, Random(f"{self.seed}/tasks").choice([4, 12, 40]))
        members = Random(f"{self.seed}/members")
        self.team, self.below = judged(self.team, members), self.below and judged(self.below, members)
        people = Random(f"{self.seed}/people")
        self.asks = people.random() < 0.3
        if self.asks:
            wait, plans = people.choice([3.0, 12.0]), people.random() < 0.5
            self.team = asking(self.team, wait, plans=plans)
            self.below = self.below and asking(self.below, wait, plans=plans)
        talks = Random(f"{self.seed}/threads")
        self.talks = talks.random() < 0.3
        if self.talks:
            self.team = talking(self.team, talks)
        self.crew = SimulatedAgents(self.seed, self._crash, self.problems, asks=self.asks)
        self.leaver = chance.random() < 0.3
        self.skew = chance.choice([0.0, 0.0, 0.02, 1.5])
        self.outsiders = Outsiders(self)
        self.over = asyncio.Event()
        self.over_at: datetime | None = None
        self.steps = 0
        self.seconds = 0.0
        self._checked: dict[tuple[str, str], int] = {}
        self._known: dict[int, str] = {}

    def run(self) -> WorldReport:
        """Play the world. Errors are not raised but added to the problems."""
        ids, of_reports = Random(f"{self.seed}/ids"), Random(f"{self.seed}/reports")
        drawn = iter(lambda: UUID(bytes=of_reports.randbytes(16)), None)
        snapshots = self.chance.choice([2, 3, 7])
        busy = Random(f"{self.seed}/busy")  # for some seconds, the CPU load is sometimes too high for one supervisor
        cpu = accumulate(iter(lambda: busy.choice([0.0, 0.0, 8.0]), None))
        with ExitStack() as stack:
            for drawing in (traces, requests, retrying):
                stack.enter_context(mock.patch.object(drawing, "new_id", lambda size: ids.randbytes(size).hex()))
            stack.enter_context(mock.patch.object(progress_publisher, "uuid4", side_effect=drawn))
            stack.enter_context(mock.patch.object(workflow_log, "SNAPSHOT_EVERY", snapshots))
            stack.enter_context(mock.patch.object(ownership, "process_time", cpu.__next__))
            stack.enter_context(mock.patch.object(retention, "_INTERVAL_S", self.trim_pause))
            stack.enter_context(
                mock.patch.object(retention, "_WORK_RETENTION", timedelta(seconds=self.trims.choice([3.0, 5.0, 15.0])))
            )
            stack.enter_context(mock.patch.object(ended_cache, "_MAX_ENTRIES", self.chance.choice([1, 1000])))
            stack.enter_context(self._capture_logs())
            try:
                simulate(self._play, steps=_MAX_STEPS)
            except EndlessSimulationError as error:
                self.problems += [str(error), *describe(self)]
            self.problems += audit(self)
        return WorldReport(
            self.seed,
            list(dict.fromkeys(self.problems)),
            self._digest(),
            self._history(),
            self.faults.counts,
            len({stored.subject for stored in self.broker.all_messages("log", self.subjects.team_logs())}),
            self.steps,
            self.seconds,
        )

    async def _play(self) -> None:
        loop = asyncio.get_running_loop()
        chance = self.chance
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(chance.randint(1, 3)):
                    group.create_task(self._keep_running(f"supervisor-{number}", self._supervisor_of(self.team)))
                for number in range(chance.randint(1, 2) if self.below else 0):
                    assert self.below is not None
                    group.create_task(self._keep_running(f"below-{number}", self._supervisor_of(self.below)))
                for name, agents in self._shifts().items():
                    group.create_task(self._keep_running(name, self._worker_of(agents), once="leaver" in agents))
                if self.asks:
                    group.create_task(self.outsiders.people(Random(f"{self.seed}/answers")))
                mischief = [group.create_task(each) for each in self.outsiders.disturbances()]
                await self._run_until_done(mischief)
                self.over_at = self.clock.now()
                self.over.set()
        except* BusUnavailableError as errors:  # faults are injected elsewhere, so an unavailable broker is a problem
            self.problems.append(f"the simulation stopped with an error: {errors!r}")
        finally:
            self.steps, self.seconds = loop.steps, loop.time()  # type: ignore[attr-defined]

    async def _run_until_done(self, mischief: list[asyncio.Task[None]]) -> None:
        """Wait until all work is done and no message is unsettled."""
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            self._check_heads()
            if self._is_quiet(mischief) and not self.unfinished():
                return
            if self.clock.monotonic() > _MAX_SIMULATED_S:
                self.problems += [f"not done after {_MAX_SIMULATED_S:g} s", *describe(self)]
                return

    def _is_quiet(self, mischief: list[asyncio.Task[None]]) -> bool:
        return self.clock.monotonic() > _QUIET_AFTER_S and self.faults.is_idle and all(each.done() for each in mischief)

    def _check_heads(self) -> None:
        for process, engine in self.engines.items():
            for workflow, head in engine._heads.items():
                if self._checked.get((process, workflow)) != head.sequence:
                    self._checked[process, workflow] = head.sequence
                    if problem := check_head(self, workflow, head):
                        self.problems.append(problem)

    def unfinished(self) -> list[str]:
        """Return requests without an outcome, consumers with unsettled messages, and agents that never started."""
        missing = [
            f"request {stored.sequence} ({workflow}) has no outcome"
            for stored, workflow in self.requests()
            if not self._has(self.subjects.outcome(self.team.name, workflow))
        ]
        log = self.broker.stream("log")
        missing += [
            f"{subject} has no outcome"
            for subject in log.subjects(self.subjects.team_logs())
            if not any(not self.is_foreign(end) for end in log.select(subject.replace(".log.", ".outcome.", 1)))
        ]
        for (_, name), durable in self.broker._durables.items():
            if name != consumer_name("leaver") and (durable.ready or durable.in_flight):
                missing.append(f"consumer {name} has {len(durable.ready)} ready and {durable.in_flight} in flight")
        there = {name for _, name in self.broker._durables}
        expected = [consumer_name(name) for name in CARDS if name != "leaver"]
        expected += [consumer_name(self.below.name)] if self.below else []
        return missing + [f"consumer {name} does not exist yet" for name in expected if name not in there]

    def requests(self) -> Iterator[tuple[StoredMessage, str]]:
        """Yield every stored request with its workflow."""
        for stored in self.broker.all_messages("requests", self.subjects.request(self.team.name, "anonymous")):
            if stored.sequence not in self._known:
                self._known[stored.sequence] = read_request(stored, self.team).admission.workflow_id
            yield stored, self._known[stored.sequence]

    def _has(self, outcome: str) -> bool:
        return any(not self.is_foreign(stored) for stored in self.broker.all_messages("log", outcome))

    def is_foreign(self, stored: StoredMessage) -> bool:
        """Return True if an outsider has sent the message."""
        return (self.broker.stream_of(stored.subject), stored.sequence) in self.foreign

    def team_of(self, workflow: str) -> str:
        """Return the team of the workflow, or the main team if there is no log."""
        logs = self.broker.all_messages("log", self.subjects.workflow_log(workflow))
        return logs[0].subject.split(".")[-2] if logs else self.team.name

    async def _keep_running(self, name: str, body: _Body, *, once: bool = False) -> None:
        """Start a process. Restart it after each end, until the world has ended."""
        chance = Random(f"{self.seed}/{name}")
        number = 0
        while not self.over.is_set():
            number += 1
            process = self.processes[name] = SimulatedProcess(f"{name}.{number}")
            bus = FaultyBus(self.broker.connect(), self.faults, process)
            stop = asyncio.Event()
            ending = asyncio.create_task(self._end_of(chance, stop, once=once))
            main = process.start(body(process, bus, stop))
            ended = asyncio.create_task(process.wait())
            await asyncio.wait({ended, ending}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({ended}, timeout=_LEAVE_TIMEOUT_S)
            if not ended.done():
                self.problems.append(f"{process.name} did not stop within {_LEAVE_TIMEOUT_S:g} s")
                process.kill()
            await ended
            ending.cancel()
            self._ended(process, main)
            if once:
                return
            with_pause = asyncio.create_task(self.over.wait())
            pause = max(chance.uniform(0.0, 5.0), self.down_until - self.clock.monotonic())
            await asyncio.wait({with_pause}, timeout=pause)
            with_pause.cancel()

    async def _end_of(self, chance: Random, stop: asyncio.Event, *, once: bool) -> None:
        """Stop a process at a random time, as a deployment does, or at the world's end."""
        over = asyncio.create_task(self.over.wait())
        leaves = once or (chance.random() < 0.2 and self.faults.active)
        await asyncio.wait({over}, timeout=chance.uniform(0.5, 18.0) if leaves else None)
        over.cancel()
        stop.set()

    def _ended(self, process: SimulatedProcess, main: asyncio.Task[None]) -> None:
        self.engines.pop(process.name, None)
        error = None if main.cancelled() else main.exception()
        self.note(f"{process.name} ended" + (f": {error!r}" if error else ""))
        if error is not None and not _is_outage(error):
            self.problems.append(f"{process.name} ended with {error!r}")

    def _supervisor_of(self, team: Team) -> _Body:
        async def supervise(process: SimulatedProcess, bus: FaultyBus, stop: asyncio.Event) -> None:
            instance, clock = process.name.replace(".", "-"), self._clock_of(process)
            engine = SupervisorEngine(bus, team, self.settings, clock, instance=instance)
            self.engines[process.name] = engine
            await engine.run(stop)

        return supervise

    def _worker_of(self, agents: list[str]) -> _Body:
        async def work(process: SimulatedProcess, bus: FaultyBus, stop: asyncio.Event) -> None:
            crew = [SimulatedAgent(name, self.crew, process) for name in agents]
            instance = process.name.replace(".", "-")
            worker = Worker(bus, crew, self.settings, clock=self._clock_of(process), instance=instance)
            await worker.run(stop)

        return work

    def _clock_of(self, process: SimulatedProcess) -> SimulatedClock:
        """Return a clock with a random offset, because the clocks of machines differ."""
        return SimulatedClock(skew=Random(f"{self.seed}/{process.name}/clock").uniform(-self.skew, self.skew))

    def _shifts(self) -> dict[str, list[str]]:
        """Return the agents of each worker. Each agent has one or two workers."""
        names = [name for name in CARDS if name != "leaver"]
        count = self.chance.randint(2, 3)
        shifts: dict[str, list[str]] = {f"worker-{number}": [] for number in range(count)}
        for name in names:
            for shift in self.chance.sample(sorted(shifts), self.chance.choice([1, 1, 2])):
                shifts[shift].append(name)
        if self.leaver:
            shifts["leaver"] = ["leaver"]
        return {name: agents for name, agents in shifts.items() if agents}

    def _crash(self, process: SimulatedProcess, where: str) -> bool:
        if not self.faults.occurs("crash", f"{process.name} {where}"):
            return False
        process.kill()
        return True

    def note(self, text: str) -> None:
        self.notes.append((self.clock.monotonic(), text))

    @contextmanager
    def _capture_logs(self) -> Iterator[None]:
        """Add log lines of the system to the history, and log lines about bugs to the problems."""

        def hear(_: object, level: str, event: dict[str, Any]) -> Any:
            text = f"{level} {event['event']} " + " ".join(
                f"{key}={value}" for key, value in sorted(event.items()) if key not in ("event", "exc_info", "logger")
            )
            self.notes.append((asyncio.get_running_loop().time(), text[:400]))
            if event["event"] in (
                "inputs_failed",
                "input_body_unavailable",
                "handoff_processing_failed",
                "listener_failed",
                "handler_abandoned",
            ):
                self.problems.append(f"logged {text}: {_error_of(event)!r}")
            raise structlog.DropEvent

        processors = structlog.get_config()["processors"]
        before = list(processors)
        processors[:] = [structlog.contextvars.merge_contextvars, hear]
        structlog.contextvars.clear_contextvars()
        try:
            yield
        finally:
            processors[:] = before

    def _digest(self) -> str:
        whole = hashlib.sha256()
        for kind in _HISTORY_STREAMS:
            if kind == "handoffs" and not self.broker.handoffs_unsynced:
                continue  # the handoffs are in the stream of work
            for stored in self.broker._streams[kind]._messages.values():
                parts = (kind, stored.sequence, stored.at, stored.subject, sorted(stored.headers.items()), stored.body)
                whole.update(repr(parts).encode())
        whole.update(repr(self.notes).encode())
        return whole.hexdigest()

    def _history(self) -> list[str]:
        lines = [(moment, text) for moment, text in self.notes]
        for kind in _HISTORY_STREAMS:
            if kind == "handoffs" and not self.broker.handoffs_unsynced:
                continue  # the handoffs are in the stream of work
            for stored in self.broker.all_messages(kind, ">"):
                moment = (stored.at - SimulatedClock()._start).total_seconds()
                text = stored.body.decode("utf-8", "replace")
                shown = text if len(text) < 600 else text[:600] + "..."
                lines.append((moment, f"{kind} {stored.sequence} {stored.subject} {shown}"))
        return [f"{moment:9.3f}  {text}" for moment, text in sorted(lines, key=lambda line: line[0])]


def _is_outage(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_outage(each) for each in error.exceptions)
    return isinstance(error, BusUnavailableError)


def _error_of(event: Mapping[str, Any]) -> object:
    import sys

    info = event.get("exc_info")
    return sys.exc_info()[1] if info is True else info
