"""On a real broker, no caller or team can block a request id of another caller or team."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import nats
import pytest
from nats.js.errors import APIError
from support import factory
from support.factory import echo, planner_of, synthesizer
from support.waiting import until

from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.settings import Settings
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import DeadLetter, Request
from pointsman_schemas.ids import stable_digest, workflow_id_for
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Limits, Team

TASK = {"id": "t1", "agent": "a", "intent": "do the thing"}
CREW, GUARDS = (Team(name=name, limits=Limits(deadline=30)) for name in ("crew", "guards"))
AGENTS = [planner_of(TASK), synthesizer, echo("a")]
BODY = dump(Request(input="amount 1"))


def event(id: str) -> dict[str, str]:
    """Return the headers of a CloudEvent from another system."""
    return encode(Envelope(id=id, type=Request.event_type, source="/shop", time=datetime.now(UTC)))


async def test_guessed_request_id_suppresses_no_request(bus: JetStreamBus, settings: Settings) -> None:
    """A caller that knows another caller's next request id and body publishes all message ids derived from them."""
    subjects = Subjects(settings.namespace)
    async with factory.team(CREW, AGENTS, on=settings) as client:
        victim = subjects.request("crew", client.user)
        workflow_id = workflow_id_for(victim, "order-1", client.source)
        foreign_id = workflow_id_for(victim, "order-2", "/shop")
        guesses = ["order-1", "order-2", workflow_id, foreign_id, f"{workflow_id}-{stable_digest(BODY)}"]
        for guess in guesses:
            await bus.publish(subjects.request("crew", "mallory"), b"{}", {}, message_id=guess)

        submitted = await client.submit("crew", "amount 1", request_id="order-1")
        await bus.publish(victim, BODY, event("order-2"))
        outcomes = [await submitted.outcome(20), await factory.workflow_of(client, foreign_id, "crew").outcome(20)]

    assert [each.workflow_id for each in outcomes] == [workflow_id, foreign_id]
    assert {each.status for each in outcomes} == {"completed"}


async def test_publisher_of_a_suppressed_request_sees_it_and_publishes_again(
    bus: JetStreamBus, settings: Settings
) -> None:
    """The broker drops a message with another caller's bare `Nats-Msg-Id` until the duplicate window has passed."""
    subjects = Subjects(settings.namespace)
    mine, id = subjects.request("crew", "shop"), {"Nats-Msg-Id": "order-1"}
    async with await nats.connect(settings.url) as connection:
        stream = connection.jetstream()

        async def stored() -> bool:
            return not (await stream.publish(mine, BODY, headers=id)).duplicate

        # Both are sent before either answer, because the window is only 100 ms long.
        _, lost = await asyncio.gather(
            stream.publish(subjects.request("crew", "mallory"), b"{}", headers=id),
            stream.publish(mine, BODY, headers=id),
        )
        before = await bus.last("requests", mine)
        await until(stored)

    found = await bus.last("requests", mine)
    assert (lost.duplicate, before) == (True, None)
    assert found is not None
    assert found.body == BODY


async def test_broker_accepts_no_shorter_window_of_duplicates(settings: Settings, namespace: str) -> None:
    """If this test fails, the broker allows a shorter window. Then shorten the window that docs/security.md states."""
    async with await nats.connect(settings.url) as connection:
        stream = connection.jetstream()
        with pytest.raises(APIError, match="duplicates window needs to be >= 100ms"):
            await stream.add_stream(name=namespace, subjects=[namespace], duplicate_window=0.099)
        made = await stream.add_stream(name=namespace, subjects=[namespace], duplicate_window=0)
        await stream.delete_stream(namespace)

    assert made.config.duplicate_window == 120


async def test_two_teams_serve_requests_with_one_id(bus: JetStreamBus, settings: Settings) -> None:
    subjects = Subjects(settings.namespace)
    async with factory.team([CREW, GUARDS], AGENTS, on=settings) as client:
        submitted = [await client.submit(team, "amount 1", request_id="order-1") for team in ("crew", "guards")]
        for team in ("crew", "guards"):
            await bus.publish(subjects.request(team, "shop"), BODY, event("order-1"))
        foreign = [
            factory.workflow_of(client, workflow_id_for(subjects.request(team, "shop"), "order-1", "/shop"), team)
            for team in ("crew", "guards")
        ]
        outcomes = [await workflow.outcome(20) for workflow in (*submitted, *foreign)]

    assert len({each.workflow_id for each in outcomes}) == 4
    assert {each.status for each in outcomes} == {"completed"}


async def test_request_that_is_sent_again_is_one_workflow(bus: JetStreamBus, settings: Settings) -> None:
    subjects = Subjects(settings.namespace)
    async with factory.team(CREW, AGENTS, on=settings, settled=True) as client:
        first = await client.submit("crew", "amount 1", request_id="order-1")
        again = await client.submit("crew", "amount 1", request_id="order-1")
        for _ in range(2):
            await bus.publish(subjects.request("crew", "shop"), BODY, event("order-1"))
        foreign = workflow_id_for(subjects.request("crew", "shop"), "order-1", "/shop")
        await factory.workflow_of(client, foreign, "crew").outcome(20)
        await again.outcome(20)
        stored = [each async for each in bus.read("log", subjects.team_outcomes("crew"))]

    assert first.id == again.id
    assert len(stored) == 2


async def test_same_id_with_another_body_is_a_dead_letter(bus: JetStreamBus, settings: Settings) -> None:
    subjects = Subjects(settings.namespace)
    subject = subjects.request("crew", "shop")
    async with factory.team(CREW, AGENTS, on=settings, settled=True) as client:
        first = await bus.publish(subject, BODY, {}, message_id="order-1")
        await factory.workflow_of(client, workflow_id_for(subject, "order-1"), "crew").outcome(20)

        async def stored() -> bool:  # until the duplicate window has passed, the answer names the first message
            return await bus.publish(subject, dump(Request(input="amount 2")), {}, message_id="order-1") > first

        await until(stored)
        letters = await _first_letters(bus, subjects)

    assert letters == ["request_id_taken"]


async def _first_letters(bus: JetStreamBus, subjects: Subjects) -> list[str]:
    """Wait for dead letters, and return their kinds."""
    async with asyncio.timeout(10):
        while not (found := [each async for each in bus.read("dead", subjects.dead_letters)]):
            await asyncio.sleep(0.05)
    return [parse(DeadLetter, each.body).cause.kind for each in found]
