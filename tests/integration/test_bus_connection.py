"""A connection starts when a suitable broker exists, or reports the cause. Malformed input does not end it."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from structlog.testing import capture_logs
from support.broker import TIMEOUT_S, own_settings, restart_broker
from support.cluster import free_ports
from support.proxy import Proxy
from support.waiting import until

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.bus.jetstream.client import NatsClient, _WebSocket
from pointsman.bus.jetstream.protocol import WireMessage
from pointsman.errors import BusUnavailableError, ConfigurationError
from pointsman.ports.bus import Service, StoredMessage
from pointsman.settings import Settings


async def test_broker_missing_at_the_start_is_awaited_within_bounds(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    settings = own_settings(own_broker)
    second = restart_broker(own_broker, tmp_path)
    await own_broker.stop()

    with capture_logs() as lines, pytest.raises(BusUnavailableError, match=r"within 1\.2 s"):
        await connect(settings, name="test", wait=1.2)
    assert len(lines) <= 2, lines
    connecting = asyncio.create_task(connect(settings, name="test"))
    async with second:
        bus = await asyncio.wait_for(connecting, TIMEOUT_S)
        assert bus.connected
        await bus.close()


async def test_wrong_credentials_are_a_configuration_error(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path, extra_args=["--user", "me", "--pass", "right"]) as server:
        wrong = Settings(url=server.url, user="me", password="wrong")
        with pytest.raises(ConfigurationError, match="POINTSMAN_CREDENTIALS") as refused:
            await connect(wrong, name="test")
        bus = await connect(Settings(url=server.url, user="me", password="right"), name="test", wait=TIMEOUT_S)
        await bus.close()

    assert "wrong" not in str(refused.value)


async def test_time_out_ends_a_subscription_that_waits_for_the_flusher(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nats-py ignores a cancellation that arrives while nats-py waits for its flusher."""
    bus = await connect(settings, name="test", wait=TIMEOUT_S)

    async def ignore(message: StoredMessage) -> None:
        """Do nothing."""

    with monkeypatch.context() as patched:
        # The flusher reads another queue.
        patched.setattr(bus._connection.client, "_flush_queue", asyncio.Queue[object]())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await bus.listen("somewhere", ignore)
    await bus.close()


@pytest.mark.parametrize("kind", ["listen", "receive", "serve"])
async def test_time_out_of_a_subscription_leaves_no_subscription(settings: Settings, kind: str) -> None:
    """The network is silent, so the broker does not confirm the subscription. The queue of a listener has no bound."""

    async def ignore(message: StoredMessage) -> None:
        """Do nothing."""

    async def subscribe() -> None:
        if kind == "listen":
            await bus.listen("somewhere", ignore)
        elif kind == "serve":
            await bus.serve(Service(name="a", id="i1", version="1.0.0", description="a", subject="somewhere"))
        else:
            async with await bus.receive_forwarded("a", lambda delivery: None):
                """Do nothing."""

    where = urlsplit(settings.url)
    async with Proxy(where.hostname or "", where.port or 0) as proxy:
        bus = await connect(settings.model_copy(update={"url": proxy.url}), name="test", wait=TIMEOUT_S)
        async with await bus.receive_forwarded("b", lambda delivery: None):
            """Subscribe to the reports about absent receivers, which the connection keeps."""
        before = set(bus._connection.client._subs)

        proxy.black_hole()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await subscribe()
        proxy.heal()

        assert set(bus._connection.client._subs) == before
        await bus.close()


@pytest.mark.parametrize("scheme", ["nats", "ws"])
async def test_a_close_that_takes_too_long_leaves_no_socket_and_no_task(
    tmp_path: Path, scheme: Literal["nats", "ws"]
) -> None:
    if scheme == "ws":
        pytest.importorskip("aiohttp")
    before = asyncio.all_tasks()
    [port] = free_ports(1)
    config = tmp_path / "websocket.conf"
    config.write_text(f"websocket {{ listen: 127.0.0.1:{port}, no_tls: true }}\n")
    async with EmbeddedBroker(tmp_path, config=config) as server:
        address = urlsplit(server.url)
        async with Proxy("127.0.0.1", port if scheme == "ws" else address.port or 0) as proxy:
            settings = Settings(url=urlsplit(proxy.url)._replace(scheme=scheme).geturl())
            bus = await connect(settings, name="test", wait=TIMEOUT_S)
            client = bus._connection.client
            opened = _socket(client)
            proxy.black_hole()
            for _ in range(16):  # more than the buffers of the sockets
                client.publish_raw("somewhere", "", b"", bytes(1_000_000))
                await asyncio.sleep(0)
            await bus.close()
            assert opened.is_closing()
            await until(lambda: not _client_tasks(before))

    assert not isinstance(client._transport, _WebSocket) or client._transport._client is None


