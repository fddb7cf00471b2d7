"""Name the ephemeral consumers of a connection. A permission can limit a user to such names.

A request that creates a consumer with the name of an existing consumer changes the existing consumer. So a user that is
allowed to use any name could change the filter of a team's durable consumer. The name is one token, and a permission
has no wildcard for a part of a token, so a permission must list each name. For this reason, a user with a separate
inbox prefix has a fixed set of names.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator

__all__ = ["READER_SLOTS", "ReaderNames", "reader_name"]

READER_SLOTS = 16
"""Number of consumers that a user with a separate inbox prefix may have on a stream at a time, in all its processes."""

_SHARED_PREFIX = "_INBOX"  # the inbox prefix of users without a separate prefix


def reader_name(inbox_prefix: str, slot: int) -> str:
    """Return a name for the consumers of a user with an inbox prefix.

    Args:
        inbox_prefix: The prefix.
        slot: The number of the name, from 0.

    Returns:
        The name.
    """
    return f"reader-{inbox_prefix.replace('.', '-')}-{slot}"


class ReaderNames:
    """The names of a connection's consumers on each stream.

    Args:
        inbox_prefix: The prefix of the connection's inboxes.
    """

    def __init__(self, inbox_prefix: str) -> None:
        self._prefix = inbox_prefix
        self.bound = inbox_prefix != _SHARED_PREFIX
        """True if the names are a fixed set, which other processes of the user may also use."""
        self._used: dict[str, set[int]] = {}
        self._released = asyncio.Event()

    async def acquire(self, stream: str, first: int | None = None) -> tuple[str, int]:
        """Wait until a name is free on a stream for this connection, and return the name.

        Args:
            stream: The stream.
            first: The slot to try first; default: a random slot, because processes of one user share the names.

        Returns:
            The name and its slot; the slot is -1 if the names are not a fixed set.
        """
        if not self.bound:
            return f"reader_{secrets.token_hex(11)}", -1
        used = self._used.setdefault(stream, set())
        while True:
            free = next((slot for slot in _slots(first) if slot not in used), None)
            if free is not None:
                used.add(free)
                return reader_name(self._prefix, free), free
            self._released.clear()
            await self._released.wait()

    def release(self, stream: str, slot: int) -> None:
        """Make a slot free again.

        Args:
            stream: The stream.
            slot: The slot, from `acquire`.
        """
        if slot >= 0:
            self._used[stream].discard(slot)
            self._released.set()


def _slots(first: int | None) -> Iterator[int]:
    start = secrets.randbelow(READER_SLOTS) if first is None else first
    return ((start + offset) % READER_SLOTS for offset in range(READER_SLOTS))
