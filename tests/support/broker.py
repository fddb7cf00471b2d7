"""A real broker for a test session, and a namespace of its own for every test."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from pointsman.bus.embedded import EmbeddedBroker
from pointsman.bus.jetstream import JetStreamBus, connect
from pointsman.settings import Settings

__all__ = ["broker", "bus", "namespace", "settings"]


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    """One nats-server for the whole session, on loopback; its store is gone afterwards."""
    server = EmbeddedBroker()
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture
def namespace() -> str:
    """A tenant nobody else has."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture
def settings(broker: EmbeddedBroker, namespace: str) -> Settings:
    """Settings for the session's broker and this test's namespace, with short times."""
    return Settings(url=broker.url, namespace=namespace, ack_wait=2.0, heartbeat=0.5, request_timeout=5.0, grace=2.0)


@pytest.fixture
async def bus(settings: Settings) -> AsyncIterator[JetStreamBus]:
    """A connected bus whose streams exist. They go when the test ends, so that a session does not pile them up."""
    connected = await connect(settings, name="test", wait=10.0)
    await connected.set_up()
    yield connected
    upper = settings.namespace.upper()
    for name in ("WORK", "LOG", "DEAD"):
        await connected.api(f"STREAM.DELETE.{upper}_{name}")
    await connected.api(f"STREAM.DELETE.KV_{upper}_AGENTS")
    await connected.api(f"STREAM.DELETE.OBJ_{upper}_ARTIFACTS")
    await connected.close()
