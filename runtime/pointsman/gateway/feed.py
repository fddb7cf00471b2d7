"""Follow the log of the namespace once for all open streams of a gateway.

If each open stream read the log itself, the broker would need a consumer for each client. So the feed reads the log
once, and delivers each message to the subscribers of its workflow. The queue of a subscriber is bounded: if a message
does not fit, it is dropped, and the subscriber reads it from the log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from pointsman.index.workflows import WorkflowIndex
from pointsman.ports.bus import Bus, StoredMessage
from pointsman_schemas.events import Delta, Progress
from pointsman_schemas.subjects import Subjects

__all__ = ["LogFeed", "StreamResetError", "Subscription"]

_MAX_QUEUED = 32  # maximum number of queued messages of one subscriber, which reads further messages from the log


class StreamResetError(Exception):
    """The stream ends because the gateway stops, or because the broker has lost the end of the log.

    The client opens the stream again.
    """


class Subscription:
    """The messages of one workflow that arrive while the subscription is open."""

    def __init__(self) -> None:
        self._queue: deque[StoredMessage | Progress | Delta] = deque()
        self._arrived = asyncio.Event()
        self._lagging = False
        self._reset = False

    async def next(self, timeout: float) -> StoredMessage | Progress | Delta | None:
        """Return the next message.

        Args:
            timeout: The longest wait, in seconds.

        Returns:
            The message; None if messages were dropped. Read dropped messages from the log.

        Raises:
            TimeoutError: No message arrived in time.
            StreamResetError: The subscription was ended.
        """
        while True:
            if self._reset:
                raise StreamResetError
            if self._queue:
                return self._queue.popleft()
            if self._lagging:
                self._lagging = False
                return None
            self._arrived.clear()
            async with asyncio.timeout(timeout):
                await self._arrived.wait()

    def post(self, item: StoredMessage | Progress | Delta) -> None:
        """Add a message.

        If the queue is full, the message is dropped. The subscriber then reads a dropped message of the log from the
        log. A dropped report or text is lost.

        Args:
            item: The message.
        """
        if len(self._queue) < _MAX_QUEUED and not (self._lagging and isinstance(item, StoredMessage)):
            self._queue.append(item)
        elif isinstance(item, StoredMessage):
            self._lagging = True
        self._arrived.set()

    def reset(self) -> None:
        """End the subscription. The client then opens a new stream."""
        self._reset = True
        self._arrived.set()


class LogFeed(WorkflowIndex):
    """The index of the workflows. It also delivers each new message of the log to the subscribers of the workflow.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
    """

    def __init__(self, bus: Bus, subjects: Subjects) -> None:
        super().__init__(bus, subjects)
        self._subscribers: dict[str, set[Subscription]] = {}

    @property
    def streams(self) -> int:
        """The number of open subscriptions."""
        return sum(map(len, self._subscribers.values()))

    @contextmanager
    def subscribe(self, workflow: str) -> Iterator[Subscription]:
        """Subscribe to the log of a workflow inside the `with` block.

        Args:
            workflow: The workflow.

        Yields:
            The subscription.
        """
        subscription = Subscription()
        self._subscribers.setdefault(workflow, set()).add(subscription)
        try:
            yield subscription
        finally:
            left = self._subscribers[workflow]
            left.discard(subscription)
            if not left:
                del self._subscribers[workflow]

    async def apply(self, stored: StoredMessage) -> None:
        """Apply a message to the index, and deliver the message to the subscribers of the workflow."""
        await super().apply(stored)
        for subscription in self._subscribers.get(stored.subject.rpartition(".")[2], ()):
            subscription.post(stored)

    def reset(self) -> None:
        """Forget the workflows, and end the streams. The clients then open new streams."""
        super().reset()
        self.stop()

    def stop(self) -> None:
        """End all subscriptions."""
        for subscriptions in list(self._subscribers.values()):
            for subscription in subscriptions:
                subscription.reset()
