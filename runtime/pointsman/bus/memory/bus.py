"""Run a broker inside the process with the semantics of JetStream. One contract suite tests this bus and JetStream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from datetime import datetime

from pointsman.bus.claim_check import ClaimCheckStore
from pointsman.bus.memory.broker import MAX_PAYLOAD_BYTES, Broker
from pointsman.bus.memory.consumers import MemoryConsumer
from pointsman.bus.memory.key_value import MemoryKeyValue
from pointsman.bus.memory.registry import MemoryRegistry
from pointsman.bus.stream_names import stream_names
from pointsman.bus.validation import (
    EXPECTED_SEQUENCE_HEADER,
    MESSAGE_ID_HEADER,
    ROLLUP_HEADER,
    TTL_HEADER,
    check_consumer,
    check_filter,
    check_size,
    check_subject,
    event_headers,
    format_ttl,
    header_size,
    matches,
    wire_headers,
)
from pointsman.errors import BusUnavailableError
from pointsman.ports.bus import Bus, Delivery, QueueDepth, Server, Service, StoredMessage, StreamKind
from pointsman.ports.clock import Clock
from pointsman_schemas.claim_check import MAX_BODY_BYTES
from pointsman_schemas.ids import token
from pointsman_schemas.subjects import Subjects

__all__ = ["MemoryBroker", "MemoryBus"]


class MemoryBroker(Broker):
    """State that several `MemoryBus` connections share: streams, consumers, schedules, cards, listeners, services."""

    def connect(self) -> MemoryBus:
        """Open a new connection to this broker.

        Returns:
            The connection.
        """
        return MemoryBus(broker=self)


class MemoryBus(Bus):
    """Connection to an in-memory broker, for tests and simulation.

    Args:
        namespace: Namespace of a new broker. Default: `pointsman`.
        clock: Clock of a new broker. Default: the system clock.
        max_payload: Maximum size in bytes of headers and body in one message of a new broker. Default: 1 MiB, as in
            nats-server.
        max_body: Maximum size in bytes of headers and body of one event of a new broker. Default: `MAX_BODY_BYTES`.
        broker: The broker. With a broker, the other arguments are ignored. Default: a new broker.
    """

    def __init__(
        self,
        namespace: str = "pointsman",
        clock: Clock | None = None,
        max_payload: int = MAX_PAYLOAD_BYTES,
        *,
        max_body: int = MAX_BODY_BYTES,
        broker: MemoryBroker | None = None,
    ) -> None:
        self.broker = broker or MemoryBroker(namespace, clock, max_payload, max_body=max_body)
        subjects = Subjects(self.broker.namespace)
        self._claim_check = ClaimCheckStore(self, subjects, self.broker.max_body, self.broker.clock)
        self._closed = False

    @property
    def connected(self) -> bool:
        return not self._closed

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def server(self) -> Server | None:
        return None

    @property
    def handoffs_unsynced(self) -> bool:
        return self.broker.handoffs_unsynced

    @property
    def restarts(self) -> int:
        return self.broker.restarts

    async def restarted(self, seen: int) -> None:
        await self.broker.restarted(seen)

    @property
    def max_payload(self) -> int:
        return self.broker.max_payload

    @property
    def domain(self) -> str:
        return ""

    @property
    def max_body(self) -> int:
        return self.broker.max_body

    @property
    def registry(self) -> MemoryRegistry:
        return self.broker.registry

    def stream_name(self, stream: StreamKind) -> str:
        return stream_names(Subjects(self.broker.namespace), apart=self.broker.handoffs_unsynced)[stream]

    def optional_requests(self, *prefixes: str) -> AbstractContextManager[None]:
        return nullcontext()

    async def set_up(self, *, create: bool = True) -> None:
        self._require_open()

    async def publish(
        self,
        subject: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        expect: int | None = None,
        message_id: str | None = None,
    ) -> int:
        return await self._store(subject, body, headers, expect, message_id, {})

    async def replace(
        self,
        subject: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        expect: int | None = None,
        message_id: str | None = None,
        ttl: float | None = None,
    ) -> int:
        lifetime = {TTL_HEADER: format_ttl(ttl)} if ttl is not None else {}
        return await self._store(subject, body, headers, expect, message_id, {ROLLUP_HEADER: "sub", **lifetime})

    async def _store(
        self,
        subject: str,
        body: bytes,
        headers: Mapping[str, str],
        expect: int | None,
        message_id: str | None,
        extra: dict[str, str],
    ) -> int:
        check_subject(subject)
        if expect is not None:
            extra[EXPECTED_SEQUENCE_HEADER] = str(expect)
        if message_id is not None:
            extra[MESSAGE_ID_HEADER] = message_id
        body, wire = await self._claim_check.replace_large_body(subject, body, wire_headers(headers, extra))
        check_size(subject, header_size(wire), len(body), self.max_payload)
        self._require_open()
        self.broker.listening.broadcast(
            StoredMessage(subject, bytes(body), event_headers(wire), 0, self.broker.clock.now())
        )
        return self.broker.store(subject, body, wire)

    async def schedule(self, name: str, at: datetime, target: str, body: bytes, headers: Mapping[str, str]) -> bool:
        check_subject(name)
        check_subject(target)
        body, wire = await self._claim_check.replace_large_body(target, body, wire_headers(headers))
        check_size(name, header_size(wire), len(body), self.max_payload)
        self._require_open()
        return self.broker.schedule(name, at, target, body, wire)

    async def trim(self, stream: StreamKind, subject: str, last: int) -> None:
        check_filter(subject)
        self._require_open()
        self.broker.trim(stream, subject, last)

    async def time(self) -> datetime:
        self._require_open()
        return self.broker.clock.now()

    async def capacity_problem(self, stream: StreamKind) -> str:
        self._require_open()
        return ""

    async def subjects(self, stream: StreamKind, subject: str) -> Sequence[str]:
        check_filter(subject)
        self._require_open()
        return self.broker.stream(stream).subjects(subject)

    async def last(self, stream: StreamKind, subject: str) -> StoredMessage | None:
        check_filter(subject)
        self._require_open()
        found = self.broker.stream(stream).select(subject)
        return await self._claim_check.resolve(found[-1]) if found else None

    async def get(self, stream: StreamKind, sequence: int, subject: str = ">") -> StoredMessage | None:
        check_filter(subject)
        self._require_open()
        found = self.broker.stream(stream).get(sequence)
        if found is None or not matches(subject, found.subject):
            return None
        return await self._claim_check.resolve(found)

    async def read(self, stream: StreamKind, subject: str, *, after: int = 0) -> AsyncIterator[StoredMessage]:
        check_filter(subject)
        self._require_open()
        for stored in self.broker.stream(stream).select(subject, after):
            yield await self._claim_check.resolve(stored)

    async def follow(
        self, stream: StreamKind, subjects: Sequence[str], *, after: int = 0
    ) -> AsyncGenerator[StoredMessage, None]:
        for subject in subjects:
            check_filter(subject)
        while True:
            self._require_open()
            held = self.broker.stream(stream)
            if held.end < after:  # the stream was created again, or has lost its last messages
                after = 0
            for sequence in range(after + 1, held.end + 1):
                stored = held.get(sequence)
                if stored is not None and any(matches(subject, stored.subject) for subject in subjects):
                    yield await self._claim_check.resolve(stored)
                after = sequence
            if self.broker.stream(stream).end == after:
                await self.broker.until_changed()

    async def consumer(
        self,
        name: str,
        stream: StreamKind,
        subject: str,
        *,
        ack_wait: float,
        max_in_flight: int = 1000,
        ranked: bool = False,
    ) -> MemoryConsumer:
        check_filter(subject)
        check_consumer(name)
        self._require_open()
        durable = self.broker.open_durable(stream, name, subject, ack_wait, max_in_flight)
        return MemoryConsumer(self, durable, stream, ranked=ranked)

    async def receive_forwarded(
        self, name: str, on_delivery: Callable[[Delivery], None]
    ) -> AbstractAsyncContextManager[None]:
        self._require_open()
        return self.broker.listening.receive(token(name, "receiver"), on_delivery)

    async def depth(self, name: str, stream: StreamKind) -> QueueDepth | None:
        self._require_open()
        durable = self.broker.find_durable(stream, name)
        if durable is None:
            return None
        fresh = [sequence for sequence in durable.ready if sequence not in durable.counts]
        end = self.broker.stream(stream).end + 1
        return QueueDepth(
            len(fresh),
            durable.in_flight + len(durable.ready) - len(fresh),
            min(durable.unsettled, default=end) - 1,
            durable.ack_waits,
            min(fresh, default=end) - 1,
            sum(1 for each in durable.pulling if each.bound),
        )

    async def delete(self, stream: StreamKind, sequence: int, *, erase: bool = False) -> bool:
        self._require_open()
        return self.broker.delete(stream, sequence)

    async def key_value(self, bucket: str, group: str = "") -> MemoryKeyValue:
        self._require_open()
        return MemoryKeyValue(self.broker, self.broker.bucket(bucket), group)

    async def broadcast(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        check_subject(subject)
        body, wire = await self._claim_check.replace_large_body(subject, body, wire_headers(headers))
        check_size(subject, header_size(wire), len(body), self.max_payload)
        if not self._closed:
            self.broker.listening.broadcast(StoredMessage(subject, bytes(body), wire, 0, self.broker.clock.now()))

    async def listen(
        self, subject: str, on_message: Callable[[StoredMessage], Awaitable[None]]
    ) -> AbstractAsyncContextManager[None]:
        check_filter(subject)
        self._require_open()

        async def told(stored: StoredMessage) -> None:
            await on_message(await self._claim_check.resolve(stored))

        return self.broker.listening.subscribe(subject, told)

    async def serve(self, service: Service) -> AbstractAsyncContextManager[None]:
        self._require_open()
        self.broker.services.append(service)
        return _call_on_exit(lambda: self.broker.services.remove(service))

    async def close(self) -> None:
        self._closed = True
        self.broker.wake()

    async def resolve(self, stored: StoredMessage) -> StoredMessage:
        """Return a message with its body. Load the body if it is in the object store.

        Args:
            stored: The message in the stream.

        Returns:
            The message with its body.
        """
        return await self._claim_check.resolve(stored)

    def _require_open(self) -> None:
        if self._closed:
            raise BusUnavailableError("this connection was closed; open a new connection")


@asynccontextmanager
async def _call_on_exit(stop: Callable[[], None]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        stop()
