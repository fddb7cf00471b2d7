"""A key-value bucket of a `MemoryBroker`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from pointsman.bus.memory.streams import Stream
from pointsman.errors import ConflictError
from pointsman.ports.bus import StoredMessage
from pointsman.ports.clock import Clock
from pointsman.ports.key_value import KeyValueEntry
from pointsman_schemas.ids import token

__all__ = ["MemoryKeyValue"]


class _Broker(Protocol):
    clock: Clock

    def wake(self) -> None: ...
    async def until_changed(self) -> None: ...


class MemoryKeyValue:
    """The keys of one group of a bucket that all connections to a broker share. `stream` holds the changes."""

    def __init__(self, broker: _Broker, stream: Stream, group: str = "") -> None:
        self._broker = broker
        self._stream = stream
        self._prefix = f"{token(group, 'group')}." if group else ""

    async def put(self, key: str, value: bytes, *, expect: int | None = None) -> int:
        newest = self._stream.last_sequence_of(self._prefix + token(key, "key"))
        if expect is not None and newest != expect:
            raise ConflictError(f"the last value of {key} has the sequence {newest}, expected {expect}; read it again")
        return self._append(key, value)

    async def delete(self, key: str) -> None:
        self._append(token(key, "key"), b"")

    async def get(self, key: str) -> KeyValueEntry | None:
        found = self._stream.select(self._prefix + token(key, "key"))
        return self._entry(found[-1]) if found else None

    async def entries(self) -> dict[str, KeyValueEntry]:
        found = [self._entry(each) for each in self._stream.select(f"{self._prefix}*")]
        return {entry.key: entry for entry in found if entry.value}

    async def follow(self, after: int = 0) -> AsyncIterator[KeyValueEntry]:
        while True:
            changes = sorted(self._stream.select(f"{self._prefix}*", after), key=lambda each: each.sequence)
            for stored in changes:
                after = stored.sequence
                yield self._entry(stored)
            if not changes:
                await self._broker.until_changed()

    def _entry(self, stored: StoredMessage) -> KeyValueEntry:
        return KeyValueEntry(stored.subject.removeprefix(self._prefix), stored.body or None, stored.sequence)

    def _append(self, key: str, value: bytes) -> int:
        key = self._prefix + key
        older = self._stream.last_sequence_of(key)
        clock = self._broker.clock
        stored = self._stream.append(key, value, {}, clock.now(), None, clock.monotonic())
        self._stream.remove(older)
        self._broker.wake()
        return stored.sequence
