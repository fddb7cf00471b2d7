"""Messages whose headers or subjects are not UTF-8 are refused one by one. No process ends."""

from __future__ import annotations

import json

import pytest
from support import factory
from support.factory import echo, planner_of, synthesizer
from support.waiting import until

from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.client.client import Client
from pointsman.engine.operations.archive_export import export_workflow
from pointsman.engine.operations.archive_reader import read_archive
from pointsman.engine.operations.dead_letters import DeadLetters
from pointsman.settings import Settings
from pointsman_schemas.team import Limits, RetryPolicy, Team

TEAM = Team(name="crew", limits=Limits(deadline=30), retry=RetryPolicy(backoff=0.05))
AGENTS = (planner_of({"id": "t1", "agent": "a", "intent": "do the thing"}), synthesizer, echo("a"))
BODY = b'{"input": "order 1, amount 1"}'
EVENT = {
    "ce-specversion": b"1.0",
    "ce-id": b"order-1",
    "ce-type": b"io.pointsman.request.v1",
    "ce-source": b"/shop",
}


async def publish(bus: JetStreamBus, subject: str, **headers: bytes) -> int:
    """Publish a request with the given bytes as headers. Return its sequence."""
    lines = b"".join(name.replace("_", "-").encode() + b": " + value + b"\r\n" for name, value in headers.items())
    answer = await bus.request(subject, BODY, b"NATS/1.0\r\n" + lines + b"\r\n")()
    return int(json.loads(answer.data)["seq"])


@pytest.mark.parametrize("form", ["Nats-Msg-Id", "ce-id", "ce-source", "ce-correlationid"])
async def test_ids_with_bytes_that_are_not_utf8_are_refused_one_by_one(
    form: str, bus: JetStreamBus, settings: Settings
) -> None:
    values = [b"order-\xe8", b"order-\xe9", b"order-\xff\xfe"]
    given = {} if form == "Nats-Msg-Id" else dict(EVENT)
    apart = {"ce-correlationid": {"ce-id": b"order-%d"}}.get(form, {})

    async with factory.team(TEAM, AGENTS, on=settings) as client:
        sequences = [
            await publish(
                bus,
                client.subjects.request("crew", "anonymous"),
                **given | {name: value % number for name, value in apart.items()} | {form: each},
            )
            for number, each in enumerate(values)
        ]
        workflows = [await client.workflow_from_sequence(each) for each in sequences]
        outcomes = [await each.outcome(20) for each in workflows]
        letters = await DeadLetters(bus, client.subjects).list()
        replayed = [await DeadLetters(bus, client.subjects).replay(letter) for letter in letters]
        archives = [await export_workflow(bus, client.subjects, each.id, letters[0].content.at) for each in workflows]

    assert len({each.id for each in workflows}) == 3
    assert [each.status for each in outcomes] == ["failed"] * 3
    assert {letter.content.workflow_id for letter in letters} == {each.id for each in workflows}
    assert all("UTF-8" in letter.content.cause.message for letter in letters)
    assert {letter.content.headers[form] for letter in letters} == {"order-\\xe8", "order-\\xe9", "order-\\xff\\xfe"}
    assert len({each.workflow for each in replayed}) == 3
    assert [read_archive(each.model_dump_json().encode()) for each in archives] == archives


async def test_ids_that_differ_in_a_space_that_is_no_ascii_are_two_workflows(
    bus: JetStreamBus, settings: Settings
) -> None:
    async with factory.team(TEAM, AGENTS, on=settings) as client:
        subject = client.subjects.request("crew", "anonymous")
        first = await publish(bus, subject, **{"Nats-Msg-Id": b"order-1"})
        second = await publish(bus, subject, **{"Nats-Msg-Id": "order-1\u00a0".encode()})
        workflows = [await client.workflow_from_sequence(each) for each in (first, second)]
        outcomes = [await each.outcome(20) for each in workflows]

    assert len({each.id for each in workflows}) == 2
    assert [each.status for each in outcomes] == ["completed"] * 2


async def test_a_subject_with_bytes_that_are_not_utf8_leaves_the_supervisor_working(
    bus: JetStreamBus, settings: Settings
) -> None:
    async with factory.team(TEAM, AGENTS, on=settings) as client:
        assert isinstance(client, Client)
        bus._connection.client._pending.append(
            b"PUB " + f"{settings.namespace}.control.crew.wf_1.cancel.ada.".encode() + b"a\xe9 0\r\n\r\n"
        )
        workflow = await client.submit("crew", "order 1")
        outcome = await workflow.outcome(20)

        async def lettered() -> bool:
            return bool(await DeadLetters(bus, client.subjects).list())

        await until(lettered)

    assert outcome.status == "completed"
