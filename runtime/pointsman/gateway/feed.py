"""Follow the log of the namespace once for all open streams of a gateway.

A stream of its own consumer would cost the broker a consumer for each client. The feed hands each message to the
subscribers of its workflow. A subscriber that is behind has a bounded queue, and reads the rest from the log.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from time import monotonic

from pointsman.engine.log.reader import as_async_generator
from pointsman.errors import BusUnavailableError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.telemetry import get_logger
from pointsman_schemas.events import Delta, Progress
from pointsman_schemas.subjects import Subjects

__all__ = ["LogFeed", "StreamResetError", "Subscription"]

_log = get_logger(__name__)

_MAX_QUEUED = 32  # messages that wait for one subscriber; the log has the rest
_RETRY_PAUSE_S = 1.0  # seconds before the log is followed again after an error of the broker
_CATCH_UP_PAUSE_S = 0.02
_YIELD_EVERY = 200  # messages after which other tasks run
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


class LogFeed:
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
        self._bus = bus
        self._subject = subjects.team_logs()
        self._observe = observe
        self._on_reset = reset
        self._subscribers: dict[str, set[Subscription]] = {}
        self._newest: OrderedDict[str, int] = OrderedDict()
        self._sequence = 0
        self._end = -1
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
        while newest is not None and self._sequence < newest.sequence and monotonic() < until:  # noqa: ASYNC110
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

    async def run(self) -> None:
        """Follow the log, until cancelled. Retry while the broker is unavailable."""
        while True:
            try:
                await self._follow()
            except BusUnavailableError as error:
                if self._bus.closed:
                    raise
                _log.info("gateway_log_unavailable", error=str(error), hint="it is tried again")
            await asyncio.sleep(_RETRY_PAUSE_S)

    async def _follow(self) -> None:
        last = await self._bus.last("log", self._subject)
        self._end = last.sequence if last else 0
        if self._end < self._sequence:
            self._restart()
        after = max(self._sequence, self._end - _MAX_HISTORY)
        if after >= self._end:
            self.current.set()
        read = 0
        async with aclosing(as_async_generator(self._bus.follow("log", [self._subject], after=after))) as messages:
            async for stored in messages:
                if stored.sequence <= self._sequence:
                    self._restart()
                self._sequence = stored.sequence
                self._observe(stored)
                workflow = stored.subject.rpartition(".")[2]
                self._newest[workflow] = stored.sequence
                self._newest.move_to_end(workflow)
                if len(self._newest) > _MAX_NEWEST:
                    self._newest.popitem(last=False)
                for subscription in self._subscribers.get(workflow, ()):
                    subscription.post(stored)
                if stored.sequence >= self._end:
                    self.current.set()
                read += 1
                if read % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)

    def _restart(self) -> None:
        _log.warning("gateway_log_reset", was_at=self._sequence, hint="open streams end, and clients open them again")
        self._sequence = 0
        self._newest.clear()
        self._on_reset()
        self.stop()

    def stop(self) -> None:
        """End all subscriptions."""
        for subscriptions in list(self._subscribers.values()):
            for subscription in subscriptions:
                subscription.reset()
