"""Real processes send webhooks to a real HTTP receiver that fails, is slow, redirects, answers 410 or stops."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import WebhookVerificationError
from support.broker import own_settings, restart_broker
from support.processes import System
from support.receiver import Received, Receiver, Reply, receiving
from support.waiting import until
from support.webhooks import served_webhooks

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.ports.bus import Bus
from pointsman.settings import Settings
from pointsman.webhooks.deliveries import DeliveryState, list_deliveries, read_delivery, resend_delivery
from pointsman.webhooks.endpoint_store import EndpointStore, NewEndpoint
from pointsman.webhooks.observer import Observer
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import AttemptError, DeadLetter, Event, Outcome, Question
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

pytestmark = pytest.mark.timeout(60)

WAIT_S = 20.0


@pytest.fixture
def subjects(settings: Settings) -> Subjects:
    return Subjects(settings.namespace)


@pytest.fixture
async def store(bus: JetStreamBus, subjects: Subjects) -> EndpointStore:
    return await EndpointStore.open(bus, subjects)


async def add(store: EndpointStore, receiver: Receiver, **options: Any) -> NewEndpoint:
    return await store.create(receiver.url, plain_http=True, **options)


async def publish(bus: Bus, subject: str, event: Event) -> None:
    envelope = Envelope(id=f"id-{subject}", type=event.event_type, source="/test", time=datetime.now(UTC))
    await bus.publish(subject, dump(event), encode(envelope))


def outcome(number: int = 1, *, team: str = "crew", answer: object = "yes") -> Outcome:
    now = datetime.now(UTC)
    return Outcome(
        workflow_id=f"wf_{number}", team=team, status="completed", answer=answer, correlation_id=f"c-{number}",
        trace_id="0" * 32, started_at=now, ended_at=now, elapsed=1.0, sequential=1.0,
    )  # fmt: skip


async def end(bus: Bus, subjects: Subjects, *numbers: int, team: str = "crew", answer: object = "yes") -> None:
    for number in numbers:
        found = outcome(number, team=team, answer=answer)
        await publish(bus, subjects.outcome(team, found.workflow_id), found)


async def state_of(bus: Bus, subjects: Subjects, endpoint: str, *statuses: str) -> list[DeliveryState]:
    """Wait until an endpoint's deliveries have these states, in any order."""

    async def found() -> list[DeliveryState] | None:
        states = list(await list_deliveries(bus, subjects, endpoint=endpoint))
        return states if sorted(each.status for each in states) == sorted(statuses) else None

    states: list[DeliveryState] = await until(found, seconds=WAIT_S)
    return states


async def test_an_endpoint_receives_the_events_that_it_wants_signed(
    bus: JetStreamBus, subjects: Subjects, store: EndpointStore, settings: Settings
) -> None:
    now = datetime.now(UTC)
    question = Question(
        id="wf_1-q", workflow_id="wf_1", team="crew", about="information", text="Which?", asked_at=now,
        expires_at=now + timedelta(days=1), reply_to="reply",
    )  # fmt: skip
    letter = DeadLetter(
        id="dl_1", origin="worker", team="crew", cause=AttemptError(kind="undecodable", message="no JSON"), attempts=1,
        subject="s", body="e30=", at=now,
    )  # fmt: skip
    await end(bus, subjects, 99)  # an event before the endpoints exist
    async with receiving() as all_events, receiving() as some, receiving() as other, served_webhooks(settings):
        made = await add(store, all_events)
        await add(store, some, events=["question.asked"])
        await add(store, other, teams=["other"])
        await end(bus, subjects, 1, answer={"text": "Grüße"})
        await publish(bus, subjects.question("crew", "wf_1", "wf_1-q"), question)
        await publish(bus, subjects.dead_letter("worker", None, "dl_1"), letter)
        await end(bus, subjects, 2, team="other")

        await until(lambda: len(all_events.received) == 4 and some.received and other.received, seconds=WAIT_S)

    events = {(found := each.verify(made.secret))["type"] + found["data"].get("team", ""): found
              for each in all_events.received}  # fmt: skip
    assert set(events) == {"workflow.endedcrew", "workflow.endedother", "question.askedcrew", "dead_letter.stored"}
    assert events["workflow.endedcrew"]["data"]["answer"] == {"text": "Grüße"}
    assert events["question.askedcrew"]["data"]["text"] == "Which?"
    assert events["dead_letter.stored"]["data"]["kind"] == "undecodable"
    assert {each.id for each in all_events.received} == {each["id"] for each in events.values()}
    assert [each.event["type"] for each in some.received] == ["question.asked"]
    assert [each.event["data"]["workflow_id"] for each in other.received] == ["wf_2"]


