"""What the engine needs from the world, as Protocols. Each has a real adapter and an in-memory twin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

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

StreamKind = Literal["work", "handoffs", "log", "dead", "limits", "artifacts"]


class Server(NamedTuple):
    """Where a server of the broker listens: its host, as it was configured or as the cluster told it, and its port."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as a stream holds it. `sequence` is its place there, `at` the broker's own time of storing it.
    `headers` are as they were sent."""

    subject: str
    body: bytes
    headers: Mapping[str, str]
    sequence: int
    at: datetime


class Delivery(Protocol):
    """A message handed to a durable consumer, to be settled once. `delivered` is 1 the first time.

    Settling is at-least-once: a lost acknowledgement means the message comes again. None of the methods waits for the
    broker, and none raises while disconnected.
    """

    @property
    def message(self) -> StoredMessage: ...
    @property
    def delivered(self) -> int: ...
    async def ack(self) -> None:
        """It is dealt with."""
        ...

    async def nak(self, delay: float = 0.0) -> None:
        """Hand it to somebody again, not before `delay` seconds."""
        ...

    async def term(self, reason: str) -> None:
        """Never deliver it again; the broker publishes an advisory with `reason`."""
        ...

    async def in_progress(self) -> None:
        """Still at it: the acknowledgement deadline starts anew."""
        ...

    async def forward(self, name: str) -> bool:
        """Leave it, and its settling, to whoever receives as `name`: see `Bus.receive_forwarded`. False: nobody did of
        late, and it is still the caller's. If nobody does now, or it is lost on the way, it comes again."""
        ...


class Consumer(Protocol):
    """One durable pull consumer, shared with every process that opens the same name.

    `take` keeps one long-lived pull open and never has more than the room it was given outstanding, so a message is
    only ever delivered to somebody who can start on it now. It survives reconnects by itself.
    """

    async def take(self, room: int) -> Sequence[Delivery]:
        """1 to `room` deliveries, waiting for the first as long as it takes; several when they are there at once."""
        ...

    def set_rank(self, rank: int) -> None:
        """Of a consumer that is opened as `ranked`, who has a higher one is only delivered what those with a lower one
        have no room for, or are not there for: from 0 to 9, 0 at first. What was asked for before may come by the old
        one for some seconds."""
        ...

    @property
    def bound(self) -> bool:
        """Whether the broker is serving this consumer now, as far as can be known."""
        ...

    async def close(self) -> None:
        """Stop pulling. Deliveries already taken can still be settled; those not yet taken are handed back."""
        ...


class Registry(Protocol):
    """The agents alive now. A card goes when its instance withdraws it, or stops refreshing it for its time to live."""

    async def announce(self, card: AgentCard) -> None:
        """Publish or refresh `card`, keyed by its name and instance."""
        ...

    async def withdraw(self, card: AgentCard) -> None:
        """Take it off at once."""
        ...

    async def cards(self) -> Sequence[AgentCard]:
        """Every live instance's card, sorted by name and instance; kept current by a watch, so a call costs nothing."""
        ...

    async def refused(self) -> Mapping[str, str]:
        """Return the entries that are not valid cards and count for nothing: the reason by key."""
        ...


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """What a durable consumer has before it: messages never delivered, and delivered but not settled. All of its
    messages up to the sequence `settled_through` are settled. `ack_waits`, in seconds, are those that were asked for
    where the last who opened it asked for another than was there; the longest counts."""

    pending: int
    in_flight: int
    settled_through: int = 0
    ack_waits: tuple[float, ...] = ()


class TraceHopStep(NamedTuple):
    """A server received a message from `where`, handed it on to it, or stored it in that stream, or refused to."""

    kind: Literal["received", "handed_on", "stored", "refused"]
    at: datetime
    where: str


@dataclass(frozen=True, slots=True)
class TraceHop:
    """What one `server` of the broker did with one message, by its own clock. `error` is why it did not store it."""

    subject: str
    headers: Mapping[str, str]
    server: str
    steps: Sequence[TraceHopStep]
    error: str = ""


