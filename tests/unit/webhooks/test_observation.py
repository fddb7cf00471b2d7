"""Deliveries are reported by status, as spans in the trace of their workflow, and if attempts are late."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from support.prometheus import exposing, samples
from support.receiver import Reply, receiving
from support.spans import exporting
from support.waiting import until

from pointsman.bus.memory.bus import MemoryBus
from pointsman.clock import SystemClock
from pointsman.engine.process.consumers import webhook_consumers
from pointsman.ports.bus import StoredMessage
from pointsman.settings import Settings
from pointsman.testing import VirtualClock
from pointsman.webhooks.deliveries import DeliveryState, DeliveryStatus
from pointsman.webhooks.endpoint_store import EndpointStore
from pointsman.webhooks.endpoints import Endpoint
from pointsman.webhooks.observation import publish_gauges, record_delivery
from pointsman.webhooks.observer import Observer
from pointsman.webhooks.service import WebhookService
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Outcome
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

NOW = datetime(2026, 1, 31, tzinfo=UTC)
TRACE, PARENT = "a" * 32, "b" * 16
ENDPOINT = Endpoint(id="wh_1", url="https://example.org:8443/secret", created_at=NOW)
MESSAGE = StoredMessage("s", b"{}", {"traceparent": f"00-{TRACE}-{PARENT}-01"}, 1, NOW)


def state(status: DeliveryStatus, code: int | None = None, error: str = "") -> DeliveryState:
    return DeliveryState(
        endpoint="wh_1", event="evt_1", type="workflow.ended", workflow_id="wf_1", status=status, attempts=2, code=code,
        error=error, at=NOW, order=1,
    )  # fmt: skip


def test_deliveries_are_counted_by_status_and_measured() -> None:
    exchange = (NOW, NOW + timedelta(seconds=0.4))
    with exposing() as figures:
        record_delivery(ENDPOINT, MESSAGE, state("delivered", 204), exchange=exchange)
        record_delivery(ENDPOINT, MESSAGE, state("retrying", 500, "status: 500"), exchange=exchange)
        record_delivery(ENDPOINT, MESSAGE, state("failed", None, "timeout: no answer"), exchange=exchange)
        record_delivery(ENDPOINT, MESSAGE, state("disabled", 410, "status: 410"), exchange=exchange)
        record_delivery(ENDPOINT, MESSAGE, state("disabled", None, "the endpoint is disabled"), exchange=None)
        shown = samples(figures)

    counts = shown["pointsman_webhook_deliveries_total"]
    assert {(labels["pointsman_status"], labels.get("error_type", "")): value for labels, value in counts} == {
        ("delivered", ""): 1, ("retrying", "500"): 1, ("failed", "timeout"): 1, ("disabled", "410"): 1,
        ("disabled", ""): 1,
    }  # fmt: skip
    assert sum(value for _, value in shown["pointsman_webhook_duration_seconds_count"]) == 4


def test_an_attempt_is_a_span_of_its_workflow_without_the_path() -> None:
    with exporting() as exported:
        record_delivery(ENDPOINT, MESSAGE, state("retrying", 503, "status: 503"), exchange=(NOW, NOW))
        (span,) = exported.get_finished_spans()

    assert span.name == "deliver workflow.ended"
    assert span.parent is not None
    assert span.context is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    assert span.attributes is not None
    assert span.attributes["http.response.status_code"] == 503
    assert (span.attributes["error.type"], span.attributes["server.port"]) == ("503", 8443)
    assert "secret" not in str(dict(span.attributes))


async def test_a_service_reports_its_deliveries_in_the_trace_of_the_workflow() -> None:
    bus, subjects, stop = MemoryBus(), Subjects(), asyncio.Event()
    outcome = Outcome(
        workflow_id="wf_1", team="crew", caller="ada", status="completed", correlation_id="c", trace_id=TRACE,
        started_at=NOW, ended_at=NOW, elapsed=1, sequential=1,
    )  # fmt: skip
    envelope = Envelope(id="e1", type=outcome.event_type, source="/test", time=NOW)
    settings = Settings(webhook_private_networks=True, webhook_retries="0.01")
    with exposing() as figures, exporting() as exported:
        async with receiving(Reply(500)) as receiver:
            store = await EndpointStore.open(bus, subjects)
            await store.create(receiver.url, caller="ada", events=["workflow.ended"], plain_http=True)
            running = asyncio.create_task(WebhookService(bus, settings, SystemClock()).run(stop))
            await bus.publish(subjects.outcome("crew", "wf_1"), dump(outcome), {**encode(envelope), **MESSAGE.headers})
            await until(lambda: len(exported.get_finished_spans()) == 2)
            stop.set()
            await running
        shown = samples(figures)
        spans = exported.get_finished_spans()

    counts = {labels["pointsman_status"]: value for labels, value in shown["pointsman_webhook_deliveries_total"]}
    assert counts == {"retrying": 1, "delivered": 1}
    assert [f"{span.context.trace_id:032x}" for span in spans if span.context] == [TRACE] * 2
    assert [span.attributes["pointsman.attempt"] for span in spans if span.attributes] == [1, 2]


async def test_late_attempts_and_disabled_endpoints_are_reported() -> None:
    clock = VirtualClock()
    bus, subjects = MemoryBus(clock=clock), Subjects()
    store = await EndpointStore.open(bus, subjects)
    made = (await store.create("https://a.b/")).endpoint.id
    await store.create("https://a.b/", caller="ada", events=["workflow.ended"])
    wanted = webhook_consumers(subjects)[-1]
    consumer = await bus.consumer(wanted.name, wanted.stream, wanted.subject, ack_wait=9_000.0)
    await bus.publish(subjects.delivery(made, "wf_1", "evt_1"), b"{}", {})

    def figures() -> tuple[float, dict[str, float]]:
        shown = samples(exposed)
        disabled = {labels["pointsman_webhook_endpoint"]: on for labels, on in shown["pointsman_webhook_disabled"]}
        return shown["pointsman_webhook_oldest_due_seconds"][0][1], disabled

    with exposing() as exposed:
        showing = asyncio.create_task(publish_gauges(Observer(bus, subjects, store), clock))
        await clock.settle()
        await clock.advance(60)
        waiting = figures()
        await consumer.take(1)
        retry = state("retrying").model_copy(update={"endpoint": made, "next_at": clock.now() + timedelta(seconds=20)})
        await bus.publish(subjects.receipt(made, "wf_1", "evt_1"), dump(retry), {})
        await clock.advance(15)
        not_due = figures()
        await clock.advance(15)
        overdue = figures()
        await store.disable(made, "410 Gone")
        await clock.advance(15)
        disabled = figures()
        await store.delete(made)
        await clock.advance(15)
        deleted = samples(exposed).get("pointsman_webhook_disabled", [])
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing

    assert (waiting, not_due, overdue) == ((60, {made: 0}), (0, {made: 0}), (10, {made: 0}))
    assert disabled == (0, {made: 1})
    assert deleted == []
