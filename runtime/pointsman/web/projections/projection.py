"""Keep the state of a page in memory by following a stream, so that a page need not read the stream."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import aclosing

from pointsman.engine.log.reader import as_async_generator
from pointsman.errors import BusUnavailableError
from pointsman.ports.bus import Bus, StoredMessage, StreamKind
from pointsman.telemetry import get_logger
from pointsman.web.sse import Signal

__all__ = ["Projection"]

_log = get_logger(__name__)

_YIELD_EVERY = 200  # messages applied before other tasks of the loop run: 5 ms
_RETRY_PAUSE_S = 1.0  # time before the stream is followed again after an error of the broker


class Projection(Signal, ABC):
    """State that is computed from the messages on `subject`. `run` keeps the state current.

    At most `history` messages are read at the start. `sequence` is the sequence of the newest applied message.
    `changes` grows with each change. `epoch` is the number of times that the stream was created again: sequences of an
    earlier epoch are not comparable.
    """

    def __init__(self, bus: Bus, stream: StreamKind, subject: str, *, history: int) -> None:
        super().__init__()
        self._bus = bus
        self._stream: StreamKind = stream
        self._subject = subject
        self._history = history
        self._end = 0
        self.sequence = 0
        self.epoch = 0

    @abstractmethod
    async def apply(self, stored: StoredMessage) -> None:
        """Apply one message to the state."""

    @abstractmethod
    def reset(self) -> None:
        """Reset the state to empty."""

    @property
    def progress(self) -> float:
        """The share of the stream's history that has been applied, 0 to 1."""
        return 1.0 if self.sequence >= self._end else self.sequence / max(1, self._end)

    async def run(self) -> None:
        """Read the stream and follow it, until cancelled. Retry while the broker is unavailable."""
        while True:
            try:
                await self._follow()
            except BusUnavailableError as error:
                if self._bus.closed:
                    raise
                _log.info("stream_unavailable", stream=self._stream, error=str(error))
                await asyncio.sleep(_RETRY_PAUSE_S)

    async def missing(self, subjects: Sequence[str]) -> Sequence[str]:
        """Return the subjects without a message in the stream: the broker does not report expiry."""
        present = set(await self._bus.subjects(self._stream, self._subject)) if subjects else set[str]()
        return [subject for subject in subjects if subject not in present]

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
        """Start again after the stream was created again or lost its end: the state does not match the stream."""
        _log.warning("stream_recreated", stream=self._stream, was_at=self.sequence)
        self.reset()
        self.sequence, self._end = 0, 0
        self.epoch += 1
        self.notify()
