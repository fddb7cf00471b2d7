"""After a workflow is forgotten, the streams have no message about it except the record of the deletion."""

from __future__ import annotations

import asyncio

import nats
import pytest
from support import factory
from support.factory import echo, planner_of, synthesizer

from pointsman import agent
from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.client.operations import WorkflowRunsError
from pointsman.errors import NotFoundError, TaskError
from pointsman.settings import Settings
from pointsman_schemas.team import Limits, RetryPolicy, Team

pytestmark = pytest.mark.timeout(120)

SECRET = "the number of the card is 4929 1111"
LARGE = SECRET + "".join(f"{number:06d}" for number in range(300_000))
CREW = Team(name="crew", limits=Limits(deadline=100), retry=RetryPolicy(attempts=1))
PLANNER = planner_of({"id": "t", "agent": "a", "intent": "repeat it"})
STREAMS = ("REQUESTS", "CONTROLS", "RESULTS", "WORK", "LOG", "DEAD", "DELIVERIES")


async def traces_of(settings: Settings, *words: str) -> list[str]:
    """Return the subjects of all messages and objects of the namespace that contain one of the words."""
    connection = await nats.connect(settings.url)
    found = []
    try:
        stream = connection.jetstream()
        prefix = settings.namespace.upper()
        for name in [f"{prefix}_{kind}" for kind in STREAMS] + [f"OBJ_{prefix}_ARTIFACTS"]:
            info = await stream.stream_info(name)
            for sequence in range(max(1, info.state.first_seq), info.state.last_seq + 1):
                try:
                    message = await stream.get_msg(name, sequence)
                except nats.js.errors.NotFoundError:
                    continue
                text = f"{message.subject} {message.headers} {(message.data or b'').decode('utf-8', 'replace')}"
                if any(word in text for word in words):
                    found.append(str(message.subject))
    finally:
        await connection.close()
    return found


async def test_nothing_but_the_record_is_left_of_a_forgotten_workflow(settings: Settings) -> None:
    """The workflow has a large request, a step, an event, a dead letter, a failed task and a webhook. Another workflow
    must stay."""

    @agent(name="b", description="Fails")
    async def fail(request: str) -> str:
        raise TaskError(f"cannot: {request[:40]}")

    planner = planner_of(
        {"id": "t", "agent": "a", "intent": "repeat it", "input": LARGE}, {"id": "u", "agent": "b", "intent": "fail"}
    )
    async with factory.team(CREW, [planner, echo("a"), fail, synthesizer], on=settings) as client:
        gone = await client.submit("crew", LARGE)
        await gone.outcome(60)
        stays = await client.submit("crew", LARGE + "!")
        answer = await stays.outcome(60)
        for subject in (client.subjects.delivery("wh_1", gone.id, "e"), client.subjects.receipt("wh_1", gone.id, "e")):
            await client.bus.publish(subject, b"{}", {})
        before = await traces_of(settings, gone.id)
        deleted: list[int] = []
        done = await client.operations.forget(gone.id, reason="asked for", actor="anna", progress=deleted.append)
        left = await traces_of(settings, gone.id)
        records = await client.operations.audit()
        again = await (await client.workflow(stays.id)).outcome(5)
        with pytest.raises(NotFoundError):
            await client.operations.forget(gone.id)

    assert len(before) > 10
    assert any(".dead." in subject for subject in before)
    assert [subject.split(".")[1:4] for subject in left] == [["audit", "forget", "anna"]]
    assert again == answer
    assert done.workflows == (gone.id,)
    assert done.messages == len([subject for subject in before if not subject.startswith("$O")])
    assert done.objects >= 1
    assert deleted == sorted(deleted)
    assert deleted[-1] == done.messages
    assert [each.content.messages for each in records] == [done.messages]
    assert [(each.actor, each.content.action, each.content.workflow_id, each.content.reason) for each in records] == [
        ("anna", "forget", gone.id, "asked for")
    ]


async def test_no_text_of_a_forgotten_workflow_is_left(settings: Settings) -> None:
    async with factory.team(CREW, [PLANNER, echo("a"), synthesizer], on=settings) as client:
        workflow = await client.submit("crew", LARGE)
        await workflow.outcome(60)
        assert await traces_of(settings, SECRET)
        await client.operations.forget(workflow.id)
        records = await client.bus.subjects("controls", client.subjects.audits)
        left = await traces_of(settings, SECRET, workflow.id)

    assert len(records) == 1
    assert left == records


async def test_a_running_workflow_is_not_forgotten(settings: Settings) -> None:
    go = asyncio.Event()

    @agent(name="a", description="Waits")
    async def wait(request: str) -> str:
        await go.wait()
        return request

    async with factory.team(CREW, [PLANNER, wait, synthesizer], on=settings) as client:
        workflow = await client.submit("crew", "hello")
        async for _ in workflow.events():
            break
        with pytest.raises(WorkflowRunsError, match="cancel"):
            await client.operations.forget(workflow.id)
        go.set()
        outcome = await workflow.outcome(60)

    assert outcome.status == "completed"


async def test_a_request_is_not_started_again_by_the_end_of_its_log(settings: Settings, bus: JetStreamBus) -> None:
    """The team's consumer may still have the request, so the request's message is deleted before the log."""
    async with factory.team(CREW, [PLANNER, echo("a"), synthesizer], on=settings) as client:
        workflow = await client.submit("crew", "hello", request_id="once")
        await workflow.outcome(60)
        await client.operations.forget(workflow.id)
    async with factory.team(CREW, [PLANNER, echo("a"), synthesizer], on=settings) as client:
        await asyncio.sleep(0.5)
        assert await client.bus.last("log", client.subjects.workflow_log(workflow.id)) is None
