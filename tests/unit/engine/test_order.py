"""A process commits, publishes and acknowledges in this order. A successor completes the work of a dead process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest
from support import factory
from support.factory import echo, planner_of, synthesizer
from support.spans import exporting

from pointsman.bus.memory.bus import MemoryBroker, MemoryBus
from pointsman.bus.memory.consumers import MemoryDelivery
from pointsman.core.evolve import apply_commit
from pointsman.core.model.state import State
from pointsman.core.outbox import outbox
from pointsman.engine.log.reader import read_commit
from pointsman.engine.process.fault_injection import FAULT_POINTS
from pointsman.engine.supervisor import committer, engine, outbox_publisher
from pointsman.engine.worker import handoff_processor
from pointsman.settings import Settings
from pointsman.testing.simulation import SimulatedClock, SimulatedProcess, simulate
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import Handoff
from pointsman_schemas.ids import workflow_id_for
from pointsman_schemas.log import Commit, TaskDispatched
from pointsman_schemas.strict_json import parse
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Limits, Team

SUBJECTS = Subjects("sim")
TEAM = Team(name="crew", limits=Limits(deadline=60, task_timeout=20))
TASKS: list[dict[str, Any]] = [
    {"id": "t1", "agent": "a", "intent": "do the thing"},
    {"id": "t2", "agent": "a", "depends_on": ["t1"], "intent": "go on with it"},
]
WORKFLOW = workflow_id_for("sim.request.crew.anonymous", "r1")
SETTINGS = Settings(namespace="sim", ack_wait=3.0, heartbeat=4.0)
STEPS = 20_000  # ten times the steps of the slowest test

_Part = Callable[[], Coroutine[Any, Any, None]]


def log_of(broker: MemoryBroker) -> list[Commit]:
    return [read_commit(stored) for stored in broker.stream("log").select(SUBJECTS.log("crew", WORKFLOW))]


def state_of(broker: MemoryBroker) -> State | None:
    state: State | None = None
    for commit in log_of(broker):
        state = apply_commit(state, commit)
    return state


class Witness:
    """Records publishes and acks, and reports those that are too early."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.acknowledged: list[str] = []
        self.sent: list[str] = []
        self.early: list[str] = []

    def publishes(self, subject: str) -> None:
        kind, *rest = subject.split(".")[1:]
        entries = [entry for commit in log_of(self.broker) for entry in commit.entries]
        match kind:
            case "handoff":
                handed = {(e.agent, e.task_id, str(e.attempt)) for e in entries if isinstance(e, TaskDispatched)}
                committed = (rest[0], rest[3], rest[4]) in handed
            case "outcome":
                committed = any(entry.kind == "workflow_ended" for entry in entries)
            case "schedule":
                committed = any(entry.kind == "timer_armed" for entry in entries)
            case _:
                return
        self.sent.append(kind)
        if not committed:
            self.early.append(f"{subject} was sent before it was committed")

    def acknowledges(self, message: Any) -> None:
        kind = message.subject.split(".")[1]
        self.acknowledged.append(kind)
        if kind == "handoff":
            _, body = decode(message.headers, message.body)
            if not self.there("results", parse(Handoff, body).return_to):
                self.early.append(f"{message.subject} was acknowledged before its result was there")
            return
        envelope, _ = decode(message.headers, message.body)
        state, name = state_of(self.broker), envelope.id if envelope else ""
        entries = [entry for commit in log_of(self.broker) for entry in commit.entries]
        heard = any(getattr(entry, "event_id", "") == name for entry in entries)
        if state is None or (kind == "result" and not heard):
            self.early.append(f"{message.subject} was acknowledged before it was committed")
            return
        for each in outbox(state, SUBJECTS):
            stream = self.broker.stream_of(each.subject)
            if each.schedule is None and not self.there(stream, each.subject):
                self.early.append(f"{message.subject} was acknowledged before {each.subject} was sent")

    def there(self, stream: Any, subject: str) -> bool:
        return bool(self.broker.stream(stream).select(subject))


class WitnessedBus(MemoryBus):
    def __init__(self, witness: Witness) -> None:
        super().__init__(broker=witness.broker)
        self._witness = witness

    async def publish(self, subject: str, body: bytes, headers: Mapping[str, str], **more: Any) -> int:
        self._witness.publishes(subject)
        return await super().publish(subject, body, headers, **more)

    async def schedule(self, name: str, *more: Any, **given: Any) -> bool:
        self._witness.publishes(name)
        return await super().schedule(name, *more, **given)


def system(bus: Callable[[], MemoryBus], stop: asyncio.Event) -> list[_Part]:
    agents = [planner_of(*TASKS), synthesizer, echo("a")]
    return [
        lambda: factory.supervisor(bus(), TEAM, settings=SETTINGS, clock=SimulatedClock()).run(stop),
        lambda: factory.worker(bus(), *agents, settings=SETTINGS, clock=SimulatedClock()).run(stop),
    ]


