"""Circuits on the memory bus open, send probes, and are recovered after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs
from support import factory
from support.core import WorkflowDriver, failure, judged_stage, task
from support.factory import echo
from support.prometheus import exposing, samples
from support.waiting import in_time, until

from pointsman.authoring.agent import Agent, agent
from pointsman.bus.memory.bus import MemoryBroker, MemoryBus
from pointsman.client.client import Client
from pointsman.clock import SystemClock
from pointsman.core.decision import Probe
from pointsman.core.model.agent_health import Circuit, Circuits, close_circuit
from pointsman.core.tasks import agent_selection
from pointsman.engine.operations.circuits import load_circuits
from pointsman.engine.supervisor.circuit_breaker import CircuitBreaker
from pointsman.errors import BusUnavailableError, NotFoundError, PublishOutcomeUnknownError, RefusedError, TaskError
from pointsman.ports.bus import StoredMessage, StreamKind
from pointsman.ports.clock import Clock
from pointsman.settings import Settings
from pointsman.testing import VirtualClock
from pointsman_schemas.log import TaskDispatched, TaskHeld
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Limits, Pipeline, RetryPolicy, Stage, Team

ONE = Team(
    name="crew",
    strategy=Pipeline(stages=(Stage(agent="worker"),)),
    limits=Limits(deadline=30, replans=0),
    retry=RetryPolicy(attempts=1),
)
SETTINGS = Settings(ack_wait=2, circuit_failures=3, circuit_open=0.2)


@dataclass
class Patient:
    """An agent that fails until it is repaired."""

    error: Exception | None = field(default_factory=lambda: TaskError("the provider is down", retryable=True))
    calls: int = 0
    at_once: int = 0
    most: int = 0
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.goes_on.set()

    def agent(self, fallback: str | None = None) -> Agent:
        @agent(name="worker", description="Works when it is well", fallback=fallback)
        async def work(request: str) -> str:
            self.calls += 1
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            await asyncio.sleep(0.02)
            await self.goes_on.wait()
            self.at_once -= 1
            if self.error is not None:
                raise self.error
            return "done"

        return work


def crew(
    *agents: Agent, team: Team = ONE, settings: Settings = SETTINGS, **more: Any
) -> AbstractAsyncContextManager[factory.RunningTeam]:
    return factory.team(team, agents, settings=settings, **more)


async def fail_at(client: Client, times: int, clock: VirtualClock | None = None) -> None:
    for _ in range(times):
        ending = (await client.submit("crew", "work")).outcome(10)
        assert (await (in_time(clock, ending) if clock else ending)).status == "failed"


async def opened(client: Client) -> None:
    async def there() -> bool:
        return "worker" in await client.operations.circuits()

    await until(there)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_selection, "HOLD_DURATION", timedelta(seconds=0.1))


class Unanswering(MemoryBus):
    """A bus that stores commits but does not answer."""

    async def publish(self, subject: str, body: bytes, headers: Mapping[str, str], **more: Any) -> int:
        sequence = await super().publish(subject, body, headers, **more)
        if ".log." in subject:
            raise PublishOutcomeUnknownError("no answer")
        return sequence


async def test_commit_without_an_answer_counts() -> None:
    async with crew(Patient().agent(), bus=Unanswering) as client:
        await fail_at(client, 3)
        await opened(client)


async def test_failing_agent_gets_no_work_then_a_probe_then_work() -> None:
    patient, never = Patient(), Settings(ack_wait=2, circuit_failures=3, circuit_open=1.0)
    clock = VirtualClock()  # no time passes between the opening and the last held task
    async with crew(patient.agent(), settings=never, clock=clock) as client:
        await fail_at(client, 3, clock)
        await opened(client)
        held = [await client.submit("crew", "work") for _ in range(5)]

        async def all_held() -> bool:
            with suppress(NotFoundError):  # a workflow has not started yet
                logs = [await client.entries(workflow.id) for workflow in held]
                return all(any(isinstance(entry, TaskHeld) for entry in log) for log in logs)
            return False

        await until(all_held)
        sent_while_open = patient.calls - 3
        patient.error = None
        outcomes = [await in_time(clock, workflow.outcome(20)) for workflow in held]

        async def well() -> bool:
            return not await client.operations.circuits()

        await in_time(clock, until(well))

    assert sent_while_open == 0
    assert {outcome.status for outcome in outcomes} == {"completed"}, "held tasks must not use up attempts"
    assert patient.calls == 3 + 5


async def test_a_probe_that_fails_leaves_the_circuit_open_for_longer() -> None:
    patient = Patient()
    async with crew(patient.agent()) as client:
        await fail_at(client, 3)
        await opened(client)
        await fail_at(client, 1)

        async def again() -> bool:
            circuits = await client.operations.circuits()
            return circuits["worker"].open_count == 2

        await until(again)
        circuit = (await client.operations.circuits())["worker"]

    assert patient.calls == 4
    assert (circuit.until - circuit.since).total_seconds() > 0.2 + 2 * 0.2 - 0.05


async def test_three_supervisors_send_one_probe_between_them() -> None:
    patient = Patient()
    async with crew(patient.agent(), supervisors=3) as client:
        while "worker" not in await client.operations.circuits():
            await fail_at(client, 1)
        patient.most = before = 0
        before = patient.calls
        waiting = [await client.submit("crew", "work") for _ in range(12)]

        async def probed_twice() -> bool:
            return patient.calls >= before + 2

        await until(probed_twice)
        most, patient.error = patient.most, None
        for workflow in waiting:
            await workflow.outcome(20)

    assert most == 1


async def test_restarted_supervisor_knows_the_open_circuits() -> None:
    broker, patient = MemoryBroker(), Patient()
    long = Settings(ack_wait=2, circuit_failures=3, circuit_open=60)
    async with crew(patient.agent(), settings=long, broker=broker) as client:
        await fail_at(client, 3)
        await opened(client)

    async with crew(patient.agent(), settings=long, broker=broker) as client:
        workflow = await client.submit("crew", "work", deadline=1)
        outcome = await workflow.outcome(10)

    assert patient.calls == 3
    assert "worker kept failing and was sent no work" in outcome.gaps[0].reason


async def test_the_fallback_gets_the_work_at_once_while_the_circuit_is_open() -> None:
    patient, long = Patient(), Settings(ack_wait=2, circuit_failures=3, circuit_open=60)
    async with crew(patient.agent(fallback="spare"), echo("spare"), settings=long) as client:
        for _ in range(3):
            await (await client.submit("crew", "work")).outcome(10)
        await opened(client)
        patient.calls = 0
        workflow = await client.submit("crew", "work")
        outcome = await workflow.outcome(10)
        sent = [entry for entry in await client.entries(workflow.id) if isinstance(entry, TaskDispatched)]

    assert outcome.status == "completed"
    assert [(entry.agent, entry.fallback_for) for entry in sent] == [("spare", "worker")]
    assert patient.calls == 0


@pytest.mark.parametrize(
    "error",
    [RefusedError("not for me"), TaskError("what was asked makes no sense"), TaskError("no", kind="invalid_input")],
)
async def test_task_errors_open_no_circuit(error: Exception) -> None:
    patient = Patient(error=error)
    async with crew(patient.agent()) as client:
        await fail_at(client, 6)
        circuits = await client.operations.circuits()

    assert (patient.calls, circuits) == (6, {})


async def test_one_task_that_fails_again_and_again_opens_nothing() -> None:
    patient = Patient()
    team = ONE.model_copy(update={"retry": RetryPolicy(attempts=6, backoff=0.01)})
    async with crew(patient.agent(), team=team) as client:
        await fail_at(client, 1)
        circuits = await client.operations.circuits()

    assert (patient.calls, circuits) == (6, {})


async def test_failing_agent_gets_work_if_circuits_are_off() -> None:
    patient = Patient()
    async with crew(patient.agent(), settings=Settings(ack_wait=2, circuit_failures=0)) as client:
        await fail_at(client, 8)
        circuits = await client.operations.circuits()

    assert (patient.calls, circuits) == (8, {})


async def test_agent_under_review_counts_as_healthy() -> None:
    story = judged_stage()
    begun, failed = story.state, story.fail_task("write", failure(retryable=True))
    tried, asked = story.state, story.complete_task("write")
    judged, passed = story.state, story.complete_task("judge-write", {"verdict": "pass"})
    shared = CircuitBreaker(MemoryBus(), Subjects(), SystemClock(), failures=2, seconds=60)
    running = asyncio.create_task(shared.run())
    shared.record(begun, "wf_1", failed)
    shared.record(begun, "wf_2", failed)
    await until(lambda: "write" in shared.open_circuits)
    shared.record(tried, "wf_1", asked)
    await until(lambda: "write" not in shared.open_circuits)
    shared.record(begun, "wf_3", failed)
    shared.record(judged, "wf_1", passed)  # a review, which is no new success of the agent
    shared.record(begun, "wf_4", failed)
    await until(lambda: "write" in shared.open_circuits)

    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


@asynccontextmanager
async def sharing(
    *buses: MemoryBus, failures: int = 2, clock: Clock | None = None
) -> AsyncIterator[list[CircuitBreaker]]:
    """Yield shared circuits, one for each bus."""
    clock = clock or SystemClock()
    all_of_them = [CircuitBreaker(bus, Subjects(), clock, failures=failures, seconds=60) for bus in buses]
    running = [asyncio.create_task(each.run()) for each in all_of_them]
    try:
        yield all_of_them
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_circuits_are_shared_by_all_supervisors_after_an_outage_too() -> None:
    class Away(MemoryBus):
        times = 1

        async def follow(
            self, stream: StreamKind, subjects: Sequence[str], *, after: int = 0
        ) -> AsyncGenerator[StoredMessage, None]:
            if self.times:
                self.times -= 1
                raise BusUnavailableError("the broker is away")
            async for stored in super().follow(stream, subjects, after=after):
                yield stored

    broker, clock = MemoryBroker(), VirtualClock()
    async with sharing(MemoryBus(broker=broker), Away(broker=broker), clock=clock) as (first, second):
        for number in range(2):
            first._on_failure("worker", f"wf_{number}/t1", "", blamed=True)
        await until(lambda: "worker" in first.open_circuits)
        await clock.advance(1)

        await until(lambda: "worker" in second.open_circuits)
        first._on_success("worker")
        await until(lambda: not second.open_circuits)


async def test_changes_are_seen_in_a_stream_that_was_created_again() -> None:
    broker = MemoryBroker()
    async with sharing(MemoryBus(broker=broker), MemoryBus(broker=broker)) as (first, second):
        await asyncio.sleep(0)  # both follow the changes
        second._sequence = 100  # of the lost stream

        await first._update(lambda known: first._open(known, "worker"))

        await until(lambda: "worker" in second.open_circuits)
        assert second._sequence == first._sequence


class Belated(MemoryBus):
    """A watcher that receives only the first change, after later changes."""

    goes_on: asyncio.Event

    async def follow(
        self, stream: StreamKind, subjects: Sequence[str], *, after: int = 0
    ) -> AsyncGenerator[StoredMessage, None]:
        async for stored in super().follow(stream, subjects, after=after):
            await self.goes_on.wait()
            yield stored
            await asyncio.Event().wait()


async def test_late_broadcast_is_ignored_and_a_missed_one_is_looked_up() -> None:
    broker, later = MemoryBroker(), datetime.now(UTC) + timedelta(seconds=90)
    bus, other = Belated(broker=broker), CircuitBreaker(MemoryBus(broker=broker), Subjects(), SystemClock(),
                                                        failures=1, seconds=60)  # fmt: skip
    bus.goes_on = asyncio.Event()
    async with sharing(bus) as (shared,):
        await other._update(lambda known: other._open(known, "worker"))
        await shared.load()
        assert await other.claim_probes({"worker": Probe("wf_1/t1/1", later + timedelta(seconds=60))}, later)
        shared._on_failure("worker", "wf_1/t1", "wf_1/t1/1", blamed=False)
        await until(lambda: not shared.open_circuits["worker"].probe and shared._sequence == 3)
        known = shared.open_circuits

        bus.goes_on.set()
        for _ in range(9):
            await asyncio.sleep(0)

        assert (await load_circuits(bus, Subjects()), shared.open_circuits) == (known, known)


async def test_circuits_of_another_release_are_rewritten() -> None:
    bus = MemoryBus()
    await bus.publish(Subjects().circuits, b'{"agents": {"worker": "ill"}}', {})
    async with sharing(bus, failures=1) as (shared,):
        assert await load_circuits(bus, Subjects()) == {}
        shared._on_failure("worker", "wf_1/t1", "", blamed=True)
        await until(lambda: "worker" in shared.open_circuits)

    assert (await load_circuits(bus, Subjects())).keys() == {"worker"}


async def test_success_between_two_failures_resets_the_count() -> None:
    async with sharing(MemoryBus()) as (shared,):
        for number in range(4):
            shared._on_failure("worker", f"wf_{number}/t1", "", blamed=True)
            shared._on_success("worker")

    assert (shared._changes.empty(), shared._failing) == (True, {})


@pytest.mark.parametrize("abandoned", [True, False])
async def test_a_probe_that_shows_nothing_makes_room_for_another(abandoned: bool) -> None:
    story = WorkflowDriver().planned(task("t1"))
    before, now = story.state, datetime.now(UTC)
    entries = story.control("cancel") if abandoned else story.fail_task("t1", failure("refused"))
    later = now + timedelta(seconds=90)
    async with sharing(MemoryBus()) as (shared,):
        await shared._update(lambda known: shared._open(known, "worker"))
        assert await shared.claim_probes({"worker": Probe("wf_1/t1/1", later + timedelta(seconds=60))}, later)

        # A task that was sent before the circuit opened.
        older = shared._on_probe_ended(shared._known, "worker", "wf_9/t1/1", blamed=True)
        shared.record(before, "wf_1", entries)
        await until(lambda: not shared.open_circuits["worker"].probe)

        assert (older.agents["worker"].probe, shared.open_circuits["worker"].open_count) == ("wf_1/t1/1", 1)


async def test_the_gauge_goes_from_closed_to_open_to_half_open_and_back() -> None:
    async def shows(figure: float) -> None:
        async def seen() -> bool:
            return [value for _, value in samples(figures).get("pointsman_circuit_state", ())] == [figure]

        await until(seen)

    patient = Patient()
    with exposing() as figures:
        async with crew(patient.agent(), settings=SETTINGS) as client:
            await fail_at(client, 3)
            await shows(2)
            patient.error = None
            patient.goes_on.clear()
            probe = await client.submit("crew", "work")
            await shows(1)
            patient.goes_on.set()
            await probe.outcome(10)
            await shows(0)


async def test_gauge_is_half_open_when_due_and_drops_dead_agents() -> None:
    bus, clock = MemoryBus(), VirtualClock()
    circuit = Circuit(since=clock.now(), until=clock.now() + timedelta(seconds=15))
    await bus.publish(Subjects().circuits, dump(Circuits(agents={"worker": circuit})), {})
    card = echo("worker").card.model_copy(update={"instance": "i1"})
    await bus.registry.announce(card)
    shown: list[list[float]] = []

    with exposing() as figures:
        async with sharing(bus, clock=clock):
            for announced in (True, True, True, False, True):
                await (bus.registry.announce(card) if announced else bus.registry.withdraw(card))
                await clock.advance(10)
                shown.append([value for _, value in samples(figures).get("pointsman_circuit_state", ())])

    assert shown == [[2], [1], [1], [], [1]]


async def test_change_of_one_circuit_reports_no_dead_agent() -> None:
    bus, clock = MemoryBus(), VirtualClock()
    circuit = Circuit(since=clock.now(), until=clock.now() + timedelta(seconds=60))
    await bus.publish(Subjects().circuits, dump(Circuits(agents={"gone": circuit})), {})
    await bus.registry.announce(echo("worker").card.model_copy(update={"instance": "i1"}))

    with exposing() as figures:
        async with sharing(bus, clock=clock):
            await clock.advance(11)
            both = Circuits(agents={"gone": circuit, "worker": circuit})
            await bus.publish(Subjects().circuits, dump(both), {})
            await clock.advance(1)
            shown = samples(figures)["pointsman_circuit_state"]

    assert [labels["gen_ai_agent_name"] for labels, _ in shown] == ["worker"]


async def test_one_of_two_claims_is_granted_and_stays_granted() -> None:
    broker = MemoryBroker()

    def shared() -> CircuitBreaker:
        return CircuitBreaker(broker.connect(), Subjects(), SystemClock(), failures=1, seconds=0.5)

    first, second = shared(), shared()
    await first._update(lambda known: first._open(known, "worker"))
    await second.load()
    now = datetime.now(UTC)
    later = now + timedelta(seconds=1)  # in the future, like the time of a timer that fires early by this clock
    claims = [{"worker": Probe(f"wf_{n}/t1/1", now + timedelta(seconds=60))} for n in (1, 2)]

    assert await first.claim_probes(claims[0], later)
    assert not await second.claim_probes(claims[1], later)
    assert await first.claim_probes(claims[0], later)
    assert first.open_circuits == second.open_circuits


async def test_slowly_opening_circuit_is_reported_once() -> None:
    class Slow(MemoryBus):
        async def publish(self, subject: str, body: bytes, headers: Mapping[str, str], **more: Any) -> int:
            await held.wait()
            return await super().publish(subject, body, headers, **more)

    held = asyncio.Event()
    shared = CircuitBreaker(Slow(), Subjects(), SystemClock(), failures=3, seconds=60)
    running = asyncio.create_task(shared.run())

    with capture_logs() as logs:
        for number in range(12):
            shared._on_failure("worker", f"wf_{number}/t1", f"wf_{number}/t1/1", blamed=True)
        held.set()

        async def told() -> bool:
            return "worker" in shared.open_circuits and shared._changes.empty()

        await until(told)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running

    assert [entry["event"] for entry in logs] == ["circuit_opened"]
    assert shared._failing == {}  # reset, because otherwise the next failures would not open the circuit


@pytest.mark.parametrize(("left", "told"), [(1, ["circuit_opened"]), (0, [])])
async def test_new_supervisor_reports_open_circuits(left: int, told: list[str]) -> None:
    broker, clock = MemoryBroker(), VirtualClock()
    circuit = Circuit(since=clock.now(), until=clock.now() + timedelta(seconds=left))
    await broker.connect().publish(Subjects().circuits, dump(Circuits(agents={"worker": circuit})), {})
    shared = CircuitBreaker(broker.connect(), Subjects(), clock, failures=3, seconds=60)

    with capture_logs() as logs:
        await shared.load()

    assert "worker" in shared.open_circuits
    assert [entry["event"] for entry in logs] == told


async def test_circuit_closed_before_its_opening_was_seen_opens_again() -> None:
    broker = MemoryBroker()
    shared, other = (
        CircuitBreaker(broker.connect(), Subjects(), SystemClock(), failures=2, seconds=60) for _ in range(2)
    )
    for number in range(2):
        shared._on_failure("worker", f"wf_{number}/t1", "", blamed=True)
    opening = shared._changes.get_nowait()
    await other._update(lambda known: other._open(known, "worker"))
    await other._update(lambda known: close_circuit(known, "worker"))
    await shared.load()
    await shared._update(lambda known: close_circuit(opening(known), "worker"))  # the message about this change is lost

    for number in range(2, 4):
        shared._on_failure("worker", f"wf_{number}/t1", "", blamed=True)

    assert shared._changes.qsize() == 1
