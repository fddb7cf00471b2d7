"""What the commands of these tests find at the other end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pointsman.bus.memory import MemoryBroker
from pointsman.cli import agents, approvals, archives, doctor, letters, submit, workflows
from pointsman.client import Client


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client of an in-memory broker, which every command gets in place of one of its own."""
    found = Client(MemoryBroker("pointsman").connect())

    @asynccontextmanager
    async def session(*_: object, **__: object) -> AsyncIterator[Client]:
        yield found

    for module in (agents, approvals, archives, doctor, letters, submit, workflows):
        monkeypatch.setattr(module, "session", session)
    return found
