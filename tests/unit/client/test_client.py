"""Calls of the client on the memory bus, with handwritten logs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from support import factory
from support.history import START, TEAM, WORKFLOW, at, completed, ended, failing, started, store, tool

from pointsman.bus.memory.bus import MemoryBus
from pointsman.client.client import Client
from pointsman.errors import (
    BusUnavailableError,
    ContractError,
    InvalidTokenError,
    NotFoundError,
    OversizeEventError,
    PublishOutcomeUnknownError,
    UnknownEventTypeError,
)
from pointsman.ports.bus import StoredMessage, StreamKind
from pointsman_schemas.envelope import Envelope, decode, encode
from pointsman_schemas.events import Control, Event, Progress, Question, Request
from pointsman_schemas.ids import workflow_id_for
from pointsman_schemas.log import Entry, QuestionAnswered, QuestionAsked, TimerArmed
from pointsman_schemas.strict_json import dump, parse


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
def client(bus: MemoryBus) -> Client:
    return Client(bus)


class SilentBus(MemoryBus):
    """A bus that stores the first `silences` messages but does not answer."""

    def __init__(self, silences: int) -> None:
        super().__init__()
        self.silences = silences

    async def publish(self, subject: str, body: bytes, headers: Mapping[str, str], **more: Any) -> int:
        sequence = await super().publish(subject, body, headers, **more)
        if self.silences:
            self.silences -= 1
            raise PublishOutcomeUnknownError("no answer")
        return sequence


class AbsentBus(MemoryBus):
    """A bus that does not answer the first `absences` reads."""

    absences = 1

    async def last(self, stream: StreamKind, subject: str) -> StoredMessage | None:
        if self.absences:
            self.absences -= 1
            raise BusUnavailableError("no answer: the cluster is electing a leader")
        return await super().last(stream, subject)


async def requests(bus: MemoryBus) -> list[tuple[Envelope, Request]]:
    found = []
    async for stored in bus.read("requests", "pointsman.request.*.*"):
        envelope, body = decode(stored.headers, stored.body)
        assert envelope is not None
        found.append((envelope, parse(Request, body)))
    return found


async def publish(bus: MemoryBus, subject: str, event: Event) -> None:
    envelope = Envelope(id="e", type=event.event_type, source="test", time=START, subject=WORKFLOW)
    await bus.publish(subject, dump(event), encode(envelope))


async def report(bus: MemoryBus, progress: Progress) -> None:
    await publish(bus, f"pointsman.event.crew.{WORKFLOW}.{progress.agent}.{progress.kind}", progress)


async def test_bare_request_is_found_by_its_sequence(bus: MemoryBus, client: Client) -> None:
    first = await bus.publish("pointsman.request.crew.anonymous", b'{"input": "mend it"}', {})
    second = await bus.publish("pointsman.request.crew.anonymous", b'{"input": "mend it"}', {"Nats-Msg-Id": "r-2"})

    found = [await client.workflow_from_sequence(first), await client.workflow_from_sequence(second)]

    assert [workflow.team for workflow in found] == ["crew", "crew"]
    assert found[0].id != found[1].id == workflow_id_for("pointsman.request.crew.anonymous", "r-2")
    with pytest.raises(NotFoundError, match="no request has the sequence 3"):
        await client.workflow_from_sequence(3)


async def test_a_request_is_one_cloudevent_and_its_workflow_is_known_at_once(bus: MemoryBus, client: Client) -> None:
    workflow = await client.submit("crew", "mend it", request_id="r-1", correlation_id="order 7", deadline=5)

    [(envelope, request)] = await requests(bus)
    assert workflow.id == workflow_id_for("pointsman.request.crew.anonymous", "r-1", client.source)
    assert (envelope.id, envelope.type) == ("r-1", "io.pointsman.request.v1")
    assert envelope.source == "/pointsman/client/python"
    assert (envelope.subject, envelope.correlation_id) == (workflow.id, "order 7")
    assert (request.input, request.deadline) == ("mend it", 5)


async def test_the_same_request_id_may_be_sent_to_two_teams(bus: MemoryBus, client: Client) -> None:
    first = await client.submit("crew", "mend it", request_id="r-1")
    second = await client.submit("guards", "watch it", request_id="r-1")

    assert first.id != second.id
    assert [request.input for _, request in await requests(bus)] == ["mend it", "watch it"]


async def test_an_outcome_is_waited_for_while_the_broker_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.engine.log.reader._RECHECK_INTERVAL_S", 0.01)
    bus = AbsentBus()
    await store(bus, started(), ended("completed", 3))
    await publish(bus, f"pointsman.outcome.{TEAM}.{WORKFLOW}", ended("completed", 3).outcome)
    bus.absences = 1

    client = Client(bus)
    outcome = await factory.workflow_of(client, WORKFLOW, TEAM).outcome(timeout=5)

    assert outcome == ended("completed", 3).outcome


async def test_the_same_request_id_is_one_event(bus: MemoryBus, client: Client) -> None:
    first = await client.submit("crew", "mend it", request_id="r-1")
    second = await client.submit("crew", "mend it", request_id="r-1")

    sent = await requests(bus)
    assert first.id == second.id
    assert {(envelope.id, envelope.source) for envelope, _ in sent} == {("r-1", client.source)}
    assert len({dump(request) for _, request in sent}) == 1


async def test_a_silent_broker_is_asked_again_under_the_same_id() -> None:
    bus = SilentBus(2)

    await Client(bus).submit("crew", "mend it")

    assert len(await requests(bus)) == 1


async def test_a_broker_that_stays_silent_is_an_unknown_outcome() -> None:
    with pytest.raises(PublishOutcomeUnknownError):
        await Client(SilentBus(3)).submit("crew", "mend it")


async def test_oversized_request_is_refused_before_it_is_sent() -> None:
    bus = MemoryBus(max_body=2_000)

    with pytest.raises(OversizeEventError, match="too large"):
        await Client(bus).submit("crew", "x" * 3_000)

    assert await requests(bus) == []


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"input": ""}, ContractError),
        ({"input": {"n": float("nan")}}, ContractError),
        ({"input": {"n": object()}}, ContractError),
        ({"input": "x", "deadline": -1}, ContractError),
        ({"input": "x", "team": "a.b"}, InvalidTokenError),
        ({"input": "x", "team": "a b\r\nPUB evil"}, InvalidTokenError),
    ],
)
async def test_invalid_request_is_never_sent(
    bus: MemoryBus, client: Client, given: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await client.submit(**{"team": "crew", **given})

    assert await requests(bus) == []


async def test_late_waiter_gets_the_same_outcome(bus: MemoryBus, client: Client) -> None:
    workflow = factory.workflow_of(client, WORKFLOW, TEAM)
    waiting = asyncio.create_task(workflow.outcome(timeout=5))
    await asyncio.sleep(0)

    await publish(bus, f"pointsman.outcome.{TEAM}.{WORKFLOW}", ended("completed", 3).outcome)

    assert await waiting == await workflow.outcome(timeout=5) == ended("completed", 3).outcome


async def test_an_outcome_that_does_not_come_in_time_is_a_timeout(client: Client) -> None:
    with pytest.raises(
        TimeoutError, match=f"{WORKFLOW} of the team {TEAM} had no outcome .* `pointsman show {WORKFLOW}`"
    ):
        await factory.workflow_of(client, WORKFLOW, TEAM).outcome(timeout=0.01)


async def test_events_are_entries_and_reports_in_order_until_the_workflow_ends(bus: MemoryBus, client: Client) -> None:
    log = completed()
    await store(bus, *log[:7])
    await report(bus, tool("find_bolts", 2, 3))
    await store(bus, *log[7:], number=2)
    await report(bus, tool("too_late", 7, 8))

    async with asyncio.timeout(5):
        events = [event async for event in factory.workflow_of(client, WORKFLOW, TEAM).events()]

    assert events == [*log[:7], tool("find_bolts", 2, 3), *log[7:]]


async def test_domain_events_of_another_shape_are_left_out(bus: MemoryBus, client: Client) -> None:
    await bus.publish(f"pointsman.event.crew.{WORKFLOW}.a.stock_changed", b'{"bolts": 3}', {})
    await store(bus, *completed())

    async with asyncio.timeout(5):
        events = [event async for event in factory.workflow_of(client, WORKFLOW, TEAM).events()]

    assert events == completed()
    assert await client.progress(WORKFLOW) == []


async def test_a_log_of_an_unknown_version_is_not_half_understood(bus: MemoryBus, client: Client) -> None:
    headers = encode(Envelope(id="x", type="io.pointsman.log.v9", source="test", time=START))
    await bus.publish(f"pointsman.log.{TEAM}.{WORKFLOW}", b"{}", headers)

    with pytest.raises(UnknownEventTypeError, match="v9"):
        await client.entries(WORKFLOW)


async def test_unknown_workflow_is_not_found_by_any_call(client: Client) -> None:
    for asked in (client.workflow, client.entries, client.trace):
        with pytest.raises(NotFoundError, match="wf_nowhere"):
            await asked("wf_nowhere")


async def test_the_trace_is_built_from_log_and_reports(bus: MemoryBus, client: Client) -> None:
    await store(bus, *completed())
    await report(bus, tool("find_bolts", 2, 3))

    root = await client.trace(WORKFLOW)

    assert root.children[0].children[1].children[0].children[0].name == "execute_tool find_bolts"


async def test_cancel_is_a_control_event_in_the_teams_inbox(bus: MemoryBus, client: Client) -> None:
    await store(bus, *failing())

    answer = await (await client.workflow(WORKFLOW)).cancel("no longer needed")

    stored = await bus.last("controls", f"pointsman.control.{TEAM}.{WORKFLOW}.*.*.*")
    assert answer is None
    assert stored is not None
    control = parse(Control, stored.body)
    assert (control.action, control.reason) == ("cancel", "no longer needed")


async def test_cancel_of_an_ended_workflow_sends_nothing_and_returns_its_outcome(
    bus: MemoryBus, client: Client
) -> None:
    await store(bus, *completed())

    outcome = await (await client.workflow(WORKFLOW)).cancel()

    assert outcome == ended("completed", 6).outcome
    assert await bus.last("controls", f"pointsman.control.{TEAM}.>") is None


def short(number: int, *, done: bool, team: str = TEAM) -> list[Entry]:
    workflow = f"wf_{number:04}"
    begun: list[Entry] = [started(workflow, seconds=number, team=team, input=f"request {number}")]
    return [*begun, ended("completed", number + 1, workflow=workflow)] if done else begun


EVER, TOKEN = datetime(2999, 1, 1, tzinfo=UTC), f"{WORKFLOW}-q1"
DECIDED = QuestionAnswered(at=at(2), event_id="e", question=TOKEN, verdict="rejected", by="Ann")


async def asking(bus: MemoryBus, expires_at: datetime, *more: Entry) -> None:
    """Return a workflow with an open plan approval and later entries. Its newest commit is not stored yet."""
    question = QuestionAsked(at=at(1), question=TOKEN, about="plan", expires_at=expires_at)
    await store(bus, started(), question, *more, open_questions=(TOKEN,))
    asked = Question(id=TOKEN, workflow_id=WORKFLOW, team=TEAM, about="plan", asked_at=at(1), expires_at=expires_at,
                     reply_to="x")  # fmt: skip
    await publish(bus, f"pointsman.question.crew.{WORKFLOW}.{TOKEN}", asked)


async def test_open_approval_is_listed_until_it_expires() -> None:
    asked = []
    for expires_at in (EVER, at(2)):
        bus = MemoryBus()
        await asking(bus, expires_at)
        asked.append([each.id for each in await Client(bus).operations.questions()])

    assert asked == [[TOKEN], []]


@pytest.mark.parametrize(
    ("expires_at", "more", "said"),
    [
        (EVER, (DECIDED,), f"{TOKEN} was already rejected by Ann; nothing has changed"),
        (EVER, (ended("cancelled", 2),), f"the workflow has ended: cancelled; {TOKEN} is closed"),
        (at(2), (), f"{TOKEN} expired at {at(2).isoformat()} and accepts no answer"),
    ],
)
async def test_an_answer_that_cannot_count_is_not_sent_and_reports_the_reason(
    bus: MemoryBus, client: Client, expires_at: datetime, more: tuple[Entry, ...], said: str
) -> None:
    await asking(bus, expires_at, *more)

    answer = await client.operations.approve(TOKEN, timeout=0)

    assert (answer.counted, answer.message) == (False, said)
    assert [stored.subject async for stored in bus.read("controls", "pointsman.>")] == []


async def test_list_is_newest_first_and_marks_running_workflows(bus: MemoryBus, client: Client) -> None:
    await store(bus, *short(1, done=False), workflow="wf_0001")
    await store(bus, *short(2, done=True), workflow="wf_0002")
    await store(bus, *short(3, done=False), workflow="wf_0003", team="others")
    await store(bus, ended("failed", 9, workflow="wf_0001"), workflow="wf_0001", number=2)

    everything = await client.list()
    crew = await client.list(TEAM, limit=1)

    assert [(each.id, each.status, each.input) for each in everything] == [
        ("wf_0001", "failed", "request 1"),
        ("wf_0003", "running", "request 3"),
        ("wf_0002", "completed", "request 2"),
    ]
    assert [each.id for each in crew] == ["wf_0001"]
    assert (everything[0].started_at, everything[0].ended_at, everything[1].ended_at) == (at(1), at(9), None)


async def test_list_reads_back_only_as_far_as_it_must(bus: MemoryBus, client: Client) -> None:
    for number in range(1_200):
        await store(bus, *short(number, done=True), workflow=f"wf_{number:04}")
    await store(bus, *short(9_000, done=False), workflow="wf_9000")
    for number in range(2, 1_100):
        await store(bus, tool_entry(number), workflow="wf_9000", number=number)

    newest = await client.list(limit=3)
    everything = await client.list(limit=5_000)

    assert [each.id for each in newest] == ["wf_9000", "wf_1199", "wf_1198"]
    assert len(everything) == 1_201


def tool_entry(number: int) -> Entry:
    return TimerArmed(at=at(9_000), name=f"wake-{number}", due=at(9_001))


async def test_a_namespace_without_workflows_lists_none(client: Client) -> None:
    assert list(await client.list()) == []
