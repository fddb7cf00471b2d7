"""Bound the number of connections, the wait for the head of a request, and the wait for a client that does not read."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["BoundedConnection", "ConnectionBounds"]


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """The bounds of the connections of one server.

    Attributes:
        connections: The largest number of open connections. Further connections are closed at once.
        head: Seconds in which a client must send the head of a request.
        stalled: Seconds after which a connection is closed if its client does not read the response.
    """

    connections: int = 5_000
    head: float = 10.0
    stalled: float = 20.0


class BoundedConnection(H11Protocol):
    """A connection of uvicorn with bounds. Without bounds, uvicorn waits for a client without a limit."""

    bounds = ConnectionBounds()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._stalled_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.bounds.connections:
            transport.abort()
            return
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._head_timer, self._stalled_timer):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled_timer is None:
            # `abort`, not `close`, because `close` waits until the client has read the rest.
            self._stalled_timer = self.loop.call_later(self.bounds.stalled, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled_timer is not None:
            self._stalled_timer.cancel()
            self._stalled_timer = None

    def _watch_head(self) -> None:
        """Close the connection if it has no active request for `bounds.head` seconds."""
        working = self.cycle is not None and not self.cycle.response_complete
        if working:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.bounds.head, self.transport.abort)
