"""`pointsman doctor` finds webhooks without a sender, late deliveries and disabled endpoints."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from pointsman.bus.memory.bus import MemoryBus
from pointsman.cli.support.webhook_checks import check_webhooks
from pointsman.client.client import Client
from pointsman.engine.process.consumers import webhook_consumers
from pointsman.errors import PermissionDeniedError
from pointsman.webhooks.deliveries import DeliveryState
from pointsman.webhooks.endpoint_store import EndpointStore
from pointsman_schemas.strict_json import dump


async def test_endpoints_without_a_service_are_found_and_late_and_disabled_ones() -> None:
    bus = MemoryBus()
    client = Client(bus)
    subjects = client.subjects
    wanted = webhook_consumers(subjects)[-1]
    consumer = await bus.consumer(wanted.name, wanted.stream, wanted.subject, ack_wait=300.0)
    store = await EndpointStore.open(bus, subjects)
    (none,) = await check_webhooks(client)
    made = (await store.create("https://a.b/")).endpoint.id
    of_caller = (await store.create("https://a.b/", caller="ada", events=["workflow.ended"])).endpoint.id
    await bus.publish(subjects.delivery(made, "wf_1", "evt_1"), b"{}", {})

    (without_service,) = await check_webhooks(client)
    await (await consumer.take(1))[0].ack()
    taking = asyncio.create_task(consumer.take(1))
    await asyncio.sleep(0)
    (fine,) = await check_webhooks(client)
    await store.disable(made, "the endpoint answered 410 Gone")
    await store.disable(of_caller, "disabled by ada")
    _, disabled = await check_webhooks(client)
    taking.cancel()

    assert none.ok
    assert not without_service.ok
    assert "1 delivery waits, and no webhook service runs" in without_service.finding
    assert "pointsman webhooks run" in without_service.advice
    assert fine.ok
    assert not disabled.ok
    assert made in disabled.finding
    assert "410 Gone" in disabled.finding
    assert of_caller not in disabled.finding


async def test_deliveries_that_wait_for_long_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = MemoryBus()
    client = Client(bus)
    wanted = webhook_consumers(client.subjects)
    await bus.consumer(wanted[-1].name, wanted[-1].stream, wanted[-1].subject, ack_wait=300.0)
    idle = await bus.consumer(wanted[0].name, wanted[0].stream, wanted[0].subject, ack_wait=300.0)
    store = await EndpointStore.open(bus, client.subjects)
    made = (await store.create("https://a.b/")).endpoint.id
    await bus.publish(client.subjects.delivery(made, "wf_1", "evt_1"), b"{}", {})
    taking = asyncio.create_task(idle.take(1))
    await asyncio.sleep(0)

    (soon,) = await check_webhooks(client)

    async def later() -> datetime:
        return datetime.now(UTC) + timedelta(minutes=10)

    monkeypatch.setattr(bus, "time", later)
    (late,) = await check_webhooks(client)
    taking.cancel()

    assert soon.ok
    assert not late.ok
    assert "the oldest attempt is 10" in late.finding


async def test_retries_that_are_overdue_are_found_while_their_endpoint_is_enabled() -> None:
    bus = MemoryBus()
    client = Client(bus)
    wanted = webhook_consumers(client.subjects)[-1]
    deliveries = await bus.consumer(wanted.name, wanted.stream, wanted.subject, ack_wait=300.0)
    waiting = await bus.consumer("webhook-outcomes", "log", client.subjects.team_outcomes(), ack_wait=300.0)
    taking = asyncio.create_task(waiting.take(1))
    await asyncio.sleep(0)
    store = await EndpointStore.open(bus, client.subjects)
    made = (await store.create("https://a.b/")).endpoint.id
    await bus.publish(client.subjects.delivery(made, None, "evt_1"), b"{}", {})
    await deliveries.take(1)
    await retrying(bus, client, made, due_in=60.0)
    await retrying(bus, client, "wh_deleted", due_in=-3_600.0)

    (soon,) = await check_webhooks(client)
    await retrying(bus, client, made, due_in=-600.0)
    (late,) = await check_webhooks(client)
    await store.disable(made, "disabled by ops")
    service, _ = await check_webhooks(client)
    taking.cancel()

    assert soon.ok
    assert not late.ok
    assert "the oldest attempt is 10" in late.finding
    assert service.ok


async def retrying(bus: MemoryBus, client: Client, endpoint: str, *, due_in: float) -> None:
    now = datetime.now(UTC)
    state = DeliveryState(
        endpoint=endpoint,
        event="evt_1",
        type="workflow.ended",
        status="retrying",
        attempts=1,
        at=now,
        next_at=now + timedelta(seconds=due_in),
        order=1,
    )
    await bus.publish(client.subjects.receipt(endpoint, None, "evt_1"), dump(state), {})


async def test_a_user_that_may_not_read_endpoints_gets_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(MemoryBus())

    async def refuse(*_: object) -> EndpointStore:
        raise PermissionDeniedError("no right to read the bucket")

    monkeypatch.setattr(EndpointStore, "open", refuse)

    (check,) = await check_webhooks(client)

    assert check.ok
    assert "not checked" in check.finding