async def ended(broker: MemoryBroker) -> None:
    while not broker.stream("log").select(SUBJECTS.outcome("crew", WORKFLOW)):
        await asyncio.sleep(0.1)
    await asyncio.sleep(10)  # time to redeliver and settle each unacknowledged message


async def ask(broker: MemoryBroker) -> None:
    await broker.connect().publish(SUBJECTS.request("crew", "anonymous"), b'{"input": "do it"}', {"Nats-Msg-Id": "r1"})


def test_commit_precedes_publish_and_publish_precedes_ack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = MemoryBroker("sim", SimulatedClock())
    witness = Witness(broker)
    ack = MemoryDelivery.ack

    async def witnessed(self: MemoryDelivery) -> None:
        witness.acknowledges(self.message)
        await ack(self)

    monkeypatch.setattr(MemoryDelivery, "ack", witnessed)

    async def main() -> None:
        stop = asyncio.Event()
        running = [asyncio.ensure_future(part()) for part in system(lambda: WitnessedBus(witness), stop)]
        await asyncio.sleep(1)
        await ask(broker)
        await ended(broker)
        stop.set()
        await asyncio.gather(*running)

    simulate(main, steps=STEPS)

    assert witness.early == []
    assert witness.sent.count("handoff") == 4
    assert {"schedule", "outcome"} <= set(witness.sent)
    assert {"request", "result", "handoff"} <= set(witness.acknowledged)


@pytest.mark.parametrize("passage", range(1, 5))
@pytest.mark.parametrize("point", FAULT_POINTS)
def test_crash_at_any_step_leaves_nothing_undone(point: str, passage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = MemoryBroker("sim", SimulatedClock())
    alive: dict[str, SimulatedProcess] = {}
    left = passage

    def dies(name: str) -> None:
        nonlocal left
        left -= name == point
        if name == point and left == 0:
            alive[name.split(".")[0]].kill()
            raise asyncio.CancelledError  # stop here, before any further call

    for module in (handoff_processor, committer, outbox_publisher, engine):
        monkeypatch.setattr(module, "fault_point", dies)

    async def main() -> None:
        stop = asyncio.Event()
        over = asyncio.ensure_future(ended(broker))

        async def keep(name: str, part: _Part) -> None:
            while not stop.is_set():
                alive[name] = SimulatedProcess(name)
                alive[name].start(part())
                await alive[name].wait()

        keeping = [
            asyncio.ensure_future(keep(name, part))
            for name, part in zip(("supervisor", "worker"), system(broker.connect, stop), strict=True)
        ]
        await asyncio.sleep(1)
        await ask(broker)
        async with asyncio.timeout(50):  # less than the workflow's deadline, which would end it in any case
            await over
        stop.set()
        await asyncio.gather(*keeping)

    simulate(main, steps=STEPS)

    state = state_of(broker)
    assert left <= 0  # the process has reached the point and died
    assert state is not None
    assert state.outcome is not None
    assert (state.outcome.status, state.outcome.gaps) == ("completed", ())
    assert {task.attempts for task in state.outcome.tasks} == {1}  # no task had to wait for a timeout
    assert len(broker.stream("log").select(SUBJECTS.outcome("crew", WORKFLOW))) == 1
    assert not any(durable.ready or durable.in_flight for durable in broker._durables.values())


@pytest.mark.parametrize("last_input", ["result", "timer"])
def test_workflow_span_is_exported_after_the_death_of_its_supervisor(
    last_input: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = MemoryBroker("sim", SimulatedClock())
    first = SimulatedProcess("first")

    def dies(name: str) -> None:
        if name == "supervisor.emitted" and broker.stream("log").select(SUBJECTS.outcome("crew", WORKFLOW)):
            first.kill()
            raise asyncio.CancelledError  # stop here, before any further call

    async def main() -> None:
        stop = asyncio.Event()
        supervise, work = system(broker.connect, stop)
        working = asyncio.ensure_future(work() if last_input == "result" else asyncio.sleep(0))
        with monkeypatch.context() as patch:
            patch.setattr(engine, "fault_point", dies)
            first.start(supervise())
            await asyncio.sleep(1)
            await ask(broker)
            await first.wait()
        assert "invoke_workflow crew" not in {span.name for span in exported.get_finished_spans()}
        second = factory.supervisor(broker.connect(), TEAM, settings=SETTINGS, clock=SimulatedClock())
        second._record_end(WORKFLOW, SimulatedClock().now())  # like a supervisor that has received the outcome
        supervising = asyncio.ensure_future(second.run(stop))
        await ended(broker)
        stop.set()
        await asyncio.gather(supervising, working)

    with exporting() as exported:
        simulate(main, steps=STEPS)

    assert [span.name for span in exported.get_finished_spans()].count("invoke_workflow crew") == 1