async def test_a_delivery_that_fails_is_sent_again_with_the_same_id_and_body(
    bus: JetStreamBus, subjects: Subjects, store: EndpointStore, settings: Settings
) -> None:
    failures = [
        Reply(500), Reply(hang=True), Reply(cut=True), Reply(302, (("location", "/other"),)),
        Reply(raw=b"SSH-2.0-server\r\n\r\n"), Reply(raw=b"HTTP/1.1 200 " + b"x" * 100_000),
    ]  # fmt: skip
    # A slow machine can exceed the short timeout, so further attempts are allowed.
    retries = ",".join(["0.05"] * 20)
    async with (
        receiving(*failures) as receiver,
        served_webhooks(settings, webhook_timeout=0.5, webhook_retries=retries),
    ):
        made = await add(store, receiver)
        await end(bus, subjects, 1)
        (state,) = await state_of(bus, subjects, made.endpoint.id, "delivered")

    assert (state.code, state.error, state.next_at) == (204, "", None)
    assert state.attempts >= len(receiver.received) >= 7
    assert not receiver.replies
    assert {(each.id, each.body, each.path) for each in receiver.received} == {
        (state.event, receiver.received[0].body, "/hook")
    }
    assert all([each.verify(made.secret) for each in receiver.received])


async def test_a_delivery_whose_attempts_all_failed_is_sent_again_by_an_order(
    bus: JetStreamBus, subjects: Subjects, store: EndpointStore, settings: Settings
) -> None:
    async with receiving(*[Reply(500), Reply(400), Reply(500)]) as receiver:
        made = await add(store, receiver)
        async with served_webhooks(settings, webhook_retries="0.05"):
            await end(bus, subjects, 1)
            (failed,) = await state_of(bus, subjects, made.endpoint.id, "failed")
            await resend_delivery(bus, subjects, failed)
            (sent,) = await state_of(bus, subjects, made.endpoint.id, "delivered")

    assert (failed.attempts, failed.error) == (2, "status: 400")
    assert (sent.attempts, sent.event) == (2, failed.event)
    assert {each.id for each in receiver.received} == {failed.event}


async def test_a_delivery_to_a_deleted_endpoint_is_not_listed_as_retrying(
    bus: JetStreamBus, subjects: Subjects, store: EndpointStore, settings: Settings
) -> None:
    retries = ",".join(["1.2"] * 9)  # longer than the service uses the endpoints in memory
    async with receiving() as receiver, served_webhooks(settings, webhook_retries=retries):
        receiver.answer = lambda received: Reply(500)
        made = await add(store, receiver)
        await end(bus, subjects, 1)
        await state_of(bus, subjects, made.endpoint.id, "retrying")
        await store.delete(made.endpoint.id)
        (dropped,) = await state_of(bus, subjects, made.endpoint.id, "disabled")

    assert (dropped.error, dropped.next_at) == ("the endpoint was deleted", None)
    assert dropped.attempts == len(receiver.received) < 10


async def test_an_endpoint_that_answers_410_receives_nothing_until_it_is_enabled(
    bus: JetStreamBus, subjects: Subjects, store: EndpointStore, settings: Settings
) -> None:
    async with receiving(Reply(410)) as receiver, served_webhooks(settings):
        made = await add(store, receiver)
        await end(bus, subjects, 1)
        (gone,) = await state_of(bus, subjects, made.endpoint.id, "disabled")
        disabled = await store.get(made.endpoint.id)
        await end(bus, subjects, 2)
        await until(lambda: _is_read(bus, subjects, 2), seconds=WAIT_S)
        await store.enable(made.endpoint.id)
        await end(bus, subjects, 3)
        await state_of(bus, subjects, made.endpoint.id, "disabled", "delivered")
        await resend_delivery(bus, subjects, gone)
        await state_of(bus, subjects, made.endpoint.id, "delivered", "delivered")

    assert disabled.disabled_reason == "the endpoint answered 410 Gone"
    assert [each.event["data"]["workflow_id"] for each in receiver.received] == ["wf_1", "wf_3", "wf_1"]


