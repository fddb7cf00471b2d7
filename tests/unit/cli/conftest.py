"""Fixtures for commands with a memory broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.commands import use_client

from pointsman.bus.memory.bus import MemoryBroker
from pointsman.cli.render.output import use_connection_options
from pointsman.cli.support import checks
from pointsman.client.client import Client


@pytest.fixture(autouse=True)
def no_connection_options() -> None:
    """Forget the options of an earlier test's command, because a process normally runs only one command."""
    use_connection_options(None, None)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """Return a client of a memory broker. All commands use this client."""
    found = Client(MemoryBroker("pointsman").connect())

    @asynccontextmanager
    async def session(*_: object, **__: object) -> AsyncIterator[Client]:
        yield found

    use_client(monkeypatch, found)
    monkeypatch.setattr(checks, "session", session)
    return found
