"""If several teams use the same agent, they share its slots in turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from pydantic import JsonValue
from support import factory
from support.waiting import until

from pointsman.authoring.agent import Agent
from pointsman.authoring.context import Context
from pointsman.authoring.team_agent import TeamAgent
from pointsman.engine.worker.agent_slots import SlotPool, create_slots
from pointsman.engine.worker.fair_puller import FairPuller
from pointsman.errors import BusUnavailableError
from pointsman_schemas.card import AgentCard
from pointsman_schemas.events import Handoff
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Limits, Pipeline, Stage, Team


def team(name: str) -> Team:
    return Team(
        name=name,
        agents=("a",),
        own_agents=("a",),
        strategy=Pipeline(stages=(Stage(agent="a"),)),
        limits=Limits(deadline=30),
    )


class Recorder(Agent):
    """An agent that records each attempt and counts its openings and closings."""

    def __init__(self, concurrency: int) -> None:
        self._card = AgentCard(name="a", description="Notes the request", concurrency=concurrency)
        self.order: list[str] = []
        self.opened = self.closed = self.running = self.most = 0
        self.gate = asyncio.Event()

    @property
    def card(self) -> AgentCard:
        return self._card

    async def open(self) -> None:
        self.opened += 1

    async def close(self) -> None:
        self.closed += 1

    async def run(self, handoff: Handoff, context: Context) -> JsonValue:
        self.order.append(handoff.from_agent)
        self.running += 1
        self.most = max(self.most, self.running)
        await self.gate.wait()
        await asyncio.sleep(0)
        self.running -= 1
        return "done"


async def test_team_with_few_handoffs_is_served_in_turn_with_a_team_with_many() -> None:
    recorder = Recorder(concurrency=1)
    agents = [TeamAgent(recorder, "big"), TeamAgent(recorder, "small")]
    async with factory.team([team("big"), team("small")], agents) as client:
        many = [await client.submit("big", "hello") for _ in range(30)]
        await until(lambda: recorder.order)
        few = [await client.submit("small", "hello") for _ in range(3)]
        await until(lambda: _queued(client, "small--a", 3))
        recorder.gate.set()
        outcomes = [await workflow.outcome(20) for workflow in (*few, *many)]

    assert {each.status for each in outcomes} == {"completed"}
    assert Counter(recorder.order) == {"big": 30, "small": 3}
    assert [place for place, name in enumerate(recorder.order) if name == "small"][-1] <= 7


async def _queued(client: Any, name: str, count: int) -> bool:
    depth = await client.operations.queue_depth(name)
    return depth is not None and depth.pending + depth.in_flight >= count


async def test_teams_share_the_slots_and_the_agent_is_opened_once() -> None:
    recorder = Recorder(concurrency=3)
    agents = [TeamAgent(recorder, "big"), TeamAgent(recorder, "small")]
    async with factory.team([team("big"), team("small")], agents) as client:
        workflows = [await client.submit(name, "hello") for name in ("big", "small") * 6]
        await until(lambda: recorder.running == 3)
        recorder.gate.set()
        outcomes = [await workflow.outcome(20) for workflow in workflows]

    assert {each.status for each in outcomes} == {"completed"}
    assert recorder.most == 3
    assert (recorder.opened, recorder.closed) == (1, 1)


class Queue:
    """A consumer that gets its deliveries from the test."""

    bound = True

    def __init__(self) -> None:
        self.ready: asyncio.Queue[Any] = asyncio.Queue()
        self.on_their_way: list[Any] = []
        self.withdrawn = 0

    async def take(self, room: int) -> list[Any]:
        if isinstance(found := await self.ready.get(), Exception):
            raise found
        return [found]

    def set_rank(self, rank: int) -> None: ...

    async def close(self) -> None: ...

    async def withdraw(self) -> list[Any]:
        self.withdrawn += 1
        found, self.on_their_way = self.on_their_way, []
        return found


def group(size: int) -> tuple[list[Any], list[Queue]]:
    pool = SlotPool(size)
    slots = [
        create_slots(TeamAgent(Recorder(size), name), "i", Subjects("pointsman"), pool) for name in ("big", "small")
    ]
    queues = [Queue() for _ in slots]
    for each, queue in zip(slots, queues, strict=True):
        each.consumer = queue
    return slots, queues


async def test_full_worker_withdraws_its_requests_and_keeps_what_is_on_its_way() -> None:
    slots, (big, small) = group(1)
    served: list[tuple[str, Any]] = []

    def start(each: Any, delivery: Any) -> None:
        each.acquire()
        served.append((each.name, delivery))

    running = asyncio.create_task(FairPuller(slots).run(start))
    small.on_their_way.append("s1")
    big.ready.put_nowait("b1")
    await until(lambda: small.withdrawn == 1)
    big.ready.put_nowait("b2")
    slots[0].release()
    await until(lambda: len(served) == 2)
    slots[1].release()
    await until(lambda: len(served) == 3)
    running.cancel()

    assert served == [("big--a", "b1"), ("small--a", "s1"), ("big--a", "b2")]
    assert big.withdrawn == 0  # a pull whose delivery has arrived is not withdrawn


async def test_puller_continues_after_the_broker_was_unavailable() -> None:
    slots, (big, small) = group(2)
    served: list[Any] = []
    puller = FairPuller(slots)
    small.ready.put_nowait(BusUnavailableError("gone"))

    try:
        await puller.run(lambda each, delivery: served.append(delivery))
    except BusUnavailableError:
        big.ready.put_nowait("b1")
    running = asyncio.create_task(puller.run(lambda each, delivery: served.append(delivery)))
    await until(lambda: served == ["b1"])
    running.cancel()
