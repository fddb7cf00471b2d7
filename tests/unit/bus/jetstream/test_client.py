"""Messages that are sent over a connection arrive once and in order, immediately or after buffering."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from support.waiting import until

from pointsman.bus.jetstream.bus import connect
from pointsman.bus.jetstream.client import Msg, NatsClient, _Tcp
from pointsman.bus.jetstream.login import Login
from pointsman.bus.jetstream.protocol import WireMessage
from pointsman.bus.jetstream.request_reply import RequestClient
from pointsman.errors import BusUnavailableError
from pointsman.settings import Settings

INFO = b'INFO {"server_id":"S","version":"2.15.0","headers":true,"max_payload":1048576}\r\n'
_LIMIT = 1 << 20  # bytes that a client buffers for a server that does not read


class Server:
    """Sends INFO to a client, answers its first PING, and continues to read after a signal."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.sizes: list[int] = []  # sizes of the messages in the order of arrival
        self.greeted = asyncio.Event()
        self.left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        while await reader.readline() not in (b"PING\r\n", b""):  # empty if the client has left
            pass
        writer.write(b"PONG\r\n")
        self.greeted.set()
        await self.reads.wait()
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                if line.startswith(b"PUB"):
                    size = int(line.split()[-1])
                    await reader.readexactly(size + 2)
                    self.sizes.append(size)
        writer.close()
        self.left.set()


@asynccontextmanager
async def connected(
    server: Server, told: Callable[[Exception], Awaitable[None]] | None = None
) -> AsyncIterator[NatsClient]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    client = NatsClient()
    await client.connect([f"nats://127.0.0.1:{port}"], pending_size=_LIMIT, allow_reconnect=False, error_cb=told)
    try:
        yield client
    finally:
        server.reads.set()
        await client.shutdown()
        listening.close()


