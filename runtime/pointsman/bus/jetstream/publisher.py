"""Publish to streams: store a message once at the expected sequence, or raise an error. Report to the observer."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, NoReturn, Protocol

from pydantic_core import from_json

from pointsman.bus.jetstream.message_tracing import TRACE_DESTINATION_HEADER, is_sampled, parse_hop
from pointsman.bus.jetstream.protocol import (
    NO_ROLLUP_CODE,
    NO_SPACE_CODE,
    PENDING_WRITE_CODE,
    TOO_LARGE_CODES,
    WRONG_SEQUENCE_CODE,
    PendingCall,
    WireMessage,
    error_code,
    error_text,
    header_bytes,
)
from pointsman.bus.jetstream.reader import StreamReader
from pointsman.bus.validation import (
    EXPECTED_SEQUENCE_HEADER,
    EXPECTED_SUBJECT_HEADER,
    MAX_HEADER_BYTES,
    check_size,
    header_size,
)
from pointsman.errors import (
    BusUnavailableError,
    ConflictError,
    OversizeEventError,
    PeerError,
    PointsmanError,
    PublishOutcomeUnknownError,
)
from pointsman.ports.bus import BusObserver, Server
from pointsman.ports.clock import Clock

__all__ = ["StreamPublisher"]


class _Connection(Protocol):
    @property
    def max_payload(self) -> int: ...
    @property
    def server(self) -> Server | None: ...
    def request(
        self,
        subject: str,
        body: bytes = b"",
        headers: bytes = b"",
        *,
        lost: type[BusUnavailableError] = BusUnavailableError,
    ) -> PendingCall[WireMessage]: ...


class StreamPublisher:
    """Stores messages over a connection, and reports each message to `observer`.

    The servers of the broker send trace events of sampled messages to the subject `hops`. With an empty `hops`, the
    servers send no trace events.
    """

    def __init__(self, bus: _Connection, reader: StreamReader, clock: Clock, observer: BusObserver | None) -> None:
        self._bus = bus
        self._reader = reader
        self._clock = clock
        self._observer = observer
        self.hops = ""

    def publish(self, subject: str, body: bytes, wire: dict[str, str]) -> Coroutine[Any, Any, int]:
        """Publish at once; return the sequence in the stream."""
        return self.start_publish(subject, body, wire)()

    def start_publish(self, subject: str, body: bytes, wire: dict[str, str]) -> PendingCall[int]:
        """Publish at once; return a call that waits for the sequence in the stream."""
        if self._observer is None:
            return partial(self._await_ack, subject, wire, self._start_request(subject, body, wire))
        return self._publish_observed(self._observer, subject, body, wire)

    def _publish_observed(
        self, observer: BusObserver, subject: str, body: bytes, wire: dict[str, str]
    ) -> PendingCall[int]:
        if self.hops and is_sampled(wire):
            traced = {**wire, TRACE_DESTINATION_HEADER: self.hops}
            size = header_size(traced)
            # Leave out the trace header if the message would be too large with this header.
            if size <= MAX_HEADER_BYTES and size + len(body) <= self._bus.max_payload:
                wire = traced
        began = self._clock.monotonic()
        try:
            storing = self._start_request(subject, body, wire)
        except PointsmanError as raised:
            observer.on_published(subject, self._bus.server, self._clock.monotonic() - began, raised.kind)
            raise
        return partial(self._observe, observer, began, subject, wire, storing)

    async def _observe(
        self, observer: BusObserver, began: float, subject: str, wire: dict[str, str], storing: PendingCall[WireMessage]
    ) -> int:
        error: str | None = None
        try:
            return await self._await_ack(subject, wire, storing)
        except PointsmanError as raised:
            error = raised.kind
            raise
        finally:
            observer.on_published(subject, self._bus.server, self._clock.monotonic() - began, error)

    def on_hop(self, told: WireMessage) -> None:
        """Pass a trace event from a server to the observer."""
        if self._observer is not None and (hop := parse_hop(told.data)) is not None:
            self._observer.on_hop(hop)

    def _start_request(self, subject: str, body: bytes, wire: dict[str, str]) -> PendingCall[WireMessage]:
        block = header_bytes(wire)
        check_size(subject, len(block), len(body), self._bus.max_payload)
        return self._bus.request(subject, body, block, lost=PublishOutcomeUnknownError)

    async def _await_ack(self, subject: str, wire: dict[str, str], storing: PendingCall[WireMessage]) -> int:
        answer = from_json((await storing()).data)
        if "error" in answer:
            await self._raise_refusal(answer, subject, wire)
        return int(answer["seq"])

    async def _raise_refusal(self, answer: dict[str, Any], subject: str, wire: dict[str, str]) -> NoReturn:
        code = error_code(answer)
        if code == PENDING_WRITE_CODE and not await self._has_other_sequence(answer["stream"], subject, wire):
            raise PublishOutcomeUnknownError(
                f"{subject} is refused while another message is being stored: {error_text(answer)}; try again"
            )
        if code in (WRONG_SEQUENCE_CODE, PENDING_WRITE_CODE):
            raise ConflictError(
                f"the last message of {subject} does not have the sequence {wire.get(EXPECTED_SEQUENCE_HEADER)}: "
                f"{error_text(answer)}; read the subject again"
            )
        if code in TOO_LARGE_CODES:
            raise OversizeEventError(f"the broker refuses {subject}: {error_text(answer)}")
        passing = answer["error"].get("code", 0) >= 500 and code != NO_ROLLUP_CODE
        kind = BusUnavailableError if passing else PeerError
        todo = (
            "; raise the limits of its stream, with `nats stream edit`, or free the disk"
            if code == NO_SPACE_CODE
            else ""
        )
        raise kind(f"the broker refuses {subject}: {error_text(answer)}{todo}")

    async def _has_other_sequence(self, stream: str, subject: str, wire: Mapping[str, str]) -> bool:
        newest = await self._reader.last(stream, wire.get(EXPECTED_SUBJECT_HEADER, subject))
        return (newest.sequence if newest else 0) != int(wire[EXPECTED_SEQUENCE_HEADER])
