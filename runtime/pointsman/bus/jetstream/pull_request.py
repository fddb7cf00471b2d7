"""Pull messages with long-lived requests. When half of the caller's room is free, request as many messages as fit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from pointsman.bus.jetstream.protocol import BusSubscription, Connection, WireMessage, to_nanoseconds
from pointsman.bus.jetstream.refusals import Refusal
from pointsman.errors import PermissionDeniedError

__all__ = ["CLOSED_REASON", "PRIORITY_GROUP", "PullRequest"]

CLOSED_REASON = "closed"
"""The value of `lost` after this process closed the pull."""
PRIORITY_GROUP = "ranked"
"""The group of pulls that the broker serves by their rank."""

_REQUEST_EXPIRY_S = 30.0  # seconds for which one pull request stays open at the broker
# Seconds between heartbeats of an idle pull; after two missing heartbeats the pull is lost. When the leader node of a
# consumer fails, the broker sends nothing to open pulls, so only missing heartbeats reveal the failure. With 2 s,
# messages then wait for 4 to 6 s; with 5 s, for 11 s.
_IDLE_HEARTBEAT_S = 2.0


class PullRequest:
    """One inbox to which the broker delivers messages of a pull consumer.

    `outstanding` is the number of messages that were requested and can still arrive. Each message decreases this number
    by one. When a pull request expires, the broker reports the number of its undelivered messages, which is subtracted
    from `outstanding`. After a lost connection, a change of the leader, or missing heartbeats, the count can be wrong.
    Then `lost` is set, the owner replaces this inbox by a new inbox, and the broker drops the open requests of this
    inbox.
    """

    def __init__(self, bus: Connection, stream: str, consumer: str) -> None:
        self.buffer: deque[WireMessage] = deque()
        self.restarts = bus.restarts
        self.outstanding = 0
        self.lost = ""
        self.denied: PermissionDeniedError | None = None
        """Set when the broker refuses the permission to pull, to receive or to acknowledge."""
        self._bus = bus
        self._subject = bus.api_subject(f"CONSUMER.MSG.NEXT.{stream}.{consumer}")
        self._acknowledged = f".{stream}.{consumer}."
        self._inbox = bus.new_inbox()
        self._subscription: BusSubscription | None = None
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._last_message_at = self._loop.time()
        self._watchdog = self._loop.call_later(_IDLE_HEARTBEAT_S, self._check_heartbeat)
        self.on_arrival: Callable[[], None] | None = None

    async def open(self) -> None:
        self._subscription = await self._bus.subscribe(self._inbox, self._on_message)
        self._bus.listeners.add(self._on_disconnected)
        self._bus.refusal_listeners.add(self._refused)

    async def refill(self, room: int, rank: int | None = None) -> None:
        """Request messages for the free part of `room`, if at least half of `room` is free.

        `room` is the number of messages that the caller can take. Messages that are outstanding or in the buffer fill a
        part of `room`.

        If less is free, nothing is requested. Otherwise requests would be frequent, and each request would deliver few
        messages. A ranked consumer accepts only requests with a `rank`, and a consumer without ranks only requests
        without a `rank`.
        """
        outstanding = self.outstanding + len(self.buffer)
        if self.lost or 2 * outstanding > room or room == 0:
            return
        self.outstanding += room - outstanding
        self._last_message_at = self._loop.time()
        await self._bus.send(
            self._subject,
            b'{"batch":%d,"expires":%d,"idle_heartbeat":%d%s}'
            % (
                room - outstanding,
                to_nanoseconds(_REQUEST_EXPIRY_S),
                to_nanoseconds(_IDLE_HEARTBEAT_S),
                b"" if rank is None else b',"group":"%s","priority":%d' % (PRIORITY_GROUP.encode(), rank),
            ),
            reply=self._inbox,
        )

    async def wait(self) -> None:
        """Wait until a message arrives, or the pull is lost."""
        self._changed.clear()
        if not self.buffer and not self.lost:
            await self._changed.wait()

    def mark_lost(self, reason: str) -> None:
        self.lost = self.lost or reason
        self._changed.set()

    def _on_disconnected(self) -> None:
        self.mark_lost("disconnected")

    def _refused(self, refusal: Refusal, error: PermissionDeniedError) -> None:
        acknowledgement = refusal.subject.startswith("$JS.ACK.") and self._acknowledged in refusal.subject
        if acknowledgement or refusal.concerns(self._subject, self._inbox):
            self.denied = error
            self.mark_lost(refusal.said)

    async def close(self, *, drain: bool = False) -> None:
        """Release the inbox. With `drain`, messages that the broker has sent still arrive in the buffer."""
        self._watchdog.cancel()
        self._bus.listeners.discard(self._on_disconnected)
        self._bus.refusal_listeners.discard(self._refused)
        self.mark_lost(CLOSED_REASON)
        if (subscription := self._subscription) is not None:
            self._subscription = None
            await (subscription.drain() if drain else subscription.unsubscribe())

    def _on_message(self, message: WireMessage) -> None:
        self._last_message_at = self._loop.time()
        if message.reply:
            self.outstanding = max(0, self.outstanding - 1)
            self.buffer.append(message)
            if self.on_arrival is not None:
                self.on_arrival()
        else:
            status = message.status
            if status.startswith("100"):
                return
            left = message.headers.get("Nats-Pending-Messages")
            if status.startswith(("404", "408")) and left is not None:
                self.outstanding = max(0, self.outstanding - int(left))
            else:
                self.lost = self.lost or status
        self._changed.set()

    def _check_heartbeat(self) -> None:
        if self.outstanding and self._loop.time() - self._last_message_at > 2 * _IDLE_HEARTBEAT_S:
            self.mark_lost("no heartbeat")
        if not self.lost:
            self._watchdog = self._loop.call_later(_IDLE_HEARTBEAT_S, self._check_heartbeat)
