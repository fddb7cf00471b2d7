"""How JetStream writes things down: reply subjects, header blocks, times, the numbers of its errors."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, TypeVar

from pointsman.bus.jetstream.refusals import Refusal
from pointsman.bus.validation import is_event_header
from pointsman.errors import PermissionDeniedError
from pointsman.ports.bus import StoredMessage

__all__ = [
    "ADVICE",
    "INCURABLE",
    "MAX_BYTES_REQUIRED_CODE",
    "NOT_DELETED_CODE",
    "NO_CONSUMER_CODE",
    "NO_MESSAGE_CODE",
    "NO_SPACE_CODE",
    "NO_STREAM_CODE",
    "PENDING_WRITE_CODE",
    "STREAM_EXISTS_CODE",
    "TOO_LARGE_CODES",
    "WRONG_SEQUENCE_CODE",
    "BusSubscription",
    "Connection",
    "DeliveryInfo",
    "ForwardingConnection",
    "PendingCall",
    "WireMessage",
    "decode_text",
    "error_code",
    "error_text",
    "header_block",
    "header_bytes",
    "header_lines",
    "parse_time",
    "to_nanoseconds",
    "to_stored_message",
    "with_advice",
]

_Result = TypeVar("_Result")
PendingCall: TypeAlias = Callable[[], Coroutine[Any, Any, _Result]]
"""How to wait for what is under way. A coroutine within one that nobody awaits would be one that was never awaited."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

NO_MESSAGE_CODE, NO_STREAM_CODE, NO_CONSUMER_CODE = 10037, 10059, 10014
STREAM_EXISTS_CODE = 10058  # a stream of that name exists with another configuration
NOT_DELETED_CODE = 10057  # also what the delete of a missing message is answered with, as an internal error
WRONG_SEQUENCE_CODE = 10071  # the subject ends at another sequence
PENDING_WRITE_CODE = 10164  # a replicated stream has another message for the subject, which may still come to nothing
NO_SPACE_CODE = 10077  # the stream cannot store it: it is full, or its disk is
TOO_LARGE_CODES = frozenset({10054, 10097})

MAX_BYTES_REQUIRED_CODE = 10113  # the account wants streams with a maximum size

ADVICE = {
    10002: "raise the limits of the account, or lower POINTSMAN_STREAM_BYTES and POINTSMAN_ARTIFACTS_BYTES",
    10005: "POINTSMAN_REPLICAS needs as many servers with JetStream and room",
    10026: "raise max_consumers of the account",
    10027: "raise max_streams of the account: a namespace needs seven",
    10028: "raise the limits of the account, or lower POINTSMAN_STREAM_BYTES and POINTSMAN_ARTIFACTS_BYTES",
    10039: "enable JetStream for the account of this user",
    10047: "give the server, or the account, file storage; the sum of POINTSMAN_STREAM_BYTES must fit into it",
    10074: "set POINTSMAN_REPLICAS=1 for a single server",
    10076: "start the server with -js, or a block `jetstream` in its configuration",
    MAX_BYTES_REQUIRED_CODE: "the account requires a maximum size: set POINTSMAN_STREAM_BYTES",
    10122: "lower POINTSMAN_STREAM_BYTES and POINTSMAN_ARTIFACTS_BYTES to what the account allows for one stream",
}
"""What to do about an error of the JetStream API, by its number."""

INCURABLE = frozenset({10039, 10047, 10074, 10076})
"""Errors that the JetStream API gives as its own failure (5xx), and that no waiting cures."""


class WireMessage:
    """A message as it came off the wire. Its header block, of which most is never asked for, is read when it is."""

    __slots__ = ("block", "data", "reply", "subject")

    def __init__(self, subject: str, reply: str, data: bytes, block: bytes | None = None) -> None:
        self.subject = subject
        self.reply = reply
        self.data = data
        self.block = block

    @property
    def headers(self) -> dict[str, str]:
        return header_lines(self.block) if self.block else {}

    @property
    def event_headers(self) -> dict[str, str]:
        """Those that the event was sent with."""
        return header_lines(self.block, _is_event_header) if self.block else {}

    @property
    def status(self) -> str:
        """What the server says instead of a message, as in `408 Request Timeout`; empty for what somebody published."""
        return self.block[8 : self.block.find(b"\r\n")].decode("utf-8", "replace").strip() if self.block else ""


class BusSubscription(Protocol):
    """Something listened to. Neither method raises. `refused` is set when the broker refuses the subscription."""

    @property
    def refused(self) -> Exception | None: ...

    async def unsubscribe(self) -> None:
        """Listen no more."""

    async def drain(self) -> None:
        """Listen no more, after what the broker has sent already was heard. Bounded in time."""


