"""One follower of the log serves all streams. A slow stream reads the log itself, and the loss of the log ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime

import pytest
from support.history import TEAM, WORKFLOW, completed, store
from support.waiting import until

from pointsman.bus.memory.bus import MemoryBus
from pointsman.client.client import Client
from pointsman.client.workflow import Workflow
from pointsman.gateway.feed import LogFeed, StreamResetError, Subscription
from pointsman.gateway.streams import LogEvent, Position, WorkflowStreams
from pointsman.ports.bus import StoredMessage
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Delta
from pointsman_schemas.log import Entry
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

WAIT_S = 10.0  # seconds to wait for an expected event, enough for a busy machine


@asynccontextmanager
async def following(bus: MemoryBus) -> AsyncIterator[tuple[WorkflowStreams, Workflow, LogFeed]]:
    client = Client(bus)
    feed = LogFeed(bus, client.subjects)
    running = asyncio.create_task(feed.run())
    workflow = Workflow(bus, client.subjects, WORKFLOW, TEAM, source=client.source)
    try:
        async with asyncio.timeout(WAIT_S):
            await feed.current.wait()
            yield WorkflowStreams(client, feed), workflow, feed
    finally:
        running.cancel()


async def commits(bus: MemoryBus, entries: list[Entry]) -> None:
    for entry in entries:
        await store(bus, entry)


async def test_a_stream_that_is_far_behind_gets_every_entry_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.gateway.feed._MAX_QUEUED", 2)
    bus, entries = MemoryBus(), completed()
    async with following(bus) as (streams, workflow, feed), aclosing(streams.follow(workflow)) as items:
        await store(bus, *entries[:1])
        first = await anext(items)
        await commits(bus, entries[1:])
        await asyncio.sleep(0.05)  # the feed has sent all events, so the queue of the stream is full
        rest = [item async for item in items]

        assert feed.streams == 0
    events = [item for item in (first, *rest) if isinstance(item, LogEvent)]
    assert [event.entry.kind for event in events] == [entry.kind for entry in entries]
    assert [event.position for event in events] == sorted({event.position for event in events})


async def test_a_stream_continues_after_any_position() -> None:
    bus, entries = MemoryBus(), completed()
    await store(bus, *entries[:3])
    await store(bus, *entries[3:])
    async with following(bus) as (streams, workflow, _):

        async def after(position: Position | None) -> list[Position]:
            async with aclosing(streams.follow(workflow, after=position)) as items:
                return [item.position async for item in items if isinstance(item, LogEvent)]

        every = await after(None)
        rests = [await after(position) for position in every[:-1]]

    assert len(every) == len(entries)
    assert rests == [every[number:] for number in range(1, len(every))]


async def test_an_idle_stream_sends_only_keep_alives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.gateway.streams.KEEPALIVE_INTERVAL_S", 0.01)
    async with (
        following(MemoryBus()) as (streams, workflow, _),
        aclosing(streams.follow(workflow)) as items,
    ):
        assert [await anext(items) for _ in range(3)] == [None] * 3


async def test_a_stream_ends_when_the_gateway_stops() -> None:
    async with following(MemoryBus()) as (streams, workflow, _), aclosing(streams.follow(workflow)) as items:
        waiting = asyncio.ensure_future(anext(items))
        await asyncio.sleep(0.01)
        streams.stop()

        with pytest.raises(StreamResetError):
            await waiting


async def test_a_stream_ends_when_the_gateway_stops_during_the_sending_of_an_entry() -> None:
    """Without this error, a front end could not tell the stop from the end of the client, and would cancel the work."""
    bus, entries = MemoryBus(), completed()
    await store(bus, entries[0])
    async with following(bus) as (streams, workflow, _), aclosing(streams.follow(workflow)) as items:
        await anext(items)
        streams.stop()

        with pytest.raises(StreamResetError):
            await anext(items)
    async with following(bus) as (streams, workflow, _), aclosing(streams.follow(workflow)) as items:
        streams.stop()

        with pytest.raises(StreamResetError):
            await anext(items)


async def test_a_full_queue_drops_reports_and_leaves_entries_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = MemoryBus()
    await store(bus, *completed())
    (stored,) = [each async for each in bus.read("log", f"pointsman.log.{TEAM}.{WORKFLOW}")][:1]
    subscription = Subscription()
    for _ in range(100):
        subscription.post(stored)

    taken: list[StoredMessage] = []
    while isinstance(item := await subscription.next(1.0), StoredMessage):
        taken.append(item)

    assert (item, len(taken)) == (None, 32)
    with pytest.raises(TimeoutError):
        await subscription.next(0.01)


async def test_text_that_a_slow_stream_missed_arrives_with_the_next_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.gateway.feed._MAX_QUEUED", 2)
    words = ["one ", "two ", "three ", "four "]
    bus = MemoryBus()

    async def say(text: str, offset: int) -> None:
        piece = Delta(workflow_id=WORKFLOW, task_id="s", attempt=1, agent="a", call="c", offset=offset, text=text)
        about = Envelope(id=f"{offset}", type=Delta.event_type, source="/test", time=datetime.now(UTC))
        await bus.broadcast(Subjects().delta(TEAM, WORKFLOW, "a"), dump(piece), encode(about))

    async with following(bus) as (streams, workflow, feed), aclosing(streams.follow(workflow, text=True)) as items:
        waiting = asyncio.ensure_future(anext(items))
        await until(lambda: feed.streams == 1)
        await asyncio.sleep(0.01)
        for number, word in enumerate(words):  # the queue has room for two pieces
            await say(word, len("".join(words[:number])))
        got = [await waiting, await anext(items)]
        await say("".join(words), 0)
        got.append(await anext(items))

    assert [piece.text for piece in got if isinstance(piece, Delta)] == ["one ", "two ", "three four "]