async def test_the_error_of_a_server_is_reported_although_the_server_resets_the_connection() -> None:
    """A server at its limit of connections sends an error, and closes its socket before it has read CONNECT."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        while await reader.readline() not in (b"PING\r\n", b""):  # empty if the client has left
            pass
        linger = struct.pack("ii", 1, 0)  # the close resets the connection
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.write(b"-ERR 'maximum connections exceeded'\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        for wait in (0.3, 3.0, 10.0):  # seconds; a busy machine may need more than the first
            with pytest.raises(BusUnavailableError) as caught:
                await connect(Settings(url=f"nats://127.0.0.1:{port}"), name="test", wait=wait)
            if "maximum connections exceeded" in str(caught.value):
                break

    assert "maximum connections exceeded" in str(caught.value)


@pytest.mark.parametrize("number", [1, 2])
async def test_a_cancellation_in_the_same_turn_as_a_line_of_the_server_ends_the_tries_to_connect(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, read = 0, _Tcp.readline

    async def read_and_cancel(transport: _Tcp) -> bytes:
        nonlocal lines
        line: bytes = await read(transport)  # type: ignore[no-untyped-call]
        lines += 1
        if lines == number:
            trying.cancel()
        return line

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        while await reader.readline() not in (b"PING\r\n", b""):
            pass
        writer.write(b"-ERR 'maximum connections exceeded'\r\n")
        writer.close()

    monkeypatch.setattr(_Tcp, "readline", read_and_cancel)
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as listening:
        settings = Settings(url=f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        client, options = NatsClient(), {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.01}
        trying = asyncio.create_task(client.open(Login(settings), tls=None, handshake_first=False, **options))
        await asyncio.wait({trying}, timeout=5)
        has_ended = trying.cancelled()
        while not trying.done():
            trying.cancel()
            await asyncio.wait({trying}, timeout=0.1)
        await client.shutdown()

    assert has_ended


async def test_a_cancelled_wait_for_the_end_of_a_connection_does_not_cancel_another() -> None:
    """A reconnect that waits for the end of the lost connection is cancelled when the client is closed."""
    async with connected(Server()) as client:
        assert isinstance(client._transport, _Tcp)
        waiting = asyncio.create_task(client._transport.wait_closed())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])

        await client.shutdown()

    assert waiting.cancelled()


async def test_the_answer_to_a_flush_that_was_given_up_does_no_harm() -> None:
    """A cancelled flush must not end the connection, because other calls of the process use it."""
    told, answer, left = list[Exception](), asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        pings = 0
        while line := await reader.readline():
            if line == b"PING\r\n":
                pings += 1
                if pings > 1:  # the first PING belongs to the connection's start
                    await answer.wait()
                writer.write(b"PONG\r\n")
        writer.close()
        left.set()

    async def tell(error: Exception) -> None:
        told.append(error)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = NatsClient()
    port = listening.sockets[0].getsockname()[1]
    await client.connect([f"nats://127.0.0.1:{port}"], allow_reconnect=False, error_cb=tell)
    try:
        flushing = asyncio.create_task(client.flush())
        await until(lambda: client._pongs)
        flushing.cancel()
        await asyncio.wait([flushing])
        answer.set()
        await client.flush()

        assert client.is_connected
        assert told == []
    finally:
        await client.shutdown()
        listening.close()
        await left.wait()


async def test_message_is_sent_in_the_same_loop_turn() -> None:
    server = Server()

    async with connected(server) as client:
        server.reads.set()
        client.publish_raw("a", "", b"", b"x")
        await asyncio.sleep(0)

        assert client.pending_data_size == 0


async def test_unread_output_is_buffered_up_to_a_bound_and_then_awaited_in_order() -> None:
    server = Server()
    sizes = [10_000 + number for number in range(2_000)]  # 20 MB: more than the sockets between take

    async with connected(server) as client:

        async def send() -> None:
            for size in sizes:
                client.publish_raw("a", "", b"", b"x" * size)
                await client.wait_for_capacity()
                await asyncio.sleep(0)

        sending = asyncio.create_task(send())
        async with asyncio.timeout(20):
            while client.pending_data_size <= _LIMIT:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            waits = not sending.done() and client.pending_data_size < _LIMIT + sizes[-1] + 100
            server.reads.set()
            await sending

    assert waits
    assert server.sizes == sizes


async def test_unread_requests_are_buffered_up_to_the_same_bound() -> None:
    size = 10_000
    server = Server()

    async with connected(server) as client:
        asking = RequestClient(client, 0.1, on_no_responders=lambda subject: None)
        asking.up.set()
        asked = asking.request("a")
        for _ in range(2_000):  # 20 MB: more than the sockets between take
            asked = asking.request("a", b"x" * size)
            await asyncio.sleep(0)
        waiting = client.pending_data_size
        with pytest.raises(BusUnavailableError):
            await asked()
        server.reads.set()
        await client.shutdown()
        await server.left.wait()

    assert waiting < _LIMIT + size + 100


def test_a_connection_that_was_closed_under_its_client_is_lost_for_it() -> None:
    """uvloop raises `RuntimeError` for a closed transport. This error would end nats-py's reconnection for ever."""
    uvloop = pytest.importorskip("uvloop")

    async def write_after_the_end() -> None:
        async with connected(Server()) as client:
            transport = client._transport
            assert transport is not None
            transport.close()  # type: ignore[no-untyped-call]
            await transport.wait_closed()  # type: ignore[no-untyped-call]
            with pytest.raises(ConnectionError):
                transport.write(b"PING\r\n")

    uvloop.run(write_after_the_end())


BLOCK = b"NATS/1.0\r\nA: 1\r\n\r\n"
SAID = (
    b"MSG a 1 7 2\r\nm0\r\n"  # 7 is the reply subject
    b"HMSG a 1 18 20\r\n" + BLOCK + b"m1\r\n"
    b"PING\r\n"
    b"HMSG a.b 1 r.s 18 20\r\n" + BLOCK + b"m2\r\n"
    b"MSG b 2 2\r\nm3\r\n"
    b"MSG a 1 0\r\n\r\n"
    b"MSG a 1 11\r\nMSG a 1 0\r\n\r\n"
)


