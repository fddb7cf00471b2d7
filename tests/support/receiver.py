"""An HTTP server that receives webhooks, with a scripted response for each delivery."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from standardwebhooks.webhooks import Webhook

from support.servers import close_server

__all__ = ["Received", "Receiver", "Reply", "receiving"]


@dataclass(frozen=True, slots=True)
class Reply:
    """A response. With `hang`, the connection stays open without a response; with `cut`, the connection is closed."""

    status: int = 204
    headers: tuple[tuple[str, str], ...] = ()
    hang: bool = False
    cut: bool = False
    raw: bytes = b""


@dataclass(frozen=True, slots=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    def verify(self, secret: str) -> dict[str, Any]:
        """Verify the signature with the official library. Return the event."""
        found: dict[str, Any] = Webhook(secret).verify(self.body, self.headers)
        return found


@dataclass(slots=True)
class Receiver:
    """An HTTP server. `replies` answers the next deliveries in order. Later deliveries get the reply of `answer`."""

    url: str = ""
    replies: list[Reply] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    answer: Callable[[Received], Reply] = field(default=lambda received: Reply())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
            }
            body = await reader.readexactly(int(headers["content-length"]))
            got = Received(head[0].split(" ")[1], headers, body, time.monotonic())
            self.received.append(got)
            reply = self.replies.pop(0) if self.replies else self.answer(got)
            if reply.hang:
                await reader.read()
            elif not reply.cut:
                lines = [f"HTTP/1.1 {reply.status} -", "content-length: 0", *(f"{n}: {v}" for n, v in reply.headers)]
                writer.write(reply.raw or "\r\n".join([*lines, "", ""]).encode())
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving(*replies: Reply, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """Serve a receiver on loopback and yield it."""
    receiver = Receiver(replies=list(replies))
    handlers: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        task.add_done_callback(handlers.discard)
        with suppress(asyncio.CancelledError):
            await receiver.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", port, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    receiver.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/hook"
    try:
        yield receiver
    finally:
        await close_server(server, handlers)
