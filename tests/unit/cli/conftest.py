"""The in-memory system behind the commands of these tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pointsman.bus.memory.bus import MemoryBroker
from pointsman.cli.commands import (
    agents,
    archive,
    dead_letters,
    questions,
    submit,
    trace,
    workflows,
)
from pointsman.cli.support import checks
from pointsman.client.client import Client


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """Return a client of an in-memory broker that every command gets."""
    found = Client(MemoryBroker("pointsman").connect())

    @asynccontextmanager
    async def session(*_: object, **__: object) -> AsyncIterator[Client]:
        yield found

    for module in (agents, questions, archive, checks, dead_letters, submit, trace, workflows):
        monkeypatch.setattr(module, "session", session)
    return found
