"""The servers of the tests leave no connection open. An open one would fail a later test by a `ResourceWarning`."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from urllib.parse import urlsplit

import pytest
from support.providers import FakeProvider
from support.proxy import Proxy
from support.receiver import receiving
from support.recording_server import RecordingServer

Serve = Callable[[], AbstractAsyncContextManager[int]]


@asynccontextmanager
async def provider() -> AsyncIterator[int]:
    async with FakeProvider() as running:
        yield urlsplit(running.url).port or 0


@asynccontextmanager
async def receiver() -> AsyncIterator[int]:
    async with receiving() as running:
        yield urlsplit(running.url).port or 0


@asynccontextmanager
async def proxy() -> AsyncIterator[int]:
    async with Proxy("127.0.0.1", 9) as running:
        yield urlsplit(running.url).port or 0


@asynccontextmanager
async def recorder() -> AsyncIterator[int]:
    async with RecordingServer() as running:
        yield running.port


@pytest.mark.parametrize("serve", [provider, receiver, proxy, recorder])
@pytest.mark.parametrize("turns", range(5))
def test_server_that_ends_during_a_connection_closes_the_connection(serve: Serve, turns: int) -> None:
    async def connect() -> None:
        async with serve() as port:
            with socket.create_connection(("127.0.0.1", port)):
                for _ in range(turns):
                    await asyncio.sleep(0)

    asyncio.run(connect())
    gc.collect()  # the warning about an open connection fails this test
