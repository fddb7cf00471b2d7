"""One simulated world: a seed decides its team, its processes, its requests, its mischief and every fault.

`World(seed).run()` plays it to its end and returns what was seen. The engines, the core and the broker are the real
ones; the broker is the in-memory twin, and time jumps.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any, Literal, cast
from unittest import mock

import structlog

from pointsman.bus.memory import MemoryBroker, MemoryBus
from pointsman.engine import supervisor, workflow_log
from pointsman.engine.dead_letters import DeadLetters, NotReplayable
from pointsman.engine.handoffs import consumer_name
from pointsman.engine.history import commit_of
from pointsman.engine.intake import read_request
from pointsman.engine.supervisor import SupervisorEngine
from pointsman.engine.worker import Worker
from pointsman.errors import BusUnavailable, NotFound
from pointsman.ports import Stored, StreamKind
from pointsman.settings import Settings
from pointsman.telemetry import traces
from pointsman.testing.faults import RATES, Faults, FaultyBus
from pointsman.testing.simulation import Endless, Process, SimulatedClock, simulate
from pointsman_schemas.envelope import Envelope, encode, encode_structured
from pointsman_schemas.events import Control, Request, Result
from pointsman_schemas.log import ApprovalRequested
from pointsman_schemas.strict_json import JsonValue, dump
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import (
    Adaptive,
    Check,
    Choreography,
    FanOut,
    Limits,
    Pipeline,
    Router,
    Stage,
    Strategy,
    Supervisor,
    Team,
)
from simulation.audit import audit, check_head, describe
from simulation.crew import CARDS, WORKERS, Crew, SimulatedAgent

__all__ = ["Seen", "World"]

_SHOWN: tuple[StreamKind, ...] = ("handoffs", "work", "log", "dead")
_QUIET = 20.0  # seconds after which nothing bad begins any more, so that every workflow can be asked to end
_LONGEST = 1_200.0  # seconds: five requests one after the other, each to its deadline and a last word, twice
_STEPS = 400_000  # turns of the loop; a world takes some 10,000
_LOOK = 0.5  # seconds between two looks whether all is done
_LEAVING = 30.0  # seconds in which a process that was told to leave must have left

_SETTINGS = Settings(namespace="sim", ack_wait=3.0, heartbeat=4.0)

_Body = Callable[[Process, FaultyBus, asyncio.Event], Awaitable[None]]


@dataclass(slots=True)
class Seen:
    """What came of a world. `problems` are the promises it broke; `digest` is of all that happened, in order."""

    seed: int
    problems: list[str]
    digest: str
    history: list[str]
    faults: Counter[str]
    workflows: int
    steps: int
    seconds: float


class SimulatedBroker(MemoryBroker):
    """The in-memory broker, which remembers the dead letters that were removed from it, and the handoffs."""

    def __init__(self, namespace: str, clock: SimulatedClock, max_body: int, *, unsynced_handoffs: bool) -> None:
        super().__init__(namespace, clock, heartbeat=4.0, max_body=max_body, unsynced_handoffs=unsynced_handoffs)
        self.removed: list[Stored] = []
        self.taken_back: set[str] = set()

    def held(self, kind: StreamKind, subject: str) -> list[Stored]:
        """What `subject` holds, wherever the bodies are kept."""
        return [self._whole(stored) for stored in self.stream(kind).select(subject)]

    def _whole(self, stored: Stored) -> Stored:
        return stored if stored.body else _now(self.connect().whole(stored))

    def purge(self, kind: StreamKind, subject: str) -> None:
        if kind == "handoffs":
            self.taken_back.add(subject)
        super().purge(kind, subject)

    def delete(self, kind: StreamKind, sequence: int) -> bool:
        if kind == "dead" and (stored := self.stream(kind).at(sequence)) is not None:
            self.removed.append(self._whole(stored))
        return super().delete(kind, sequence)


def _now(reading: Coroutine[Any, Any, Stored]) -> Stored:
    """What a coroutine returns that waits for nothing."""
    try:
        reading.send(None)
    except StopIteration as done:
        return cast(Stored, done.value)
    raise AssertionError("the in-memory broker had somebody wait for a body")


class _Outside(MemoryBus):
    """A connection that is not the system's: what is published on it counts as foreign."""

    def __init__(self, broker: SimulatedBroker, foreign: set[tuple[StreamKind, int]]) -> None:
        super().__init__(broker=broker)
        self._foreign = foreign

    async def publish(self, subject: str, body: bytes, headers: Mapping[str, str], **more: Any) -> int:
        sequence = await super().publish(subject, body, headers, **more)
        self._foreign.add((self.broker.stream_of(subject), sequence))
        return sequence


