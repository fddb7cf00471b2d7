"""Bodies that are larger than a message go from a caller through a team and back in the object store."""

from __future__ import annotations

import asyncio
import hashlib
import json
from base64 import urlsafe_b64encode
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext
from support import factory
from support.broker import remove_streams
from support.factory import echo, planner_of

from pointsman import agent
from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.client.client import Client
from pointsman.errors import BusUnavailableError
from pointsman.settings import Settings
from pointsman_schemas.events import DeadLetter, Outcome
from pointsman_schemas.ids import workflow_id_for
from pointsman_schemas.strict_json import parse
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Limits, PlanAndExecute, Team

LARGE = "".join(f"{number:06d}" for number in range(500_000))  # 3 MB
TEAM = Team(name="crew", limits=Limits(deadline=30), strategy=PlanAndExecute(synthesizer=None))
PLANNER = planner_of({"id": "t", "agent": "a", "intent": "repeat it"})


@pytest.fixture
def bucket(settings: Settings) -> str:
    return Subjects(settings.namespace).artifacts_bucket


async def test_three_megabytes_go_in_and_come_out_and_the_log_stays_small(
    settings: Settings, bus: JetStreamBus
) -> None:
    @agent(name="a", description="Turns it around")
    async def turn(request: str) -> str:
        return request[::-1]

    planner = planner_of({"id": "t", "agent": "a", "intent": "turn it around", "input": LARGE})
    async with factory.team(TEAM, [planner, turn], on=settings) as client:
        workflow = await client.submit("crew", LARGE)
        outcome = await workflow.outcome(30)
        entries = await client.entries(workflow.id)
        state = (await bus.api(f"STREAM.INFO.{client.subjects.log_stream}"))["state"]

    assert outcome.status == "completed"
    assert outcome.answer == LARGE[::-1]
    assert getattr(entries[0], "input", None) == LARGE
    assert state["bytes"] < 50_000


