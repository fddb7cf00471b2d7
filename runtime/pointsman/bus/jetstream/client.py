"""nats-py's client as the bus needs it, and the only file that imports nats."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, SupportsIndex, TypeVar

from pointsman.bus.jetstream.protocol import BusSubscription, WireMessage, header_lines
from pointsman.ports.bus import Server
from pointsman.util.lazy_import import lazy_import

with lazy_import("nats.js"):  # two thirds of nats-py, which `bus.jetstream` replaces
    import nats.errors
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.aio.transport import TcpTransport
    from nats.protocol.parser import AWAITING_CONTROL_LINE

__all__ = ["CLIENT_ERRORS", "Msg", "NatsClient"]

_Result = TypeVar("_Result")

CLIENT_ERRORS = (nats.errors.Error, OSError)
"""What a client raises that is closed, refused, or without its server."""

_MESSAGE_PATTERN = re.compile(rb"(?:HMSG (\S+) (\d+) (?:(\S+) )?(\d+)|MSG (\S+) (\d+)(?: (\S+))?) (\d+)\r\n")
"""How the server begins a message, with headers or without: its subject, its subscription, where an answer goes if
anywhere, the bytes of its headers, and all of its bytes."""
_LINE_END_BYTES = len(b"\r\n")
_DEFAULT_PORT = 4222  # where a NATS server listens unless it is told otherwise
_DRAIN_TIMEOUT_S = 1.0  # seconds for one round trip, when leaving


class NatsClient(Client):
    """nats-py's client, with what it has no option for.

    - No error of the server's ends it for ever: as it comes, it closes itself on any `-ERR` but a stale connection, on
      expired credentials for one.
    - No message ends its reading: a header block of `NATS/1.0` alone would, and any client may publish that.
    - A try at which the server does not introduce itself is closed: as it comes, each leaves its socket open.
    - What was to be sent over a connection that is gone does not keep it from closing.
    - Its transport loses a connection as the rest of it expects; see `_Tcp`.
    - `flush` returns when all that was sent before it was dealt with: as it comes, its PING overtakes commands that
      still wait for the flusher, a fresh subscription among them.
    - A flush that was given up does no harm: as it comes, its late answer ends the connection.
    - Headers, of which every event has a dozen, are read faster: nats-py looks at every character of every name.
    - `subscribe_raw` calls a plain function for each message as it comes off the socket, and `publish_raw` takes a
      header block that is
      made already: a queue, a task's turn and a second check of every header for each message are a third of its cost,
      and before that came a stream, the turn of a task that reads it, and two patterns tried at each message.
    """

    def __init__(self) -> None:
        super().__init__()
        self._callbacks: dict[int, Callable[[WireMessage], None]] = {}
        self._writes = False  # later in this turn of the loop
        self._handlers: asyncio.Future[None] | None = None  # of an error; the loop keeps weak references only

    @property
    def server(self) -> Server | None:
        """The one it is connected to; nats-py's own port is None where the URL names none."""
        url = self.connected_url
        return Server(url.hostname, url.port or _DEFAULT_PORT) if url is not None and url.hostname else None

    @property
    def server_id(self) -> str:
        """Another one for each start of a server."""
        return str(self._server_info.get("server_id", ""))

    @property
    def is_clustered(self) -> bool:
        return bool(self._server_info.get("cluster"))

    @property
    def has_jetstream(self) -> bool:
        return bool(self._server_info.get("jetstream"))

    async def subscribe_raw(self, subject: str, heard: Callable[[WireMessage], None]) -> BusSubscription:
        """Call `heard` for each message as it is read. Raises `CLIENT_ERRORS`."""
        sid = self._sid + 1
        self._callbacks[sid] = heard
        try:
            return _Inbox(self, await self.subscribe(subject, cb=_no_callback))
        except BaseException:
            del self._callbacks[sid]
            raise

    async def subscribe_async(self, subject: str, handler: Callable[[Msg], Awaitable[None]]) -> BusSubscription:
        """As `subscribe_raw`, with a handler that may wait: messages wait for each other then, without nats-py's
        limits, which drop what exceeds them."""
        return _Inbox(self, await self.subscribe(subject, cb=handler, pending_msgs_limit=0, pending_bytes_limit=0))

    async def shutdown(self) -> None:
        """Close it, for good. Raises `CLIENT_ERRORS`; a cancellation passes."""
        await _cancellable(self.close())

    def unsubscribe(self, subscription: Subscription) -> None:
        self._callbacks.pop(subscription._id, None)

    @property
    def is_full(self) -> bool:
        """Whether more waits to be sent than should: the server, or the way to it, is slow."""
        return self._pending_data_size > self._max_pending_size

    async def wait_for_capacity(self) -> None:
        """Wait where the connection cannot."""
        if self.is_full:
            await _cancellable(self._flush_pending(force_flush=True))

    def publish_raw(self, subject: str, reply: str, headers: bytes, body: bytes) -> None:
        """As `publish`, of a subject and headers that were checked, and without waiting: for what is waited for
        anyhow, as an answer is, or before `wait_for_capacity`.

        Raises what `publish` raises: it is closed, or away with more pending than it keeps.
        """
        if not self.is_connected:
            if self.is_closed:
                raise nats.errors.ConnectionClosedError
            if len(body) + self._pending_data_size > self._max_pending_size:
                raise nats.errors.OutboundBufferLimitError
        if headers:
            order = f"HPUB {subject} {reply} {len(headers)} {len(headers) + len(body)}\r\n"
        else:
            order = f"PUB {subject} {reply} {len(body)}\r\n"
        command = b"%b%b%b\r\n" % (order.encode(), headers, body)
        self._pending.append(command)
        self._pending_data_size += len(command)
        if not self._writes:
            self._writes = True
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        """Send what has gathered in this turn of the loop: by itself, or where that would have to wait by the flusher,
        which can, and knows what to do when the connection breaks."""
        self._writes = False
        if not self._pending or not self.is_connected:  # reconnecting sends it
            return
        if isinstance(transport := self._transport, _Tcp) and transport.is_idle:
            with suppress(OSError):
                transport.writelines(self._pending)
                self._pending, self._pending_data_size = [], 0
                return
        if self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    def drop_settlements_of(self, stream: str) -> None:
        """What waits to be sent and would settle a delivery of `stream`, or hand one on, will not be sent."""
        settles = re.compile(rb"[^\r]*\$JS\.ACK\.(?:[^\r]*\.)?" + re.escape(stream.encode()) + rb"\.")
        self._pending = [command for command in self._pending if not settles.match(command)]
        self._pending_data_size = sum(map(len, self._pending))

    def consume_messages(self, data: bytes) -> bytes:
        """Hear the messages with which `data`, fresh from the socket, begins; what is left is nats-py's to read."""
        if not self.is_connected or self._ps.buf or self._ps.state != AWAITING_CONTROL_LINE:
            return data  # it is amid something
        begin = 0
        while (message := _MESSAGE_PATTERN.match(data, begin)) is not None:
            subject, sid, reply, headers, *plain, size = message.groups()
            if headers is None:
                subject, sid, reply = plain
            number, start = int(sid), message.end()
            body, end = start + int(headers or 0), start + int(size)
            heard = self._callbacks.get(number)
            if heard is None or number not in self._subs or end + _LINE_END_BYTES > len(data):
                break
            block = data[start:body] if headers else None
            arrival = WireMessage(subject.decode(), reply.decode() if reply else "", data[body:end], block)
            try:
                heard(arrival)
            except Exception as error:  # it would end the reading
                self._handlers = asyncio.ensure_future(self._error_cb(error))
            begin = end + _LINE_END_BYTES
        return data[begin:] if begin else data

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        heard = self._callbacks.get(sid)
        if heard is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        elif sid in self._subs:
            try:
                heard(WireMessage(subject.decode(), reply.decode(), data, headers))
            except Exception as error:  # it would end the reading
                await self._error_cb(error)

    async def flush(self, timeout: int = 10) -> None:
        await self._flush_pending(force_flush=True)
        await super().flush(timeout)

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()  # nobody waits for it any more
        await super()._process_pong()

    async def _connect_to_server(self, s: Any) -> None:
        if self._transport is None and s.uri.scheme not in ("ws", "wss"):
            self._transport = _Tcp(self.consume_messages)
        await super()._connect_to_server(s)

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if not self.is_connected:
            self._pending, self._pending_data_size = [], 0
        await super()._close(status, do_cbs)

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except BaseException:
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]
            raise

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        return header_lines(raw)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        try:
            return await super()._process_headers(headers)
        except (ValueError, LookupError) as error:
            await self._error_cb(error)
            return None

    async def _process_err(self, err_msg: str) -> None:
        if "permissions violation" in err_msg.lower() or not self.is_connected:
            await super()._process_err(err_msg)
            return
        error = nats.errors.Error(f"nats: {err_msg}")
        await self._error_cb(error)
        await self._process_op_err(error)


