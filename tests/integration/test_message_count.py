"""A workflow stores a fixed number of messages and commits, counted by the sequences of the streams."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import nats
import pytest
from support import factory
from support.factory import planner_of, synthesizer
from support.waiting import until

from pointsman.authoring.agent import Agent, agent
from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.bus.memory.bus import MemoryBroker
from pointsman.bus.stream_names import stream_names
from pointsman.engine.log.reader import read_commit
from pointsman.ports.bus import StreamKind
from pointsman.settings import Settings
from pointsman_schemas.log import TaskSucceeded
from pointsman_schemas.subjects import Subjects

PARALLEL = ("a", "b", "c")
MESSAGES: dict[StreamKind, Counter[str]] = {
    "requests": Counter(request=1),
    "work": Counter(handoff=6, schedule=1),  # planner, a, b, c, join, synthesizer; the timer of the deadline
    "results": Counter(result=6),
    "log": Counter(log=7, outcome=1),  # a commit for the request and for each result
}
"""The messages of one request, a plan, three parallel tasks, a join and a synthesis, by stream and kind."""


def waiting_agent(name: str, go: asyncio.Event) -> Agent:
    """Return an agent that answers when `go` is set."""

    @agent(name=name, description=f"Answers as {name} when the test allows it")
    async def answer(request: str) -> str:
        await go.wait()
        return name

    return answer


@pytest.mark.parametrize("real", [False, True], ids=["memory", "jetstream"])
async def test_workflow_stores_a_fixed_number_of_messages(settings: Settings, bus: JetStreamBus, real: bool) -> None:
    """The test waits after each result, because results that arrive together share a commit."""
    go = {name: asyncio.Event() for name in (*PARALLEL, "join")}
    tasks: list[dict[str, Any]] = [{"id": name, "agent": name, "intent": f"do {name}"} for name in PARALLEL]
    tasks.append({"id": "join", "agent": "join", "intent": "join", "depends_on": [*PARALLEL]})
    agents = [planner_of(*tasks), synthesizer, *(waiting_agent(name, event) for name, event in go.items())]
    async with factory.team(factory.CREW, agents, on=settings if real else None, settled=True) as client:
        workflow = await client.submit("crew", "hello")
        log = client.subjects.log("crew", workflow.id)
        for number, (name, event) in enumerate(go.items(), 3):  # commits 1 and 2 are the request and the plan
            event.set()

            async def committed(name: str = name, number: int = number) -> bool:
                commits = [read_commit(stored) async for stored in client.bus.read("log", log)]
                done = [entry for each in commits for entry in each.entries if isinstance(entry, TaskSucceeded)]
                return len(commits) >= number and name in {entry.task_id for entry in done}

            await until(committed)
        outcome = await workflow.outcome(20)
        kinds = {
            kind: Counter([stored.subject.split(".")[1] async for stored in client.bus.read(kind, ">")])
            for kind in MESSAGES
        }
        ends = await stream_ends(settings) if real else memory_ends(client.broker)

    expected = (
        dict(MESSAGES) if real else {**MESSAGES, "work": Counter(handoff=6)}
    )  # the memory bus stores a schedule, but not as a message
    assert outcome.status == "completed"
    assert kinds == expected
    assert ends == {kind: counts.total() for kind, counts in expected.items()}


def memory_ends(broker: MemoryBroker) -> dict[StreamKind, int]:
    """Return the newest sequence of each stream that stored a message."""
    kinds: tuple[StreamKind, ...] = ("requests", "controls", "results", "work", "log", "dead", "limits", "artifacts")
    return {kind: end for kind in kinds if (end := broker.stream(kind).end)}


async def stream_ends(settings: Settings) -> dict[StreamKind, int]:
    """Return the newest sequence of each stream that stored a message, as the broker reports it."""
    connection = await nats.connect(settings.url)
    streams = connection.jetstream()
    names = stream_names(Subjects(settings.namespace), apart=False)
    ends = {
        kind: (await streams.stream_info(name)).state.last_seq for kind, name in names.items() if kind != "handoffs"
    }
    await connection.close()
    return {kind: end for kind, end in ends.items() if end}