class BusObserver(Protocol):
    """Is told what goes over a bus. It must be quick, and raise nothing."""

    def on_published(self, subject: str, server: Server | None, seconds: float, error: str | None) -> None:
        """A message was stored at `server` in `seconds`, or was not: `error` is the kind of what was raised."""
        ...

    def on_received(self, subject: str, server: Server | None, consumer: str, amount: int) -> None:
        """The durable consumer `consumer` handed out `amount` messages of `subject`, which may be a wildcard."""
        ...

    def on_hop(self, hop: TraceHop) -> None:
        """A message of ours, one of a sampled trace, went over a server. Only told where `trace_broker` is set."""
        ...


class Bus(Protocol):
    """Streams, subjects and consumers of one namespace. `{ns}_WORK`, `{ns}_LOG`, `{ns}_DEAD` and `{ns}_LIMITS`
    are its streams; the last keeps the newest message of each subject. Handoffs, and those that wait for their time,
    are in `{ns}_WORK`, or in `{ns}_HANDOFFS` where the namespace was made so: ask for them as `handoffs`.

    What is published is what is read, whether it fits into one message or not: a body that does not is kept in the
    object store `{ns}_ARTIFACTS`, stored before the message that refers to it. Should it not be there any more when the
    message is read, that has its `ce-dataref` and no body, which `decode` refuses as `BodyLostError`.

    Every method raises `BusUnavailableError` when the broker does not answer within the configured time.
    """

    @property
    def connected(self) -> bool:
        """Whether the broker can be spoken to now. A lost connection is restored by itself, however long it takes."""
        ...

    @property
    def closed(self) -> bool:
        """Whether this side has left, for good."""
        ...

    @property
    def server(self) -> Server | None:
        """The server this side speaks to, or spoke to last; None where there is none."""
        ...

    @property
    def handoffs_unsynced(self) -> bool:
        """Whether a broker that is started anew may have lost the latest handoffs it had acknowledged, and where its
        consumers of them stood: they are not synced. Known after `set_up`."""
        ...

    @property
    def restarts(self) -> int:
        """How often this side has come back to a broker that had been started anew."""
        ...

    async def restarted(self, seen: int) -> None:
        """Return when `restarts` is more than `seen`."""
        ...

    @property
    def max_payload(self) -> int:
        """Bytes that headers and body of one message may have together; above, the body is kept apart."""
        ...

    @property
    def domain(self) -> str:
        """The JetStream domain of the streams, known after `set_up`; empty if the broker has none."""
        ...

    @property
    def max_body(self) -> int:
        """Bytes that headers and body of one event may have together, wherever the body is kept."""
        ...

    @property
    def registry(self) -> Registry: ...

    def stream_name(self, stream: StreamKind) -> str:
        """The name of a stream at the broker. That of `handoffs` is known after `set_up`."""
        ...

    async def set_up(self, *, create: bool = True) -> None:
        """Create the streams and buckets that are missing. Idempotent, and safe from many processes at once.

        Raises:
            NotFoundError: one is missing and it is not to be created; the message names the namespaces there are.
            ConfigurationError: what exists does not fit, or the server is too old; one line that says what to change.
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
        """Store one message in the stream that has `subject` and return its sequence. It may be under way before it is
        awaited, so that many are in flight at once; not awaited, it may never be.

        `expect` is the sequence the subject must end at now, 0 for none yet: the compare-and-set. `message_id` lets the
        broker drop a second publish within its de-duplication window (the sequence of the first is returned).

        Raises:
            ConflictError: the subject does not end at `expect`. Nothing was stored.
            OversizeEventError: headers and body exceed `max_body`. Nothing was sent.
            InvalidTokenError: the subject holds white space, control characters, wildcards or an empty token.
            PublishOutcomeUnknownError: no answer in time; it may have been stored.
        """
        ...

    def schedule(
        self, name: str, at: datetime, target: str, body: bytes, headers: Mapping[str, str]
    ) -> Coroutine[Any, Any, bool]:
        """Have the broker publish the message on `target` at `at`; durable, once, at once when `at` is past.

        `name` is a `schedule` subject; a schedule that still waits there is replaced. False when `target` already holds
        a message: repeating the call after a crash is safe, whenever the first one fires.
        """
        ...

    async def purge(self, stream: StreamKind, subject: str) -> None:
        """Remove all that `subject` holds, and a schedule of that name."""
        ...

    async def trim(self, stream: StreamKind, subject: str, last: int) -> None:
        """Remove what is stored under `subject` (wildcards allowed) up to the sequence `last`."""
        ...

    async def time(self) -> datetime:
        """The broker's own time: what it puts on messages, and fires schedules by."""
        ...

    async def capacity_problem(self, stream: StreamKind) -> str:
        """The bound for which the stream may refuse the next message, or drops its oldest; empty if there is none."""
        ...

    async def subjects(self, stream: StreamKind, subject: str) -> Sequence[str]:
        """The subjects under `subject` (wildcards allowed) that hold a message, sorted. Their messages are not read."""
        ...

    async def last(self, stream: StreamKind, subject: str) -> StoredMessage | None:
        """The newest message of a subject (wildcards allowed), read from the stream's leader."""
        ...

    async def get(self, stream: StreamKind, sequence: int) -> StoredMessage | None:
        """The message at `sequence`, or None when it is gone."""
        ...

    def read(self, stream: StreamKind, subject: str, *, after: int = 0) -> AsyncIterator[StoredMessage]:
        """What a subject (wildcards allowed) holds now, in order, above the sequence `after`; then it ends."""
        ...

    def follow(self, stream: StreamKind, subjects: Sequence[str], *, after: int = 0) -> AsyncIterator[StoredMessage]:
        """What the subjects hold, in order, then what comes, until it is closed. Survives reconnects without a gap."""
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
        """Open the durable pull consumer `name` with the one filter `subject`, creating it if it is missing.

        All who open it say alike whether it is `ranked`; if it is there, it becomes so.

        `ack_wait` is in seconds: an unsettled message is delivered again after that. Of those that share the consumer
        the longest counts; it is shortened by who opens it when nobody else has it. Deliveries are unlimited: whoever
        takes a message looks at `delivered` and gives up on it in the open.
        """
        ...

    async def receive_forwarded(
        self, name: str, on_delivery: Callable[[Delivery], None]
    ) -> AbstractAsyncContextManager[None]:
        """Call `on_delivery` with every delivery that is handed on to `name`, a token, until the context ends; what was
        on its way then is still received. Nothing is kept for who is not there: it goes back to its consumer."""
        ...

    async def depth(self, name: str, stream: StreamKind) -> QueueDepth | None:
        """How much the durable consumer `name` has before it; None when there is no such consumer."""
        ...

    async def delete(self, stream: StreamKind, sequence: int) -> bool:
        """Remove one message. False when it was gone already."""
        ...

    async def broadcast(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Tell whoever listens now; nothing is kept and nobody may hear it."""
        ...

    async def listen(
        self, subject: str, on_message: Callable[[StoredMessage], Awaitable[None]]
    ) -> AbstractAsyncContextManager[None]:
        """Call `on_message` for every message on `subject` (wildcards allowed) until the context ends. `sequence` is 0.

        Broadcasts are heard, and so is what is published to a stream, at the moment it is sent: it may not be stored
        yet, and what the stream refuses is heard too.
        """
        ...

    async def serve(self, service: Service) -> AbstractAsyncContextManager[None]:
        """Answer `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS` for `service` until the context ends (NATS ADR-32)."""
        ...

    async def close(self) -> None:
        """Flush what was published and leave. Bounded in time; safe to call twice."""
        ...


@dataclass(slots=True)
class Service:
    """What the NATS micro protocol says of an agent. The counters are read when somebody asks; times are in seconds.
    `orphaned_handlers` counts the threads and handlers that were told to stop and still run."""

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
