"""Receive the messages of one filter from an ephemeral consumer, which delivers to an inbox of this connection.

The subject of the creation request ends with the filter. So a permission can state for which filters a user may create
such a consumer. Apart from this request, the user only needs the permission to acknowledge the flow control. A
permission could not limit two other kinds of consumers. A consumer with several filters has the filters in the body of
the request. The permission to pull from a pull consumer would also include the consumers of other users.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from pointsman.bus.jetstream.protocol import (
    CONSUMER_EXISTS_CODE,
    BusSubscription,
    Connection,
    DeliveryInfo,
    WireMessage,
    error_code,
    to_nanoseconds,
    to_stored_message,
)
from pointsman.bus.jetstream.reader_names import READER_SLOTS
from pointsman.bus.jetstream.refusals import Refusal
from pointsman.errors import PermissionDeniedError
from pointsman.ports.bus import StoredMessage

__all__ = ["PushConsumer"]

_IDLE_HEARTBEAT_S = 2.0  # seconds between heartbeats of an idle consumer; two missing heartbeats mean a lost consumer
# if no process is subscribed to the inbox for this number of seconds, the broker deletes the consumer that delivers to
# the inbox
_INACTIVE_THRESHOLD_S = 2.0
_MAX_BUFFERED = 256  # number of messages in the buffer above which the broker must not send more
_MAX_BUFFERED_BYTES = 4 * 1024 * 1024  # number of bytes in the buffer above which the broker must not send more
_STALLED_HEADER = "Nats-Consumer-Stalled"  # in a heartbeat: the subject of a flow control request without an answer
_LAST_DELIVERY_HEADER = "Nats-Last-Consumer"  # in a heartbeat: the number of the newest delivery
# a user may have a fixed set of consumer names; if other processes of the user use all of them, try again after this
# number of seconds
_NAME_PAUSE_S = 0.5
_CLOSED_REASON = "closed"  # the owner closed the consumer, so no more messages arrive


class PushConsumer:
    """One consumer of the messages of `filter` in `stream`, and the buffer of messages that arrived.

    A gap in the numbers of the deliveries, a lost connection or missing heartbeats set `lost`. The owner then makes a
    new consumer, which begins after the last message that the owner received.

    Attributes:
        buffer: The messages that arrived, oldest first.
        lost: The reason why no more messages arrive; empty while the consumer delivers.
        denied: The refusal of a permission that the consumer needs.
        left: The number of stored messages that were still undelivered at the last delivery.
        newest: The sequence of the newest message that arrived; 0 before the first message.
    """

    def __init__(self, bus: Connection, stream: str, filter: str) -> None:
        self.buffer: deque[WireMessage] = deque()
        self.lost = ""
        self.denied: PermissionDeniedError | None = None
        self.left = 0
        self.newest = 0
        self._bus = bus
        self._stream = stream
        self._filter = filter
        self._inbox = bus.new_inbox()
        self._name = ""
        self._slot = -1
        self._created = False
        self._subscription: BusSubscription | None = None
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._deliveries = 0
        self._buffered_bytes = 0
        self._stalled = ""  # the subject of a flow control request that this process has not answered yet
        self._last_message_at = self._loop.time()
        self._watchdog = self._loop.call_later(_IDLE_HEARTBEAT_S, self._check_heartbeat)

    async def subscribe(self) -> None:
        """Subscribe to the inbox. Call this method before `create`, because a new consumer delivers at once."""
        self._subscription = await self._bus.subscribe(self._inbox, self._on_message)
        self._bus.listeners.add(self._on_disconnected)
        self._bus.refusal_listeners.add(self._on_refusal)

    async def create(self, **start: Any) -> dict[str, Any]:
        """Create the consumer.

        If the answer is lost, repeat the call. The object keeps its consumer name, so the broker does not create a
        second consumer. If another process of the user has a consumer with the same name, the next name is
        tried.

        Args:
            **start: The fields of the configuration that select the first message.

        Returns:
            The answer of the JetStream API, which may contain an error.
        """
        names, tries = self._bus.reader_names, 0
        if not self._name:
            self._name, self._slot = await names.acquire(self._stream)
        while True:
            answer = await self._request(start)
            tries += 1
            if error_code(answer) != CONSUMER_EXISTS_CODE or tries > 2 * READER_SLOTS:
                break
            if tries % READER_SLOTS == 0:
                await asyncio.sleep(_NAME_PAUSE_S)
            # Release the name before the next one is acquired: if all names are used, the next one is the same name.
            taken, self._slot = self._slot, -1
            names.release(self._stream, taken)
            self._name, self._slot = await names.acquire(self._stream, taken + 1)
        if not error_code(answer):
            self._created = True
            self.left = max(self.left, 0 if self._deliveries else int(answer["num_pending"]))
            self._last_message_at = self._loop.time()
        return answer

    async def _request(self, start: Mapping[str, Any]) -> dict[str, Any]:
        return await self._bus.api(
            f"CONSUMER.CREATE.{self._stream}.{self._name}.{self._filter}",
            {
                "stream_name": self._stream,
                **({"action": "create"} if self._bus.reader_names.bound else {}),
                "config": {
                    "name": self._name,
                    "filter_subject": self._filter,
                    "deliver_subject": self._inbox,
                    "flow_control": True,
                    "idle_heartbeat": to_nanoseconds(_IDLE_HEARTBEAT_S),
                    "ack_policy": "none",
                    "max_deliver": -1,
                    "replay_policy": "instant",
                    "mem_storage": True,
                    "num_replicas": 1,
                    "inactive_threshold": to_nanoseconds(_INACTIVE_THRESHOLD_S),
                    **start,
                },
            },
        )

    async def wait(self) -> None:
        """Return when a message has arrived, or the consumer was lost."""
        self._changed.clear()
        if not self.buffer and not self.lost:
            await self._changed.wait()

    async def take(self) -> StoredMessage:
        """Return the oldest message of the buffer. The buffer must not be empty."""
        message = self.buffer[0]
        self._buffered_bytes -= len(message.data)
        if self._stalled and self._has_room(2):
            subject, self._stalled = self._stalled, ""
            await self._bus.send(subject)
        # Remove the message only after the `await` of `send`: until then the message stays in the buffer, so the owner
        # still sees that a message has arrived.
        self.buffer.popleft()
        return to_stored_message(message, DeliveryInfo(message.reply))

    async def close(self) -> None:
        """Release the inbox. The broker then deletes the consumer after `_INACTIVE_THRESHOLD_S` seconds.

        If the names are a fixed set, request the deletion at once, so that the name is free again.
        """
        self._watchdog.cancel()
        self._bus.listeners.discard(self._on_disconnected)
        self._bus.refusal_listeners.discard(self._on_refusal)
        self.lost = self.lost or _CLOSED_REASON
        self._changed.set()
        if (subscription := self._subscription) is not None:
            self._subscription = None
            await subscription.unsubscribe()
        if self._slot >= 0:
            if self._created:
                deletion = self._bus.api_subject(f"CONSUMER.DELETE.{self._stream}.{self._name}")
                await self._bus.send(deletion, reply=self._bus.new_inbox())
            self._bus.reader_names.release(self._stream, self._slot)
            self._slot = -1

    @property
    def lost_reason(self) -> str:
        """Return the reason why the consumer was lost; empty if the consumer delivered until the owner closed it."""
        return "" if self.lost == _CLOSED_REASON else self.lost

    def _mark_lost(self, reason: str) -> None:
        self.lost = self.lost or reason
        self._changed.set()

    def _on_disconnected(self) -> None:
        self._mark_lost("disconnected")

    def _on_refusal(self, refusal: Refusal, error: PermissionDeniedError) -> None:
        if refusal.concerns("", self._inbox) or refusal.subject.startswith(f"$JS.FC.{self._stream}.{self._name}."):
            self.denied = error
            self._mark_lost(refusal.said)

    def _on_message(self, message: WireMessage) -> None:
        self._last_message_at = self._loop.time()
        if self.lost:
            return
        if message.status:
            self._on_status(message)
            return
        delivery = DeliveryInfo(message.reply)
        if delivery.delivery != self._deliveries + 1:
            self._mark_lost("a delivery was lost")
            return
        self._deliveries = delivery.delivery
        self.left, self.newest = delivery.left, delivery.sequence
        self.buffer.append(message)
        self._buffered_bytes += len(message.data)
        self._changed.set()

    def _on_status(self, message: WireMessage) -> None:
        if not message.status.startswith("100"):
            self._mark_lost(message.status)
            return
        headers = message.headers
        if int(headers.get(_LAST_DELIVERY_HEADER, self._deliveries)) > self._deliveries:
            self._mark_lost("a delivery was lost")
            return
        if subject := message.reply or headers.get(_STALLED_HEADER, ""):
            if self._has_room():
                self._stalled = ""
                self._answer = asyncio.ensure_future(self._bus.send(subject))
            else:
                self._stalled = subject

    def _has_room(self, share: int = 1) -> bool:
        """Return True if the buffer is within its limits divided by `share`: for `share=2`, at most half full."""
        return share * len(self.buffer) <= _MAX_BUFFERED and share * self._buffered_bytes <= _MAX_BUFFERED_BYTES

    def _check_heartbeat(self) -> None:
        if self._loop.time() - self._last_message_at > 2 * _IDLE_HEARTBEAT_S:
            self._mark_lost("no heartbeat")
        if not self.lost:
            self._watchdog = self._loop.call_later(_IDLE_HEARTBEAT_S, self._check_heartbeat)
