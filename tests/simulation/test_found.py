"""Scenarios that the simulation found. Each has a test, because code changes give a seed another world."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from pointsman.bus.memory.bus import MemoryBroker, MemoryBus
from pointsman.core.evolve import fold_entries
from pointsman.engine.log.workflow_log import WorkflowLog
from pointsman.engine.operations.dead_letter_replay import NotReplayableError
from pointsman.engine.operations.dead_letters import DeadLetters
from pointsman.engine.supervisor.engine import SupervisorEngine
from pointsman.errors import BusUnavailableError, ConflictError, PublishOutcomeUnknownError
from pointsman.ports.bus import StoredMessage, StreamKind
from pointsman.settings import Settings
from pointsman.testing.simulation import SimulatedClock, simulate
from pointsman_schemas.card import AgentCard
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Control, Timer
from pointsman_schemas.ids import workflow_id_for
from pointsman_schemas.log import Commit, TimerArmed
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Limits, Team

SUBJECTS = Subjects("sim")
TEAM = Team(name="team", limits=Limits(deadline=60, task_timeout=30))
STEPS = 20_000  # far more than any scenario needs, so that only an endless loop exceeds it
WORKFLOW = workflow_id_for("sim.request.team.anonymous", "r1")


def supervised(
    bus: MemoryBus,
    test: Callable[[], Awaitable[None]],
    *,
    request: bytes = b'{"input": "do it"}',
    clock: SimulatedClock | None = None,
    max_running: int = 1000,
    retention_days: float = 30.0,
) -> Callable[[], Coroutine[Any, Any, None]]:
    """Run `test` while a supervisor works on `bus`, where `request` has been published."""

    async def main() -> None:
        stop = asyncio.Event()
        settings = Settings(namespace="sim", ack_wait=3.0, max_running=max_running, retention_days=retention_days)
        engine = SupervisorEngine(bus, TEAM, settings, clock or SimulatedClock())
        await bus.registry.announce(AgentCard(name="a", instance="1", description="Lets it begin"))
        running = asyncio.create_task(engine.run(stop))
        await bus.publish(SUBJECTS.request("team", "anonymous"), request, {"Nats-Msg-Id": "r1"})
        await test()
        stop.set()
        await running

    return main


def commits(broker: MemoryBroker) -> int:
    return len(broker.stream("log").select(SUBJECTS.log("team", WORKFLOW)))


def test_timer_armed_by_another_supervisor_is_not_stale() -> None:
    clock = SimulatedClock()
    broker = MemoryBroker("sim", clock)
    bus = broker.connect()

    async def test() -> None:
        await asyncio.sleep(1)
        other = WorkflowLog(bus, SUBJECTS, clock, "team")
        head = await other.load(WORKFLOW)
        armed = TimerArmed(at=clock.now(), name="wake-2", due=clock.now() + timedelta(seconds=5))
        state = fold_entries([armed], head.state)
        assert state is not None
        await other.commit(head, WORKFLOW, [armed], state, "the other's input")
        name, target = SUBJECTS.schedule("team", WORKFLOW, "wake-2"), SUBJECTS.timer("team", WORKFLOW, "wake-2")
        await bus.schedule(name, clock.now(), target, dump(Timer(name="wake-2", due=armed.due)), timer)
        await asyncio.sleep(1)

        assert commits(broker) == 3  # the start, the foreign message, and the re-armed timer

    timer = encode(Envelope(id="t", type=Timer.event_type, source="/sim", time=SimulatedClock().now()))
    simulate(supervised(bus, test), steps=STEPS)


def test_clock_behind_the_broker_does_not_rearm_a_timer_repeatedly() -> None:
    broker = MemoryBroker("sim", SimulatedClock())
    bus = broker.connect()

    async def test() -> None:
        await asyncio.sleep(32)  # longer than the timeout of the missing planner

        assert commits(broker) == 2

    simulate(supervised(bus, test, clock=SimulatedClock(skew=-0.5)), steps=STEPS)


def test_a_returned_request_keeps_its_reserved_room() -> None:
    class Away(MemoryBus):
        """The first read of the workflow's log fails."""

        failures = 1

        async def last(self, stream: StreamKind, subject: str) -> StoredMessage | None:
            if self.failures and subject == SUBJECTS.log("team", WORKFLOW):
                self.failures -= 1
                raise BusUnavailableError("the broker is away")
            return await super().last(stream, subject)

    broker = MemoryBroker("sim", SimulatedClock())
    bus = Away(broker=broker)

    async def test() -> None:
        await asyncio.sleep(10)

        assert commits(broker) == 1

    simulate(supervised(bus, test, max_running=1), steps=STEPS)


def test_damaged_log_is_reported_to_the_caller_after_an_outage() -> None:
    class Away(MemoryBus):
        """The first publish of an outcome fails."""

        failures = 1

        async def publish(self, subject: str, *message: Any, **more: Any) -> int:
            if self.failures and subject == SUBJECTS.outcome("team", WORKFLOW):
                self.failures -= 1
                raise BusUnavailableError("the broker is away")
            return await super().publish(subject, *message, **more)

    broker = MemoryBroker("sim", SimulatedClock())
    bus = Away(broker=broker)
    broker_log = SUBJECTS.log("team", WORKFLOW)

    async def test() -> None:
        await asyncio.sleep(10)

        assert len(broker.stream("log").select(SUBJECTS.outcome("team", WORKFLOW))) == 1
        assert len(broker.stream("dead").select(SUBJECTS.dead_letters)) == 1

    async def main() -> None:
        await bus.publish(broker_log, b"?", {})
        await supervised(bus, test)()

    simulate(main, steps=STEPS)


