"""Parse and write the wire formats of JetStream: reply subjects, header blocks, times, error codes."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, TypeVar

from pointsman.bus.jetstream.reader_names import ReaderNames
from pointsman.bus.jetstream.refusals import Refusal
from pointsman.bus.validation import SCHEDULER_HEADER, is_event_header
from pointsman.errors import PermissionDeniedError
from pointsman.ports.bus import StoredMessage

__all__ = [
    "ADVICE",
    "CONSUMER_EXISTS_CODE",
    "INCURABLE",
    "MAX_BYTES_REQUIRED_CODE",
    "NOT_DELETED_CODE",
    "NO_CONSUMER_CODE",
    "NO_MESSAGE_CODE",
    "NO_ROLLUP_CODE",
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
"""A function whose call waits for an operation that has already started. It is not a coroutine, because not every
caller needs the result, and Python warns about a coroutine that is never awaited."""

_SCHEDULER_LINE = f"\r\n{SCHEDULER_HEADER}:".encode()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

NO_MESSAGE_CODE, NO_STREAM_CODE, NO_CONSUMER_CODE = 10037, 10059, 10014
CONSUMER_EXISTS_CODE = 10148  # a consumer with the same name exists with a different configuration
STREAM_EXISTS_CODE = 10058  # a stream with the same name exists with a different configuration
NOT_DELETED_CODE = 10057  # an internal error; also the answer if the message to delete is missing
WRONG_SEQUENCE_CODE = 10071  # the last sequence of the subject is not the expected sequence
PENDING_WRITE_CODE = 10164  # a replicated stream is still writing a message of the subject; the write can fail
NO_ROLLUP_CODE = 10111  # the stream accepts no rollup; the API reports this as an internal error
NO_SPACE_CODE = 10077  # the stream cannot store the message: the stream or its disk is full
TOO_LARGE_CODES = frozenset({10054, 10097})

MAX_BYTES_REQUIRED_CODE = 10113  # the account requires a maximum size for each stream

ADVICE = {
    10002: "raise the limits of the account, or lower POINTSMAN_STREAM_BYTES and POINTSMAN_ARTIFACTS_BYTES",
    10005: "POINTSMAN_REPLICAS=N needs N servers with JetStream and free storage",
    10026: "raise max_consumers of the account",
    10027: "raise max_streams of the account: a namespace needs nine",
    10028: "raise the limits of the account, or lower POINTSMAN_STREAM_BYTES and POINTSMAN_ARTIFACTS_BYTES",
    10039: "enable JetStream for the account of this user",
    10047: "give the server, or the account, more file storage: each stream reserves POINTSMAN_STREAM_BYTES, and the "
    "object store reserves POINTSMAN_ARTIFACTS_BYTES",
    10074: "set POINTSMAN_REPLICAS=1 for a single server",
    10076: "start the server with -js, or a block `jetstream` in its configuration",
    MAX_BYTES_REQUIRED_CODE: "the account requires a maximum size: set POINTSMAN_STREAM_BYTES",
    10122: "lower POINTSMAN_STREAM_BYTES and POINTSMAN_ARTIFACTS_BYTES to the account's limit for one stream",
}
"""Remedies for errors of the JetStream API, by error code."""

INCURABLE = frozenset({10039, 10047, 10074, 10076})
"""Error codes that the JetStream API returns with a status of 5xx although a retry cannot succeed."""


class WireMessage:
    """A message from the wire. The header block is parsed on access, because most blocks are never used."""

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
        """Return the headers of the event, without the headers that the broker or the bus added."""
        return header_lines(self.block, _is_event_header) if self.block else {}

    @property
    def scheduled_by(self) -> str:
        """Return the subject of the schedule that produced the message; empty for a message of a client."""
        if self.block is None or _SCHEDULER_LINE not in self.block:  # the usual case
            return ""
        return self.headers.get(SCHEDULER_HEADER, "")

    @property
    def status(self) -> str:
        """Return the server's status, such as `408 Request Timeout`; empty for a published message."""
        return self.block[8 : self.block.find(b"\r\n")].decode("utf-8", "replace").strip() if self.block else ""


class BusSubscription(Protocol):
    """A subscription. Its methods do not raise. `refused` is set when the broker refuses the subscription."""

    @property
    def refused(self) -> Exception | None: ...

    async def unsubscribe(self) -> None:
        """End the subscription."""

    async def drain(self) -> None:
        """Receive the messages that the broker has sent, then end the subscription, within a bounded time."""