class Connection(Protocol):
    """What those need of the connection who ask the broker, and hear from it."""

    @property
    def connected(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    @property
    def restarts(self) -> int:
        """How often the server was another one after a lost connection."""
        ...

    @property
    def listeners(self) -> set[Callable[[], None]]:
        """Called when the connection is lost."""
        ...

    @property
    def refusal_listeners(self) -> set[Callable[[Refusal, PermissionDeniedError], None]]:
        """Called with each permission that the broker refuses."""
        ...

    def api_subject(self, verb: str) -> str:
        """Return the subject of a call of the JetStream API, in the domain of the settings."""
        ...

    def new_inbox(self) -> str: ...
    async def api(self, verb: str, payload: Mapping[str, Any] | None = None) -> dict[str, Any]: ...
    async def send(self, subject: str, body: bytes = b"", *, reply: str = "", headers: bytes = b"") -> None: ...
    async def subscribe(self, subject: str, on_message: Callable[[WireMessage], None]) -> BusSubscription:
        """`on_message` is called for every message as it is read, before the next one is: let it be short."""
        ...


class ForwardingConnection(Connection, Protocol):
    """What consumers need of it."""

    async def forward(self, name: str, message: WireMessage) -> bool:
        """Whether the delivery `message` was sent to whoever receives as `name`."""
        ...


class DeliveryInfo:
    """What the reply subject of a delivery says.

    It is `$JS.ACK.[domain.account.]stream.consumer.delivered.sequence.delivery.time.pending`; with a domain, and a
    random token at the end, when the server is so configured.
    """

    __slots__ = ("at", "delivered", "delivery", "sequence")

    def __init__(self, reply: str) -> None:
        tokens = reply.split(".")
        delivered, sequence, delivery, at = tokens[4:8] if len(tokens) == 9 else tokens[6:10]
        self.delivered, self.sequence, self.delivery = int(delivered), int(sequence), int(delivery)
        self.at = _EPOCH + timedelta(microseconds=int(at) // 1000)  # to the digit what `parse_time` reads elsewhere


def to_stored_message(message: WireMessage, meta: DeliveryInfo) -> StoredMessage:
    """A delivered message as its stream holds it, with the event's own headers."""
    return StoredMessage(message.subject, message.data, message.event_headers, meta.sequence, meta.at)


def header_block(encoded: str) -> dict[str, str]:
    """The event's own headers, from the base64 of a header block as it is on the wire."""
    return header_lines(b64decode(encoded), _is_event_header)


def header_bytes(headers: Mapping[str, str]) -> bytes:
    """The header block of names and values that `wire_headers` has checked; empty for none."""
    if not headers:
        return b""
    lines = "\r\n".join(map(": ".join, headers.items()))
    return f"NATS/1.0\r\n{lines}\r\n\r\n".encode()


@lru_cache(1024)  # there are a few dozen
def _is_name(name: str) -> bool:
    return " " not in name and "\t" not in name and name.isascii()


@lru_cache(1024)
def _is_event_header(name: str) -> bool:
    return _is_name(name) and is_event_header(name)


def header_lines(block: bytes, wanted: Callable[[str], bool] = _is_name) -> dict[str, str]:
    """`Name: value` per line, of the names that are `wanted`. A line of another form is passed over, as is the first,
    which names the version."""
    return {
        name: value.strip(" \t")
        for line in decode_text(block).split("\r\n")
        for name, colon, value in (line.partition(":"),)
        if colon and wanted(name)
    }


def decode_text(data: bytes) -> str:
    """Decode a subject or headers. A byte that is not UTF-8 becomes a lone surrogate, which no valid text has.

    So two ids that differ in such a byte stay different, and a reader of CloudEvents attributes refuses them.
    """
    return data.decode("utf-8", "surrogateescape")


def parse_time(text: str) -> datetime:
    """RFC 3339 as Go writes it, with up to nine digits of a second; Python keeps six."""
    seconds, _, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{seconds}.{fraction[:6]:0<6}+00:00")


def error_code(answer: Mapping[str, Any]) -> int:
    """JetStream's number for what went wrong; 0 when nothing did."""
    error = answer.get("error")
    return int(error.get("err_code") or error.get("code") or -1) if error else 0


def error_text(answer: Mapping[str, Any]) -> str:
    """The error of an answer, in the broker's words."""
    return f"{answer['error'].get('description', 'no reason given')} ({error_code(answer)})"


def with_advice(text: str, code: int) -> str:
    """Return `text` with what to do about the error `code` of the JetStream API, if that is known."""
    return f"{text}; {ADVICE[code]}" if code in ADVICE else text


def to_nanoseconds(seconds: float) -> int:
    """Whole nanoseconds, as the broker counts, of seconds."""
    return int(seconds * 1e9)
