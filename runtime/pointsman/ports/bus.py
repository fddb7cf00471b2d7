"""The port of the bus: streams, consumers, schedules and a registry of one namespace.

`JetStreamBus` is the real adapter and `MemoryBus` its in-memory twin. Both pass one contract suite.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

from pointsman.ports.key_value import KeyValue
from pointsman_schemas.card import AgentCard

__all__ = [
    "Bus",
    "BusObserver",
    "Consumer",
    "Delivery",
    "QueueDepth",
    "Registry",
    "Server",
    "Service",
    "StoredMessage",
    "StreamKind",
    "TraceHop",
    "TraceHopStep",
]

StreamKind = Literal[
    "requests", "controls", "results", "work", "handoffs", "log", "dead", "deliveries", "limits", "artifacts"
]


class Server(NamedTuple):
    """The address of a server of the broker.

    Attributes:
        address: The host, from the configuration or from the cluster.
        port: The port.
    """

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message of a stream.

    Attributes:
        subject: The subject.
        body: The body.
        headers: The headers as the publisher sent them.
        sequence: The sequence number in the stream.
        at: The time at which the broker stored the message, by the broker's clock.
        scheduled_by: The subject of the schedule that produced the message; empty for a message that a client
            published. In a stream with schedules, a client can also set this value, by `Nats-Schedule-Next`.
    """

    subject: str
    body: bytes
    headers: Mapping[str, str]
    sequence: int
    at: datetime
    scheduled_by: str = ""


class Delivery(Protocol):
    """A message that a durable consumer delivered. The caller must settle the message once.

    `ack`, `nak`, `term` and `forward` settle the message. A lost acknowledgement does no harm, because the broker then
    delivers the message again. So no method waits for the broker, and no method raises an error while the connection is
    lost.
    """

    @property
    def message(self) -> StoredMessage:
        """Return the message."""
        ...

    @property
    def delivered(self) -> int:
        """Return the number of deliveries of the message, from 1."""
        ...

    async def ack(self) -> None:
        """Acknowledge the message."""
        ...

    async def nak(self, delay: float = 0.0) -> None:
        """Request another delivery of the message.

        Args:
            delay: The shortest time until that delivery, in seconds.
        """
        ...

    async def term(self, reason: str) -> None:
        """Refuse all further deliveries of the message.

        Args:
            reason: The reason, which the broker publishes in an advisory.
        """
        ...

    async def in_progress(self) -> None:
        """Restart the acknowledgement deadline, because the work continues."""
        ...

    async def forward(self, name: str) -> bool:
        """Forward the delivery to another process, which must then settle the message; see `Bus.receive_forwarded`.

        If the other process has stopped, or the message is lost on the way, the broker delivers the message again.

        Args:
            name: The name under which the other process receives.

        Returns:
            False if no process received under that name recently. The caller must then settle the message.
        """
        ...


class Consumer(Protocol):
    """A durable pull consumer. All processes that open the same name share the consumer.

    `take` keeps one long-lived pull request open, and requests at most as many messages as the caller has room for. So
    the broker sends each message to a process that can process the message at once. The consumer survives reconnects.
    """

    async def take(self, room: int) -> Sequence[Delivery]:
        """Wait for deliveries, without a time limit.

        Args:
            room: The greatest number of deliveries.

        Returns:
            1 to `room` deliveries: all the available deliveries up to `room`.
        """
        ...

    def set_rank(self, rank: int) -> None:
        """Set the priority of this process at a consumer that was opened as `ranked`.

        Of the processes that have room, the broker prefers the processes with the lowest rank. A pull request that is
        already open retains its old rank for some seconds.

        Args:
            rank: The rank from 0 to 9. Before the first call, the rank is 0.
        """
        ...

    async def withdraw(self) -> Sequence[Delivery]:
        """Close the open pull request. The broker then delivers to other processes until the next `take`.

        Call the method only while no `take` runs.

        Returns:
            The deliveries that were on their way. There are at most as many as the `room` of the last `take`.
        """
        ...

    @property
    def bound(self) -> bool:
        """Return True if the broker serves this consumer now. The call sends no request, so the value may be old."""
        ...

    async def close(self) -> None:
        """Stop pulling. Deliveries that were not taken return to the broker. Taken deliveries can still be settled."""
        ...


