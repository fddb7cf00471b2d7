"""Follow a stream with a state in memory: apply the recent history, then each new message."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import aclosing, suppress

from pointsman.engine.log.reader import as_async_generator
from pointsman.errors import BusUnavailableError
from pointsman.ports.bus import Bus, StoredMessage, StreamKind
from pointsman.telemetry import get_logger

__all__ = ["StreamFollower"]

_log = get_logger(__name__)

_YIELD_EVERY = 200  # number of messages, applied in about 5 ms, after which other tasks of the event loop may run
_RETRY_PAUSE_S = 1.0  # seconds before the stream is followed again after an error of the broker


class StreamFollower(ABC):
    """A state that is computed from the messages on a subject. `run` keeps the state current.

    Args:
        bus: The bus.
        stream: The stream.
        subject: The filter of the subjects.
        history: Maximum number of messages that are read at the start.
    """

    def __init__(self, bus: Bus, stream: StreamKind, subject: str, *, history: int) -> None:
        self._bus = bus
        self._stream: StreamKind = stream
        self._subject = subject
        self._history = history
        self._end = -1
        self.sequence = 0
        """The sequence of the newest applied message."""
        self.epoch = 0
        """The number of times that the stream was created again. Do not compare sequences of different epochs."""

    @abstractmethod
    async def apply(self, stored: StoredMessage) -> None:
        """Apply one message to the state."""

    @abstractmethod
    def reset(self) -> None:
        """Reset the state to empty, because the stream was created again or has lost its newest messages."""

    @abstractmethod
    def moved(self) -> None:
        """React to a new `sequence`. The method is also called if the stream has no history."""

    @property
    def progress(self) -> float:
        """The share of the stream's history that was applied, from 0 to 1."""
        return 1.0 if self.sequence >= self._end else self.sequence / max(1, self._end)

    async def run(self) -> None:
        """Read the stream and follow it, until cancelled. Retry while the broker is unavailable."""
        while True:
            try:
                await self._follow()
            except BusUnavailableError as error:
                if self._bus.closed:
                    raise
                _log.info("stream_unavailable", stream=self._stream, error=str(error), hint="the read is repeated")
            await asyncio.sleep(_RETRY_PAUSE_S)

    async def _follow(self) -> None:
        last = await self._bus.last(self._stream, self._subject)
        end = last.sequence if last else 0
        if end < self.sequence:
            self._restart()
        self._end = end
        after = max(self.sequence, end - self._history)
        if after >= end:
            self.moved()
        messages = as_async_generator(self._bus.follow(self._stream, [self._subject], after=after))
        checking = asyncio.create_task(self._check_end())
        try:
            async with aclosing(messages):
                applied = 0
                async for stored in messages:
                    if stored.sequence <= self.sequence:
                        self._restart()
                    await self.apply(stored)
                    self.sequence = stored.sequence
                    self.moved()
                    applied += 1
                    if applied % _YIELD_EVERY == 0:
                        await asyncio.sleep(0)
        finally:
            checking.cancel()
            await asyncio.wait({checking})

    async def _check_end(self) -> None:
        """Correct the end of the history if its newest messages are deleted before they are read.

        Otherwise `progress` would stay below 1 until the next message is stored.
        """
        while self.sequence < self._end:
            await asyncio.sleep(_RETRY_PAUSE_S)
            with suppress(BusUnavailableError):
                last = await self._bus.last(self._stream, self._subject)
                end = last.sequence if last else 0
                if end < self._end:
                    self._end = end
                    self.moved()

    def _restart(self) -> None:
        _log.warning("stream_recreated", stream=self._stream, was_at=self.sequence, hint="the state is read again")
        self.reset()
        self.sequence, self._end = 0, 0
        self.epoch += 1
        self.moved()