async def _is_read(bus: Bus, subjects: Subjects, number: int) -> bool:
    """Return True if the service has read an outcome. The broker's count of pending messages may be late."""
    stored = await bus.last("log", subjects.outcome("crew", f"wf_{number}"))
    depth = await bus.depth("webhook-outcomes", "log")
    return stored is not None and depth is not None and depth.settled_through >= stored.sequence


async def test_retry_after_delays_all_deliveries_to_an_overloaded_endpoint(
    bus: JetStreamBus, subjects: Subjects, store: EndpointStore, settings: Settings
) -> None:
    async with receiving(Reply(429, (("retry-after", "1"),))) as receiver, served_webhooks(settings):
        made = await add(store, receiver)
        await end(bus, subjects, 1)
        await until(lambda: list_deliveries(bus, subjects, endpoint=made.endpoint.id), seconds=WAIT_S)
        await end(bus, subjects, 2)
        await state_of(bus, subjects, made.endpoint.id, "delivered", "delivered")

    first, *others = [each.at for each in receiver.received]
    assert len(others) == 2
    assert min(others) - first >= 1.0


async def test_a_new_secret_signs_beside_the_present_one_until_the_overlap_has_passed(
    bus: JetStreamBus, subjects: Subjects, store: EndpointStore, settings: Settings
) -> None:
    async with receiving() as receiver, served_webhooks(settings):
        first = await add(store, receiver)
        second = await store.rotate(first.endpoint.id, overlap=timedelta(hours=1))
        await end(bus, subjects, 1)
        await until(lambda: len(receiver.received) == 1, seconds=WAIT_S)
        third = await store.rotate(first.endpoint.id, overlap=timedelta(0))
        await asyncio.sleep(1.1)  # the service rereads its endpoints after this time
        await end(bus, subjects, 2)
        await until(lambda: len(receiver.received) == 2, seconds=WAIT_S)

    both, newest = receiver.received
    assert both.verify(first.secret) == both.verify(second.secret)
    assert newest.verify(third.secret)
    for old in (first.secret, second.secret):
        with pytest.raises(WebhookVerificationError, match="No matching signature"):
            newest.verify(old)
    secrets = await (await bus.key_value(subjects.webhook_secrets_bucket)).entries()
    assert len(secrets) == 1


async def test_an_address_that_is_not_public_is_refused_without_the_setting(
    bus: JetStreamBus, subjects: Subjects, store: EndpointStore, settings: Settings
) -> None:
    async with (
        receiving() as receiver,
        served_webhooks(settings, webhook_private_networks=False, webhook_retries="0.05"),
    ):
        plain = await add(store, receiver)
        secure = await store.create(receiver.url.replace("http://127.0.0.1", "https://localhost"))
        await end(bus, subjects, 1)
        states = [(await state_of(bus, subjects, each.endpoint.id, "failed"))[0] for each in (plain, secure)]

    assert [each.error.partition(":")[0] for each in states] == ["address_refused"] * 2
    assert "has an address that is not public" in states[1].error
    assert not receiver.received


async def test_an_endpoint_that_hangs_does_not_delay_another_endpoint(
    bus: JetStreamBus, subjects: Subjects, store: EndpointStore, settings: Settings
) -> None:
    async with (
        receiving() as slow,
        receiving() as quick,
        served_webhooks(settings, webhook_concurrency=8, webhook_timeout=10),
    ):
        slow.answer = lambda received: Reply(hang=True)
        await add(store, slow)
        await add(store, quick)
        began = asyncio.get_running_loop().time()
        await end(bus, subjects, *range(40))
        await until(lambda: len(quick.received) >= 40, seconds=WAIT_S)
        elapsed = asyncio.get_running_loop().time() - began

    assert elapsed < 9, "deliveries waited for the time-outs of another endpoint"
    assert len(slow.received) == 2  # an endpoint gets only a quarter of the concurrent deliveries


