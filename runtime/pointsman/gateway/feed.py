"""Follow the log of the namespace once for all open streams of a gateway.

A stream of its own consumer would cost the broker a consumer for each client. The feed hands each message to the
subscribers of its workflow. A subscriber that is behind has a bounded queue, and reads the rest from the log.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from pointsman.engine.log.follower import StreamFollower
from pointsman.ports.bus import Bus, StoredMessage
from pointsman_schemas.events import Delta, Progress
from pointsman_schemas.subjects import Subjects

__all__ = ["LogFeed", "StreamResetError", "Subscription"]

_MAX_QUEUED = 32  # messages that wait for one subscriber; the log has the rest
_CATCH_UP_PAUSE_S = 0.02
_MAX_NEWEST = 20_000  # workflows whose newest sequence is kept
_MAX_HISTORY = 300_000  # messages of the log read at the start


class StreamResetError(Exception):
    """The stream ends: the gateway stops, or the broker has lost the end of the log. The client opens it again."""


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
            The message; None if messages were dropped, which the caller must read from the log.

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
        """Add a message. With a full queue, a message of the log is left to be read, and any other is dropped.

        Args:
            item: The message.
        """
        if len(self._queue) < _MAX_QUEUED and not (self._lagging and isinstance(item, StoredMessage)):
            self._queue.append(item)
        elif isinstance(item, StoredMessage):
            self._lagging = True
        self._arrived.set()

    def reset(self) -> None:
        """End the subscription. The client opens its stream again."""
        self._reset = True
        self._arrived.set()


class LogFeed(StreamFollower):
    """The new messages of all logs of a namespace.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        observe: Called with each message of the log, also with those of its recent history at the start.
        reset: Called when the broker has lost the end of the log; the history is read again.
    """

    def __init__(
        self, bus: Bus, subjects: Subjects, observe: Callable[[StoredMessage], None], reset: Callable[[], None]
    ) -> None:
        super().__init__(bus, "log", subjects.team_logs(), history=_MAX_HISTORY)
        self._observe = observe
        self._on_reset = reset
        self._subscribers: dict[str, set[Subscription]] = {}
        self._newest: OrderedDict[str, int] = OrderedDict()
        self.current = asyncio.Event()
        """Set once the history has been read."""

    @property
    def streams(self) -> int:
        """The number of open subscriptions."""
        return sum(map(len, self._subscribers.values()))

    def newest(self, workflow: str) -> int:
        """Return the sequence of the newest message of a workflow that was handed out.

        Args:
            workflow: The workflow.

        Returns:
            The sequence; 0 for a workflow without a recent message.
        """
        return self._newest.get(workflow, 0)

    async def catch_up(self, timeout: float) -> None:
        """Wait until the messages that the log has now were handed out.

        Args:
            timeout: The longest wait, in seconds. The call then returns, too.
        """
        newest = await self._bus.last("log", self._subject)
        until = monotonic() + timeout
        while newest is not None and self.sequence < newest.sequence and monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(_CATCH_UP_PAUSE_S)

    @contextmanager
    def subscribe(self, workflow: str) -> Iterator[Subscription]:
        """Subscribe to the log of a workflow while the context lasts.

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
        """Hand a message to the observer, and to the subscribers of its workflow."""
        self._observe(stored)
        workflow = stored.subject.rpartition(".")[2]
        self._newest[workflow] = stored.sequence
        self._newest.move_to_end(workflow)
        if len(self._newest) > _MAX_NEWEST:
            self._newest.popitem(last=False)
        for subscription in self._subscribers.get(workflow, ()):
            subscription.post(stored)

    def reset(self) -> None:
        """Forget the positions, and end the streams: their clients open them again."""
        self._newest.clear()
        self._on_reset()
        self.stop()

    def moved(self) -> None:
        """Set `current` when the history has been read."""
        if self.sequence >= self._end:
            self.current.set()

    def stop(self) -> None:
        """End all subscriptions."""
        for subscriptions in list(self._subscribers.values()):
            for subscription in subscriptions:
                subscription.reset()
