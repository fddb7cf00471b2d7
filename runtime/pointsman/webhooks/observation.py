"""Report deliveries of webhooks as metrics and spans."""

from __future__ import annotations

from contextlib import aclosing, suppress
from datetime import datetime
from typing import NamedTuple
from urllib.parse import urlsplit

from pointsman.engine.log.reader import as_async_generator
from pointsman.engine.process.consumers import webhook_consumers
from pointsman.errors import PointsmanError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.ports.clock import Clock
from pointsman.telemetry import metrics, parse_traceparent, record, reserve_context, semconv
from pointsman.webhooks.deliveries import DeliveryState
from pointsman.webhooks.endpoints import Endpoint
from pointsman_schemas.subjects import Subjects

__all__ = ["ServiceState", "oldest_due", "publish_due_gauge", "read_service", "record_delivery"]

_INTERVAL_S = 15.0  # seconds between two measurements; metrics are collected every 15 to 60 s


class ServiceState(NamedTuple):
    """The state of the webhook services of a namespace.

    Attributes:
        running: True if a service waits for events or deliveries.
        waiting: Deliveries that no service has taken yet.
    """

    running: bool
    waiting: int


async def read_service(bus: Bus, subjects: Subjects) -> ServiceState:
    """Return the state of the webhook services, as the broker sees their requests for messages.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.

    Returns:
        The state.

    Raises:
        PeerError: The broker does not describe a consumer.
    """
    wanted = webhook_consumers(subjects)
    depths = [await bus.depth(each.name, each.stream) for each in wanted]
    deliveries = depths[-1]
    running = any(depth is not None and depth.pulls > 0 for depth in depths)
    return ServiceState(running, deliveries.pending if deliveries is not None else 0)


def record_delivery(
    endpoint: Endpoint, message: StoredMessage, state: DeliveryState, *, exchange: tuple[datetime, datetime] | None
) -> None:
    """Count a delivery by its status, and record the exchange with the receiver as a span and a duration.

    Args:
        endpoint: The endpoint.
        message: The event, whose headers have the trace of the workflow.
        state: The state after the attempt.
        exchange: The begin and the end of the exchange; None if nothing was sent.
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


async def oldest_due(bus: Bus, subjects: Subjects) -> datetime | None:
    """Return the time of the oldest delivery that no service has taken yet.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.

    Returns:
        The time; None if services have taken each delivery.

    Raises:
        PeerError: The broker does not describe the consumer of deliveries.
    """
    wanted = webhook_consumers(subjects)[-1]
    depth = await bus.depth(wanted.name, wanted.stream)
    if depth is None or not depth.pending:
        return None
    waiting = bus.read(wanted.stream, wanted.subject, after=depth.delivered_through)
    async with aclosing(as_async_generator(waiting)) as messages:
        first = await anext(messages, None)
    return None if first is None else first.at


async def publish_due_gauge(bus: Bus, subjects: Subjects, clock: Clock) -> None:
    """Publish the age of the oldest delivery that no service has taken yet. Never returns.

    Every service publishes the same figure: take the maximum, not the sum.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        clock: The clock.
    """
    while True:
        if metrics.metrics_enabled():
            with suppress(PointsmanError):  # without an answer of the broker, the figure does not change
                due = await oldest_due(bus, subjects)
                age = 0.0 if due is None else max(0.0, (clock.now() - due).total_seconds())
                metrics.set_gauge(semconv.WEBHOOK_OLDEST_DUE, age)
        await clock.sleep(_INTERVAL_S)
