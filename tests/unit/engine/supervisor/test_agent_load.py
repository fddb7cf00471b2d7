"""On the memory bus, work for a skill goes to the agent with the shorter queue and the faster answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from support.core import judged_stage
from support.factory import planner_of
from support.waiting import until

from pointsman.authoring.agent import Agent, agent
from pointsman.bus.memory.bus import MemoryBus
from pointsman.client.client import Client
from pointsman.core.model.agent_health import Load
from pointsman.engine.process.consumers import consumer_name
from pointsman.engine.supervisor.agent_load import AgentLoads
from pointsman.errors import BusUnavailableError
from pointsman.ports.bus import QueueDepth, StreamKind
from pointsman.testing import running_team
from pointsman_schemas.events import AttemptError, Result
from pointsman_schemas.log import AttemptFailed, Entry, TaskDispatched, TaskSucceeded
from pointsman_schemas.team import Limits, Pipeline, PlanAndExecute, Stage, Team

NOW = datetime(2026, 1, 5, tzinfo=UTC)
TEAM = Team(name="crew", strategy=PlanAndExecute(synthesizer=None), limits=Limits(deadline=30))
PLANNER = planner_of({"id": "t1", "skill": "translation", "intent": "translate it"})


class StillClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class CountingBus(MemoryBus):
    """A bus that reports five pending and two in-flight messages for every queue except "new", and counts calls."""

    asked = 0
    away = False

    async def depth(self, name: str, stream: StreamKind) -> QueueDepth | None:
        type(self).asked += 1
        if self.away:
            raise BusUnavailableError("away")
        known = stream == "handoffs" and name != consumer_name("new")
        return QueueDepth(pending=5, in_flight=2) if known else None


def dispatched(name: str) -> Entry:
    return TaskDispatched(at=NOW, task_id="t1", attempt=1, agent=name, deadline=NOW, span_id="0" * 16)


def result(name: str, seconds: float, error: AttemptError | None = None) -> Result:
    return Result(
        workflow_id="wf_1", task_id="t1", attempt=1, agent=name, status="failed" if error else "succeeded", error=error,
        started_at=NOW, ended_at=NOW + timedelta(seconds=seconds),
    )  # fmt: skip


def answered(name: str, seconds: float) -> Entry:
    return TaskSucceeded(at=NOW, task_id="t1", attempt=1, event_id="e", result=result(name, seconds))


def failed(name: str) -> Entry:
    error = AttemptError(kind="handler_error", message="no")
    given = result(name, 0.001, error)
    return AttemptFailed(at=NOW, task_id="t1", attempt=1, event_id="e", error=error, result=given)


def unheard() -> Entry:
    return AttemptFailed(
        at=NOW, task_id="t1", attempt=1, event_id="e", error=AttemptError(kind="timeout", message="late")
    )


async def test_broker_is_asked_once_a_second_and_changes_are_counted_meanwhile() -> None:
    bus, clock = CountingBus(), StillClock()
    CountingBus.asked = 0
    loads = AgentLoads(bus, clock)

    looked = [await loads.refresh(["a", "b"]) for _ in range(3)]
    entries = [dispatched("a"), dispatched("a"), failed("a"), unheard(), dispatched("c")]
    loads.record_decision(entries)
    loads.record_commit(None, entries)

    assert looked == [True, False, False]
    assert CountingBus.asked == 2
    assert loads.known == {"a": Load(queued=8), "b": Load(queued=7)}
    loads.record_commit(None, [failed("a")] * 9)
    assert loads.known["a"].queued == 0
    clock.seconds = 0.9
    assert not await loads.refresh(["a"])
    clock.seconds = 1
    assert await loads.refresh(["a"])
    assert loads.known["a"] == Load(queued=7)


async def test_task_duration_is_an_expiring_moving_average_of_successes() -> None:
    bus, clock = CountingBus(), StillClock()
    loads = AgentLoads(bus, clock)
    loads.record_commit(None, [answered("a", 1.0), failed("a"), answered("a", 2.0)])

    await loads.refresh(["a"])
    assert loads.known["a"].seconds == 1.2
    loads.record_commit(None, [answered("a", 1.2)])
    assert loads.known["a"].seconds == 1.2
    clock.seconds += 59
    await loads.refresh(["a"])
    assert loads.known["a"].seconds == 1.2
    clock.seconds += 61
    await loads.refresh(["a"])
    assert loads.known["a"].seconds is None
    loads.record_commit(None, [answered("a", 3.0)])
    assert loads.known["a"].seconds == 3.0, "the new average must not include forgotten answers"
    clock.seconds += 59
    await loads.refresh(["a"])
    assert loads.known["a"].seconds == 3.0


async def test_negative_duration_counts_as_zero() -> None:
    loads = AgentLoads(CountingBus(), StillClock())

    loads.record_commit(None, [answered("a", -5.0)])

    await loads.refresh(["a"])
    assert loads.known["a"].seconds == 0.0


@pytest.mark.parametrize(("said", "ahead"), [("pass", 6), ("again", 7), ("stop", 6)])
async def test_agent_under_review_is_idle(said: str, ahead: int) -> None:
    loads, story = AgentLoads(CountingBus(), StillClock()), judged_stage()
    await loads.refresh(["write"])

    loads.record_commit(story.state, story.complete_task("write"))
    asked = loads.known["write"]
    before, entries = story.state, story.complete_task("judge-write", {"verdict": said, "reason": "so"})
    loads.record_decision(entries)
    loads.record_commit(before, entries)

    assert asked == Load(queued=6, seconds=2.0)
    assert loads.known["write"].queued == ahead, "a returned task must be counted as queued"


async def test_silent_broker_delays_no_decision() -> None:
    bus = CountingBus()
    bus.away = True

    loads = AgentLoads(bus, StillClock())

    assert await loads.refresh(["a"])
    assert loads.known["a"] == Load()


async def test_an_agent_that_has_no_queue_yet_has_nothing_before_it() -> None:
    loads = AgentLoads(CountingBus(), StillClock())

    await loads.refresh(["new"])

    assert loads.known == {"new": Load()}


async def test_concurrent_reads_share_one_query() -> None:
    CountingBus.asked = 0
    loads = AgentLoads(CountingBus(), StillClock())

    await asyncio.gather(*(loads.refresh(["a"]) for _ in range(20)))

    assert CountingBus.asked == 1


def translator(name: str, seconds: float, seen: Counter[str], *, concurrency: int = 1) -> Agent:
    @agent(name=name, description=f"Translates as {name}", skills=["translation"], concurrency=concurrency)
    async def translate(request: str) -> str:
        seen[name] += 1
        await asyncio.sleep(seconds)
        return name

    return translate


async def test_the_agent_with_the_empty_queue_gets_the_work_of_a_skill() -> None:
    seen: Counter[str] = Counter()
    gate = asyncio.Event()

    @agent(name="alpha", description="Translates", skills=["translation"], concurrency=1)
    async def alpha(request: str) -> str:
        seen["alpha"] += 1
        await gate.wait()
        return "alpha"

    other = Team(name="other", strategy=Pipeline(stages=(Stage(agent="alpha"),)), limits=Limits(deadline=30))
    async with running_team([TEAM, other], [alpha, translator("beta", 0.0, seen), PLANNER]) as client:
        busy = [await client.submit("other", "work for alpha") for _ in range(5)]
        await until(lambda: _waits(client, "alpha", 5))
        outcomes = [await (await client.submit("crew", "translate")).outcome(10) for _ in range(4)]
        gate.set()
        for workflow in busy:
            await workflow.outcome(10)

    assert {outcome.status for outcome in outcomes} == {"completed"}
    assert seen == {"alpha": 5, "beta": 4}


async def test_an_agent_that_left_gets_no_more_work_of_its_skill() -> None:
    seen: Counter[str] = Counter()
    async with running_team(TEAM, [translator("alpha", 0.0, seen), translator("beta", 0.0, seen), PLANNER]) as client:
        cards = await client.operations.agents()
        (alpha,) = [card for card in cards if card.name == "alpha"]
        await client.bus.registry.withdraw(alpha)
        seen.clear()
        for _ in range(4):
            await (await client.submit("crew", "translate")).outcome(10)

    assert seen == {"beta": 4}


async def _waits(client: Client, name: str, count: int) -> bool:
    queue = await client.operations.queue_depth(name)
    return queue is not None and queue.pending + queue.in_flight >= count