def _client_tasks(before: set[asyncio.Task[Any]]) -> list[str]:
    """Return the files of the running tasks of nats-py and aiohttp that are not in `before`."""
    files = [inspect.getfile(getattr(task.get_coro(), "cr_code")) for task in asyncio.all_tasks() - before]  # noqa: B009
    return [file for file in files if "/nats/" in file or "/aiohttp/" in file]


def _socket(client: NatsClient) -> asyncio.BaseTransport:
    transport: Any = client._transport
    writer: asyncio.StreamWriter | None = getattr(transport, "_io_writer", None)
    return writer.transport if writer is not None else transport._ws._response.connection.transport


async def test_stream_that_does_not_fit_is_refused_in_one_line_and_not_changed(
    settings: Settings, namespace: str
) -> None:
    bus = await connect(settings, name="test", wait=TIMEOUT_S)
    name = f"{namespace.upper()}_WORK"
    await bus.api(
        f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{namespace}.request.>"], "retention": "workqueue"}
    )

    with pytest.raises(ConfigurationError, match=name) as refused:
        await bus.set_up()

    assert "\n" not in str(refused.value)
    assert (await bus.api(f"STREAM.INFO.{name}"))["config"]["retention"] == "workqueue"
    await bus.api(f"STREAM.DELETE.{name}")
    await bus.close()


async def test_a_server_without_jetstream_is_named(tmp_path: Path) -> None:
    config = tmp_path / "plain.conf"
    config.write_text("max_payload: 4096\n")

    async with EmbeddedBroker(tmp_path, config=config, extra_args=["-js=false"]) as server:
        bus = await connect(Settings(url=server.url), name="test", wait=TIMEOUT_S)
        with pytest.raises(ConfigurationError, match="without JetStream"):
            await bus.set_up()
        assert bus.max_payload == 4096
        await bus.close()


async def test_a_server_error_ends_no_connection_for_ever(bus: JetStreamBus, namespace: str) -> None:
    # The server counts the headers and disconnects; the client library does not count them.
    too_much = b"x" * bus.max_payload

    await bus.send(f"{namespace}.live.w.x", too_much, headers=b"NATS/1.0\r\na: b\r\n\r\n")

    await until(lambda: not bus.connected)
    await until(lambda: bus.connected)
    assert await bus.publish(f"{namespace}.log.team.w", b"", {}) == 1


@pytest.mark.parametrize(
    "block", [b"NATS/1.0 \xff\xfe\xfd\r\n\r\n", b"NATS/1.0\r\n\xff\xff\r\n: \r\nno colon\r\n\r\n", b"NATS/1.0"]
)
async def test_headers_that_cannot_be_read_do_not_stop_the_reading(
    bus: JetStreamBus, settings: Settings, namespace: str, block: bytes
) -> None:
    consumer = await bus.consumer("team", "requests", f"{namespace}.request.team.anonymous", ack_wait=30)
    address = urlsplit(settings.url)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    subject = f"{namespace}.request.team.anonymous"

    head = f'CONNECT {{"headers":true,"verbose":false}}\r\nHPUB {subject} {len(block)} {len(block) + 2}\r\n'
    writer.write(head.encode() + block + b"{}\r\n")
    await writer.drain()
    [broken] = await asyncio.wait_for(consumer.take(1), TIMEOUT_S)
    await broken.ack()
    await bus.publish(subject, b"next", {})
    [delivery] = await asyncio.wait_for(consumer.take(1), TIMEOUT_S)
    writer.close()

    assert broken.message.body == b"{}"
    assert delivery.message.body == b"next"
    async with asyncio.timeout(TIMEOUT_S):
        assert [stored.body async for stored in bus.read("requests", subject)] == [b"{}", b"next"]


async def test_a_cancellation_in_the_same_turn_as_the_answer_is_not_lost(bus: JetStreamBus, namespace: str) -> None:
    client, arrived = bus._connection.client, bus._connection._requests.replies.on_message

    def arrive_and_cancel(message: WireMessage) -> None:
        arrived(message)
        asking.cancel()

    client._callbacks = {
        sid: arrive_and_cancel if heard == arrived else heard for sid, heard in client._callbacks.items()
    }
    asking = asyncio.create_task(bus.last("log", f"{namespace}.log.team.w"))
    await asyncio.wait({asking}, timeout=TIMEOUT_S)

    assert asking.cancelled()