class Connection(Protocol):
    """The part of the connection that sends requests to the broker and receives messages."""

    @property
    def connected(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    @property
    def restarts(self) -> int:
        """Return the number of reconnects to a restarted or a different server."""
        ...

    @property
    def listeners(self) -> set[Callable[[], None]]:
        """Return the functions to call when the connection is lost."""
        ...

    @property
    def refusal_listeners(self) -> set[Callable[[Refusal, PermissionDeniedError], None]]:
        """Return the functions to call with each permission that the broker refuses."""
        ...

    def api_subject(self, verb: str) -> str:
        """Return the subject of a call of the JetStream API, in the domain of the settings."""
        ...

    @property
    def reader_names(self) -> ReaderNames:
        """Return the names for the ephemeral consumers of this connection."""
        ...

    def new_inbox(self) -> str: ...
    async def api(self, verb: str, payload: Mapping[str, Any] | None = None) -> dict[str, Any]: ...
    async def ask(self, subject: str, body: bytes = b"") -> WireMessage:
        """Return the answer to a request, with its headers and its status."""
        ...

    async def send(self, subject: str, body: bytes = b"", *, reply: str = "", headers: bytes = b"") -> None: ...
    async def subscribe(self, subject: str, on_message: Callable[[WireMessage], None]) -> BusSubscription:
        """Call `on_message` for each message before the next message is read, so `on_message` must be short."""
        ...


class ForwardingConnection(Connection, Protocol):
    """The part of the connection that consumers use."""

    async def forward(self, name: str, message: WireMessage) -> bool:
        """Send the delivery `message` to the receiver `name`.

        Return False if the delivery was not sent; the caller then settles the delivery.
        """
        ...

    def optional_requests(self, *prefixes: str) -> AbstractContextManager[None]:
        """Log at level info, while the context lasts, that the broker refuses a subject with one of `prefixes`."""
        ...

    async def flush(self) -> None:
        """Return when the broker has received all sent messages, or the connection is lost."""
        ...


class DeliveryInfo:
    """The data in the reply subject of a delivery.

    The subject is `$JS.ACK.[domain.account.]stream.consumer.delivered.sequence.delivery.time.pending`. A server with a
    domain adds the domain and the account, and also a random token at the end.
    """

    __slots__ = ("at", "delivered", "delivery", "left", "sequence")

    def __init__(self, reply: str) -> None:
        tokens = reply.split(".")
        delivered, sequence, delivery, at, left = tokens[4:9] if len(tokens) == 9 else tokens[6:11]
        self.delivered, self.sequence, self.delivery = int(delivered), int(sequence), int(delivery)
        self.left = int(left)  # number of messages that wait behind this delivery
        self.at = _EPOCH + timedelta(microseconds=int(at) // 1000)  # the same precision as in `parse_time`


def to_stored_message(message: WireMessage, meta: DeliveryInfo) -> StoredMessage:
    """Return the stored message of a delivery, with only the headers of the event."""
    return StoredMessage(
        message.subject, message.data, message.event_headers, meta.sequence, meta.at, message.scheduled_by
    )


def header_block(encoded: str) -> tuple[dict[str, str], str]:
    """Decode a header block in base64. Return the event's headers, and the schedule that produced the message."""
    message = WireMessage("", "", b"", b64decode(encoded))
    return message.event_headers, message.scheduled_by


def header_bytes(headers: Mapping[str, str]) -> bytes:
    """Return the header block for headers that `wire_headers` has checked; empty without headers."""
    if not headers:
        return b""
    lines = "\r\n".join(map(": ".join, headers.items()))
    return f"NATS/1.0\r\n{lines}\r\n\r\n".encode()


@lru_cache(1024)  # the events use a few dozen names
def _is_name(name: str) -> bool:
    return " " not in name and "\t" not in name and name.isascii()


@lru_cache(1024)
def _is_event_header(name: str) -> bool:
    return _is_name(name) and is_event_header(name)


def header_lines(block: bytes, wanted: Callable[[str], bool] = _is_name) -> dict[str, str]:
    """Return the `wanted` headers. Skip the first line (the version) and lines without the form `Name: value`."""
    return {
        name: value.strip(" \t")
        for line in decode_text(block).split("\r\n")
        for name, colon, value in (line.partition(":"),)
        if colon and wanted(name)
    }


def decode_text(data: bytes) -> str:
    """Decode a subject or headers.

    A byte that is not UTF-8 becomes a lone surrogate, which no valid text has. So two ids that differ in such a byte
    stay different, and a reader of CloudEvents attributes refuses these ids.

    Args:
        data: The bytes from the wire.

    Returns:
        The text, with lone surrogates for bytes that are not UTF-8.
    """
    return data.decode("utf-8", "surrogateescape")


def parse_time(text: str) -> datetime:
    """Parse a time in the RFC 3339 form of Go, with up to nine digits of a second. Python keeps six digits."""
    seconds, _, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{seconds}.{fraction[:6]:0<6}+00:00")


def error_code(answer: Mapping[str, Any]) -> int:
    """Return JetStream's error code; 0 if there is no error."""
    error = answer.get("error")
    return int(error.get("err_code") or error.get("code") or -1) if error else 0


def error_text(answer: Mapping[str, Any]) -> str:
    """Return the broker's text of the error in an answer."""
    return f"{answer['error'].get('description', 'no reason given')} ({error_code(answer)})"


def with_advice(text: str, code: int) -> str:
    """Return `text`, with the remedy for the error `code` of the JetStream API if `ADVICE` has a remedy."""
    return f"{text}; {ADVICE[code]}" if code in ADVICE else text


def to_nanoseconds(seconds: float) -> int:
    """Convert seconds to whole nanoseconds, the unit of the broker."""
    return int(seconds * 1e9)
