"""A full or deleted dead-letter stream loses no event, because an event is acknowledged only after its dead letter."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support import factory
from support.crew import planner, steps, synthesizer, team, worker
from support.doctor import doctor
from support.waiting import until

from pointsman.authoring.agent import Agent
from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.client.client import Client, Workflow
from pointsman.engine.operations.dead_letter_entry import DeadLetterEntry
from pointsman.engine.supervisor import acknowledger
from pointsman.ports.bus import StreamKind
from pointsman.settings import Settings

pytestmark = pytest.mark.timeout(60)

CREW: list[Agent] = [planner, synthesizer, worker]
LETTERS = 4  # one of a request, a task, a control and a handoff
DURABLES: Sequence[tuple[str, StreamKind]] = (
    ("request-crew", "requests"),
    ("control-crew", "controls"),
    ("agent-worker", "work"),
)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledger, "_RETRY_PAUSE_S", 0.2)


async def bound(bus: JetStreamBus, **limits: Any) -> None:
    """Set the limits of the dead-letter stream, which refuses messages beyond its limits."""
    name = Client(bus, namespace=bus._subjects.namespace).subjects.dead_letter_stream
    config = (await bus.api(f"STREAM.INFO.{name}"))["config"]
    answer = await bus.api(f"STREAM.UPDATE.{name}", {**config, "discard": "new", **limits})
    assert "error" not in answer, answer


async def fill(bus: JetStreamBus, client: Client, kind: str) -> None:
    await bus.publish(client.subjects.dead_letter("filler", None, "first"), b"", {})
    state = (await bus.api(f"STREAM.INFO.{client.subjects.dead_letter_stream}"))["state"]
    await bound(bus, **{f"max_{'msgs' if kind == 'messages' else kind}": state[kind]})


async def send_unprocessable_events(client: Client, mended: Path) -> tuple[Workflow, Workflow, Workflow]:
    """Publish a failing request, a failing task, an unreadable control of a running workflow, and an unreadable
    handoff."""
    bus, subjects = client.bus, client.subjects
    request = await client.workflow_from_sequence(
        await bus.publish(subjects.request("crew", "anonymous"), b"not json", {})
    )
    task = await client.submit("crew", steps("t1", from_attempt=9, mended_by=str(mended)))
    open_ended = await client.submit("crew", steps("t2", after=str(mended)))
    await until(lambda: bus.last("log", subjects.log("crew", open_ended.id)))
    await bus.publish(subjects.control("crew", open_ended.id, "cancel", "ada", "c1"), b"not json", {})
    await bus.publish(subjects.handoff("worker", "crew", "wf_none", "t9", 1), b"not json", {})
    return request, task, open_ended


async def settled(client: Client) -> bool:
    depths = [await client.bus.depth(*durable) for durable in DURABLES]
    return [depth and (depth.pending, depth.in_flight) for depth in depths] == [(0, 0), (0, 0), (0, 1)]


async def is_kept(client: Client, name: str) -> bool:
    """Return True if the first unprocessable message of the consumer `name` is not acknowledged."""
    subjects = client.subjects
    first = {
        "request-crew": subjects.request("crew", "anonymous"),
        "control-crew": subjects.team_controls("crew"),
        "agent-worker": subjects.handoff("worker", "crew", "wf_none", "t9", 1),
    }[name]
    stream = dict(DURABLES)[name]
    depth = await client.bus.depth(name, stream)
    (sequence, *_) = [stored.sequence async for stored in client.bus.read(stream, first)]
    return depth is not None and depth.settled_through < sequence


async def letters_of(client: Client) -> Sequence[DeadLetterEntry]:
    store = client.operations
    return [letter for origin in ("crew", "worker") for letter in await store.dead_letters(origin=origin)]


async def all_letters(client: Client) -> Sequence[DeadLetterEntry]:
    found = await letters_of(client)
    return found if len(found) >= LETTERS else ()


async def check_replays(client: Client, request: Workflow, task: Workflow, open_ended: Workflow, mended: Path) -> None:
    """Check that each letter exists once and that letters of workflows can be replayed."""
    letters = await until(lambda: all_letters(client))
    # The only unsettled handoff belongs to the workflow that waits for the repair.
    await until(lambda: settled(client))
    by_subject = {letter.content.subject.split(".")[1]: letter for letter in await letters_of(client)}
    kept = sorted((letter.content.workflow_id, letter.content.subject.split(".")[1]) for letter in letters)
    store = client.operations
    failed = next(letter for letter in letters if letter.content.workflow_id == task.id)

    event = await store.replay(by_subject["control"])
    await asyncio.to_thread(mended.touch)
    again = await store.replay(by_subject["request"])
    renewed = await store.replay(failed, as_new=True)
    outcome = await factory.workflow_of(client, renewed.workflow).outcome(20)
    untouched = await open_ended.outcome(10)

    assert kept == sorted(
        [(request.id, "request"), (open_ended.id, "control"), (task.id, "handoff"), ("wf_none", "handoff")]
    )
    assert len({letter.content.id for letter in letters}) == LETTERS
    assert (event.action, again.action, renewed.action) == ("event", "request", "request")
    assert (outcome.status, outcome.answer, untouched.status) == ("completed", "t1", "completed")


@pytest.mark.parametrize("kind", ["messages", "bytes"])
async def test_message_is_kept_while_the_dead_letter_stream_is_full(
    bus: JetStreamBus, settings: Settings, tmp_path: Path, kind: str
) -> None:
    mended = tmp_path / "mended"
    async with factory.team(team, CREW, on=settings) as client:
        await fill(bus, client, kind)
        with capture_logs() as lines:
            request, task, open_ended = await send_unprocessable_events(client, mended)
            told = await request.outcome(10)
            said = {"inputs_returned", "dead_letter_store_failed", "waiting_for_broker"}
            await until(lambda: said <= {line["event"] for line in lines})
            await until(lambda: _committed_end(client, task.id))
        kept = [await is_kept(client, name) for name, _ in DURABLES]
        stored, seen = await letters_of(client), await doctor(settings)
        early = await client.bus.last("log", client.subjects.outcome("crew", task.id))

        await bound(bus, max_msgs=-1, max_bytes=-1)
        outcome = await task.outcome(10)
        await check_replays(client, request, task, open_ended, mended)
        sound = await doctor(settings)

    assert (told.status, outcome.status) == ("failed", "failed")
    assert (stored, early) == ([], None)
    assert all(kept), kept
    refused = [line for line in lines if line["event"] in said]
    assert all("maximum" in line.get("reason", line.get("error")) for line in refused)
    assert all("pointsman doctor" in line["hint"] for line in refused)
    assert f"{kind} of at most" in seen["dead letters"]["finding"]
    assert f"nats stream edit {client.subjects.dead_letter_stream}" in seen["dead letters"]["advice"]
    assert "dead letters" not in sound
    assert "broker" not in sound


async def test_deleted_dead_letter_stream_is_created_again_on_demand(
    bus: JetStreamBus, settings: Settings, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"
    async with factory.team(team, CREW, on=settings) as client:
        await bus.api(f"STREAM.DELETE.{client.subjects.dead_letter_stream}")
        seen = await doctor(settings)
        with capture_logs() as lines:
            request, task, open_ended = await send_unprocessable_events(client, mended)
            told, outcome = await request.outcome(10), await task.outcome(10)
            await check_replays(client, request, task, open_ended, mended)
        sound = await doctor(settings)

    assert (told.status, outcome.status) == ("failed", "failed")
    assert client.subjects.dead_letter_stream in seen["namespace"]["finding"]
    assert "creates the namespace" in seen["namespace"]["advice"]
    assert client.subjects.dead_letter_stream in {line["stream"] for line in lines if line["event"] == "stream_lost"}
    assert "namespace" not in sound


async def test_full_bounded_dead_letter_stream_loses_nothing(bus: JetStreamBus, settings: Settings) -> None:
    await bound(bus, max_msgs=1_000)

    await bus.set_up()

    assert await bus.capacity_problem("dead") == ""


async def _committed_end(client: Client, workflow: str) -> bool:
    return any(entry.kind == "workflow_ended" for entry in await client.entries(workflow))