async def test_an_event_that_is_too_large_is_sent_without_its_data(
    bus: JetStreamBus, subjects: Subjects, store: EndpointStore, settings: Settings
) -> None:
    async with receiving() as receiver, served_webhooks(settings, webhook_max_body=2_000):
        made = await add(store, receiver)
        await end(bus, subjects, 1, answer="x" * 3_000_000)  # stored in the object store
        await until(lambda: receiver.received, seconds=WAIT_S)

    assert receiver.received[0].verify(made.secret)["data"] == {
        "workflow_id": "wf_1", "team": "crew", "status": "completed", "correlation_id": "c-1", "round": 1,
        "truncated": True,
    }  # fmt: skip


async def test_a_killed_service_loses_no_event_and_changes_no_id(
    bus: JetStreamBus, subjects: Subjects, store: EndpointStore, settings: Settings, tmp_path: Path
) -> None:
    """When the process is killed, half of the deliveries hang. The events of the other half are not read yet."""
    number = 30
    environment = {
        "POINTSMAN_WEBHOOK_PRIVATE_NETWORKS": "true",
        "POINTSMAN_WEBHOOK_TIMEOUT": "1",
        "POINTSMAN_WEBHOOK_RETRIES": ",".join("1" * 20),
    }
    async with receiving() as receiver, System(tmp_path, settings, **environment) as system:
        receiver.answer = lambda received: Reply(hang=int(received.event["data"]["workflow_id"][3:]) % 2 == 0)
        made = await add(store, receiver)
        service = await system.start("webhooks", "run")
        await end(bus, subjects, *range(number))
        await until(lambda: len(receiver.received) >= 6, seconds=45)
        await service.kill()
        before = list(receiver.received)
        receiver.answer = lambda received: Reply()
        await system.start("webhooks", "run")
        states = await until(lambda: _all(bus, subjects, made.endpoint.id, number), seconds=45)

    ids: dict[str, set[str]] = {}
    for each in receiver.received:
        ids.setdefault(each.event["data"]["workflow_id"], set()).add(each.id)
    assert len(ids) == number
    assert all([len(found) == 1 for found in ids.values()])
    assert {each.event for each in states} == {id for found in ids.values() for id in found}
    assert len(before) < len(receiver.received)


async def _all(bus: Bus, subjects: Subjects, endpoint: str, number: int) -> list[DeliveryState] | None:
    states = await list_deliveries(bus, subjects, endpoint=endpoint, status="delivered")
    return list(states) if len(states) == number else None


async def test_a_retry_outlives_a_restart_of_the_broker(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    settings = own_settings(own_broker)
    bus = await connect(settings, name="test", wait=WAIT_S)
    await bus.set_up()
    subjects = Subjects(settings.namespace)
    store = await EndpointStore.open(bus, subjects)
    async with receiving(Reply(500)) as receiver, served_webhooks(settings, webhook_retries="4"):
        made = await add(store, receiver)
        await end(bus, subjects, 1)
        (waiting,) = await state_of(bus, subjects, made.endpoint.id, "retrying")
        observed = await Observer(bus, subjects, store).observe()
        again = restart_broker(own_broker, tmp_path)
        await own_broker.stop()
        async with again:
            await until(lambda: bus.connected, seconds=WAIT_S)
            await state_of(bus, subjects, made.endpoint.id, "delivered")
            await bus.close()

    first, second = receiver.received
    assert first.id == second.id == waiting.event
    assert (observed.oldest_due, observed.service.running) == (waiting.next_at, True)
    assert 2.0 <= second.at - first.at <= 12.0


async def test_a_delivery_can_be_read(
    bus: JetStreamBus, subjects: Subjects, store: EndpointStore, settings: Settings
) -> None:
    seen: list[Received] = []
    async with receiving() as receiver, served_webhooks(settings):
        made = await add(store, receiver)
        await end(bus, subjects, 1)
        (state,) = await state_of(bus, subjects, made.endpoint.id, "delivered")
        seen = receiver.received

    assert await read_delivery(bus, subjects, made.endpoint.id, seen[0].id) == state
    assert (state.workflow_id, state.type, state.attempts) == ("wf_1", "workflow.ended", 1)
