"""The memory and the resilience of a supervisor on the memory bus."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs
from support import factory
from support.factory import CREW, ONE_TASK, SETTINGS, echo, planner_of, synthesizer
from support.waiting import in_time, until

from pointsman.authoring.agent import Agent, agent
from pointsman.bus.memory.bus import MemoryBroker, MemoryBus
from pointsman.client.client import Client
from pointsman.core.model.state import State
from pointsman.engine.log.reader import read_commit
from pointsman.engine.log.workflow_log import LogHead, WorkflowLog
from pointsman.engine.supervisor import (
    decoder,
    ended_cache,
    ownership,
)
from pointsman.engine.supervisor import (
    engine as supervisor,
)
from pointsman.engine.supervisor.outbox_publisher import OutboxPublisher
from pointsman.engine.supervisor.ownership import Ownership
from pointsman.errors import BusUnavailableError, NotFoundError, OversizeEventError
from pointsman.ports.bus import StoredMessage
from pointsman.settings import Settings
from pointsman.testing.clock import VirtualClock
from pointsman_schemas.card import AgentCard, Role
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Control, DeadLetter, Outcome
from pointsman_schemas.ids import workflow_id_for
from pointsman_schemas.log import Entry, WorkflowEnded, WorkflowStarted
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.team import Team


def crew(
    settings: Settings = SETTINGS, supervisors: int = 1, a: Agent | None = None, **more: Any
) -> AbstractAsyncContextManager[factory.RunningTeam]:
    agents = [planner_of(ONE_TASK), synthesizer, a or echo("a")]
    return factory.team(CREW, agents, settings=settings, supervisors=supervisors, **more)


async def test_supervisors_keep_nothing_of_ended_workflows() -> None:
    async with crew(Settings(max_running=10, ack_wait=2), 3) as client:
        workflows = [await client.submit("crew", f"hello {number}") for number in range(40)]
        outcomes = [await workflow.outcome(20) for workflow in workflows]

        async def nothing_left() -> bool:
            return not any(engine._heads or engine._admission.free_slots < 10 for engine in client.supervisors)

        await until(nothing_left)

    assert {outcome.status for outcome in outcomes} == {"completed"}


async def test_old_ends_are_forgotten_since_their_requests_may_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_cache, "_MAX_AGE", timedelta())
    async with crew(Settings(ack_wait=2, heartbeat=0.05), 2) as client:
        outcome = await (await client.submit("crew", "hello")).outcome(10)
        await until(lambda: not any(engine._ended._ended_at for engine in client.supervisors))

    assert outcome.status == "completed"


async def test_commits_of_other_supervisors_are_resent_at_the_end_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []
    send_all = OutboxPublisher.republish_all

    async def noted(self: OutboxPublisher, state: State, entries: Sequence[Entry] = ()) -> None:
        ended.append(state.ended)
        await send_all(self, state, entries)

    async def alone(self: Ownership) -> None:
        return None

    monkeypatch.setattr(OutboxPublisher, "republish_all", noted)
    monkeypatch.setattr(Ownership, "refresh", alone)  # each supervisor must process a part of the inputs itself
    async with crew(Settings(ack_wait=30), 3) as client:
        statuses = {(await (await client.submit("crew", f"hello {n}")).outcome(20)).status for n in range(20)}

    assert statuses == {"completed"}
    assert ended  # three supervisors share each workflow, so a supervisor has read another's commits
    assert all(ended)


@pytest.mark.parametrize(("pressed", "working"), [(False, 1), (True, 3)], ids=["one can do it alone", "it cannot"])
async def test_supervisors_share_no_workflow_and_spread_work_only_under_load(
    monkeypatch: pytest.MonkeyPatch, pressed: bool, working: int
) -> None:
    monkeypatch.setattr(ownership, "_BUSY_CPU_SHARE", -1.0 if pressed else math.inf)
    monkeypatch.setattr(ownership, "_IDLE_CPU_SHARE", -1.0)
    writers = dict[str, set[int]]()
    commit = WorkflowLog.commit

    async def noted(self: WorkflowLog, head: LogHead, workflow: str, *more: Any) -> LogHead:
        writers.setdefault(workflow, set()).add(id(self))
        return await commit(self, head, workflow, *more)

    monkeypatch.setattr(WorkflowLog, "commit", noted)
    # No time passes while the workflows run: a supervisor forgets after two heartbeats that the work is shared.
    clock = VirtualClock()
    async with crew(Settings(ack_wait=30, heartbeat=0.5), 3, clock=clock) as client:
        await until(lambda: _alive(client.bus, 6))
        await in_time(
            clock, until(lambda: sum(engine._ownership.priority for engine in client.supervisors) == 0 + 1 + 2)
        )
        await in_time(clock, until(lambda: any(engine._ownership.balanced for engine in client.supervisors) is pressed))
        statuses = {(await (await client.submit("crew", f"hello {n}")).outcome(20)).status for n in range(20)}

    assert statuses == {"completed"}
    assert {len(each) for each in writers.values()} == {1}
    assert len({writer for each in writers.values() for writer in each}) == working


@pytest.mark.parametrize(
    "place",
    [
        "result.crew.a.wf_1.t1.0.token",
        "result.crew.a.wf_1.t1.01.token",
        "control.crew.wf_1.cancel.ada.c1",
        "control.crew.wf_1.dance.ada.c1",
        "timer.crew.wf_1.wake-1",
    ],
)
async def test_invalid_input_does_not_end_the_process(place: str) -> None:
    async with crew() as client:
        await client.bus.publish(f"pointsman.{place}", b"{", {})
        (letter,) = await until(lambda: _letters(client))
        outcome = await (await client.submit("crew", "hello")).outcome(10)

    assert letter.subject.endswith(place)
    assert outcome.status == "completed"


@pytest.mark.parametrize("reader", ["read_request", "read_input"])
async def test_input_that_crashes_the_decoder_is_dead_lettered(monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    read, marked = getattr(decoder, reader), b"marked"

    def stumble(stored: StoredMessage, *more: Any) -> Any:
        if marked in stored.body:
            raise RuntimeError("an unexpected error")
        return read(stored, *more)

    monkeypatch.setattr(decoder, reader, stumble)
    monkeypatch.setattr(supervisor, "_MAX_DELIVERIES", 2)
    subject = (
        "pointsman.request.crew.anonymous" if reader == "read_request" else "pointsman.control.crew.wf_1.cancel.ada.c1"
    )
    async with crew() as client:
        await client.bus.publish(subject, marked, {})
        (letter,) = await until(lambda: _letters(client))
        outcome = await (await client.submit("crew", "hello")).outcome(10)

    assert (letter.subject, letter.cause.kind) == (subject, "bug")
    assert "an unexpected error" in letter.cause.message
    assert outcome.status == "completed"


async def _letters(client: Client) -> list[DeadLetter]:
    return [parse(DeadLetter, stored.body) async for stored in client.bus.read("dead", "pointsman.dead.>")]


async def test_input_is_kept_if_its_dead_letter_cannot_be_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[int] = []

    async def refuse(*_: object, **__: object) -> None:
        tries.append(1)
        raise OversizeEventError("the operator's limit for this stream is 1 kB")

    monkeypatch.setattr("pointsman.engine.supervisor.acknowledger.dead_letter", refuse)
    monkeypatch.setattr("pointsman.engine.supervisor.acknowledger._RETRY_PAUSE_S", 0.01)
    async with crew() as client:
        await client.bus.publish(client.subjects.control("crew", "wf_unknown", "cancel", "ada", "c1"), b"not json", {})
        await until(lambda: len(tries) > 2)
        outcome = await (await client.submit("crew", "hello")).outcome(10)

    assert outcome.status == "completed"


async def test_oversized_commit_drops_its_decision_context() -> None:
    broker = MemoryBroker(max_body=20_000)
    async with crew(broker=broker) as client:
        for number in range(600):  # each adds about 50 bytes to the decision context
            card = AgentCard(name=f"other-{number}", instance="one", description="", role=Role.JUDGE)
            await client.bus.registry.announce(card)
        workflow = await client.submit("crew", "hello")
        outcome = await workflow.outcome(10)
        first, *_ = broker.stream("log").select(client.subjects.workflow_log(workflow.id))

    assert outcome.status == "completed"
    assert read_commit(first).decision_context is None


@pytest.mark.parametrize("subject", ["a..b", ".a", "a.", "$SYS.x", "pointsman.request.crew.anonymous", "_secret.x"])
async def test_request_with_a_forbidden_reply_subject_is_refused(subject: str) -> None:
    async with crew() as client:
        body = b'{"input": "x", "reply_to": "%s"}' % subject.encode()
        await client.bus.publish(client.subjects.request("crew", "anonymous"), body, {"Nats-Msg-Id": "1"})
        outcome = await factory.workflow_of(
            client, workflow_id_for(client.subjects.request("crew", "anonymous"), "1")
        ).outcome(10)

    assert outcome.status == "failed"
    assert "reply_to" in outcome.reason


def held_by(gate: asyncio.Event) -> Agent:
    @agent(name="a", description="Waits to be let go")
    async def waits(request: str) -> str:
        await gate.wait()
        return "done"

    return waits


@pytest.mark.parametrize("cancels", [1, 2, 50])
async def test_a_workflow_that_waits_for_admission_is_cancelled_and_takes_no_room(cancels: int) -> None:
    gate = asyncio.Event()

    async with crew(Settings(max_running=1, ack_wait=2), a=held_by(gate)) as client:
        (engine,) = client.supervisors
        first = await client.submit("crew", "takes the only room")
        await until(lambda: client.bus.last("work", client.subjects.handoff("a", "crew", first.id, "t1", 1)))
        second = await client.submit("crew", "waits")
        asked = await asyncio.gather(*(second.cancel("enough") for _ in range(cancels)))
        cancelled = await second.outcome(10)
        await until(lambda: set(engine._admission._admitted) == {first.id})
        late = await second.cancel()
        gate.set()
        completed = await first.outcome(10)
        third = await (await client.submit("crew", "has room now")).outcome(10)
        await until(lambda: engine._admission.free_slots == 1)
        entries = await client.entries(second.id)
        letters = [stored async for stored in client.bus.read("dead", client.subjects.dead_letters)]

    assert set(asked) <= {None, cancelled}
    assert late == cancelled
    assert (cancelled.status, completed.status, third.status) == ("cancelled", "completed", "completed")
    assert "enough" in cancelled.reason
    assert [type(entry) for entry in entries] == [WorkflowStarted, WorkflowEnded]
    assert letters == []


async def test_cancel_during_admission_by_another_supervisor_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    async def admitted() -> bool:
        depth = await client.bus.depth("request-crew", "requests")
        return depth is not None and depth.settled_through > 0

    async with crew(a=held_by(asyncio.Event())) as client:
        (engine,) = client.supervisors
        workflow = await client.submit("crew", "hello")
        await until(admitted)
        engine._heads.clear()
        read, before = engine._logs.load, [LogHead()]  # the first load returns an empty log

        async def load(name: str, known: LogHead | None = None) -> LogHead:
            return before.pop() if before else await read(name, known)

        monkeypatch.setattr(engine._logs, "load", load)
        await workflow.cancel("enough")
        outcome = await workflow.outcome(10)
        letters = [stored async for stored in client.bus.read("dead", client.subjects.dead_letters)]

    assert outcome.status == "cancelled"
    assert letters == []


async def test_a_cancellation_that_comes_with_its_request_is_not_lost() -> None:
    broker = MemoryBroker()
    client = Client(broker.connect())
    for number in range(20):
        workflow = await client.submit("crew", f"hello {number}", request_id=f"r{number}")
        await workflow.cancel()

    async with crew(SETTINGS, 2, broker=broker):
        outcomes = [
            await factory.workflow_of(
                client, workflow_id_for(client.subjects.request("crew", client.user), f"r{number}", client.source)
            ).outcome(10)
            for number in range(20)
        ]

    assert {outcome.status for outcome in outcomes} == {"cancelled"}


async def test_unknown_workflow_cannot_be_cancelled() -> None:
    async with crew() as client:
        await client.submit("crew", "another")
        with pytest.raises(NotFoundError):
            await factory.workflow_of(client, "wf_unknown").cancel()
        control = client.subjects.control("crew", "wf_unknown", "cancel", "ada", "c1")
        envelope = Envelope(id="c1", type=Control.event_type, source="/test", time=datetime.now(UTC))
        await client.bus.publish(control, dump(Control(action="cancel")), encode(envelope))
        await until(lambda: client.bus.last("dead", client.subjects.dead_letters))

    stored = await client.bus.last("dead", client.subjects.dead_letters)
    assert stored is not None
    assert parse(DeadLetter, stored.body).cause.kind == "unknown_workflow"
    assert await client.bus.last("log", client.subjects.log("crew", "wf_unknown")) is None


async def _alive(bus: object, count: int) -> bool:
    return len(await bus.registry.cards()) >= count  # type: ignore[attr-defined]


async def test_supervisor_names_its_missing_agents_at_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    level = structlog.make_filtering_bound_logger("info")
    monkeypatch.setattr(supervisor, "_log", structlog.wrap_logger(None, wrapper_class=level))
    bus = MemoryBus()
    await bus.registry.announce(echo("a").card.model_copy(update={"instance": "i1"}))

    with capture_logs() as lines:
        async with factory.running(factory.supervisor(bus, Team(name="crew", agents=("a", "b"))), ready=False):
            await until(lambda: any(line["event"] == "agents_missing" for line in lines))

    (told,) = (line for line in lines if line["event"] == "agents_missing")
    assert told["agents"] == ["b", "planner", "synthesizer"]


GARBAGE = {
    "bytes": (b"\xff", {}),
    "JSON": (b"{}", {}),
    "an event of another kind": (
        b"{}",
        encode(Envelope(id="x", type="io.somebody.v1", source="/x", time=datetime.now(UTC), subject="wf_1")),
    ),
}


@pytest.mark.parametrize("supervisors", [1, 2])
@pytest.mark.parametrize("garbage", GARBAGE)
async def test_foreign_message_at_the_outcome_subject_hides_nothing(garbage: str, supervisors: int) -> None:
    """A waiting caller ignores the foreign message, too."""
    gate, begun = asyncio.Event(), asyncio.Event()

    @agent(name="a", description="Waits until it may")
    async def waits(request: str) -> str:
        begun.set()
        await gate.wait()
        return "done"

    async with crew(SETTINGS, supervisors, waits) as client:
        workflow = await client.submit("crew", "hello")
        await asyncio.wait_for(begun.wait(), 10)
        place = client.subjects.outcome("crew", workflow.id)
        waiting = asyncio.create_task(workflow.outcome(10))
        await client.bus.publish(place, *GARBAGE[garbage])
        await asyncio.sleep(0)
        gate.set()
        outcome = await waiting
        again = await workflow.outcome(10)
    stored = [each async for each in client.bus.read("log", place)]

    assert outcome == again
    assert (outcome.status, outcome.answer) == ("completed", "joined")
    assert len(stored) == 1
    assert parse(Outcome, stored[0].body) == outcome


async def test_successor_sends_the_outcome_of_a_dead_supervisor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The outcome is published last. A foreign message on its subject means that other messages may be missing, too."""
    broker, sent = MemoryBroker(), OutboxPublisher.publish_new
    client = Client(broker.connect())

    async def dies(self: OutboxPublisher, state: State, entries: Sequence[Entry], *prepared: Any) -> None:
        if not state.ended:
            return await sent(self, state, entries, *prepared)
        await client.bus.publish(client.subjects.outcome("crew", state.workflow_id), b"{}", {})
        monkeypatch.setattr(OutboxPublisher, "publish_new", sent)
        raise BusUnavailableError("the end is not known to be sent")

    monkeypatch.setattr(OutboxPublisher, "publish_new", dies)
    async with crew(Settings(ack_wait=0.2), broker=broker):
        outcome = await (await client.submit("crew", "hello")).outcome(10)

    assert outcome.status == "completed"
