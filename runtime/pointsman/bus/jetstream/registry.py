"""Store the cards of live agents in a key-value bucket. The broker deletes a card if its agent stops refreshing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from pointsman.bus.jetstream.stream_config import TOMBSTONE_TTL_S
from pointsman.bus.validation import TTL_HEADER, decode_card, encode_card, format_ttl
from pointsman.errors import PermissionDeniedError
from pointsman.ports.bus import StoredMessage
from pointsman.ports.clock import Clock
from pointsman.util.lazy_import import structlog
from pointsman_schemas.card import AgentCard
from pointsman_schemas.errors import ContractError
from pointsman_schemas.ids import token

__all__ = ["KeyValueRegistry"]

_log = structlog.get_logger(__name__)


_RETRY_PAUSE_S = 1.0  # seconds before a broken watch begins again, to avoid a hot loop


class _Bus(Protocol):
    @property
    def closed(self) -> bool: ...


class _Writer(Protocol):
    def publish(self, subject: str, body: bytes, wire: dict[str, str]) -> Coroutine[Any, Any, int]: ...


class _Reader(Protocol):
    async def broker_time(self, stream: str, subject: str) -> datetime: ...
    def read(self, stream: str, subject: str, after: int) -> AsyncIterator[StoredMessage]: ...
    def follow(self, stream: str, subjects: Sequence[str], after: int) -> AsyncIterator[StoredMessage]: ...


class KeyValueRegistry:
    """Cards in a key-value bucket, each with a time to live that its agent's heartbeat renews.

    The broker publishes no marker for an expired card. Markers would need a bucket with rollup, and by rollup each
    announcer could empty the bucket. So this class measures the time to live of each card, and removes expired cards.

    During an outage of the broker, no agent expires. An agent that was live before the outage counts as live
    until one time to live after the end of the outage. Otherwise the registry would be empty just after an outage, and
    the first plans would name agents that are missing from the registry.

    A broker that was killed can store expired cards permanently. So a card that exists when this process starts counts
    only for the rest of its time to live, by the broker's clock.
    """

    def __init__(
        self, bus: _Bus, writer: _Writer, reader: _Reader, bucket: str, time_to_live: float, clock: Clock
    ) -> None:
        self._bus = bus
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."
        self._time_to_live = time_to_live
        self._cards: dict[str, tuple[AgentCard, float]] = {}
        self._refused: dict[str, tuple[str, float]] = {}  # reason and expiry, by key
        self._sorted: tuple[AgentCard, ...] | None = None
        self._next_expiry = 0.0
        self._is_disconnected = False
        self._trusted_until = 0.0
        self._starting = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None

    async def announce(self, card: AgentCard) -> None:
        await self._writer.publish(
            self._subject(card),
            encode_card(card),
            {TTL_HEADER: format_ttl(self._time_to_live)},
        )

    async def withdraw(self, card: AgentCard) -> None:
        await self._writer.publish(
            self._subject(card), b"", {"KV-Operation": "DEL", TTL_HEADER: format_ttl(TOMBSTONE_TTL_S)}
        )

    async def cards(self) -> Sequence[AgentCard]:
        if self._watch is None:
            async with self._starting:
                if self._watch is None:
                    await self._start()
        if self._sorted is None or self._clock.monotonic() >= self._next_expiry:
            self._expire()
            self._next_expiry = min((until for _, until in self._cards.values()), default=float("inf"))
            cards = (card for card, _ in self._cards.values())
            self._sorted = tuple(sorted(cards, key=lambda card: (card.name, card.instance)))
        return self._sorted

    async def refused(self) -> Mapping[str, str]:
        await self.cards()
        now = self._clock.monotonic()
        return {key: reason for key, (reason, until) in sorted(self._refused.items()) if until > now}

    def on_connection_lost(self) -> None:
        self._expire()
        self._is_disconnected = True

    def on_connection_restored(self) -> None:
        self._is_disconnected = False
        self._trusted_until = self._clock.monotonic() + self._time_to_live
        self._cards = {key: (card, max(until, self._trusted_until)) for key, (card, until) in self._cards.items()}
        self._sorted = None

    async def broker_time(self) -> datetime:
        """Return the time of the broker, by a read of the registry, which every process is allowed to read."""
        return await self._reader.broker_time(self._stream, f"{self._prefix}>")

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)

    async def _start(self) -> None:
        after, now = 0, await self.broker_time()
        for _ in range(2):  # twice, because the first read misses a card that is renewed during the read
            async for stored in self._reader.read(self._stream, f"{self._prefix}>", after):
                self._apply(stored, max(0.0, (now - stored.at).total_seconds()))
                after = stored.sequence
        self._watch = asyncio.create_task(self._follow_bucket(after))

    async def _follow_bucket(self, after: int) -> None:
        """Follow the bucket while the bus is open. An error must not end this task, because no caller awaits it."""
        denied = False
        while True:
            try:
                async for stored in self._reader.follow(self._stream, [f"{self._prefix}>"], after):
                    after = stored.sequence
                    self._apply(stored)
            except Exception as error:
                if self._bus.closed:
                    return
                if isinstance(error, PermissionDeniedError):
                    if not denied:  # log once, because the broker refuses each try
                        _log.error(
                            "registry_watch_denied",
                            reason=str(error),
                            hint="this process does not detect agents that join or leave; allow the user to read the "
                            "registry",
                        )
                    denied = True
                    await self._clock.sleep(_RETRY_PAUSE_S)
                    continue
                _log.error("registry_watch_broken", exc_info=error, hint="the watch continues after the last entry")
            await self._clock.sleep(_RETRY_PAUSE_S)

    def _expire(self) -> None:
        now = self._clock.monotonic()
        if not self._is_disconnected:
            self._cards = {key: entry for key, entry in self._cards.items() if entry[1] > now}
            self._refused = {key: entry for key, entry in self._refused.items() if entry[1] > now}

    def _apply(self, stored: StoredMessage, age: float = 0.0) -> None:
        key = stored.subject.removeprefix(self._prefix)
        self._sorted = None
        until = self._clock.monotonic() + self._time_to_live - age
        if not stored.body:  # a marker without a body: the card was withdrawn or has expired
            self._refused.pop(key, None)
            if "KV-Operation" in stored.headers or self._clock.monotonic() >= self._trusted_until:
                self._cards.pop(key, None)
            return
        try:
            card = decode_card(key, stored.body)
        except ContractError as error:
            self._refuse(key, str(error), until)
            return
        self._refused.pop(key, None)
        self._cards[key] = card, until

    def _refuse(self, key: str, reason: str, until: float) -> None:
        """Remove an entry with an invalid card. Log each reason once, because the agent refreshes the entry often."""
        if self._refused.get(key, ("", 0.0))[0] != reason:
            hint = "the agent gets no tasks until its card is correct; `pointsman doctor` lists refused cards"
            _log.warning("card_refused", key=key, reason=reason, hint=hint)
        self._refused[key] = reason, until
        self._cards.pop(key, None)

    def _subject(self, card: AgentCard) -> str:
        return f"{self._prefix}{card.name}.{token(card.instance, 'instance')}"
