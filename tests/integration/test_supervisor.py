"""On a real broker, every request reaches exactly one outcome."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime

import pytest
from support import factory
from support.factory import echo, planner_of, synthesizer
from support.waiting import until

from pointsman.authoring.agent import agent
from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.clock import SystemClock
from pointsman.core.evolve import apply_commit
from pointsman.core.model.state import State
from pointsman.engine.log import workflow_log
from pointsman.engine.supervisor.ownership import Ownership
from pointsman.ports.bus import StoredMessage
from pointsman.settings import Settings
from pointsman_schemas.envelope import Envelope, decode, encode, encode_structured
from pointsman_schemas.events import DeadLetter, Outcome, Result
from pointsman_schemas.ids import workflow_id_for
from pointsman_schemas.log import Commit, Entry, TaskDispatched, TaskSucceeded, WorkflowEnded
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Limits, PlanAndExecute, RetryPolicy, Team

TEAM = Team(name="crew", limits=Limits(deadline=30), retry=RetryPolicy(backoff=0.05))
ONE_TASK = {"id": "t1", "agent": "a", "intent": "do the thing"}


@pytest.fixture
def subjects(settings: Settings) -> Subjects:
    return Subjects(settings.namespace)


async def outcome_of(bus: JetStreamBus, subjects: Subjects, workflow: str) -> Outcome:
    await until(lambda: bus.last("log", subjects.outcome("crew", workflow)))
    stored = await bus.last("log", subjects.outcome("crew", workflow))
    assert stored is not None
    return parse(Outcome, stored.body)


async def letters(bus: JetStreamBus, subjects: Subjects) -> list[DeadLetter]:
    return [parse(DeadLetter, stored.body) async for stored in bus.read("dead", subjects.dead_letters)]


@agent(name="a", description="Takes the task and says nothing")
async def silent(request: str) -> str:
    await asyncio.sleep(60)
    return "never"


def endings(entries: Sequence[Entry]) -> int:
    return sum(isinstance(entry, WorkflowEnded) for entry in entries)


async def test_a_structured_cloudevent_gets_an_outcome_with_its_correlation_id(
    bus: JetStreamBus, settings: Settings, subjects: Subjects
) -> None:
    envelope = Envelope(
        id="r-1",
        type="io.pointsman.request.v1",
        source="/shop",
        time=SystemClock().now(),
        correlation_id="order 7/ä",
    )
    headers, body = encode_structured(envelope, {"input": "hello"})
    async with factory.team(TEAM, [planner_of(ONE_TASK), synthesizer, echo("a")], on=settings):
        await bus.publish(subjects.request("crew", "anonymous"), body, headers)

        outcome = await outcome_of(
            bus, subjects, workflow_id_for(subjects.request("crew", "anonymous"), "r-1", "/shop")
        )

    assert outcome.status == "completed"
    assert outcome.correlation_id == "order 7/ä"


async def test_three_bad_requests_among_twenty_stop_none_of_the_others(
    bus: JetStreamBus, settings: Settings, subjects: Subjects
) -> None:
    bad = {
        1: (b"not json", {}),
        7: (b'{"input": 7}', {}),
        20: (b'{"input": "x"}', encode(_envelope("v9", "io.pointsman.request.v9", SystemClock().now()))),
    }
    async with factory.team(TEAM, [planner_of(ONE_TASK), synthesizer, echo("a")], on=settings) as client:
        workflows = []
        for number in range(1, 21):
            body, headers = bad.get(number, (b'{"input": "hello"}', {}))
            sequence = await bus.publish(subjects.request("crew", "anonymous"), body, headers)
            workflows.append((await client.workflow_from_sequence(sequence)).id)

        outcomes = [await outcome_of(bus, subjects, workflow) for workflow in workflows]
        await until(lambda: _at_least(bus, subjects, 3))
        buried = await letters(bus, subjects)

    failed = {number for number, outcome in enumerate(outcomes, 1) if outcome.status == "failed"}
    assert failed == set(bad)
    assert sorted(letter.cause.kind for letter in buried) == ["undecodable", "undecodable", "unknown_type"]
    assert all(letter.attempts == 1 for letter in buried)
    assert "io.pointsman.request.v9" in outcomes[19].reason


async def test_a_result_for_an_unknown_workflow_becomes_a_dead_letter(
    bus: JetStreamBus, settings: Settings, subjects: Subjects
) -> None:
    async with factory.team(TEAM, on=settings):
        now = SystemClock().now()
        result = Result(
            workflow_id="wf_unknown",
            task_id="t1",
            attempt=1,
            agent="a",
            status="succeeded",
            started_at=now,
            ended_at=now,
        )
        headers = encode(_envelope("e-1", Result.event_type, now))
        await bus.publish(subjects.result("crew", "a", "wf_unknown", "t1", 1, "token"), dump(result), headers)

        await until(lambda: _at_least(bus, subjects, 1))
        (letter,) = await letters(bus, subjects)

    assert letter.cause.kind == "unknown_workflow"
    assert letter.headers["ce-id"] == "e-1"


async def test_unreadable_result_fails_its_task_and_is_dead_lettered(
    bus: JetStreamBus, settings: Settings, subjects: Subjects
) -> None:
    async with factory.team(TEAM, [planner_of(ONE_TASK), synthesizer, silent], on=settings) as client:
        workflow = await client.submit("crew", "hello")
        place = await factory.return_to(bus, subjects.handoff("a", "crew", workflow.id, "t1", 1))

        await bus.publish(place, b"\xff", {}, expect=0)
        outcome = await workflow.outcome(10)
        await until(lambda: _at_least(bus, subjects, 2))
        kinds = sorted(letter.cause.kind for letter in await letters(bus, subjects))

    assert outcome.status == "failed"
    assert outcome.gaps[0].reason.startswith("the result of a cannot be read: not a valid Result")
    # Dead letters of the message and of the task that failed because of it.
    assert kinds == ["undecodable", "undecodable"]


async def test_outcome_is_also_sent_to_reply_to_unless_that_is_one_of_our_subjects(
    bus: JetStreamBus, settings: Settings, subjects: Subjects
) -> None:
    heard: list[bytes] = []

    async def hear(stored: StoredMessage) -> None:
        heard.append(stored.body)

    async with factory.team(TEAM, [planner_of(ONE_TASK), synthesizer, echo("a")], on=settings):
        async with await bus.listen("_INBOX.box", hear):
            await bus.publish(
                subjects.request("crew", "anonymous"), b'{"input": "x", "reply_to": "_INBOX.box"}', {"Nats-Msg-Id": "1"}
            )
            await until(lambda: heard)
        bad = json.dumps({"input": "x", "reply_to": subjects.handoff("a", "crew", "wf_1", "t", 1)}).encode()
        await bus.publish(subjects.request("crew", "anonymous"), bad, {"Nats-Msg-Id": "2"})
        refused = await outcome_of(bus, subjects, workflow_id_for(subjects.request("crew", "anonymous"), "2"))

    assert json.loads(heard[0])["answer"] == "joined"
    assert refused.status == "failed"
    assert "reply_to" in refused.reason


@pytest.mark.parametrize("spread", [False, True], ids=["the first has all", "each has some"])
async def test_two_supervisors_dispatch_nothing_twice(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, spread: bool
) -> None:
    if spread:
        monkeypatch.setattr(Ownership, "balanced", True)
    plan = planner_of(*({"id": f"t{n}", "agent": "a", "intent": f"do thing {n}"} for n in range(8)))
    # A long heartbeat, because all parts share one busy process. If a card expires, plans with its agent are refused.
    settings = settings.model_copy(update={"heartbeat": 5.0})
    async with factory.team(TEAM, [plan, synthesizer, echo("a")], on=settings, supervisors=2) as client:
        workflows = [await client.submit("crew", f"hello {n}") for n in range(25)]
        outcomes = [await workflow.outcome(30) for workflow in workflows]
        logs = [await client.entries(workflow.id) for workflow in workflows]

    assert {outcome.status for outcome in outcomes} == {"completed"}
    for entries in logs:
        dispatched = [(entry.task_id, entry.attempt) for entry in entries if isinstance(entry, TaskDispatched)]
        accepted = [entry.task_id for entry in entries if isinstance(entry, TaskSucceeded)]
        assert len(dispatched) == len(set(dispatched)) == 10
        assert len(accepted) == len(set(accepted)) == 10
        assert endings(entries) == 1


async def test_missing_agent_fails_with_no_worker_at_the_deadline(settings: Settings) -> None:
    team = Team(name="crew", limits=Limits(deadline=2))
    async with factory.team(team, on=settings) as client:
        workflow = await client.submit("crew", "hello")
        outcome = await workflow.outcome(15)

    assert outcome.status == "failed"
    assert "no worker took the request: no agent named planner is alive" in outcome.reason


async def test_a_long_log_is_loaded_from_its_snapshot(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow_log, "SNAPSHOT_EVERY", 4)
    chain = [
        {"id": f"t{n}", "agent": "a", "intent": f"step {n}", "depends_on": [f"t{n - 1}"] if n else []}
        for n in range(12)
    ]
    folded: list[int] = []

    def counting(state: State | None, commit: Commit) -> State:
        folded.append(commit.number)
        return apply_commit(state, commit)

    parts = [planner_of(*chain), synthesizer, echo("a")]
    async with factory.team(TEAM, parts, on=settings) as client:
        workflow = await client.submit("crew", "hello")
        first = await workflow.outcome(20)
        stored = [each async for each in client.bus.read("log", client.subjects.log("crew", workflow.id))]
    monkeypatch.setattr(workflow_log, "apply_commit", counting)
    async with factory.team(TEAM, parts, on=settings) as client:
        again = await client.submit("crew", "hello again")
        await again.outcome(20)
        log = workflow_log.WorkflowLog(client.bus, client.subjects, SystemClock(), "crew")
        folded.clear()
        head = await log.load(workflow.id)

    assert head.state is not None
    assert head.state.outcome == first
    assert 0 < len(folded) <= 4
    assert any(parse(Commit, decode(each.headers, each.body)[1]).snapshot for each in stored)


async def test_a_damaged_log_closes_its_workflow_and_no_other(
    bus: JetStreamBus, settings: Settings, subjects: Subjects
) -> None:
    async with factory.team(TEAM, [planner_of(ONE_TASK), synthesizer, silent], on=settings) as client:
        damaged = await client.submit("crew", "hello")
        await until(lambda: bus.last("work", subjects.handoff("a", "crew", damaged.id, "t1", 1)))
    body = {"number": 99, "entries": [{"kind": "from_the_future", "at": "2030-01-01T00:00:00Z"}]}
    headers = encode(_envelope("x", Commit.event_type, SystemClock().now()))
    await bus.publish(subjects.log("crew", damaged.id), json.dumps(body).encode(), headers)

    async with factory.team(TEAM, [planner_of(ONE_TASK), synthesizer, echo("a")], on=settings) as client:
        closed = await outcome_of(bus, subjects, damaged.id)
        other = await (await client.submit("crew", "hello")).outcome(10)
        await until(lambda: _at_least(bus, subjects, 1))  # stored after the outcome
        kinds = {letter.cause.kind for letter in await letters(bus, subjects)}

    assert closed.status == "failed"
    assert "cannot be folded" in closed.reason
    assert other.status == "completed"
    assert kinds == {"corrupt_log"}


async def test_oversized_handoff_fails_its_own_task_with_a_reason(settings: Settings, bus: JetStreamBus) -> None:
    settings = settings.model_copy(update={"max_body": bus.max_payload})
    big = "x" * (bus.max_payload // 3)

    @agent(name="a", description="Answers at length")
    async def long(request: str) -> str:
        return big

    four = [{"id": f"t{n}", "agent": "a", "intent": f"write much {n}"} for n in range(4)]
    join = {"id": "join", "agent": "b", "intent": "join them", "depends_on": [each["id"] for each in four]}
    team = Team(name="crew", limits=Limits(deadline=30), strategy=PlanAndExecute(synthesizer=None))
    async with factory.team(team, [planner_of(*four, join), long, echo("b")], on=settings) as client:
        workflow = await client.submit("crew", "hello")
        outcome = await workflow.outcome(20)
        other = await (await client.submit("crew", "x" * (bus.max_payload - 1000))).outcome(20)
        await until(lambda: _at_least(bus, client.subjects, 2))  # that of a refused request is stored after the outcome
        found = await letters(bus, client.subjects)

    assert outcome.status == "partial"
    assert [gap.task_id for gap in outcome.gaps] == ["join"]
    assert "bytes" in outcome.gaps[0].reason
    assert other.status == "failed"
    assert "too large" in other.reason
    assert [(letter.cause.kind, letter.truncated) for letter in found] == [("oversize", True), ("oversize", True)]


def _envelope(name: str, event_type: str, time: datetime) -> Envelope:
    return Envelope(id=name, type=event_type, source="/test", time=time)


async def _at_least(bus: JetStreamBus, subjects: Subjects, count: int) -> bool:
    return len(await letters(bus, subjects)) >= count