@dataclass
class World:
    """The world of `seed`."""

    seed: int
    notes: list[tuple[float, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    foreign: set[tuple[StreamKind, int]] = field(default_factory=set)
    """Where what no process of the system has sent is: its stream and its sequence."""
    engines: dict[str, SupervisorEngine] = field(default_factory=dict)
    answers: dict[str, Control] = field(default_factory=dict)
    """What people have said, by the id of the event."""

    def __post_init__(self) -> None:
        chance = self.chance = Random(f"{self.seed}/world")
        self.subjects = Subjects("sim")
        self.clock = SimulatedClock()
        # In every other world what does not fit into a message is kept apart; in the others it is refused.
        bound = [1_048_576, 8_388_608][self.seed % 2]
        # In half of the worlds handoffs are not synced, and in most of those the power fails.
        self.power = Random(f"{self.seed}/power")
        apart = self.power.random() < 0.5
        self.cuts = self.power.choice([0, 1, 2, 4]) if apart else 0
        self.broker = SimulatedBroker("sim", self.clock, bound, unsynced_handoffs=apart)
        self.outside = _Outside(self.broker, self.foreign)
        # Each world has faults of its own: one that meets everything a little never meets anything often.
        rates = {fault: rate * chance.choice([0, 0.5, 1, 1, 3]) for fault, rate in RATES.items()}
        self.faults = Faults(
            Random(f"{self.seed}/faults"), rates, until=_QUIET, crashes=chance.choice([0, 3, 12]), note=self.note
        )
        ill = Random(f"{self.seed}/circuits").choice([(0, 10.0), (1, 2.0), (2, 2.0), (5, 10.0)])
        self.settings = _SETTINGS.model_copy(
            update={
                "grace": chance.choice([0.0, 2.0]),
                "max_running": chance.choice([1, 2, 1000, 1000]),
                "circuit_failures": ill[0],
                "circuit_open": ill[1],
            }
        )
        self.team, self.below = _teams(chance, Random(f"{self.seed}/tasks").choice([4, 12, 40]))
        people = Random(f"{self.seed}/people")
        self.asks = people.random() < 0.3
        if self.asks:
            wait, plans = people.choice([3.0, 12.0]), people.random() < 0.5
            self.team = _asking(self.team, wait, plans=plans)
            self.below = self.below and _asking(self.below, wait, plans=plans)
        self.crew = Crew(self.seed, self._crash, asks=self.asks)
        self.leaver = chance.random() < 0.3
        self.skew = chance.choice([0.0, 0.0, 0.02, 1.5])
        self.over = asyncio.Event()
        self.over_at: datetime | None = None
        self.steps = 0
        self.seconds = 0.0
        self._checked: dict[tuple[int, str], int] = {}
        self._known: dict[int, str] = {}

    def run(self) -> Seen:
        """Play it. Nothing is raised: what went wrong is among the problems."""
        ids = Random(f"{self.seed}/ids")
        snapshots = self.chance.choice([2, 3, 7])
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(traces, "_new_id", lambda size: ids.randbytes(size).hex()))
            stack.enter_context(mock.patch.object(workflow_log, "SNAPSHOT_EVERY", snapshots))
            stack.enter_context(mock.patch.object(supervisor, "_ENDED_KEPT", self.chance.choice([1, 1000])))
            stack.enter_context(self._heard_logs())
            try:
                simulate(self._play, steps=_STEPS)
            except Endless as error:
                self.problems += [str(error), *describe(self)]
            self.problems += audit(self)
        return Seen(
            self.seed,
            list(dict.fromkeys(self.problems)),
            self._digest(),
            self._history(),
            self.faults.counts,
            len({stored.subject for stored in self.broker.stream("log").select("sim.log.*.*")}),
            self.steps,
            self.seconds,
        )

    # Playing

    async def _play(self) -> None:
        loop = asyncio.get_running_loop()
        chance = self.chance
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(chance.randint(1, 3)):
                    group.create_task(self._keep(f"supervisor-{number}", self._supervisor_of(self.team)))
                for number in range(chance.randint(1, 2) if self.below else 0):
                    assert self.below is not None
                    group.create_task(self._keep(f"below-{number}", self._supervisor_of(self.below)))
                for name, agents in self._shifts().items():
                    group.create_task(self._keep(name, self._worker_of(agents), once="leaver" in agents))
                if self.asks:
                    group.create_task(self._people(Random(f"{self.seed}/answers")))
                mischief = [group.create_task(each) for each in self._mischief()]
                await self._until_done(mischief)
                self.over_at = self.clock.now()
                self.over.set()
        except* BusUnavailable as errors:  # the broker itself never fails
            self.problems.append(f"the world broke: {errors!r}")
        finally:
            self.steps, self.seconds = loop.steps, loop.time()  # type: ignore[attr-defined]

    async def _until_done(self, mischief: list[asyncio.Task[None]]) -> None:
        """Until everything has been dealt with; then the system has nothing left to do but wait."""
        while True:
            await asyncio.sleep(_LOOK)
            self._check_heads()
            if self._quiet(mischief) and not self.open_ends():
                return
            if self.clock.monotonic() > _LONGEST:
                self.problems += [f"not done after {_LONGEST:g} s", *describe(self)]
                return

    def _quiet(self, mischief: list[asyncio.Task[None]]) -> bool:
        return self.clock.monotonic() > _QUIET and self.faults.at_rest and all(each.done() for each in mischief)

    def _check_heads(self) -> None:
        for engine in self.engines.values():
            for workflow, head in engine._heads.items():
                if self._checked.get((id(engine), workflow)) != head.sequence:
                    self._checked[id(engine), workflow] = head.sequence
                    if problem := check_head(self, workflow, head):
                        self.problems.append(problem)

    def open_ends(self) -> list[str]:
        """Requests without an outcome, consumers with something left to do, and agents that never came up."""
        missing = [
            f"request {stored.sequence} ({workflow}) has no outcome"
            for stored, workflow in self.requests()
            if not self.broker.stream("log").ends_at(self.subjects.outcome(self.team.name, workflow))
        ]
        log = self.broker.stream("log")
        missing += [
            f"{stored.subject} has no outcome"
            for stored in log.select(self.subjects.logs_of("below"))
            if not log.ends_at(stored.subject.replace(".log.", ".outcome.", 1))
        ]
        for (_, name), durable in self.broker._durables.items():
            if name != consumer_name("leaver") and (durable.ready or durable.in_flight):
                missing.append(f"consumer {name} has {len(durable.ready)} ready and {durable.in_flight} in flight")
        there = {name for _, name in self.broker._durables}
        expected = [consumer_name(name) for name in CARDS if name != "leaver"]
        expected += [consumer_name(self.below.name)] if self.below else []
        return missing + [f"consumer {name} does not exist yet" for name in expected if name not in there]

    def requests(self) -> Iterator[tuple[Stored, str]]:
        """Every request that was stored, and the workflow it belongs to."""
        for stored in self.broker.held("work", self.subjects.request(self.team.name)):
            if stored.sequence not in self._known:
                self._known[stored.sequence] = read_request(stored, self.team, "sim").admission.workflow_id
            yield stored, self._known[stored.sequence]

    def is_foreign(self, stored: Stored) -> bool:
        """Whether no process of the system has sent it."""
        return (self.broker.stream_of(stored.subject), stored.sequence) in self.foreign

    def team_of(self, workflow: str) -> str:
        """The team whose workflow it is; the one that is asked, for one that has no log."""
        logs = self.broker.stream("log").select(self.subjects.log_anywhere(workflow))
        return logs[0].subject.split(".")[-2] if logs else self.team.name

    async def _keep(self, name: str, body: _Body, *, once: bool = False) -> None:
        """Start a process, and again whenever it has ended, until the world is over."""
        chance = Random(f"{self.seed}/{name}")
        number = 0
        while not self.over.is_set():
            number += 1
            process = Process(f"{name}.{number}")
            bus = FaultyBus(self.broker.connect(), self.faults, process)
            stop = asyncio.Event()
            ending = asyncio.create_task(self._end_of(chance, stop, once=once))
            main = process.start(body(process, bus, stop))
            ended = asyncio.create_task(process.ended())
            await asyncio.wait({ended, ending}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({ended}, timeout=_LEAVING)
            if not ended.done():
                self.problems.append(f"{process.name} did not leave in {_LEAVING:g} s")
                process.kill()
            await ended
            ending.cancel()
            self._ended(process, main)
            if once:
                return
            with_pause = asyncio.create_task(self.over.wait())
            await asyncio.wait({with_pause}, timeout=chance.uniform(0.0, 5.0))
            with_pause.cancel()

    async def _end_of(self, chance: Random, stop: asyncio.Event, *, once: bool) -> None:
        """Tell a process to leave: at some time in between, as a deployment does, and at the end."""
        over = asyncio.create_task(self.over.wait())
        leaves = once or (chance.random() < 0.2 and self.faults.active)
        await asyncio.wait({over}, timeout=chance.uniform(0.5, 18.0) if leaves else None)
        over.cancel()
        stop.set()

    def _ended(self, process: Process, main: asyncio.Task[None]) -> None:
        self.engines.pop(process.name, None)
        error = None if main.cancelled() else main.exception()
        self.note(f"{process.name} ended" + (f": {error!r}" if error else ""))
        if error is not None and not _is_outage(error):
            self.problems.append(f"{process.name} ended with {error!r}")

    def _supervisor_of(self, team: Team) -> _Body:
        async def supervise(process: Process, bus: FaultyBus, stop: asyncio.Event) -> None:
            instance, clock = process.name.replace(".", "-"), self._clock_of(process)
            engine = SupervisorEngine(bus, team, self.settings, clock, instance=instance)
            self.engines[process.name] = engine
            await engine.run(stop)

        return supervise

    def _worker_of(self, agents: list[str]) -> _Body:
        async def work(process: Process, bus: FaultyBus, stop: asyncio.Event) -> None:
            crew = [SimulatedAgent(name, self.crew, process) for name in agents]
            instance = process.name.replace(".", "-")
            worker = Worker(bus, crew, self.settings, clock=self._clock_of(process), instance=instance)
            await worker.run(stop)

        return work

    def _clock_of(self, process: Process) -> SimulatedClock:
        """Clocks of different machines do not agree."""
        return SimulatedClock(skew=Random(f"{self.seed}/{process.name}/clock").uniform(-self.skew, self.skew))

    def _shifts(self) -> dict[str, list[str]]:
        """Who runs which agents: each agent somewhere, some twice."""
        names = [name for name in CARDS if name != "leaver"]
        count = self.chance.randint(2, 3)
        shifts: dict[str, list[str]] = {f"worker-{number}": [] for number in range(count)}
        for name in names:
            for shift in self.chance.sample(sorted(shifts), self.chance.choice([1, 1, 2])):
                shifts[shift].append(name)
        if self.leaver:
            shifts["leaver"] = ["leaver"]
        return {name: agents for name, agents in shifts.items() if agents}

    def _crash(self, process: Process, where: str) -> bool:
        if not self.faults.strike("crash", f"{process.name} {where}"):
            return False
        process.kill()
        return True

    # Mischief

    def _mischief(self) -> Iterator[Any]:
        chance = self.chance
        for number in range(chance.randint(1, 4)):
            yield self._ask(f"r{number}")
        for number in range(chance.choice([0, 0, 1, 2])):
            yield self._cancel(f"cancel-{number}", chance.uniform(0.5, 14.0))
        for _ in range(chance.choice([0, 1, 6])):
            yield self._stray(chance.uniform(0.2, 17.0))
        for number in range(chance.choice([0, 0, 2, 4])):
            yield self._replay(number, chance.uniform(2.0, 19.0))
        for number in range(self.cuts):
            yield self._cut(Random(f"{self.seed}/cut-{number}"))

    async def _ask(self, name: str) -> None:
        """A request, in one of its forms, maybe more than once."""
        chance = Random(f"{self.seed}/{name}")
        headers, body = _request(chance, name, self.clock)
        for _ in range(chance.choice([1, 1, 1, 2, 3])):
            await asyncio.sleep(chance.uniform(0.0, 5.0))
            self._inject(self.subjects.request(self.team.name), body, headers)

    async def _cancel(self, name: str, when: float) -> None:
        await asyncio.sleep(when)
        workflow = self._some_workflow()
        control = Control(action="cancel", by="somebody", reason="no longer wanted")
        headers = self._headers(name, Control.event_type)
        self._inject(self.subjects.control(self.team.name, workflow, name), dump(control), headers)
        if self.chance.random() < 0.3:
            self._inject(self.subjects.control(self.team.name, workflow, name), dump(control), headers)

    async def _stray(self, when: float) -> None:
        """What no well-behaved agent or caller sends."""
        await asyncio.sleep(when)
        chance = self.chance
        handoffs = self.broker.stream("handoffs").select("sim.handoff.>")
        workflow, team = self._some_workflow(), self.team.name
        agent, task, attempt = "alpha", "nothing", 1
        if handoffs:
            address = self.subjects.parse_handoff(chance.choice(handoffs[-6:]).subject)
            agent, workflow, task, attempt = address.agent, address.workflow, address.task, address.attempt
        kind = chance.choice(
            ["garbage", "foreign", "again", "early", "late", "late", "odd", "control", "timer", "handoff", "version"]
        )
        subject = self.subjects.result(team, workflow, agent, task, attempt)
        body, headers = b'{"half": ', self._headers(f"stray-{when}", Result.event_type)
        match kind:
            case "foreign" | "early" | "late":
                match kind:
                    case "foreign":
                        agent = "beta" if agent != "beta" else "gamma"
                    case "early":
                        attempt += 1
                    case _:
                        sent = [self.subjects.parse_handoff(stored.subject) for stored in handoffs]
                        again = [address for address in sent if address.attempt > 1]
                        if again:
                            workflow, agent, task = again[-1].workflow, again[-1].agent, again[-1].task
                            attempt = again[-1].attempt - 1
                subject = self.subjects.result(team, workflow, agent, task, attempt)
                body = dump(self._result(workflow, task, attempt, agent))
            case "again":
                earlier = self.broker.held("work", subject)
                body = earlier[0].body if earlier else dump(self._result(workflow, task, attempt, agent))
                headers = dict(earlier[0].headers) if earlier else headers
            case "odd":
                subject = f"sim.inbox.{team}.{workflow}.{chance.choice(['what', 'result.a.b.c', 'timer'])}"
            case "control":
                subject = self.subjects.control(team, chance.choice([workflow, "wf_nobody"]), "stray")
                headers = self._headers("stray", Control.event_type)
                body = chance.choice([b"{}", dump(Control(action="replay", task_id=task)), b'{"action": "dance"}'])
            case "timer":
                # Never of a timer that may still be armed: its subject would be taken, and it would not be scheduled.
                # Only the broker may publish there; permissions see to it.
                subject = self.subjects.timer(team, workflow, "wake-0")
            case "handoff":
                subject = self.subjects.handoff(agent, workflow, "stray", 1)
            case "version":
                headers = self._headers(f"stray-{when}", "io.pointsman.result.v9")
                body = dump(self._result(workflow, task, attempt, agent))
        self.note(f"stray {kind}")
        self._inject(subject, body, headers)

    async def _replay(self, number: int, when: float) -> None:
        """An operator looks at the dead letters and replays one; his process may die over it."""
        await asyncio.sleep(when)
        process = Process(f"operator-{number}")
        letters = DeadLetters(FaultyBus(self.outside, self.faults, process), self.subjects, clock=self.clock)

        async def replay() -> None:
            there = await letters.list()
            if there:
                letter = self.chance.choice(there)
                done = await letters.replay(letter, as_new=self.chance.random() < 0.5, keep=self.chance.random() < 0.3)
                self.note(f"{process.name} replayed {done.letter}: {done.action} of {done.workflow}")

        main = process.start(replay())
        await process.ended()
        error = None if main.cancelled() else main.exception()
        if error is not None and not isinstance(error, BusUnavailable | NotReplayable | NotFound):
            self.problems.append(f"{process.name} ended with {error!r}")

    async def _cut(self, chance: Random) -> None:
        """The power fails. What the broker had not synced of the handoffs is gone."""
        await asyncio.sleep(chance.uniform(0.0, 14.0))
        steps = [self.broker.sync_handoffs, self.broker.sync_consumers]
        chance.shuffle(steps)
        for step in steps:  # the disk gets the one before the other, and some not at all
            if chance.random() < 0.8:
                step()
            await asyncio.sleep(chance.choice([0.0, 0.05, 0.5, 2.0]))
        end = self.broker.stream("handoffs").end
        self.broker.power_cut()
        left = self.broker.stream("handoffs").end
        self.foreign -= {("handoffs", gone) for gone in range(left + 1, end + 1)}
        self.faults.counts["power"] += 1
        self.faults.counts["forgotten"] += end - left
        self.note(f"power cut: {end - left} of {end} handoffs forgotten")

    async def _people(self, chance: Random) -> None:
        """Those who are asked: some answer, some twice or too late or with what will not do, and some never."""
        read, number = 0, 0
        while not self.over.is_set():
            await asyncio.sleep(chance.uniform(0.2, 1.0))
            new = [stored for stored in self.broker.held("log", self.subjects.logs_of()) if stored.sequence > read]
            for stored in new:
                read = stored.sequence
                for entry in commit_of(stored).entries:
                    if isinstance(entry, ApprovalRequested):
                        number += 1
                        workflow = stored.subject.rpartition(".")[2]
                        for turn, (action, given) in enumerate(_answers(chance, entry)):
                            name = f"answer-{number}-{turn}"
                            by = "somebody"
                            control = Control(action=action, approval=entry.approval, input=given, by=by)
                            await self._answer(name, workflow, control, chance)

    async def _answer(self, name: str, workflow: str, control: Control, chance: Random) -> None:
        if chance.random() < 0.2:
            await asyncio.sleep(chance.choice([1.0, 13.0]))
        self.answers[name] = control
        subject = self.subjects.control(self.team_of(workflow), workflow, name)
        self._inject(subject, dump(control), self._headers(name, Control.event_type))

    def _some_workflow(self) -> str:
        known = sorted({workflow for _, workflow in self.requests()})
        return self.chance.choice(known) if known else "wf_nobody"

    def _result(self, workflow: str, task: str, attempt: int, agent: str) -> Result:
        now = self.clock.now()
        return Result(
            workflow_id=workflow, task_id=task, attempt=attempt, agent=agent, status="succeeded", output="stray",
            started_at=now, ended_at=now,
        )  # fmt: skip

    def _headers(self, name: str, event_type: str) -> dict[str, str]:
        return encode(Envelope(id=name, type=event_type, source="/outside", time=self.clock.now()))

    def _inject(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        self.foreign.add((self.broker.stream_of(subject), self.broker.store(subject, body, dict(headers))))

    # Seeing

    def note(self, text: str) -> None:
        self.notes.append((self.clock.monotonic(), text))

    @contextmanager
    def _heard_logs(self) -> Iterator[None]:
        """What the system logs becomes part of the history; what it calls a bug of its own is a problem."""

        def hear(_: object, level: str, event: dict[str, Any]) -> Any:
            text = f"{level} {event['event']} " + " ".join(
                f"{key}={value}" for key, value in sorted(event.items()) if key not in ("event", "exc_info", "logger")
            )
            self.notes.append((asyncio.get_running_loop().time(), text[:400]))
            if event["event"] in ("inputs_failed", "handoff_not_processed", "listener_failed", "handler_abandoned"):
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
        for kind in _SHOWN if self.broker.forgets else _SHOWN[1:]:
            for stored in self.broker._streams[kind]._messages.values():
                parts = (kind, stored.sequence, stored.at, stored.subject, sorted(stored.headers.items()), stored.body)
                whole.update(repr(parts).encode())
        whole.update(repr(self.notes).encode())
        return whole.hexdigest()

    def _history(self) -> list[str]:
        lines = [(moment, text) for moment, text in self.notes]
        for kind in _SHOWN if self.broker.forgets else _SHOWN[1:]:
            for stored in self.broker._streams[kind]._messages.values():
                moment = (stored.at - SimulatedClock()._start).total_seconds()
                text = stored.body.decode("utf-8", "replace")
                shown = text if len(text) < 600 else text[:600] + "..."
                lines.append((moment, f"{kind} {stored.sequence} {stored.subject} {shown}"))
        return [f"{moment:9.3f}  {text}" for moment, text in sorted(lines, key=lambda line: line[0])]


def _teams(chance: Random, tasks: int) -> tuple[Team, Team | None]:
    """The team that is asked and, in some worlds, one below it that it may hand tasks to."""
    writer = chance.choice(["synthesizer", "synthesizer", None])
    plan = Supervisor(synthesizer=writer)
    router = Router(synthesizer=writer, fallback=chance.choice([None, "beta"]), escalate=plan)
    strategy = chance.choice([plan, plan, plan, router, *_others(chance, writer)])
    limits = Limits(
        deadline=chance.choice([8.0, 25.0, 40.0]),
        task_timeout=chance.choice([5.0, 8.0]),
        attempts=chance.randint(1, 3),
        backoff=chance.choice([0.1, 1.0]),
        replans=chance.choice([0, 0, 1, 2]),
        plan_repairs=chance.choice([0, 1, 2]),
        calls=chance.choice([None, None, 6]),
        tasks=tasks,
    )
    if chance.random() < 0.6:
        return Team(name="team", strategy=strategy, limits=limits), None
    below = chance.choice([plan, *_others(chance, writer)])
    return (
        Team(name="team", agents=("below", *WORKERS), strategy=strategy, limits=limits),
        Team(name="below", agents=WORKERS, strategy=below, limits=limits),
    )


def _asking(team: Team, wait: float, *, plans: bool) -> Team:
    limits = team.limits.model_copy(update={"approval": wait})
    return team.model_copy(update={"limits": limits, "approve_plan": plans})


def _answers(chance: Random, asked: ApprovalRequested) -> list[tuple[Literal["approve", "reject"], JsonValue]]:
    """What people say to what is asked, in order."""
    edited: dict[str, list[JsonValue]] = {
        "task": [{"request": "another"}],
        "tool": [{"amount": 7}, "not an object"],
        "plan": [asked.plan.model_dump(mode="json") if asked.plan else None, {"tasks": []}],
    }
    match chance.choices(["yes", "no", "nothing", "both", "edited", "thrice"], [4, 2, 2, 1, 2, 1])[0]:
        case "yes":
            return [("approve", None)]
        case "no":
            return [("reject", None)]
        case "nothing":
            return []
        case "both":
            return [("reject", None), ("approve", None)]
        case "edited":
            return [("approve", chance.choice(edited[asked.about]))]
        case _:
            return [("approve", None)] * 3


def _others(chance: Random, writer: str | None) -> list[Strategy]:
    """A value of every strategy whose plan is not a planner's alone."""
    stages = tuple(_stage(chance, agent) for agent in chance.sample(WORKERS, chance.randint(1, 3)))
    return [
        Adaptive(synthesizer=writer, plans=chance.randint(1, 4)),
        Pipeline(stages=stages),
        FanOut(
            synthesizer=writer, minimum=chance.choice([0.3, 1.0]), skills=chance.choice([(), (), (), ("craft", "none")])
        ),
        Choreography(synthesizer=writer, ends=chance.choice([(), ("over",)])),
    ]


def _stage(chance: Random, agent: str) -> Stage:
    check = Check(
        fields=chance.choice([(), ("done",), ("done",), ("knowing",), ("nowhere",)]),
        judge=chance.choice([None, "reviewer", "reviewer"]),
    )
    if chance.random() < 0.3:
        return Stage(skill="craft", name=agent, check=check)
    return Stage(agent=agent, check=check)


def _request(chance: Random, name: str, clock: SimulatedClock) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request in one of the forms that callers use, the wrong ones among them."""
    request = Request(input=f"please do {name}", deadline=chance.choice([None, None, 6.0]))
    body = dump(request)
    envelope = Envelope(id=name, type=Request.event_type, source="/caller", time=clock.now(), correlation_id="c")
    kinds = {"binary": 5.0, "structured": 2.0, "named": 2.0, "bare": 1.0, "broken": 0.6, "version": 0.4, "reply": 0.4}
    match chance.choices(list(kinds), list(kinds.values()))[0]:
        case "binary":
            return encode(envelope), body
        case "structured":
            return encode_structured(envelope, request.model_dump(mode="json"))
        case "named":
            return {"Nats-Msg-Id": name, "X-Own": "1"}, body
        case "bare":
            return {}, body
        case "broken":
            return chance.choice([encode(envelope), {}]), b'{"input": '
        case "version":
            return {**encode(envelope), "ce-type": "io.pointsman.request.v9"}, body
        case _:
            return encode(envelope), dump(request.model_copy(update={"reply_to": "sim.request.team"}))


def _is_outage(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_outage(each) for each in error.exceptions)
    return isinstance(error, BusUnavailable)


def _error_of(event: Mapping[str, Any]) -> object:
    import sys

    info = event.get("exc_info")
    return sys.exc_info()[1] if info is True else info
