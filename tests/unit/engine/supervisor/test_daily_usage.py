"""Each supervisor refuses a request above a daily limit of its team or caller, also after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from support import factory
from support.core import admission
from support.history import ended

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.bus.memory.bus import MemoryBroker, MemoryBus
from pointsman.client.client import Client
from pointsman.clock import SystemClock
from pointsman.core.model.inputs import RequestReceived, RequestRefused
from pointsman.engine.supervisor import daily_usage
from pointsman.engine.supervisor.daily_usage import DailyUsage
from pointsman.engine.supervisor.inbound import InboundInput
from pointsman.ports.bus import Bus, StoredMessage, StreamKind
from pointsman.testing.clock import VirtualClock
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import ErrorKind, Outcome, Request, Usage
from pointsman_schemas.ids import outcome_id
from pointsman_schemas.log import WorkflowEnded
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import DailyLimits, Limits, Pipeline, Stage, Team

SUBJECTS = Subjects("pointsman")
USED = Usage(calls=1, input_tokens=60, output_tokens=40, cost=0.5)
SOLO = Pipeline(stages=(Stage(agent="a"),))


def team(name: str = "crew", **limits: Any) -> Team:
    return Team(name=name, strategy=SOLO, limits=Limits(deadline=30), **limits)


@agent(name="a", description="Uses a model once")
async def spending(request: str, context: Context) -> str:
    context.record_usage(USED)
    return request


class DayClock(SystemClock):
    """A clock that starts at noon, because the sums of a day begin again at midnight."""

    def __init__(self) -> None:
        self._ahead = datetime(2026, 3, 1, 12, tzinfo=UTC) - super().now()

    def now(self) -> datetime:
        return super().now() + self._ahead


async def ended_as(client: Client, caller: str = "ada", to: str = "crew") -> str:
    """Return the status of a caller's new workflow. For a refused request, return the kind of the refusal."""
    client.user = caller
    workflow = await client.submit(to, "hello")
    await workflow.outcome(20)
    end = (await client.entries(workflow.id))[-1]
    assert isinstance(end, WorkflowEnded)
    return end.refusal.kind if end.refusal else end.outcome.status


async def statuses(client: Client, *callers: str) -> list[str]:
    return [await ended_as(client, caller) for caller in callers]


@pytest.mark.parametrize(
    "limits", [DailyLimits(calls=2), DailyLimits(tokens=200), DailyLimits(cost=1.0)], ids=["calls", "tokens", "cost"]
)
async def test_team_that_has_used_its_limit_refuses_requests(limits: DailyLimits) -> None:
    async with factory.team(team(daily=limits), [spending], clock=DayClock(), settled=True) as client:
        found = await statuses(client, "ada", "bob", "ada")
        workflow = await client.submit("crew", "hello")
        outcome = await workflow.outcome(10)

    assert found == ["completed", "completed", ErrorKind.DAILY_LIMIT]
    assert outcome.status == "failed"
    assert "the team crew has used" in outcome.reason
    assert "of a day (UTC)" in outcome.reason
    assert "Send the request again after midnight (UTC)" in str(outcome.answer)


async def test_one_caller_that_has_used_its_limit_leaves_the_others_theirs() -> None:
    async with factory.team(
        team(daily_per_caller=DailyLimits(calls=2)), [spending], clock=DayClock(), settled=True
    ) as client:
        found = await statuses(client, "ada", "ada", "ada", "bob", "ada")

    assert found == ["completed", "completed", ErrorKind.DAILY_LIMIT, "completed", ErrorKind.DAILY_LIMIT]


async def test_two_teams_have_sums_of_their_own() -> None:
    teams = [team(daily=DailyLimits(calls=1)), team("guards", daily=DailyLimits(calls=1))]
    async with factory.team(teams, [spending], clock=DayClock(), settled=True) as client:
        found = [await ended_as(client, to=name) for name in ("crew", "guards", "crew", "guards")]

    assert found == ["completed", "completed", ErrorKind.DAILY_LIMIT, ErrorKind.DAILY_LIMIT]


async def test_task_of_another_team_counts_for_both_and_is_refused() -> None:
    """The task's usage is in the outcomes of both teams. The parent is a caller of the child."""
    above = Team(name="above", strategy=Pipeline(stages=(Stage(agent="crew"),)), limits=Limits(deadline=30))
    child = team(daily_per_caller=DailyLimits(calls=1))
    async with factory.team([above, child], [spending], clock=DayClock(), settled=True) as client:
        first, second = [await (await client.submit("above", "hello")).outcome(20) for _ in range(2)]

    assert (first.status, first.usage.calls) == ("completed", 1)
    assert second.status == "failed"
    assert "above with the team crew has used 1 of the 1 calls of a day (UTC)" in second.reason


