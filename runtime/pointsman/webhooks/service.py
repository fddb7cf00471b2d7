"""Deliver events to webhooks: store a delivery for each endpoint, send the deliveries, and repeat failed deliveries.

Any number of services share durable consumers. If a service is killed, the broker redelivers its unacknowledged
messages, so nothing is lost. An endpoint might get an event more than once, each time with the same `webhook-id`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from pointsman.engine.log.reader import gather_batched
from pointsman.engine.process.consumers import MAX_WAITING_DELIVERIES, webhook_consumers
from pointsman.engine.process.retrying import start_with_retry
from pointsman.errors import ConflictError, ContractError, NotFoundError, PointsmanError
from pointsman.ports.bus import Bus, Consumer, Delivery, StoredMessage
from pointsman.ports.clock import Clock
from pointsman.settings import Settings
from pointsman.telemetry import get_logger
from pointsman.webhooks.capacity import Capacity
from pointsman.webhooks.deliveries import DeliveryState, parse_state
from pointsman.webhooks.endpoint_store import EndpointStore, SecretStore
from pointsman.webhooks.endpoints import EVENT_TYPES, Endpoint, EventType
from pointsman.webhooks.events import WebhookEvent, read_event
from pointsman.webhooks.observation import publish_gauges, record_delivery
from pointsman.webhooks.observer import Observer
from pointsman.webhooks.sender import Response, Sender, SendError, jittered, signed_headers
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import DeliveryAddress, Subjects

__all__ = ["WebhookService"]

_log = get_logger(__name__)

_BATCH = 100  # largest number of events that are processed before the endpoints are read again
_UNAVAILABLE_PAUSE_S = 1.0  # seconds before a message is delivered again after an error of the broker
_CRASH_PAUSE_S = 60.0  # seconds before a delivery is repeated after an unexpected error
_ENDPOINTS_TTL_S = 1.0  # seconds for which the endpoints in memory are used
_ACK_MARGIN_S = 5.0  # seconds by which the acknowledgement deadline is longer than the timeout of an exchange
_MAX_PAUSE_S = 86_400.0
_THROTTLING = frozenset({429, 502, 503, 504})  # statuses of an overloaded endpoint
_THROTTLE_S = 5.0  # seconds for which nothing is sent to an overloaded endpoint without `Retry-After`
_EARLY_S = 1.0  # largest number of seconds by which an attempt is made before the time in its stored state
_HEADER_BYTES = 4_096  # bytes of a message that are reserved for subject and headers
_RESEND = ".resend"  # the end of the subject of a resend request
_TYPE_HEADER = "webhook-type"
_GONE = 410
_GONE_HINT = "the endpoint answered 410 Gone; `pointsman webhooks enable` enables the endpoint again"


class WebhookService:
    """A service that delivers the events of a namespace.

    Args:
        bus: The bus.
        settings: The limits.
        clock: The clock.
        sender: The client that sends. Default: a client with the settings.
    """

    def __init__(self, bus: Bus, settings: Settings, clock: Clock, *, sender: Sender | None = None) -> None:
        self._bus = bus
        self._settings = settings
        self._clock = clock
        self._subjects = Subjects(settings.namespace)
        self._pauses = tuple(float(each) for each in settings.webhook_retries.split(","))
        self._max_body = min(settings.webhook_max_body, bus.max_payload - _HEADER_BYTES)
        self._sender = sender or Sender(
            timeout=settings.webhook_timeout, private_networks=settings.webhook_private_networks
        )
        self._capacity = Capacity(settings.webhook_concurrency, clock)
        self._consumers: dict[str, Consumer] = {}
        self._attempts: set[asyncio.Task[None]] = set()
        # the time of the last read of the endpoints (at first long ago), and the endpoints by id
        self._known: tuple[float, Mapping[str, Endpoint]] = (-_MAX_PAUSE_S, {})

    @property
    def waiting_for(self) -> Sequence[str]:
        """The names of the consumers that the broker does not serve at present."""
        wanted = webhook_consumers(self._subjects)
        return [
            each.name for each in wanted if (consumer := self._consumers.get(each.name)) is None or not consumer.bound
        ]

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until `stop` is set. Then finish the running attempts.

        Args:
            stop: Ends the service.
        """
        if await start_with_retry(self._start, self._bus, self._clock, stop) is None:
            return
        *inputs, deliveries = webhook_consumers(self._subjects)
        loops = [asyncio.create_task(self._store_events(self._consumers[each.name])) for each in inputs]
        loops.append(asyncio.create_task(self._send_deliveries(self._consumers[deliveries.name])))
        observer = Observer(self._bus, self._subjects, self._store)
        loops.append(asyncio.create_task(publish_gauges(observer, self._clock)))
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([*loops, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*loops, stopped):
                task.cancel()
            await asyncio.wait(loops)
            if self._attempts:
                await asyncio.wait(self._attempts, timeout=self._settings.shutdown_grace)
            for task in self._attempts:
                task.cancel()
            for consumer in self._consumers.values():
                await consumer.close()
        for task in loops:
            if not task.cancelled():
                task.result()

    async def _start(self) -> bool:
        self._store = await EndpointStore.open(self._bus, self._subjects)
        self._secrets = SecretStore(await self._bus.key_value(self._subjects.webhook_secrets_bucket))
        for wanted in webhook_consumers(self._subjects):
            if wanted.name not in self._consumers:
                self._consumers[wanted.name] = await self._bus.consumer(
                    wanted.name,
                    wanted.stream,
                    wanted.subject,
                    ack_wait=max(self._settings.ack_wait, self._settings.webhook_timeout + _ACK_MARGIN_S),
                    max_in_flight=MAX_WAITING_DELIVERIES,
                )
        return True

    # Events

    async def _store_events(self, consumer: Consumer) -> None:
        """Store a delivery of an event for each endpoint that must get the event."""
        while True:
            taken = await consumer.take(_BATCH)
            try:
                # Read the endpoints after the events, so an endpoint that was made before an event gets the event.
                endpoints = [each for each in await self._store.list() if each.disabled_at is None]
                events = [self._read(delivery.message) for delivery in taken] if endpoints else []
                await gather_batched(
                    self._publish(endpoint, event)
                    for event in events
                    for endpoint in endpoints
                    if event is not None and endpoint.wants(event)
                )
            except BaseException as error:
                for delivery in taken:
                    await delivery.nak(_UNAVAILABLE_PAUSE_S)
                if not isinstance(error, PointsmanError):
                    raise
                _log.warning("webhook_events_delayed", events=len(taken), error=str(error))
                continue
            for delivery in taken:
                await delivery.ack()

    def _read(self, stored: StoredMessage) -> WebhookEvent | None:
        try:
            return read_event(stored, self._subjects, max_body=self._max_body)
        except ContractError as error:
            _log.warning("webhook_event_unreadable", subject=stored.subject, error=str(error))
            return None

    async def _publish(self, endpoint: Endpoint, event: WebhookEvent) -> None:
        subject = self._subjects.delivery(endpoint.id, event.workflow, event.id)
        with suppress(ConflictError):  # the delivery was stored by an earlier try that failed or was killed
            headers = {_TYPE_HEADER: event.type, **event.trace}
            await self._bus.publish(subject, event.body, headers, expect=0)

    # Deliveries

    async def _send_deliveries(self, consumer: Consumer) -> None:
        """Start an attempt at each delivery that is due."""
        while True:
            room = self._settings.webhook_concurrency - len(self._attempts)
            if room <= 0:
                await asyncio.wait(self._attempts, return_when=asyncio.FIRST_COMPLETED)
                continue
            for delivery in await consumer.take(room):
                task = asyncio.create_task(self._attempt(delivery))
                self._attempts.add(task)
                task.add_done_callback(self._attempts.discard)

    async def _attempt(self, delivery: Delivery) -> None:
        """Send one delivery, return it to the broker for later, or drop it."""
        try:
            address = self._subjects.parse_delivery(delivery.message.subject)
            # An operator often changes an endpoint and then requests a resend, so a resend reads the endpoint again.
            endpoint = await self._endpoint(address.endpoint, newest=delivery.message.subject.endswith(_RESEND))
            if endpoint is None:  # the endpoint was deleted
                await self._drop(address)
                await delivery.ack()
            elif endpoint.disabled_at is None and (pause := self._capacity.deferral(endpoint)) > 0:
                await delivery.nak(pause)
            else:
                with self._capacity.sending(endpoint):
                    await self._send(delivery, endpoint)
        except PointsmanError as error:
            _log.warning("webhook_delayed", subject=delivery.message.subject, error=str(error))
            await delivery.nak(_UNAVAILABLE_PAUSE_S)
        except Exception as error:
            _log.error("webhook_crashed", subject=delivery.message.subject, exc_info=error)
            await delivery.nak(_CRASH_PAUSE_S)
        except BaseException:  # the process stops, so return the delivery to the broker for another process
            await delivery.nak(_UNAVAILABLE_PAUSE_S)
            raise

    async def _drop(self, address: DeliveryAddress) -> None:
        """Store that no retry follows, if the stored state of a delivery announces a retry."""
        receipt = self._subjects.receipt(address.endpoint, address.workflow, address.event)
        stored = await self._bus.last("deliveries", receipt)
        state = None if stored is None else parse_state(stored)
        if state is not None and state.status == "retrying":
            update = {"status": "disabled", "error": "the endpoint was deleted", "next_at": None}
            await self._bus.publish(receipt, dump(state.model_copy(update=update)), {})

    async def _endpoint(self, id: str, *, newest: bool) -> Endpoint | None:
        """Return an endpoint from the last read, if that was at most `_ENDPOINTS_TTL_S` ago. Otherwise, read it now.

        With `newest`, always read the endpoint now.
        """
        read_at, endpoints = self._known
        known = endpoints.get(id)
        # An unknown endpoint might be new, and a disabled endpoint might be enabled by now, so read both again.
        old = self._clock.monotonic() - read_at > _ENDPOINTS_TTL_S
        if newest or old or known is None or known.disabled_at is not None:
            endpoints = {each.id: each for each in await self._store.list()}
            self._known = self._clock.monotonic(), endpoints
        return endpoints.get(id)

    async def _send(self, delivery: Delivery, endpoint: Endpoint) -> None:
        """Make one attempt, store the state, and settle the delivery by the state."""
        message = await self._message(delivery.message)
        if message is None:
            await delivery.ack()  # the event that this resend request names was deleted, so nothing can be sent
            return
        address = self._subjects.parse_delivery(message.subject)
        receipt = self._subjects.receipt(address.endpoint, address.workflow, address.event)
        stored = await self._bus.last("deliveries", receipt)
        before = None if stored is None else parse_state(stored)
        attempts = 0
        if before is not None and before.order == delivery.message.sequence:
            if before.status != "retrying":  # settled, but a process was killed before the acknowledgement
                await delivery.ack()
                return
            attempts = before.attempts
            if (
                before.next_at is not None
                and (early := (before.next_at - self._clock.now()).total_seconds()) > _EARLY_S
            ):
                await delivery.nak(early)
                return
        elif before is not None and before.order > delivery.message.sequence:
            await delivery.ack()  # the state is from a newer resend request, which replaces this message
            return
        state = DeliveryState(
            endpoint=endpoint.id,
            event=address.event,
            type=_type_of(message),
            workflow_id=address.workflow,
            status="disabled",
            attempts=attempts,
            at=self._clock.now(),
            order=delivery.message.sequence,
            error="" if endpoint.disabled_at is None else "the endpoint is disabled",
        )
        pause, began = 0.0, self._clock.now()
        if endpoint.disabled_at is None:
            state, pause = await self._exchange(endpoint, state, message.body)
        exchange = (began, self._clock.now()) if endpoint.disabled_at is None else None
        record_delivery(endpoint, message, state, exchange=exchange)
        await self._bus.publish(receipt, dump(state), {})
        await (delivery.nak(pause) if state.status == "retrying" else delivery.ack())

    async def _message(self, stored: StoredMessage) -> StoredMessage | None:
        """Return the event of a delivery, or the event that a resend request names."""
        if not stored.subject.endswith(_RESEND):
            return stored
        return await self._bus.last("deliveries", stored.subject.removesuffix(_RESEND) + ".message")

    async def _exchange(self, endpoint: Endpoint, state: DeliveryState, body: bytes) -> tuple[DeliveryState, float]:
        """Send a delivery. Return its state, and the pause before the next attempt."""
        began, now = self._clock.monotonic(), self._clock.now()
        response: Response | None = None
        error = ""
        secrets = await self._secrets.of(endpoint, now)
        try:
            if not secrets:
                raise SendError("protocol", "the endpoint has no secret; rotate the secret of the endpoint")
            headers = signed_headers(state.event, body, secrets, now)
            response = await self._sender.post(endpoint.url, body, headers)
        except SendError as failure:
            error = f"{failure.kind}: {failure}"
        attempts = state.attempts + 1
        update: dict[str, Any] = {
            "attempts": attempts,
            "at": now,
            "elapsed": round(self._clock.monotonic() - began, 3),
            "code": response.status if response is not None else None,
        }
        self._capacity.record(endpoint, self._clock.monotonic() - began)
        facts = {"endpoint": endpoint.id, "webhook_id": state.event, "attempt": attempts}
        if response is not None and 200 <= response.status < 300:
            _log.info("webhook_delivered", **facts, seconds=update["elapsed"])
            return state.model_copy(update={**update, "status": "delivered", "error": ""}), 0.0
        error = error or _error_of(response)
        if response is not None and response.status == _GONE:
            await self._disable(endpoint.id)
            return state.model_copy(update={**update, "status": "disabled", "error": error}), 0.0
        if attempts > len(self._pauses):
            hint = f"`pointsman webhooks resend {endpoint.id} {state.event}` sends the event again"
            _log.warning("webhook_failed", **facts, error=error, hint=hint)
            return state.model_copy(update={**update, "status": "failed", "error": error}), 0.0
        pause = self._pause(endpoint, attempts, response)
        _log.info("webhook_retrying", **facts, error=error, seconds=round(pause))
        update |= {"status": "retrying", "error": error, "next_at": _later(now, pause)}
        return state.model_copy(update=update), pause

    def _pause(self, endpoint: Endpoint, attempts: int, response: Response | None) -> float:
        """Return the pause before the next attempt, and throttle an overloaded endpoint."""
        asked = 0.0 if response is None else response.retry_after
        if response is not None and response.status in _THROTTLING:
            self._capacity.throttle(endpoint, asked or _THROTTLE_S)
        return jittered(max(self._pauses[attempts - 1], asked))

    async def _disable(self, endpoint: str) -> None:
        _log.warning("webhook_disabled", endpoint=endpoint, hint=_GONE_HINT)
        with suppress(NotFoundError):
            await self._store.disable(endpoint, "the endpoint answered 410 Gone", at=self._clock.now())
        self._known = (-_MAX_PAUSE_S, {})


def _type_of(message: StoredMessage) -> EventType:
    given = message.headers.get(_TYPE_HEADER)
    for each in EVENT_TYPES:
        if each == given:
            return each
    return EVENT_TYPES[0]


def _error_of(response: Response | None) -> str:
    status = 0 if response is None else response.status
    if 300 <= status < 400:
        return f"status: {status}; redirects are not followed; set the endpoint to the final URL"
    return f"status: {status}"


def _later(now: datetime, seconds: float) -> datetime:
    return now + timedelta(seconds=seconds)
