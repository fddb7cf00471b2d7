"""A key-value bucket on a JetStream stream, in the layout that other clients of NATS expect."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from pointsman.bus.jetstream.protocol import NO_STREAM_CODE, STREAM_EXISTS_CODE, Connection, error_code, error_text
from pointsman.bus.validation import EXPECTED_SEQUENCE_HEADER
from pointsman.errors import ConfigurationError
from pointsman.ports.bus import StoredMessage
from pointsman.ports.key_value import KeyValueEntry
from pointsman_schemas.ids import token

__all__ = ["KeyValueBucket", "ensure_bucket"]


class _Writer(Protocol):
    def publish(self, subject: str, body: bytes, wire: dict[str, str]) -> Coroutine[Any, Any, int]: ...


class _Reader(Protocol):
    async def last(self, stream: str, subject: str) -> StoredMessage | None: ...
    def read(self, stream: str, subject: str, after: int) -> AsyncGenerator[StoredMessage, None]: ...
    def follow(self, stream: str, subjects: Sequence[str], after: int) -> AsyncGenerator[StoredMessage, None]: ...


async def ensure_bucket(bus: Connection, bucket: str, *, replicas: int, max_bytes: int | None) -> None:
    """Create the stream of `bucket` if the stream does not exist.

    Raises:
        ConfigurationError: The broker refuses to create the stream.
    """
    name = f"KV_{bucket}"
    answer = await bus.api(f"STREAM.INFO.{name}")
    if error_code(answer) == NO_STREAM_CODE:
        wanted: Mapping[str, Any] = {
            "name": name,
            "subjects": [f"$KV.{bucket}.>"],
            "retention": "limits",
            "storage": "file",
            "discard": "new",
            "max_msgs_per_subject": 1,
            "max_bytes": max_bytes or -1,
            "num_replicas": replicas,
            "allow_direct": True,
            "deny_delete": True,
        }
        answer = await bus.api(f"STREAM.CREATE.{name}", wanted)
    if (code := error_code(answer)) and code != STREAM_EXISTS_CODE:
        raise ConfigurationError(
            f"the bucket {bucket} cannot be made: {error_text(answer)}; allow the user to create the stream {name}, or "
            "create the stream with another user"
        )


class KeyValueBucket:
    """The keys of `group` in an existing bucket. An empty `group` means the keys without a group."""

    def __init__(self, writer: _Writer, reader: _Reader, bucket: str, group: str = "") -> None:
        self._writer = writer
        self._reader = reader
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}.{token(group, 'group')}." if group else f"$KV.{bucket}."

    async def put(self, key: str, value: bytes, *, expect: int | None = None) -> int:
        headers = {} if expect is None else {EXPECTED_SEQUENCE_HEADER: str(expect)}
        return await self._writer.publish(self._prefix + token(key, "key"), value, headers)

    async def delete(self, key: str) -> None:
        await self._writer.publish(self._prefix + token(key, "key"), b"", {"KV-Operation": "DEL"})

    async def get(self, key: str) -> KeyValueEntry | None:
        stored = await self._reader.last(self._stream, self._prefix + token(key, "key"))
        return None if stored is None else self._entry(stored)

    async def entries(self) -> dict[str, KeyValueEntry]:
        found: dict[str, KeyValueEntry] = {}
        async with aclosing(self._reader.read(self._stream, f"{self._prefix}*", 0)) as messages:
            async for stored in messages:
                entry = self._entry(stored)
                found[entry.key] = entry
        return {key: entry for key, entry in found.items() if entry.value is not None}

    async def follow(self, after: int = 0) -> AsyncIterator[KeyValueEntry]:
        async with aclosing(self._reader.follow(self._stream, [f"{self._prefix}*"], after)) as messages:
            async for stored in messages:
                yield self._entry(stored)

    def _entry(self, stored: StoredMessage) -> KeyValueEntry:
        return KeyValueEntry(stored.subject.removeprefix(self._prefix), stored.body or None, stored.sequence)