def test_log_removed_while_it_is_read_is_not_corrupt() -> None:
    class Removing(MemoryBus):
        """The log has lost its start. Its rest is removed while it is read."""

        async def read(self, stream: StreamKind, subject: str, *, after: int = 0) -> AsyncIterator[StoredMessage]:
            async for stored in super().read(stream, subject, after=after):
                if subject == SUBJECTS.log("team", WORKFLOW) and stored.sequence <= 2:
                    self.broker.trim("log", ">", 2)
                yield stored

    broker = MemoryBroker("sim", SimulatedClock())
    bus = Removing(broker=broker)
    armed = TimerArmed(at=SimulatedClock().now(), name="wake-2", due=SimulatedClock().now())

    async def test() -> None:
        await asyncio.sleep(10)

        assert commits(broker) == 1  # the request has started the workflow again
        assert not broker.stream("log").last_sequence_of(SUBJECTS.outcome("team", WORKFLOW))

    async def main() -> None:
        await bus.publish(SUBJECTS.log("team", WORKFLOW), dump(Commit(number=2, entries=(armed,))), {})
        await bus.publish(SUBJECTS.outcome("team", WORKFLOW), b"{}", {})
        await supervised(bus, test)()

    simulate(main, steps=STEPS)


def test_workflow_with_an_unread_request_cannot_be_restarted() -> None:
    broker = MemoryBroker("sim", SimulatedClock())
    bus = broker.connect()

    async def test() -> None:
        await asyncio.sleep(1)
        await bus.publish(SUBJECTS.result("team", "alpha", WORKFLOW, "task", 1, "token"), b"?", {})
        await asyncio.sleep(1)
        letters = DeadLetters(bus, SUBJECTS, clock=SimulatedClock())
        of_request, of_result = await letters.list()

        with pytest.raises(NotReplayableError, match="could not be read"):
            await letters.replay(of_result, as_new=True)

        assert (await letters.replay(of_request)).action == "request"

    simulate(supervised(bus, test, request=b"?"), steps=STEPS)


def test_a_cancel_finds_its_waiting_request_however_many_wait_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.engine.log.requests._SEARCH_WINDOW", 2)
    broker = MemoryBroker("sim", SimulatedClock())
    bus = broker.connect()
    waiting = workflow_id_for("sim.request.team.anonymous", "r2")

    async def test() -> None:
        await asyncio.sleep(1)  # the first workflow uses the only free place
        for number in range(2, 12):
            await bus.publish(
                SUBJECTS.request("team", "anonymous"), b'{"input": "do it"}', {"Nats-Msg-Id": f"r{number}"}
            )
        await bus.publish(SUBJECTS.control("team", waiting, "cancel", "ada", "c"), dump(Control(action="cancel")), {})
        await asyncio.sleep(1)

        assert broker.stream("log").last_sequence_of(SUBJECTS.outcome("team", waiting))

    simulate(supervised(bus, test, max_running=1), steps=STEPS)


class LateFirstCommit(MemoryBus):
    """Delays the second `first commit` of the log, so it is stored after the log was removed.

    Until then no other compare-and-set on the log gets an answer, as on a replicated stream.
    """

    first_commits = 0
    pending = False
    unreadable = 0
    """The number of failed reads of the log after the unanswered commit."""

    async def publish(self, subject: str, *message: Any, **more: Any) -> int:
        if subject != SUBJECTS.log("team", WORKFLOW) or more.get("expect") != 0:
            return await super().publish(subject, *message, **more)
        self.first_commits += 1
        if self.first_commits == 2:
            self.pending = True
            storing = functools.partial(super().publish, subject, *message, **more)
            asyncio.get_running_loop().call_later(3, lambda: asyncio.ensure_future(self._store_late(storing())))
        if self.pending:
            await asyncio.sleep(1)
            raise PublishOutcomeUnknownError("no answer")
        return await super().publish(subject, *message, **more)

    async def _store_late(self, storing: Awaitable[int]) -> None:
        self.pending = False
        with contextlib.suppress(ConflictError):
            await storing

    async def read(self, stream: StreamKind, subject: str, *, after: int = 0) -> AsyncIterator[StoredMessage]:
        if self.first_commits == 2 and self.unreadable and subject == SUBJECTS.log("team", WORKFLOW):
            self.unreadable -= 1
            raise BusUnavailableError("the broker is away")
        async for stored in super().read(stream, subject, after=after):
            yield stored


@pytest.mark.parametrize("unreadable", [0, 1], ids=["same delivery", "next delivery"])
def test_first_commit_that_is_stored_after_the_log_was_removed_has_an_outcome(unreadable: int) -> None:
    broker = MemoryBroker("sim", SimulatedClock())
    bus = LateFirstCommit(broker=broker)
    bus.unreadable = unreadable
    log, outcome = SUBJECTS.log("team", WORKFLOW), SUBJECTS.outcome("team", WORKFLOW)

    async def test() -> None:
        await asyncio.sleep(130)  # the broker and the supervisor no longer recognize the first request as a duplicate
        await bus.publish(SUBJECTS.request("team", "anonymous"), b"?", {"Nats-Msg-Id": "r1"})
        await asyncio.sleep(2.5)
        broker.purge("log", log)
        broker.purge("log", outcome)
        await asyncio.sleep(20)

        assert bool(broker.stream("log").last_sequence_of(log)) == bool(broker.stream("log").last_sequence_of(outcome))
        assert bus.first_commits > 2

    simulate(supervised(bus, test, request=b"?", retention_days=60 / 86_400), steps=STEPS)
