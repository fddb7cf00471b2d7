"""A real broker for the test session with a namespace for each test, and a second broker that a test may stop."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.bus.jetstream.stream_config import stream_configs
from pointsman.settings import Settings
from pointsman_schemas.subjects import Subjects
from support.cluster import free_ports

__all__ = [
    "TIMEOUT_S",
    "broker",
    "bus",
    "namespace",
    "own_broker",
    "own_settings",
    "remove_streams",
    "restart_broker",
    "settings",
    "wait_for_no_consumers",
]

TIMEOUT_S = 10.0  # seconds to wait for an expected event, enough for a busy machine


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Run one nats-server on loopback for the whole session. Its store is deleted afterwards.

    At the end the store has hundreds of streams. An embedded server syncs every second, which costs 3 % of a core for
    400 streams, and its shutdown takes two seconds. No test needs either, so this server rarely syncs and is killed.
    """
    config = tmp_path_factory.mktemp("broker") / "nats-server.conf"
    config.write_text('jetstream { sync_interval: "2m" }\n')
    server = EmbeddedBroker(config=config)
    asyncio.run(server.start())
    yield server
    if server.pid is not None:
        os.kill(server.pid, signal.SIGKILL)
    asyncio.run(server.stop())


@pytest.fixture
def namespace() -> str:
    """Return a namespace that only this test uses."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture
def settings(broker: EmbeddedBroker, namespace: str) -> Settings:
    """Return settings for the session's broker and this test's namespace, with short times, but a long heartbeat.

    All parts of a test share one busy process. If a card expires, plans with its agent are refused.
    """
    return Settings(
        url=broker.url, namespace=namespace, ack_wait=2.0, heartbeat=5.0, request_timeout=5.0, shutdown_grace=2.0
    )


@pytest.fixture
async def bus(settings: Settings) -> AsyncIterator[JetStreamBus]:
    """Yield a connected bus with its streams. Delete the streams after the test, because the session's broker stays."""
    connected = await connect(settings, name="test", wait=10.0)
    await connected.set_up()
    yield connected
    await connected.close()
    await remove_streams(settings)


async def remove_streams(settings: Settings) -> None:
    """Delete the streams that `set_up` made in the namespace of `settings`, because the session's broker stays."""
    bus = await connect(settings, name="sweeper", wait=10.0)
    for config in stream_configs(Subjects(settings.namespace), settings, apart=True):
        await bus.api(f"STREAM.DELETE.{config['name']}")
    subjects = Subjects(settings.namespace)
    for bucket in (subjects.gateway_bucket, subjects.webhooks_bucket, subjects.webhook_secrets_bucket):
        await bus.api(f"STREAM.DELETE.KV_{bucket}")
    await bus.close()


@pytest.fixture
async def own_broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    """Yield a broker that a test may stop. Its port is reserved, so the broker can be restarted on the port."""
    server = EmbeddedBroker(tmp_path / "store", port=free_ports(1)[0])
    await server.start()
    yield server
    await server.stop()


def restart_broker(server: EmbeddedBroker, tmp_path: Path, store: str = "store") -> EmbeddedBroker:
    """Return a broker on the same address and, by default, on the same store."""
    return EmbeddedBroker(tmp_path / store, port=urlsplit(server.url).port or -1)


def own_settings(server: EmbeddedBroker, **others: object) -> Settings:
    return Settings(url=server.url, namespace="own", **others)


async def wait_for_no_consumers(bus: JetStreamBus, stream: str) -> bool:
    information = await bus.api(f"STREAM.INFO.{stream}")
    return bool(information["state"]["consumer_count"] == 0)