class Registry(Protocol):
    """The cards of the live agents.

    A card is removed when its instance withdraws the card, or does not refresh the card within the card's time to live.
    """

    async def announce(self, card: AgentCard) -> None:
        """Publish or refresh a card.

        Args:
            card: The card; its name and instance are the key.
        """
        ...

    async def withdraw(self, card: AgentCard) -> None:
        """Remove a card at once.

        Args:
            card: The card.
        """
        ...

    async def cards(self) -> Sequence[AgentCard]:
        """Return the cards of all live instances. A watch keeps the cards current, so a call sends no request.

        Returns:
            The cards, sorted by name and instance.
        """
        ...

    async def refused(self) -> Mapping[str, str]:
        """Return the entries that are not valid cards. `cards` leaves these entries out.

        Returns:
            The reason for each entry, by its key.
        """
        ...


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The backlog of a durable consumer.

    Attributes:
        pending: The number of messages that were never delivered.
        in_flight: The number of messages that were delivered and are not settled.
        settled_through: The sequence up to which all messages are settled.
        ack_waits: The acknowledgement deadlines in seconds, if processes requested different deadlines. The consumer
            then has the longest of them. Empty if all processes requested the same deadline.
        delivered_through: The sequence up to which all messages were delivered at least once.
        pulls: The number of open pull requests.
    """

    pending: int
    in_flight: int
    settled_through: int = 0
    ack_waits: tuple[float, ...] = ()
    delivered_through: int = 0
    pulls: int = 0


class TraceHopStep(NamedTuple):
    """A step of a message through one server.

    Attributes:
        kind: The action: the server received the message, forwarded it (`handed_on`), stored it or refused it.
        at: The time by the server's clock.
        where: The connection or server that the message came from or went to, or the stream that stores it.
    """

    kind: Literal["received", "handed_on", "stored", "refused"]
    at: datetime
    where: str


@dataclass(frozen=True, slots=True)
class TraceHop:
    """The path of one message through one server of the broker.

    Attributes:
        subject: The subject.
        headers: The headers of the message.
        server: The server's name.
        steps: The steps, in the order of their times by the server's clock.
        error: The reason why the server did not store the message; empty if the message was stored.
    """

    subject: str
    headers: Mapping[str, str]
    server: str
    steps: Sequence[TraceHopStep]
    error: str = ""


class BusObserver(Protocol):
    """An observer of the traffic of a bus. Its methods must be quick and must not raise."""

    def on_published(self, subject: str, server: Server | None, seconds: float, error: str | None) -> None:
        """Observe the end of a publish.

        Args:
            subject: The subject.
            server: The server of the connection; None if there is no connection.
            seconds: The duration in seconds.
            error: The kind of the error; None if the message was stored.
        """
        ...

    def on_received(self, subject: str, server: Server | None, consumer: str, amount: int) -> None:
        """Observe a delivery of messages.

        Args:
            subject: The consumer's subject, which may have wildcards.
            server: The server of the connection; None if there is no connection.
            consumer: The name of the durable consumer.
            amount: The number of messages.
        """
        ...

    def on_hop(self, hop: TraceHop) -> None:
        """Observe the path of a message through a server.

        The bus calls this method only for messages of sampled traces, and only if the setting `trace_broker` is on.

        Args:
            hop: The hop.
        """
        ...


class Bus(Protocol):
    """The streams, subjects and consumers of one namespace.

    Each stream has one kind of writer. Callers write to `{ns}_REQUESTS`, operators to `{ns}_CONTROLS`, agents to
    `{ns}_RESULTS`, and supervisors to `{ns}_WORK` and `{ns}_LOG`. `{ns}_DEAD` contains dead letters. `{ns}_LIMITS` and
    `{ns}_DELIVERIES` contain the newest message of each subject. Handoffs and delayed handoffs are in `{ns}_WORK`, or
    in `{ns}_HANDOFFS` in a namespace with unsynced handoffs. As an argument of a call, the stream of handoffs is
    `handoffs` in both cases. Only these two streams accept `schedule` and `replace`.

    A body that does not fit into one message is stored in the object store `{ns}_ARTIFACTS`, and afterwards the message
    with a reference to the body is stored. A read of the message also reads the body. If the object is missing, the
    message has its `ce-dataref` and no body, and `decode` raises `BodyLostError`.

    Every method raises `BusUnavailableError` if the broker does not answer within the configured time.
    """

    @property
    def connected(self) -> bool:
        """Return True if the connection is up. The bus tries to restore a lost connection without a time limit."""
        ...

    @property
    def closed(self) -> bool:
        """Return True if `close` was called."""
        ...

    @property
    def server(self) -> Server | None:
        """Return the server of the present or the last connection; None before the first connection."""
        ...

    @property
    def handoffs_unsynced(self) -> bool:
        """Return True if handoffs are not synced to disk. The value is valid after `set_up`.

        If the value is True, a broker that restarts may lose the newest handoffs, and the positions of their consumers.
        """
        ...

    @property
    def restarts(self) -> int:
        """Return the number of reconnects to a broker that had restarted."""
        ...

    async def restarted(self, seen: int) -> None:
        """Wait until the broker has restarted since the caller read `restarts`.

        Args:
            seen: The value of `restarts` that the caller read.
        """
        ...

    @property
    def max_payload(self) -> int:
        """Return the largest size of one message in bytes, with headers. A larger body goes to the object store."""
        ...

    @property
    def domain(self) -> str:
        """Return the JetStream domain of the streams; empty if the broker has no domain. Valid after `set_up`."""
        ...

    @property
    def max_body(self) -> int:
        """Return the largest size of one event in bytes: the headers and the body, which may be in the object store."""
        ...

    @property
    def registry(self) -> Registry:
        """Return the registry."""
        ...

    def stream_name(self, stream: StreamKind) -> str:
        """Return the name of a stream at the broker. The name of `handoffs` is valid after `set_up`.

        Args:
            stream: The stream.

        Returns:
            The name.
        """
        ...

    def optional_requests(self, *prefixes: str) -> AbstractContextManager[None]:
        """Log refused permissions at level info, not as errors. Use this for requests that need no answer.

        Args:
            *prefixes: The prefixes of the subjects to which optional requests are sent; an empty text for all requests.

        Returns:
            A context manager. Its exit restores the usual log level.
        """
        ...

    async def set_up(self, *, create: bool = True) -> None:
        """Check the streams and buckets, and create missing streams and buckets.

        The call is idempotent, and many processes may call in parallel.

        Args:
            create: False to raise an error for a namespace with missing streams.

        Raises:
            NotFoundError: a stream is missing and `create` is False; the message names the namespaces that exist.
            ConfigurationError: an existing stream does not fit, or the server is too old; the message names what to
                change.
        """
        ...

    def publish(
        self,
        subject: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        expect: int | None = None,
        message_id: str | None = None,
    ) -> Coroutine[Any, Any, int]:
        """Store one message in the stream of `subject`.

        The publish may start before the coroutine is awaited, so many publishes can be in flight. If the coroutine is
        never awaited, the publish may never start.

        Args:
            subject: The subject.
            body: The body.
            headers: The headers.
            expect: Compare-and-set: the sequence that the subject's newest message must have; 0 if the subject must be
                empty; None, the default, for no check.
            message_id: An id by which the broker ignores a repeated publish within its de-duplication window.

        Returns:
            The sequence of the message; for a repeated `message_id`, the sequence of the first message.

        Raises:
            ConflictError: the subject's newest message does not have the sequence `expect`. Nothing was stored.
            OversizeEventError: headers and body exceed `max_body`. Nothing was sent.
            InvalidTokenError: the subject contains white space, control characters, wildcards or an empty token.
            PublishOutcomeUnknownError: the broker did not answer in time. The message may have been stored or not.
        """
        ...

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
        """Store one message on `subject`, and delete all earlier messages and the schedule on `subject`.

        The publish may start before the coroutine is awaited, as with `publish`.

        Args:
            subject: The subject, in a stream with schedules.
            body: The body.
            headers: The headers.
            expect: Compare-and-set: the sequence that the subject's newest message must have; None, the default, for no
                check.
            message_id: An id by which the broker ignores a repeated publish within its de-duplication window.
            ttl: The time in seconds after which the broker deletes the message; None for no limit.

        Returns:
            The sequence of the message; for a repeated `message_id`, the sequence of the first message.

        Raises:
            ConflictError: the subject's newest message does not have the sequence `expect`. Nothing was stored or
                deleted.
            PeerError: the stream of `subject` accepts no replacements.
            OversizeEventError: headers and body exceed `max_body`. Nothing was sent.
            PublishOutcomeUnknownError: the broker did not answer in time. The message may have been stored or not.
        """
        ...

    def schedule(
        self, name: str, at: datetime, target: str, body: bytes, headers: Mapping[str, str]
    ) -> Coroutine[Any, Any, bool]:
        """Schedule one durable publish.

        After a crash, the call may be repeated. If the schedule has fired, `target` has a message, so the repeated call
        has no effect.

        Args:
            name: The subject of the schedule. If a schedule on this subject has not fired yet, the call replaces it.
            at: The time of the publish; a past time means at once.
            target: The subject of the publish.
            body: The body.
            headers: The headers.

        Returns:
            False if `target` already has a message.

        Raises:
            PeerError: the stream of `name` has no schedules.
        """
        ...

    async def trim(self, stream: StreamKind, subject: str, last: int) -> None:
        """Delete the messages of a subject up to a sequence.

        Args:
            stream: The stream.
            subject: The subject; wildcards are allowed.
            last: The last sequence that is deleted.
        """
        ...

    async def time(self) -> datetime:
        """Return the time by the broker's clock, which stamps messages and fires schedules.

        Returns:
            The time.
        """
        ...

    async def capacity_problem(self, stream: StreamKind) -> str:
        """Describe a limit that makes a stream refuse new messages or delete old messages, now or soon.

        Args:
            stream: The stream.

        Returns:
            A description of the limit; empty if the stream has room.
        """
        ...

    async def subjects(self, stream: StreamKind, subject: str) -> Sequence[str]:
        """List the subjects that have a message, without reading messages.

        Args:
            stream: The stream.
            subject: The subject; wildcards are allowed.

        Returns:
            The subjects, sorted.
        """
        ...

    async def last(self, stream: StreamKind, subject: str) -> StoredMessage | None:
        """Read the newest message of a subject.

        A bus that reads from the stream's leader returns the newest message. A bus that reads from replicas may return
        an older message, because a replica can lag.

        Args:
            stream: The stream.
            subject: The subject; wildcards are allowed.

        Returns:
            The message; None if there is no message.
        """
        ...

    async def get(self, stream: StreamKind, sequence: int, subject: str = ">") -> StoredMessage | None:
        """Read one message.

        Args:
            stream: The stream.
            sequence: The sequence.
            subject: The subject of the message; wildcards are allowed. A process that may not read all subjects must
                name a subject that the process may read.

        Returns:
            The message; None if the message was deleted or has another subject.
        """
        ...

    def read(self, stream: StreamKind, subject: str, *, after: int = 0) -> AsyncIterator[StoredMessage]:
        """Read the present messages of a subject, in order.

        Args:
            stream: The stream.
            subject: The subject; wildcards are allowed.
            after: Leave out messages up to this sequence. Default: 0, no message is left out.

        Returns:
            An iterator that ends after the message that was the newest at the call.
        """
        ...

    def follow(self, stream: StreamKind, subjects: Sequence[str], *, after: int = 0) -> AsyncIterator[StoredMessage]:
        """Read the messages of subjects, in order, and wait for further messages. A reconnect skips no message.

        Args:
            stream: The stream.
            subjects: The subjects; wildcards are allowed.
            after: Leave out messages up to this sequence. Default: 0, no message is left out.

        Returns:
            An iterator that continues until it is closed.
        """
        ...

    async def consumer(
        self,
        name: str,
        stream: StreamKind,
        subject: str,
        *,
        ack_wait: float,
        max_in_flight: int = 1000,
        ranked: bool = False,
    ) -> Consumer:
        """Open a durable pull consumer. Create the consumer if the consumer does not exist.

        The broker does not limit the number of deliveries. A process checks `delivered` of each message, and
        dead-letters a message with too many deliveries.

        Args:
            name: The consumer's name.
            stream: The stream.
            subject: The filter subject.
            ack_wait: The acknowledgement deadline in seconds. If a message is not settled by then, the broker delivers
                the message again. Of the deadlines that the processes requested, the longest applies. A process
                shortens the deadline only if no other process uses the consumer.
            max_in_flight: The largest number of unsettled messages, of all processes together.
            ranked: True to use ranks, see `Consumer.set_rank`. All processes must pass the same value. The call changes
                an existing consumer to this value.

        Returns:
            The consumer.
        """
        ...

    async def receive_forwarded(
        self, name: str, on_delivery: Callable[[Delivery], None]
    ) -> AbstractAsyncContextManager[None]:
        """Receive the deliveries that other processes forward.

        If no process receives under a name, a delivery that is forwarded to this name returns to its consumer.

        Args:
            name: The name of the receiver: one token of a subject.
            on_delivery: Called with each delivery.

        Returns:
            A context manager. After its exit, deliveries that were already forwarded are still received.
        """
        ...

    async def depth(self, name: str, stream: StreamKind) -> QueueDepth | None:
        """Read the backlog of a durable consumer.

        Args:
            name: The consumer's name.
            stream: The stream.

        Returns:
            The backlog; None if the consumer does not exist.
        """
        ...

    async def delete(self, stream: StreamKind, sequence: int, *, erase: bool = False) -> bool:
        """Delete one message.

        Args:
            stream: The stream.
            sequence: The sequence.
            erase: Also overwrite the message on the disk of the broker; default False.

        Returns:
            False if the message had been deleted already.
        """
        ...

    async def key_value(self, bucket: str, group: str = "") -> KeyValue:
        """Open a key-value bucket. Create a missing bucket, because `set_up` does not create or check such buckets.

        Args:
            bucket: The name of the bucket, from `Subjects`.
            group: A token that is put before each key, so that one permission can name all keys of the group. Default:
                keys without a group.

        Returns:
            The bucket.

        Raises:
            ConfigurationError: the broker refuses to create the bucket.
        """
        ...

    async def broadcast(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Publish a message to the present subscribers. The message is not stored.

        Args:
            subject: The subject.
            body: The body.
            headers: The headers.
        """
        ...

    async def listen(
        self, subject: str, on_message: Callable[[StoredMessage], Awaitable[None]]
    ) -> AbstractAsyncContextManager[None]:
        """Subscribe to a subject (core NATS, at most once).

        The subscription also receives messages that are published to a stream. It may receive such a message before the
        stream has stored it, so the stream may still refuse the message.

        Args:
            subject: The subject; wildcards are allowed.
            on_message: Called with each message; its `sequence` is 0.

        Returns:
            A context manager that unsubscribes.
        """
        ...

    async def serve(self, service: Service) -> AbstractAsyncContextManager[None]:
        """Answer `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS` for a service (NATS ADR-32).

        Args:
            service: The service.

        Returns:
            A context manager that stops the answers.
        """
        ...

    async def close(self) -> None:
        """Flush pending publishes and disconnect within a bounded time. A second call does nothing."""
        ...


@dataclass(slots=True)
class Service:
    """The description and the counters of an agent for the NATS micro protocol.

    Attributes:
        name: The name.
        id: The id of the instance.
        version: The version.
        description: The description.
        subject: The subject of the endpoint.
        metadata: The metadata.
        requests: The number of handoffs.
        errors: The number of failed attempts.
        last_error: The newest error.
        processing_time: The duration of all attempts together, in seconds.
        orphaned_handlers: Function that returns the number of threads and handlers that still run after their
            cancellation.
    """

    name: str
    id: str
    version: str
    description: str
    subject: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    requests: int = 0
    errors: int = 0
    last_error: str = ""
    processing_time: float = 0.0
    orphaned_handlers: Callable[[], int] = int
