"""What is folded from a stream as it grows, so that a page costs no reading of it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import aclosing

from pointsman.engine.log.reader import as_async_generator
from pointsman.errors import BusUnavailableError
from pointsman.ports.bus import Bus, StoredMessage, StreamKind
from pointsman.telemetry import get_logger

__all__ = ["Projection"]

_log = get_logger(__name__)

_YIELD_EVERY = 200  # messages folded before others get the loop: 5 ms
_RETRY_PAUSE_S = 1.0  # seconds before the stream is followed again after the broker refused


class Projection(ABC):
    """What the messages on `subject` come to. `run` keeps it current; everything else reads what is there.

    At most `history` messages are read at the start. `sequence` is where the newest message stands that was folded;
    `changes` grows with each change; `epoch` says how often the stream began anew: what was seen before says nothing
    then.
    """

    def __init__(self, bus: Bus, stream: StreamKind, subject: str, *, history: int) -> None:
        self._bus = bus
        self._stream: StreamKind = stream
        self._subject = subject
        self._history = history
        self._end = 0
        self._changed_event = asyncio.Event()
        self.sequence = 0
        self.changes = 0
        self.epoch = 0

    @abstractmethod
    async def apply(self, stored: StoredMessage) -> None:
        """Fold one message."""

    @abstractmethod
    def reset(self) -> None:
        """Begin with nothing again."""

    @property
    def progress(self) -> float:
        """The share of the stream's history that has been folded, 0 to 1."""
        return 1.0 if self.sequence >= self._end else self.sequence / max(1, self._end)

    async def run(self) -> None:
        """Fold the stream and follow it, until cancelled. An unreachable broker is waited for."""
        while True:
            try:
                await self._follow()
            except BusUnavailableError as error:
                if self._bus.closed:
                    raise
                _log.info("stream_unavailable", stream=self._stream, error=str(error))
                await asyncio.sleep(_RETRY_PAUSE_S)

    async def wait_for_change(self, seen: int) -> None:
        """Return when `changes` is not `seen`, at once or as soon as it is so."""
        while self.changes == seen:
            await self._changed_event.wait()

    def notify(self) -> None:
        """Tell whoever waits for news."""
        self.changes += 1
        news, self._changed_event = self._changed_event, asyncio.Event()
        news.set()

    async def _follow(self) -> None:
        last = await self._bus.last(self._stream, self._subject)
        end = last.sequence if last else 0
        if end < self.sequence:
            self._restart()
        self._end = end
        after = max(self.sequence, end - self._history)
        messages = as_async_generator(self._bus.follow(self._stream, [self._subject], after=after))
        async with aclosing(messages):
            folded = 0
            async for stored in messages:
                if stored.sequence <= self.sequence:
                    self._restart()
                await self.apply(stored)
                self.sequence = stored.sequence
                self.notify()
                folded += 1
                if folded % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)

    def _restart(self) -> None:
        """The stream goes back: it was made anew, or lost its end. What was read is not what is there."""
        _log.warning("stream_recreated", stream=self._stream, was_at=self.sequence)
        self.reset()
        self.sequence, self._end = 0, 0
        self.epoch += 1
        self.notify()
