"""A key-value bucket of a `MemoryBroker`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from pointsman.bus.memory.streams import Stream
from pointsman.errors import ConflictError
from pointsman.ports.clock import Clock
from pointsman.ports.key_value import KeyValueEntry
from pointsman_schemas.ids import token

__all__ = ["MemoryKeyValue"]


class _Broker(Protocol):
    clock: Clock

    def wake(self) -> None: ...
    async def until_changed(self) -> None: ...


class MemoryKeyValue:
    """A bucket that all connections to a broker share. `stream` holds its changes."""

    def __init__(self, broker: _Broker, stream: Stream) -> None:
        self._broker = broker
        self._stream = stream

    async def put(self, key: str, value: bytes, *, expect: int | None = None) -> int:
        newest = self._stream.last_sequence_of(token(key, "key"))
        if expect is not None and newest != expect:
            raise ConflictError(f"{key} ends at {newest}, expected {expect}; read it again, then decide")
        return self._append(key, value)

    async def delete(self, key: str) -> None:
        self._append(token(key, "key"), b"")

    async def entries(self) -> dict[str, KeyValueEntry]:
        found = [KeyValueEntry(each.subject, each.body, each.sequence) for each in self._stream.select(">")]
        return {entry.key: entry for entry in found if entry.value}

    async def follow(self, after: int = 0) -> AsyncIterator[KeyValueEntry]:
        while True:
            changes = sorted(self._stream.select(">", after), key=lambda each: each.sequence)
            for stored in changes:
                after = stored.sequence
                yield KeyValueEntry(stored.subject, stored.body or None, stored.sequence)
            if not changes:
                await self._broker.until_changed()

    def _append(self, key: str, value: bytes) -> int:
        older = self._stream.last_sequence_of(key)
        clock = self._broker.clock
        stored = self._stream.append(key, value, {}, clock.now(), None, clock.monotonic())
        self._stream.remove(older)
        self._broker.wake()
        return stored.sequence