@pytest.mark.parametrize("between", [0, 3], ids=["at once", "by and by"])
@pytest.mark.parametrize("size", [1, 2, 7, 16, 23, 45, 61, 100, 1000])
async def test_messages_arrive_whole_and_in_order_however_the_socket_splits_them(size: int, between: int) -> None:
    heard: list[tuple[str, str, bytes, bytes | None]] = []
    others: list[bytes] = []

    async def kept(message: Msg) -> None:
        others.append(message.data)

    async with connected(Server()) as client:
        await client.subscribe_raw("a", lambda each: heard.append((each.subject, each.reply, each.data, each.block)))
        await client.subscribe_async("b", kept)
        for begin in range(0, len(SAID), size):
            _come(client, SAID[begin : begin + size])
            for _ in range(between):
                await asyncio.sleep(0)
        async with asyncio.timeout(5):
            while len(heard) < 5 or not others:
                await asyncio.sleep(0)

    assert heard == [
        ("a", "7", b"m0", None),
        ("a", "", b"m1", BLOCK),
        ("a.b", "r.s", b"m2", BLOCK),
        ("a", "", b"", None),
        ("a", "", b"MSG a 1 0\r\n", None),
    ]
    assert others == [b"m3"]


async def test_message_is_delivered_in_the_loop_turn_of_its_arrival() -> None:
    heard: list[bytes] = []

    async with connected(Server()) as client:
        await client.subscribe_raw("a", lambda each: heard.append(each.data))
        _come(client, b"MSG a 1 2\r\nm0\r\n")

        assert heard == [b"m0"]


async def test_unprocessable_message_is_reported_and_the_next_one_delivered() -> None:
    heard: list[bytes] = []
    errors: list[Exception] = []

    async def told(error: Exception) -> None:
        errors.append(error)

    def deal_with(message: WireMessage) -> None:
        if message.data == b"m0":
            raise ValueError("not this one")
        heard.append(message.data)

    async with connected(Server(), told) as client:
        await client.subscribe_raw("a", deal_with)
        _come(client, b"MSG a 1 2\r\nm0\r\nMSG a 1 2\r\nm1\r\n")
        await asyncio.sleep(0)

    assert heard == [b"m1"]
    assert [str(error) for error in errors] == ["not this one"]


async def test_removed_subscription_receives_nothing_more() -> None:
    heard: list[bytes] = []

    async with connected(Server()) as client:
        inbox = await client.subscribe_raw("a", lambda each: heard.append(each.data))
        await inbox.unsubscribe()
        _come(client, b"MSG a 1 2\r\nm0\r\n")
        await asyncio.sleep(0)

    assert heard == []


def _come(client: NatsClient, data: bytes) -> None:
    """Give data to the protocol as the socket does."""
    reader = getattr(client._transport, "_io_reader", None)
    assert isinstance(reader, asyncio.StreamReader)
    reader.feed_data(data)


@pytest.mark.parametrize(
    ("url", "demanded", "expected"),
    [("wss://a:1", False, "wss"), ("ws://a:1", False, "ws"), ("tls://a:1", True, "tls"), ("nats://a:1", True, "tls"),
     ("nats://a:1", False, "nats")],
)  # fmt: skip
async def test_discovered_servers_are_as_secure_as_the_server_that_names_them(
    url: str, demanded: bool, expected: str
) -> None:
    client = NatsClient()
    client._setup_server_pool([url])
    client._current_server = client._server_pool[0]
    client.options |= {"tls_handshake_first": False, "dont_randomize": True}
    client._demands_tls = demanded

    await client._process_info({"connect_urls": ["b:2", "c:3"]})
    await client._process_info({"connect_urls": ["b:2", "c:3", "d:4"]})

    discovered = [server.uri for server in client._server_pool if server.discovered]
    assert [uri.netloc for uri in discovered] == ["b:2", "c:3", "d:4"]
    assert {uri.scheme for uri in discovered} == {expected}
