"""The port of a key-value bucket: small values by key, at the broker, with compare-and-set and a watch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

__all__ = ["KeyValue", "KeyValueEntry"]


@dataclass(frozen=True, slots=True)
class KeyValueEntry:
    """The state of a key after one change.

    Attributes:
        key: The key.
        value: The value; None if the key was deleted.
        revision: The number of the change. The changes of all keys of the bucket are numbered together, from 1.
    """

    key: str
    value: bytes | None
    revision: int


class KeyValue(Protocol):
    """One bucket of a namespace, or one group of keys in a bucket. A key is a token of a subject.

    Every method raises `BusUnavailableError` if the broker does not answer within the configured time.
    """

    async def put(self, key: str, value: bytes, *, expect: int | None = None) -> int:
        """Store a value.

        Args:
            key: The key.
            value: The value, not empty.
            expect: Compare-and-set: the revision that the key's newest change must have; 0 if the key must have no
                change; None, the default, for no check.

        Returns:
            The revision.

        Raises:
            ConflictError: the newest change of the key does not have the revision `expect`. Nothing was stored.
            InvalidTokenError: the key is not a token of a subject.
        """
        ...

    async def delete(self, key: str) -> None:
        """Delete the value of a key. The call has no effect on a key without a value.

        Args:
            key: The key.
        """
        ...

    async def get(self, key: str) -> KeyValueEntry | None:
        """Read the newest change of a key.

        Args:
            key: The key.

        Returns:
            The change, without a value for a deleted key; None for a key without any change.
        """
        ...

    async def entries(self) -> dict[str, KeyValueEntry]:
        """Read the present values.

        Returns:
            The entries that have a value, by key.
        """
        ...

    def follow(self, after: int = 0) -> AsyncIterator[KeyValueEntry]:
        """Yield the newest change of each key, then each further change. A reconnect skips no change.

        Args:
            after: Leave out changes up to this revision. Default: 0, no change is left out.

        Returns:
            An iterator that continues until it is closed.
        """
        ...
