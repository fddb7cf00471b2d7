"""Implement the bus port on NATS JetStream, over one connection.

Every wait for the broker is bounded. The bus sends requests and parses the JSON of the answers without nats-py, for two
reasons. nats-py's `publish_async` never resolves when the server answers with an error. nats-py's `fetch` begins with a
probe, which can leave a pull request open at the broker. A message that the broker delivers to this request is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NoReturn

from pointsman.bus.claim_check import ClaimCheckStore
from pointsman.bus.jetstream.connection import NatsConnection
from pointsman.bus.jetstream.forwarding import Forwarder
from pointsman.bus.jetstream.key_value import KeyValueBucket, ensure_bucket
from pointsman.bus.jetstream.protocol import (
    NO_CONSUMER_CODE,
    NO_STREAM_CODE,
    PendingCall,
    WireMessage,
    error_code,
    error_text,
    header_bytes,
    to_nanoseconds,
)
from pointsman.bus.jetstream.provisioning import StreamProvisioner
from pointsman.bus.jetstream.publisher import StreamPublisher
from pointsman.bus.jetstream.pull_consumer import PullConsumer, ack_waits, durable_config
from pointsman.bus.jetstream.reader import StreamReader
from pointsman.bus.jetstream.registry import KeyValueRegistry
from pointsman.bus.jetstream.subscriptions import Subscriptions
from pointsman.bus.observer import SafeObserver
from pointsman.bus.validation import (
    EXPECTED_SEQUENCE_HEADER,
    EXPECTED_SUBJECT_HEADER,
    MESSAGE_ID_HEADER,
    ROLLUP_HEADER,
    TTL_HEADER,
    check_consumer,
    check_filter,
    check_size,
    check_subject,
    format_ttl,
    wire_headers,
)
from pointsman.clock import SystemClock
from pointsman.errors import (
    BusUnavailableError,
    ConflictError,
    PeerError,
    PermissionDeniedError,
    PointsmanError,
)
from pointsman.ports.bus import BusObserver, Delivery, QueueDepth, Server, Service, StoredMessage, StreamKind
from pointsman.ports.clock import Clock
from pointsman.settings import Settings
from pointsman_schemas.ids import token
from pointsman_schemas.subjects import Subjects

__all__ = ["JetStreamBus", "connect"]

_AGEING_STREAMS: frozenset[StreamKind] = frozenset({"dead", "deliveries", "limits", "artifacts"})
"""The streams whose oldest messages the broker may delete by age."""
# A stream that drops its oldest messages at `stream_bytes` is reported when it holds more than this share of the limit.
# A stream that drops its oldest messages at another limit is always reported.
_NEARLY_FULL = 0.8

_CLOSE_TIMEOUT_S = 0.5
"""Largest number of seconds in which a closing bus sends its last messages, such as negative acknowledgements. A
healthy network needs milliseconds. If the network does not answer, the process must not wait for the timeout of a
request."""


async def connect(
    settings: Settings,
    *,
    name: str,
    clock: Clock | None = None,
    wait: float | None = None,
    observer: BusObserver | None = None,
    leader_reads: bool = True,
) -> JetStreamBus:
    """Connect a bus to `settings.url`. While the broker is unavailable, try again.

    Args:
        settings: The URL, the login, the namespace and the limits.
        name: The name of the connection in the broker's monitoring.
        clock: The clock for waits and time stamps; default: the system's clock.
        wait: The longest wait for the connection, in seconds; None, the default, waits without a limit.
        observer: Called for each message that is published or received; default: no observer.
        leader_reads: True to read from the leader of a stream. A process that makes decisions must not read older data
            from a replica. False to put the subject to read into the subject of each request. A permission can then
            limit the reads, but a replica that lags might answer. Default: True.

    Returns:
        The connected bus.

    Raises:
        BusUnavailableError: The broker accepted no connection within `wait` seconds.
        ConfigurationError: A file that a setting names cannot be used, a package is missing, the broker refuses the
            login, TLS fails, or the URL cannot be read.
    """
    bus = JetStreamBus(settings, name=name, clock=clock, observer=observer, leader_reads=leader_reads)
    await bus.open(wait)
    return bus


class JetStreamBus:
    """One connection to a NATS server or cluster. `connect` makes a bus and opens it."""

    def __init__(
        self,
        settings: Settings,
        *,
        name: str,
        clock: Clock | None = None,
        observer: BusObserver | None = None,
        leader_reads: bool = True,
    ) -> None:
        self._settings = settings
        self._leader_reads = leader_reads
        self._observer = observer = SafeObserver(observer) if observer is not None else None
        self._clock: Clock = clock or SystemClock()
        self._timeout = settings.request_timeout
        self._subjects = Subjects(settings.namespace)
        self._connection = NatsConnection(
            settings,
            name,
            on_lost=self._on_connection_lost,
            on_restored=self._on_connection_restored,
            on_no_responders=self._on_no_responders,
        )
        self._client = self._connection.client
        self.request, self.api, self.send = self._connection.request, self._connection.api, self._connection.send
        self.ask, self.flush = self._connection.ask, self._connection.flush
        self.optional_requests = self._connection.optional_requests
        self.new_inbox, self.subscribe = self._connection.new_inbox, self._connection.subscribe
        self.api_subject, self.refusal_listeners = self._connection.api_subject, self._connection.refusal_listeners
        self.reader_names = self._connection.reader_names
        self._consumers: set[PullConsumer] = set()
        self._streams = StreamProvisioner(self._connection, self._subjects, settings, self._clock)
        self._reader = StreamReader(
            self,
            self._timeout,
            self._streams.retry_missing,
            from_leader=leader_reads,
            has_replicas=lambda: self._client.is_clustered,
        )
        self._writer = StreamPublisher(self, self._reader, self._clock, observer)
        self._claim_check = ClaimCheckStore(
            self,
            self._subjects,
            settings.max_body,
            self._clock,
            may_lag=lambda: not leader_reads and self._client.is_clustered,
        )
        alive = 3 * settings.heartbeat  # seconds; the time to live of an agent's card
        self._registry = KeyValueRegistry(
            self, self._writer, self._reader, self._subjects.agents_bucket, alive, self._clock
        )
        self._subscriptions = Subscriptions(self, self._client, self._claim_check.resolve, self._clock, self._timeout)
        self._forwarder = Forwarder(self, settings.namespace, alive, self._claim_check.resolve)

    async def open(self, wait: float | None) -> None:
        """Connect for the first time, as described at `connect`."""
        await self._connection.open(wait)
        if self._settings.trace_broker and self._observer is not None:
            self._writer.hops = self.new_inbox()
            await self.subscribe(self._writer.hops, self._writer.on_hop)

    async def close(self) -> None:
        if self.closed:
            return
        self._connection.reject_requests()
        await self._streams.close()
        with suppress(asyncio.TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._registry.close()
                await asyncio.gather(*(consumer.close() for consumer in list(self._consumers)))
                await self._connection.flush()
        await self._connection.close()

    @property
    def connected(self) -> bool:
        return self._connection.connected

    @property
    def closed(self) -> bool:
        return self._connection.closed

    @property
    def server(self) -> Server | None:
        return self._connection.server

    @property
    def restarts(self) -> int:
        return self._connection.restarts

    async def restarted(self, seen: int) -> None:
        await self._connection.restarted(seen)

    @property
    def listeners(self) -> set[Callable[[], None]]:
        return self._connection.listeners

    @property
    def handoffs_unsynced(self) -> bool:
        return self._streams.separate_handoffs

    @property
    def max_payload(self) -> int:
        return self._client.max_payload

    @property
    def domain(self) -> str:
        return self._streams.domain

    @property
    def max_body(self) -> int:
        return self._settings.max_body

    @property
    def registry(self) -> KeyValueRegistry:
        return self._registry

    # Streams

    def stream_name(self, stream: StreamKind) -> str:
        return self._streams[stream]

    async def set_up(self, *, create: bool = True) -> None:
        await self._streams.set_up(create=create)

    def _on_connection_lost(self) -> None:
        # A stream of this name exists only if the broker does not sync handoffs. After a restart, such a broker can
        # give the sequence of a lost handoff to another handoff, which an old acknowledgement would then acknowledge.
        self._client.drop_settlements_of(self._subjects.handoff_stream)
        self._registry.on_connection_lost()

    def _on_connection_restored(self) -> None:
        self._registry.on_connection_restored()
        self._streams.start_restore()

    def _on_no_responders(self, subject: str) -> None:
        self._streams.on_no_responders(subject)

    # Messages

    def publish(
        self,
        subject: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        expect: int | None = None,
        message_id: str | None = None,
    ) -> Coroutine[Any, Any, int]:
        """Send `body` at once if the connection is up and `body` fits into a message. Otherwise the await sends it."""
        orders = {EXPECTED_SEQUENCE_HEADER: str(expect)} if expect is not None else {}
        if message_id is not None:
            orders[MESSAGE_ID_HEADER] = message_id
        return self._publish(subject, subject, body, headers, orders)()

    def _publish(
        self, name: str, subject: str, body: bytes, headers: Mapping[str, str], orders: dict[str, str]
    ) -> PendingCall[int]:
        """Return a call that stores a message on `name`. Errors are raised only when the call is awaited.

        For a schedule, `name` is the subject of the schedule, and `subject` is its target.
        """
        try:
            check_subject(name)
            if subject != name:
                check_subject(subject)
            wire = wire_headers(headers, orders)
            if self._claim_check.fits_in_message(body):
                return self._writer.start_publish(name, body, wire)
        except PointsmanError as error:
            return partial(_raise_error, error)
        return partial(self._publish_large, name, subject, body, wire)

    async def _publish_large(self, name: str, subject: str, body: bytes, wire: dict[str, str]) -> int:
        return await self._writer.publish(name, *await self._claim_check.replace_large_body(subject, body, wire))

    def replace(
        self,
        subject: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        expect: int | None = None,
        message_id: str | None = None,
        ttl: float | None = None,
    ) -> Coroutine[Any, Any, int]:
        """Send the replacement at once, as `publish` does."""
        orders = {ROLLUP_HEADER: "sub"}
        if expect is not None:
            orders[EXPECTED_SEQUENCE_HEADER] = str(expect)
        if message_id is not None:
            orders[MESSAGE_ID_HEADER] = message_id
        if ttl is not None:
            orders[TTL_HEADER] = format_ttl(ttl)
        return self._publish(subject, subject, body, headers, orders)()

    def schedule(
        self, name: str, at: datetime, target: str, body: bytes, headers: Mapping[str, str]
    ) -> Coroutine[Any, Any, bool]:
        """Send the schedule at once, as `publish` does."""
        moment = at.astimezone(UTC).isoformat().replace("+00:00", "Z")
        # The compare-and-set checks the target: at the time `at`, the broker publishes on `target` and removes the
        # schedule from `name`. So only `target` shows that the schedule has fired.
        orders = {
            "Nats-Schedule": f"@at {moment}",
            "Nats-Schedule-Target": target,
            EXPECTED_SEQUENCE_HEADER: "0",
            EXPECTED_SUBJECT_HEADER: target,
        }
        return self._await_schedule(self._publish(name, target, body, headers, orders))

    async def _await_schedule(self, storing: PendingCall[int]) -> bool:
        try:
            await storing()
        except ConflictError:
            return False
        return True

    async def trim(self, stream: StreamKind, subject: str, last: int) -> None:
        check_filter(subject)
        answer = await self.api(f"STREAM.PURGE.{self._streams[stream]}", {"filter": subject, "seq": last + 1})
        if error_code(answer):
            raise PeerError(f"the broker does not purge {subject}: {error_text(answer)}")

    async def time(self) -> datetime:
        if self._leader_reads:
            return await self._reader.broker_time(self._streams["work"], ">")
        return await self._registry.broker_time()

    async def capacity_problem(self, stream: StreamKind) -> str:
        name = self._streams[stream]
        answer = await self.api(f"STREAM.INFO.{name}")
        if error_code(answer):
            raise BusUnavailableError(f"the broker does not describe {name}: {error_text(answer)}")
        config, state = answer["config"], answer["state"]
        if (age := config.get("max_age", 0)) and stream not in _AGEING_STREAMS:
            return f"{name} drops messages after {age / to_nanoseconds(86_400):g} days, even if they are unread"
        # Require room for one more message, which can be as large as the largest message.
        for bound, unit, room in (("max_msgs", "messages", 1), ("max_bytes", "bytes", self.max_payload)):
            if (limit := config.get(bound, -1)) <= 0:
                continue
            held = state[unit]
            if config["discard"] == "old":
                if limit != self._settings.stream_bytes:
                    return f"{name} drops its oldest messages beyond {limit} {unit}"
                if held > limit * _NEARLY_FULL:
                    return f"{name} has {held} {unit} of at most {limit}, and drops its oldest messages when full"
                continue
            if limit < held + room:
                return f"{name} has {held} {unit} of at most {limit}, and refuses messages that do not fit"
        return ""

    async def subjects(self, stream: StreamKind, subject: str) -> Sequence[str]:
        check_filter(subject)
        found: list[str] = []
        while True:
            query = {"subjects_filter": subject, "offset": len(found)}
            answer = await self.api(f"STREAM.INFO.{self._streams[stream]}", query)
            if error_code(answer):
                raise BusUnavailableError(f"the broker does not describe {self._streams[stream]}: {error_text(answer)}")
            page = answer["state"].get("subjects") or {}
            found += page
            if not page or len(found) >= answer.get("total", 0):
                return sorted(found)

    async def last(self, stream: StreamKind, subject: str) -> StoredMessage | None:
        check_filter(subject)
        found = await self._reader.last(self._streams[stream], subject)
        return found and await self._claim_check.resolve(found)

    async def get(self, stream: StreamKind, sequence: int, subject: str = ">") -> StoredMessage | None:
        check_filter(subject)
        found = await self._reader.get(self._streams[stream], sequence, subject)
        return found and await self._claim_check.resolve(found)

    async def delete(self, stream: StreamKind, sequence: int, *, erase: bool = False) -> bool:
        order = {"seq": sequence, "no_erase": not erase}
        answer = await self.api(f"STREAM.MSG.DELETE.{self._streams[stream]}", order)
        if error_code(answer):
            if await self.get(stream, sequence) is None:
                return False
            raise PeerError(f"the broker does not delete {sequence} of {self._streams[stream]}: {error_text(answer)}")
        return True

    def read(self, stream: StreamKind, subject: str, *, after: int = 0) -> AsyncIterator[StoredMessage]:
        check_filter(subject)
        return self._resolve(self._reader.read(self._streams[stream], subject, after))

    def follow(self, stream: StreamKind, subjects: Sequence[str], *, after: int = 0) -> AsyncIterator[StoredMessage]:
        for subject in subjects:
            check_filter(subject)
        return self._resolve(self._reader.follow(self._streams[stream], subjects, after))

    async def _resolve(self, messages: AsyncGenerator[StoredMessage, None]) -> AsyncGenerator[StoredMessage, None]:
        async with aclosing(messages):
            async for stored in messages:
                yield stored if stored.body else await self._claim_check.resolve(stored)

    # Consumers

    async def consumer(
        self,
        name: str,
        stream: StreamKind,
        subject: str,
        *,
        ack_wait: float,
        max_in_flight: int = 1000,
        ranked: bool = False,
    ) -> PullConsumer:
        check_filter(subject)
        check_consumer(name)
        config = durable_config(name, subject, ack_wait, max_in_flight, ranked=ranked)

        def handed_out(amount: int) -> None:
            if self._observer is not None:
                self._observer.on_received(subject, self.server, name, amount)

        whole = self._claim_check.resolve
        consumer = PullConsumer(
            self,
            self._streams[stream],
            config,
            self._consumers.discard,
            handed_out,
            whole,
            forgets=self._streams.separate_handoffs and stream == "handoffs",
            may_create=self._settings.provision,
            has_replicas=lambda: self._client.is_clustered,
        )
        await consumer.open()
        self._consumers.add(consumer)
        return consumer

    async def forward(self, name: str, message: WireMessage) -> bool:
        return await self._forwarder.forward(name, message)

    async def receive_forwarded(
        self, name: str, on_delivery: Callable[[Delivery], None]
    ) -> AbstractAsyncContextManager[None]:
        return self._forwarder.receive(token(name, "receiver"), on_delivery)

    async def depth(self, name: str, stream: StreamKind) -> QueueDepth | None:
        answer = await self.api(f"CONSUMER.INFO.{self._streams[stream]}.{check_consumer(name)}")
        if code := error_code(answer):
            if code in (NO_CONSUMER_CODE, NO_STREAM_CODE):
                return None
            raise PeerError(f"the broker does not describe the consumer {name}: {error_text(answer)}")
        differing = tuple(wait / to_nanoseconds(1) for wait in sorted(ack_waits(answer)))
        return QueueDepth(
            answer["num_pending"],
            answer["num_ack_pending"],
            answer["ack_floor"]["stream_seq"],
            differing,
            answer["delivered"]["stream_seq"],
            answer.get("num_waiting", 0),
        )

    async def key_value(self, bucket: str, group: str = "") -> KeyValueBucket:
        if self._settings.provision:
            limit = self._settings.stream_bytes
            # A process without permission to read the configuration uses the existing bucket.
            with suppress(PermissionDeniedError), self._connection.optional_requests(self.api_subject("STREAM.INFO.")):
                await ensure_bucket(self, bucket, replicas=self._settings.replicas, max_bytes=limit)
        return KeyValueBucket(self._writer, self._reader, bucket, group)

    # Core NATS

    async def broadcast(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        check_subject(subject)
        body, wire = await self._claim_check.replace_large_body(subject, body, wire_headers(headers))
        block = header_bytes(wire)
        check_size(subject, len(block), len(body), self.max_payload)
        if self.connected:
            await self.send(subject, body, headers=block)

    async def listen(
        self, subject: str, on_message: Callable[[StoredMessage], Awaitable[None]]
    ) -> AbstractAsyncContextManager[None]:
        return await self._subscriptions.subscribe(subject, on_message)

    async def serve(self, service: Service) -> AbstractAsyncContextManager[None]:
        return await self._subscriptions.serve(service)


async def _raise_error(error: PointsmanError) -> NoReturn:
    raise error
