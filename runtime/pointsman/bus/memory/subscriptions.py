"""Subscribers and receivers of forwarded deliveries at a `MemoryBroker`.

Nothing is stored: a subscriber gets only the messages, and a receiver only the deliveries, that are sent while it is
registered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pointsman.bus.validation import matches
from pointsman.ports.bus import Delivery, StoredMessage
from pointsman.util.lazy_import import structlog

__all__ = ["MemorySubscriptions"]

_log = structlog.get_logger(__name__)


class MemorySubscriptions:
    """Listeners by subject, and receivers by name. Each has a separate task, which delivers in the order of sending."""

    def __init__(self) -> None:
        self._listeners: list[_Listener] = []
        self._receivers: dict[str, asyncio.Queue[Delivery]] = {}

    def broadcast(self, stored: StoredMessage) -> None:
        for listener in self._listeners:
            if matches(listener.subject, stored.subject):
                listener.queue.put_nowait(stored)

    @asynccontextmanager
    async def subscribe(
        self, subject: str, on_message: Callable[[StoredMessage], Awaitable[None]]
    ) -> AsyncIterator[None]:
        listener = _Listener(subject)
        self._listeners.append(listener)
        task = asyncio.create_task(listener.deliver(on_message))
        try:
            yield
        finally:
            self._listeners.remove(listener)
            task.cancel()
            await asyncio.wait({task})

    @asynccontextmanager
    async def receive(self, name: str, on_delivery: Callable[[Delivery], None]) -> AsyncIterator[None]:
        queue = self._receivers[name] = asyncio.Queue[Delivery]()

        async def receive() -> None:
            while True:
                on_delivery(await queue.get())

        task = asyncio.create_task(receive())
        try:
            yield
        finally:
            del self._receivers[name]
            task.cancel()
            await asyncio.wait({task})
            while not queue.empty():
                on_delivery(queue.get_nowait())

    def forward(self, name: str, delivery: Delivery) -> bool:
        receiver = self._receivers.get(name)
        if receiver is not None:
            receiver.put_nowait(delivery)
        return receiver is not None


@dataclass(slots=True)
class _Listener:
    subject: str
    queue: asyncio.Queue[StoredMessage] = field(default_factory=asyncio.Queue)

    async def deliver(self, on_message: Callable[[StoredMessage], Awaitable[None]]) -> None:
        """Deliver one broadcast at a time. If the listener raises an error, log the error and continue."""
        while True:
            stored = await self.queue.get()
            try:
                await on_message(stored)
            except Exception as error:
                _log.warning("listener_failed", subject=stored.subject, error=repr(error))
