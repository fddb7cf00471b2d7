"""Report each attempt at a delivery as a metric and a span, and late attempts and disabled endpoints as metrics."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from urllib.parse import urlsplit

from pointsman.errors import PointsmanError
from pointsman.ports.bus import StoredMessage
from pointsman.ports.clock import Clock
from pointsman.telemetry import metrics, parse_traceparent, record, reserve_context, semconv
from pointsman.webhooks.deliveries import DeliveryState
from pointsman.webhooks.endpoints import Endpoint
from pointsman.webhooks.observer import Observer

__all__ = ["publish_gauges", "record_delivery"]

_INTERVAL_S = 15.0  # seconds between two measurements; not shorter, because metrics are collected every 15 to 60 s


def record_delivery(
    endpoint: Endpoint, message: StoredMessage, state: DeliveryState, *, exchange: tuple[datetime, datetime] | None
) -> None:
    """Count an attempt by the status of its delivery, and record the exchange with the endpoint as span and duration.

    Args:
        endpoint: The endpoint.
        message: The event. Its headers have the trace of the workflow.
        state: The state after the attempt.
        exchange: The times at which the exchange began and ended; None if nothing was sent.
    """
    error = (
        None if state.status == "delivered" or exchange is None else str(state.code or state.error.partition(":")[0])
    )
    about = {semconv.WEBHOOK_EVENT: state.type, semconv.STATUS: state.status, semconv.ERROR_TYPE: error}
    metrics.count(semconv.WEBHOOK_DELIVERIES, attributes=about)
    if exchange is None:
        return
    began, ended = exchange
    metrics.observe(semconv.WEBHOOK_DURATION, (ended - began).total_seconds(), about)
    parent = parse_traceparent(message.headers.get("traceparent"), message.headers.get("tracestate"))
    address = urlsplit(endpoint.url)
    record(
        lambda: semconv.deliver_webhook(
            state.type,
            host=address.hostname or "",
            port=address.port or (443 if address.scheme == "https" else 80),
            webhook_id=state.event,
            endpoint=endpoint.id,
            workflow_id=state.workflow_id,
            attempt=state.attempts,
            code=state.code,
            status=state.status,
        ),
        context=reserve_context(parent),
        parent_span_id=parent.span_id if parent else None,
        kind="client",
        started=began,
        ended=ended,
        error=(error, state.error) if error else None,
    )


async def publish_gauges(observer: Observer, clock: Clock) -> None:
    """Publish how late the oldest due attempt is, and which endpoints of operators are disabled. Never returns.

    Every service publishes the same gauges. So a chart must show the maximum of the services, not the sum.

    Args:
        observer: The observer.
        clock: The clock.
    """
    shown: set[str] = set()
    while True:
        if metrics.metrics_enabled():
            with suppress(PointsmanError):  # if the broker does not answer, the figures do not change
                seen = await observer.observe()
                late = 0.0 if seen.oldest_due is None else (clock.now() - seen.oldest_due).total_seconds()
                metrics.set_gauge(semconv.WEBHOOK_OLDEST_DUE, max(0.0, late))
                disabled = {each.id: each.disabled_at is not None for each in seen.endpoints if each.caller is None}
                for deleted in shown - disabled.keys():
                    metrics.clear_gauge(semconv.WEBHOOK_DISABLED, {semconv.WEBHOOK_ENDPOINT: deleted})
                for endpoint, value in disabled.items():
                    metrics.set_gauge(semconv.WEBHOOK_DISABLED, value, {semconv.WEBHOOK_ENDPOINT: endpoint})
                shown = set(disabled)
        await clock.sleep(_INTERVAL_S)