class _Tcp(TcpTransport):
    """Writing to a closed connection is a `ConnectionError`, as nats-py expects. uvloop says `RuntimeError`, at which
    nats-py ends its reconnecting for ever and lets its closing fail."""

    def __init__(self, take: Callable[[bytes], bytes]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._take = take

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        reader = _Reader(self._take, buffer_size)
        protocol = asyncio.StreamReaderProtocol(reader)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(connect_timeout):
            transport, _ = await loop.create_connection(lambda: protocol, uri.hostname, uri.port)
        self._bare_io_reader = self._io_reader = reader
        self._bare_io_writer = self._io_writer = asyncio.StreamWriter(transport, protocol, reader, loop)

    def __bool__(self) -> bool:
        return True  # nats-py makes one of its own in place of one that is not connected yet

    @property
    def is_idle(self) -> bool:
        """Whether all that was written before has been sent."""
        writer = self._io_writer
        return writer is not None and not writer.transport.get_write_buffer_size()

    def write(self, payload: bytes) -> None:
        try:
            super().write(payload)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise ConnectionResetError(str(error)) from error

    def writelines(self, payload: Sequence[bytes]) -> None:
        try:
            super().writelines(payload)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise ConnectionResetError(str(error)) from error


class _Reader(asyncio.StreamReader):
    """Keeps what `take` has left of what came."""

    def __init__(self, take: Callable[[bytes], bytes], limit: int) -> None:
        super().__init__(limit)
        self._take = take
        self._buffer: bytearray

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        rest = bytes(data)
        if not self._buffer:  # else it comes after what is there
            rest = self._take(rest)
        if rest:
            super().feed_data(rest)


class _Inbox:
    def __init__(self, client: NatsClient, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription

    async def unsubscribe(self) -> None:
        self._client.unsubscribe(self._subscription)
        with suppress(*CLIENT_ERRORS):
            await self._subscription.unsubscribe()

    async def drain(self) -> None:
        if self._client.is_connected:
            with suppress(*CLIENT_ERRORS):
                async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                    await _cancellable(self._subscription.drain())  # type: ignore[no-untyped-call]
        await self.unsubscribe()


async def _no_callback(message: Msg) -> None:
    """What nats-py would call for a message that `NatsClient.subscribe_raw` takes before it."""


async def _cancellable(work: Awaitable[_Result]) -> _Result:
    """What `work` returns; a cancellation that it swallowed is raised all the same.

    Before Python 3.12 `asyncio.wait_for`, in which nats-py waits for answers, returns the result when that came in the
    same turn of the loop as the cancellation; and nats-py drops one that finds it waiting for its flusher. A time-out
    around the call would then never end it.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    result = await work
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
    return result