async def test_retry_completes_a_large_body_after_a_crash_between_chunks(
    settings: Settings, bus: JetStreamBus, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, publish, stored = Client(bus, namespace=settings.namespace), bus.publish, asyncio.Event()

    async def publish_one_chunk(subject: str, *given: Any, **more: Any) -> int:
        if stored.is_set():
            await asyncio.Event().wait()  # until the crash
        sequence = await publish(subject, *given, **more)
        stored.set()
        return sequence

    with monkeypatch.context() as patch:
        patch.setattr(bus, "publish", publish_one_chunk)
        breaks = asyncio.create_task(client.submit("crew", LARGE, request_id="again"))
        async with asyncio.timeout(20):
            await stored.wait()
    breaks.cancel()
    await asyncio.gather(breaks, return_exceptions=True)
    assert await bus.last("artifacts", f"$O.{bucket}.C.>") is not None
    assert await bus.last("artifacts", f"$O.{bucket}.M.>") is None  # only some chunks exist, but no description

    async with factory.team(TEAM, [PLANNER, echo("a")], on=settings) as other:
        workflow = await other.submit("crew", LARGE, request_id="again")
        outcome = await workflow.outcome(30)

    assert outcome.status == "completed"
    assert workflow.id == workflow_id_for(other.subjects.request("crew", other.user), "again", other.source)


async def put_object(stream: JetStreamContext, bucket: str, name: str, body: bytes) -> None:
    """Store an object in the format of ADR-20, but without rollup, which the bucket refuses."""
    digest = urlsafe_b64encode(hashlib.sha256(body).digest()).decode()
    step, nuid = 100_000, "other-client"
    parts = [body[start : start + step] for start in range(0, len(body), step)]
    for part in parts:
        await stream.publish(f"$O.{bucket}.C.{nuid}", part)
    description = {"name": name, "bucket": bucket, "nuid": nuid, "size": len(body), "chunks": len(parts),
                   "digest": f"SHA-256={digest}", "mtime": "2026-01-01T00:00:00Z",
                   "options": {"max_chunk_size": step}}  # fmt: skip
    await stream.publish(f"$O.{bucket}.M.{urlsafe_b64encode(name.encode()).decode()}", json.dumps(description).encode())


async def test_any_nats_client_can_read_and_write_a_stored_body(
    settings: Settings, bus: JetStreamBus, bucket: str
) -> None:
    body = json.dumps({"input": LARGE, "metadata": {"from": "a client of another kind"}}).encode()
    digest = hashlib.sha256(body).hexdigest()
    reference = f"nats-object://{bucket}/any%20name?size={len(body)}&sha256={digest}"
    async with factory.team(TEAM, [PLANNER, echo("a")], on=settings):
        plain = await nats.connect(settings.url)
        stream = plain.jetstream()
        store = await stream.object_store(bucket)
        await put_object(stream, bucket, "any name", body)
        headers = {"Nats-Msg-Id": "from-outside", "ce-dataref": reference}
        await stream.publish(f"{settings.namespace}.request.crew.anonymous", b"", headers=headers)
        workflow = workflow_id_for(f"{settings.namespace}.request.crew.anonymous", "from-outside")
        found = await Client(bus, namespace=settings.namespace).workflow(workflow)
        outcome = await found.outcome(30)
        raw = await stream.get_last_msg(f"{settings.namespace.upper()}_LOG", bus_subject(settings, workflow))
        assert raw.headers is not None
        kept = await store.get(raw.headers["ce-dataref"].partition("?")[0].rpartition("/")[2])
        await plain.close()

    assert outcome.status == "completed"
    assert outcome.answer == f"a: {LARGE}"
    assert raw.data in (b"", None)
    assert kept.data is not None
    assert parse(Outcome, kept.data) == outcome


def bus_subject(settings: Settings, workflow: str) -> str:
    return Subjects(settings.namespace).outcome("crew", workflow)


async def test_request_with_a_missing_body_fails_and_is_dead_lettered(
    settings: Settings, bus: JetStreamBus, bucket: str
) -> None:
    client = Client(bus, namespace=settings.namespace)
    workflow = await client.submit("crew", LARGE)
    await bus.api(f"STREAM.PURGE.OBJ_{bucket}")

    async with factory.team(TEAM, [PLANNER, echo("a")], on=settings):
        outcome = await workflow.outcome(30)
        other = await (await client.submit("crew", "small")).outcome(30)
        (letter,) = [parse(DeadLetter, stored.body) async for stored in bus.read("dead", client.subjects.dead_letters)]

    assert (outcome.status, other.status) == ("failed", "completed")
    assert bucket in outcome.reason
    assert letter.cause.kind == "body_lost"
    assert letter.headers["ce-dataref"].startswith(f"nats-object://{bucket}/")


async def test_log_with_a_missing_body_is_closed_and_others_continue(
    settings: Settings, bus: JetStreamBus, bucket: str
) -> None:
    gate = asyncio.Event()

    @agent(name="a", description="Waits")
    async def waits(request: str) -> str:
        await gate.wait()
        return "done"

    team = Team(name="crew", limits=Limits(deadline=30), strategy=PlanAndExecute(synthesizer=None))
    planner = planner_of({"id": "t", "agent": "a", "intent": "wait", "input": "x"})
    async with factory.team((), [planner, waits], on=settings) as client:
        async with factory.team(team, on=settings):
            workflow = await client.submit("crew", LARGE)
            async with asyncio.timeout(20):
                while await bus.last("work", client.subjects.handoff("a", "crew", workflow.id, "t", 1)) is None:
                    await asyncio.sleep(0.02)
        await bus.api(f"STREAM.PURGE.OBJ_{bucket}")
        async with factory.team(team, on=settings):
            gate.set()
            outcome = await workflow.outcome(30)
            other = await (await client.submit("crew", "small")).outcome(30)

    assert (outcome.status, other.status) == ("failed", "completed")
    assert "cannot be folded" in outcome.reason


async def test_a_full_store_is_an_outage_and_not_a_refusal(settings: Settings, bucket: str) -> None:
    settings = settings.model_copy(update={"namespace": f"{settings.namespace}f", "artifacts_bytes": 1_000_000})
    bus = await connect(settings, name="full", wait=5.0)
    await bus.set_up()

    with pytest.raises(BusUnavailableError, match="maximum bytes"):
        await Client(bus, namespace=settings.namespace).submit("crew", LARGE)

    assert bus.connected
    assert await bus.last("requests", f"{settings.namespace}.request.crew.anonymous") is None
    await bus.close()
    await remove_streams(settings)


async def test_large_outcome_is_sent_to_reply_to_as_a_reference(settings: Settings, bus: JetStreamBus) -> None:
    @agent(name="a", description="Answers at length")
    async def long(request: str) -> str:
        return LARGE

    async with factory.team(TEAM, [PLANNER, long], on=settings):
        plain = await nats.connect(settings.url)
        inbox = await plain.subscribe("_INBOX.answers.mine")
        request = json.dumps({"input": "tell me", "reply_to": "_INBOX.answers.mine"}).encode()
        await plain.publish(f"{settings.namespace}.request.crew.anonymous", request)
        told = await inbox.next_msg(timeout=30)
        await plain.close()

    assert told.data == b""
    assert told.headers is not None
    assert told.headers["ce-dataref"].startswith("nats-object://")
