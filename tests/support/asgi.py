"""Call an ASGI application without a socket: read whole answers, and server-sent events one by one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

__all__ = ["Answer", "Events", "event_stream", "request"]

HOST = "127.0.0.1:8400"
EVENT_TIMEOUT_S = 40.0  # seconds for one event; the first request of an endpoint may import an SDK, which takes seconds


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Event:
    id: int | None
    name: str
    data: Any


class Events:
    """The events of a stream, in order."""

    def __init__(self, queue: asyncio.Queue[bytes]) -> None:
        self._queue = queue
        self._text = ""
        self.headers: Mapping[str, str] = {}

    async def next(self) -> Event:
        async with asyncio.timeout(EVENT_TIMEOUT_S):
            while "\n\n" not in self._text:
                self._text += (await self._queue.get()).decode()
        one, _, self._text = self._text.partition("\n\n")
        fields = dict(line.split(": ", 1) for line in one.split("\n"))
        if "event" not in fields:
            return await self.next()
        return Event(int(fields["id"]) if "id" in fields else None, fields["event"], json.loads(fields["data"]))

    async def until(self, name: str) -> Event:
        """Return the next event called `name`."""
        while (event := await self.next()).name != name:
            pass
        return event


async def request(app: ASGIApp, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    """Send one request, by default from the page's own origin. A `body` that is not bytes is sent as JSON."""
    sent: list[Any] = []
    given = {"origin": f"http://{HOST}", "content-type": "application/json", **headers} if body is not None else headers

    sent_body = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    whole = iter([{"type": "http.request", "body": sent_body}])

    async def receive() -> Any:
        return next(whole, None) or await asyncio.Event().wait()  # the client stays connected until the response

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(EVENT_TIMEOUT_S):
        await app(_scope(method, path, given), receive, send)
    begin, *rest = sent
    return Answer(begin["status"], _headers(begin), b"".join(each.get("body", b"") for each in rest))


@asynccontextmanager
async def event_stream(app: ASGIApp, path: str, **headers: str) -> AsyncIterator[Events]:
    """Open the stream at `path`. Disconnect at the end of the block, as a closed page does."""
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    events = Events(queue)
    left = asyncio.Event()

    async def receive() -> Any:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
            events.headers = _headers(message)
        else:
            await queue.put(message.get("body", b""))

    task = asyncio.ensure_future(app(_scope("GET", path, headers), receive, send))
    try:
        yield events
    finally:
        left.set()
        async with asyncio.timeout(EVENT_TIMEOUT_S):
            await task


def _scope(method: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    target, _, query = path.partition("?")
    sent = {"host": HOST, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": target,
        "raw_path": target.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8400),
    }


def _headers(message: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in message["headers"]}
