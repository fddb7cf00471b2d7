"""Connections that send no request or do not read their response are closed. The number of connections is limited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from pointsman.errors import ConfigurationError
from pointsman.http.connections import ConnectionBounds
from pointsman.http.server import run_server

WAIT_S = 20.0  # seconds to wait for an expected event, enough for a busy machine
CHUNK = b"x" * 65_536


@asynccontextmanager
async def serving(app: ASGIApp, bounds: ConnectionBounds) -> AsyncIterator[tuple[str, int]]:
    stop, ended = asyncio.Event(), asyncio.Event()
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        run_server(
            app, name="test", host="127.0.0.1", port=0, stop=stop, ready=address.set_result, on_stop=ended.set,
            bounds=bounds,
        )
    )  # fmt: skip
    parts = urlsplit(await address)
    try:
        yield parts.hostname or "", parts.port or 0
    finally:
        stop.set()
        async with asyncio.timeout(WAIT_S):
            await task
    assert ended.is_set()


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


async def test_a_head_that_does_not_end_is_cut_off_but_the_next_request_of_a_connection_is_served() -> None:
    async with serving(hello, ConnectionBounds(head=0.5)) as (host, port), asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(host, port)
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET / HTTP/1.1\r\nhost:")

        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()


async def test_a_request_with_two_lengths_is_refused_with_all_that_follows() -> None:
    """The rest of its body is a request of its own to a proxy that reads the other length."""
    lengths = b"content-length: 4\r\ntransfer-encoding: chunked\r\n"
    async with serving(hello, ConnectionBounds()) as (host, port), asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\n" + lengths + b"\r\n0\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n")

        said = await reader.read()
        writer.close()

    assert said.startswith(b"HTTP/1.1 400")
    assert said.count(b"HTTP/1.1") == 1
    assert b"send one of them" in said
    assert b"hello" not in said


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    cut: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.ensure_future(_disconnected(receive))
        while not gone.done():
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
            await asyncio.sleep(0)
        cut.set_result(True)

    async with serving(endless, ConnectionBounds(stalled=0.5)) as (host, port), asyncio.timeout(WAIT_S):
        _, writer = await asyncio.open_connection(host, port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")

        assert await cut
        writer.transport.abort()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def test_one_connection_too_many_is_closed_at_once() -> None:
    async with serving(hello, ConnectionBounds(connections=1)) as (host, port), asyncio.timeout(WAIT_S):
        first_reader, first = await asyncio.open_connection(host, port)
        first.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await first_reader.readuntil(b"hello")
        second_reader, second = await asyncio.open_connection(host, port)

        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await second_reader.readexactly(1)
        for writer in (first, second):
            writer.close()


async def test_a_port_in_use_is_reported_with_the_name_of_the_server() -> None:
    async with serving(hello, ConnectionBounds()) as (host, port):
        with pytest.raises(ConfigurationError, match=f"the gateway cannot listen on 127.0.0.1:{port}: "):
            await run_server(
                hello, name="gateway", host=host, port=port, stop=asyncio.Event(), ready=print, on_stop=print
            )
