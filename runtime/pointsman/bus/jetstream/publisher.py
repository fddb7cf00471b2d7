"""Writing to streams: a message is stored once, where it was expected, or it is said why not; who watches is told."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, NoReturn, Protocol

from pydantic_core import from_json

from pointsman.bus.jetstream.message_tracing import TRACE_DESTINATION, hop_of, is_sampled
from pointsman.bus.jetstream.protocol import (
    CONFLICT,
    NO_ROOM,
    TOO_BIG,
    UNDER_WAY,
    Arrival,
    UnderWay,
    error_code,
    header_bytes,
    said,
)
from pointsman.bus.jetstream.reader import StreamReader
from pointsman.bus.validation import EXPECTED_OF, EXPECTED_SEQUENCE, MAX_HEADERS, check_size, header_size
from pointsman.errors import BusUnavailable, Conflict, OversizeEventError, PeerError, PointsmanError, UnknownOutcome
from pointsman.ports.bus import Server, Watcher
from pointsman.ports.clock import Clock

__all__ = ["StreamWriter"]


class _Connection(Protocol):
    @property
    def max_payload(self) -> int: ...
    @property
    def server(self) -> Server | None: ...
    def ask(
        self, subject: str, body: bytes = b"", headers: bytes = b"", *, lost: type[BusUnavailable] = BusUnavailable
    ) -> UnderWay[bytes]: ...


class StreamWriter:
    """Stores messages over a connection, and tells `watcher` of each.

    `hops` is where the servers of the broker are to tell of messages of a sampled trace; empty, they tell nobody.
    """

    def __init__(self, bus: _Connection, reader: StreamReader, clock: Clock, watcher: Watcher | None) -> None:
        self._bus = bus
        self._reader = reader
        self._clock = clock
        self._watcher = watcher
        self.hops = ""

    def store(self, subject: str, body: bytes, wire: dict[str, str]) -> Coroutine[Any, Any, int]:
        """Publish, at once; the sequence the stream gives it."""
        return self.begin(subject, body, wire)()

    def begin(self, subject: str, body: bytes, wire: dict[str, str]) -> UnderWay[int]:
        """As `store`."""
        if self._watcher is None:
            return partial(self._stored, subject, wire, self._sent(subject, body, wire))
        return self._watched(self._watcher, subject, body, wire)

    def _watched(self, watcher: Watcher, subject: str, body: bytes, wire: dict[str, str]) -> UnderWay[int]:
        if self.hops and is_sampled(wire):
            traced = {**wire, TRACE_DESTINATION: self.hops}
            size = header_size(traced)
            if size <= MAX_HEADERS and size + len(body) <= self._bus.max_payload:  # nothing fails for being watched
                wire = traced
        began = self._clock.monotonic()
        try:
            storing = self._sent(subject, body, wire)
        except PointsmanError as raised:
            watcher.sent(subject, self._bus.server, self._clock.monotonic() - began, raised.kind)
            raise
        return partial(self._told, watcher, began, subject, wire, storing)

    async def _told(
        self, watcher: Watcher, began: float, subject: str, wire: dict[str, str], storing: UnderWay[bytes]
    ) -> int:
        error: str | None = None
        try:
            return _sequence(answer := from_json(await storing())) or await self._refused(answer, subject, wire)
        except PointsmanError as raised:
            error = raised.kind
            raise
        finally:
            watcher.sent(subject, self._bus.server, self._clock.monotonic() - began, error)

    def passed(self, told: Arrival) -> None:
        """What a server tells at `hops`."""
        if self._watcher is not None and (hop := hop_of(told.data)) is not None:
            self._watcher.passed(hop)

    def _sent(self, subject: str, body: bytes, wire: dict[str, str]) -> UnderWay[bytes]:
        block = header_bytes(wire)
        check_size(subject, len(block), len(body), self._bus.max_payload)
        return self._bus.ask(subject, body, block, lost=UnknownOutcome)

    async def _stored(self, subject: str, wire: dict[str, str], storing: UnderWay[bytes]) -> int:
        return _sequence(answer := from_json(await storing())) or await self._refused(answer, subject, wire)

    async def _refused(self, answer: dict[str, Any], subject: str, wire: dict[str, str]) -> NoReturn:
        code = error_code(answer)
        if code == UNDER_WAY and not await self._ends_elsewhere(answer["stream"], subject, wire):
            raise UnknownOutcome(f"{subject} is refused for a message that is not there yet: {said(answer)}; try again")
        if code in (CONFLICT, UNDER_WAY):
            raise Conflict(
                f"{subject} does not end at {wire.get(EXPECTED_SEQUENCE)}: {said(answer)}; read it again, then decide"
            )
        if code in TOO_BIG:
            raise OversizeEventError(f"the broker refuses {subject}: {said(answer)}")
        kind = BusUnavailable if answer["error"].get("code", 0) >= 500 else PeerError
        todo = "; raise what bounds its stream, with `nats stream edit`, or free the disk" if code == NO_ROOM else ""
        raise kind(f"the broker refuses {subject}: {said(answer)}{todo}")

    async def _ends_elsewhere(self, stream: str, subject: str, wire: Mapping[str, str]) -> bool:
        newest = await self._reader.from_leader(stream, {"last_by_subj": wire.get(EXPECTED_OF, subject)})
        return (newest.sequence if newest else 0) != int(wire[EXPECTED_SEQUENCE])


def _sequence(answer: dict[str, Any]) -> int:
    """Where it was stored; 0 where it was refused."""
    return 0 if error_code(answer) else int(answer["seq"])
