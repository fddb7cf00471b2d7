"""Consumers of an in-memory broker, and the deliveries that they settle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pointsman.bus.memory.broker import Broker
from pointsman.bus.memory.streams import Durable
from pointsman.errors import BusUnavailableError
from pointsman.ports.bus import StoredMessage, StreamKind

__all__ = ["MemoryConsumer", "MemoryDelivery"]


class _Connection(Protocol):
    @property
    def broker(self) -> Broker: ...
    @property
    def connected(self) -> bool: ...
    async def resolve(self, stored: StoredMessage) -> StoredMessage: ...


class MemoryConsumer:
    """Consumer of one connection, which shares a durable consumer with other connections."""

    def __init__(self, bus: _Connection, durable: Durable, kind: StreamKind, *, ranked: bool = False) -> None:
        self._ranked = ranked
        self.rank = 0
        self._bus = bus
        self._durable = durable
        self._kind: StreamKind = kind
        self._closed = False

    @property
    def bound(self) -> bool:
        return self._bus.connected and not self._closed

    async def take(self, room: int) -> Sequence[MemoryDelivery]:
        broker = self._bus.broker
        self._durable.pulling.append(self)
        try:
            await asyncio.sleep(0)  # otherwise a caller that never waits would take the messages of all other callers
            return await self._take(broker, room)
        finally:
            self._durable.pulling.remove(self)
            if self._ranked and self._durable.ready:
                broker.wake(self._durable)  # consumers of lower priority can take messages now

    async def _take(self, broker: Broker, room: int) -> Sequence[MemoryDelivery]:
        while True:
            if not self.bound:
                raise BusUnavailableError(f"the consumer {self._durable.name} is closed")
            stream = broker.stream(self._kind)
            taken: list[MemoryDelivery] = []
            while len(taken) < room and not self._is_outranked():
                if (sequence := self._durable.next_delivery(broker.clock.monotonic())) is None:
                    break
                if (stored := stream.get(sequence)) is not None:
                    count, era = self._durable.counts[sequence], self._durable.era
                    stored = await self._bus.resolve(stored)
                    taken.append(MemoryDelivery(stored, count, broker, self._durable, era))
            if taken:
                return taken
            await broker.until_changed(self._durable)

    def _is_outranked(self) -> bool:
        return any(other.bound and other.rank < self.rank for other in self._durable.pulling)

    async def withdraw(self) -> Sequence[MemoryDelivery]:
        return ()  # no request is open outside of `take`

    def set_rank(self, rank: int) -> None:
        if self._ranked and rank != self.rank:
            self.rank = rank
            self._bus.broker.wake(self._durable)

    async def close(self) -> None:
        self._closed = True
        self._bus.broker.wake()


@dataclass(frozen=True, slots=True)
class MemoryDelivery:
    """See `ports.Delivery`. After a restart of the broker, a delivery of an earlier `_era` settles no message."""

    message: StoredMessage
    delivered: int
    _broker: Broker
    _durable: Durable
    _era: int

    async def ack(self) -> None:
        if self._era != self._durable.era:
            return
        self._durable.settle(self.message.sequence)
        if self._durable.ready:  # the limit of messages in flight might have held back a ready message
            self._broker.wake(self._durable)

    async def nak(self, delay: float = 0.0) -> None:
        self._redeliver_in(delay)
        self._broker.wake(self._durable)

    async def term(self, reason: str) -> None:
        if self._era == self._durable.era and self._durable.is_unsettled(self.message.sequence):
            self._broker.advisories.append((self._durable.name, self.message.sequence, reason))
        await self.ack()

    async def in_progress(self) -> None:
        self._redeliver_in(self._durable.ack_wait)

    async def forward(self, name: str) -> bool:
        return self._era == self._durable.era and self._broker.listening.forward(name, self)

    def _redeliver_in(self, seconds: float) -> None:
        if self._era == self._durable.era:
            self._durable.delay(self.message.sequence, self._broker.clock.monotonic() + seconds)