async def test_restarted_supervisors_count_what_was_used_before() -> None:
    clock, crew = DayClock(), team(daily=DailyLimits(calls=2))
    broker = MemoryBroker(clock=clock)
    async with factory.team(crew, [spending], broker=broker, clock=clock, settled=True) as client:
        before = await statuses(client, "ada", "ada")
    async with factory.team(crew, [spending], broker=broker, clock=clock, supervisors=2, settled=True) as client:
        after = await statuses(client, "ada", "bob")

    assert before == ["completed"] * 2
    assert after == [ErrorKind.DAILY_LIMIT] * 2


async def store_outcome(bus: Bus, workflow: str, usage: Usage, *, round: int = 1, imported: bool = False) -> None:
    """Store the outcome of a round. Its usage is the sum of all rounds so far."""
    outcome = ended("completed", 0, workflow=workflow).outcome
    outcome = outcome.model_copy(update={"usage": usage, "round": round, "caller": "ada"})
    envelope = Envelope(
        id=outcome_id(workflow, round), type=Outcome.event_type, source="test", time=outcome.ended_at, subject=workflow
    )
    more = {"Pointsman-Imported": "other"} if imported else {}
    await bus.publish(SUBJECTS.outcome("crew", workflow), dump(outcome), {**encode(envelope), **more})


class CountingBus(MemoryBus):
    """A bus that counts its reads of streams."""

    reads = 0

    async def read(self, stream: StreamKind, subject: str, *, after: int = 0) -> AsyncIterator[StoredMessage]:
        self.reads += 1
        await asyncio.sleep(0)  # a real broker does not answer at once
        async for stored in super().read(stream, subject, after=after):
            yield stored


async def refused(usage: DailyUsage) -> bool:
    """Check the limits for another request of the caller `ada`."""
    received = RequestReceived(admission(SOLO, Limits()), Request(input="hello"))
    asked = InboundInput(received, cast(Any, None), "e")
    await usage.refuse([asked])
    return isinstance(asked.input, RequestRefused)


@pytest.fixture
def clock() -> VirtualClock:
    """Return a clock that starts at noon of a day."""
    return VirtualClock(datetime(2026, 3, 1, 12, tzinfo=UTC))


@pytest.fixture
def bus(clock: VirtualClock) -> MemoryBus:
    return MemoryBus(clock=clock)


def usage_of(bus: Bus, clock: VirtualClock, calls: int = 2) -> DailyUsage:
    return DailyUsage(bus, SUBJECTS, clock, team(daily=DailyLimits(calls=calls)))


async def test_limit_begins_again_at_midnight(bus: MemoryBus, clock: VirtualClock) -> None:
    usage = usage_of(bus, clock)
    for number in range(2):
        await store_outcome(bus, f"wf_{number}", USED)
    today = await refused(usage)

    await clock.advance(timedelta(hours=12, seconds=1).total_seconds())

    assert (today, await refused(usage), await refused(usage_of(bus, clock))) == (True, False, False)


async def test_new_process_searches_back_to_midnight_only(
    bus: MemoryBus, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daily_usage, "_FIRST_WINDOW", 2)
    for number in range(40):
        await store_outcome(bus, f"wf_old{number}", USED)
    await clock.advance(timedelta(hours=12, seconds=1).total_seconds())
    for number in range(10):
        await store_outcome(bus, f"wf_{number}", USED)

    assert not await refused(usage_of(bus, clock, calls=11))
    assert await refused(usage_of(bus, clock, calls=10))


async def test_resumed_workflow_counts_what_its_new_round_used(bus: MemoryBus, clock: VirtualClock) -> None:
    await store_outcome(bus, "wf_1", USED)
    await clock.advance(timedelta(hours=12, seconds=1).total_seconds())
    await store_outcome(bus, "wf_1", USED + USED, round=2)

    assert not await refused(usage_of(bus, clock, calls=2))
    assert await refused(usage_of(bus, clock, calls=1))


async def test_imported_and_foreign_messages_count_for_nothing(bus: MemoryBus, clock: VirtualClock) -> None:
    await store_outcome(bus, "wf_1", USED, imported=True)
    await bus.publish(SUBJECTS.outcome("crew", "wf_2"), b"{}", {})

    assert not await refused(usage_of(bus, clock, calls=1))


async def test_callers_beyond_the_bound_share_one_sum(
    bus: MemoryBus, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daily_usage, "_MAX_CALLERS", 0)
    usage = DailyUsage(bus, SUBJECTS, clock, team(daily_per_caller=DailyLimits(calls=1)))
    await store_outcome(bus, "wf_1", USED)

    assert await refused(usage)


async def test_concurrent_requests_share_a_read(clock: VirtualClock) -> None:
    bus = CountingBus(clock=clock)
    usage = usage_of(bus, clock)

    await asyncio.gather(*(refused(usage) for _ in range(50)))

    assert bus.reads == 2  # one read for the first request, one for all requests that arrived during this read
