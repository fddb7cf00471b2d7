"""nats-py's client as the bus needs it, and the only file that imports nats."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, SupportsIndex, TypeVar

from pointsman.bus.jetstream.login import Login
from pointsman.bus.jetstream.protocol import BusSubscription, WireMessage, decode_text, header_lines
from pointsman.bus.jetstream.refusals import Refusal
from pointsman.ports.bus import Server
from pointsman.util.lazy_import import lazy_import

# `nats.js` is two thirds of nats-py, which `bus.jetstream` replaces. aiohttp takes 0.2 s of CPU, and is for ws:// only.
with lazy_import("nats.js"), lazy_import("multidict"), lazy_import("aiohttp"):
    import nats.errors
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.aio.transport import TcpTransport, WebSocketTransport
    from nats.protocol.parser import AWAITING_CONTROL_LINE

__all__ = ["CLIENT_ERRORS", "Msg", "NatsClient", "TlsRequiredError"]

_Result = TypeVar("_Result")

CLIENT_ERRORS = (nats.errors.Error, OSError)
"""What a client raises that is closed, refused, or without its server."""

_MESSAGE_PATTERN = re.compile(rb"(?:HMSG (\S+) (\d+) (?:(\S+) )?(\d+)|MSG (\S+) (\d+)(?: (\S+))?) (\d+)\r\n")
"""How the server begins a message, with headers or without: its subject, its subscription, where an answer goes if
anywhere, the bytes of its headers, and all of its bytes."""
_LINE_END_BYTES = len(b"\r\n")
_ERROR = re.compile(rb"-ERR[ \t]+'(.*?)'[ \t]*\r\n", re.IGNORECASE)
_DEFAULT_PORT = 4222  # where a NATS server listens unless it is told otherwise
_REFUSAL_WAIT_S = 0.05  # seconds for what a server writes at once
_SUBSCRIPTIONS_EXCEEDED = "maximum subscriptions exceeded"
_HUNG_UP = "the server hung up before it answered CONNECT"
_DRAIN_TIMEOUT_S = 1.0  # seconds for one round trip, when leaving


class TlsRequiredError(nats.errors.Error):
    """A server was left before `CONNECT`: TLS is demanded and the server offers none, or asks for a certificate."""

    def __init__(self, seen: str) -> None:
        super().__init__(seen)
        self.seen = seen

    def __str__(self) -> str:
        return self.seen


class NatsClient(Client):
    """nats-py's client, with what it has no option for.

    - `tls://` and `wss://` are demands. nats-py sends `CONNECT`, with the login, in clear to a server without TLS, and
      gives the servers that a cluster names the scheme `nats://` behind a WebSocket.
    - The login of a URL is decoded, and goes to the servers that a cluster names, too.
    - A permission that the broker refuses is reported with the broker's own words; nats-py writes them in lower case,
      so that the subject is another one.

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

    def __init__(self, inbox_prefix: str = "_INBOX") -> None:
        super().__init__()
        self._inbox_prefix = bytearray(inbox_prefix.encode())  # the first inbox is made before `connect`
        self._login: Login | None = None
        self._demands_tls = False
        self._has_certificate = False
        self._greeted = False  # by the server that is being connected to
        self._asked_for_certificate = False  # by that server
        self._hung_up: set[str] = set()  # servers that hung up after the TLS handshake, at the last try
        self._dropped_by: set[str] = set()  # servers that introduced themselves and closed the connection
        self.trying = ""
        """HOST:PORT of the server that was connected to last, or that a connection was last tried to."""
        self.on_refusal: Callable[[Refusal], None] = _ignored
        self._callbacks: dict[int, Callable[[WireMessage], None]] = {}
        self._inboxes: dict[int, _Inbox] = {}
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

    @property
    def places(self) -> set[str]:
        """Return HOST:PORT of every known server."""
        return {server.uri.netloc for server in self._server_pool}

    async def open(self, login: Login, *, tls: ssl.SSLContext | None, handshake_first: bool, **options: Any) -> None:
        """Connect as `login`; with `tls`, to servers with TLS only. `options` are those of nats-py's `connect`."""
        self._login = login
        self._demands_tls = tls is not None
        self._has_certificate = login.has_certificate
        first = login.at("")
        credentials = login.credentials
        await self.connect(
            [each.url for each in login.addresses],
            user=first.user,
            password=first.password,
            token=first.token,
            user_jwt_cb=credentials.jwt if credentials else None,
            signature_cb=credentials.sign if credentials else None,
            tls=tls,
            tls_handshake_first=handshake_first,
            inbox_prefix=bytes(self._inbox_prefix),
            **options,
        )

    async def subscribe_raw(self, subject: str, on_message: Callable[[WireMessage], None]) -> BusSubscription:
        """Call `on_message` for each message as it is read. Raises `CLIENT_ERRORS`."""
        sid = self._sid + 1
        self._callbacks[sid] = on_message
        try:
            return self._inbox(await self.subscribe(subject, cb=_no_callback))
        except BaseException:
            del self._callbacks[sid]
            raise

    async def subscribe_async(self, subject: str, handler: Callable[[Msg], Awaitable[None]]) -> BusSubscription:
        """As `subscribe_raw`, with a handler that may wait: messages wait for each other then, without nats-py's
        limits, which drop what exceeds them."""
        return self._inbox(await self.subscribe(subject, cb=handler, pending_msgs_limit=0, pending_bytes_limit=0))

    def _inbox(self, subscription: Subscription) -> _Inbox:
        inbox = self._inboxes[subscription._id] = _Inbox(self, subscription)
        return inbox

    async def shutdown(self) -> None:
        """Close it, for good. Raises `CLIENT_ERRORS`; a cancellation passes."""
        await _cancellable(self.close())

    def mark_refused(self, refusal: Refusal, error: Exception) -> None:
        """Note `error` at the subscriptions to the subject that was refused."""
        for sid, inbox in self._inboxes.items():
            if refusal.operation == "subscribe" and sid in self._subs and self._subs[sid].subject == refusal.subject:
                inbox.refused = error

    def unsubscribe(self, subscription: Subscription) -> None:
        self._callbacks.pop(subscription._id, None)
        self._inboxes.pop(subscription._id, None)

    @property
    def was_greeted(self) -> bool:
        """Return True if the server that was tried last introduced itself."""
        return self._greeted

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
        command = b"%b%b%b\r\n" % (order.encode("utf-8", "surrogateescape"), headers, body)
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
            on_message = self._callbacks.get(number)
            if on_message is None or number not in self._subs or end + _LINE_END_BYTES > len(data):
                break
            block = data[start:body] if headers else None
            arrival = WireMessage(decode_text(subject), decode_text(reply) if reply else "", data[body:end], block)
            try:
                on_message(arrival)
            except Exception as error:  # it would end the reading
                self._handlers = asyncio.ensure_future(self._error_cb(error))
            begin = end + _LINE_END_BYTES
        return data[begin:] if begin else data

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        on_message = self._callbacks.get(sid)
        if on_message is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        elif sid in self._subs:
            try:
                on_message(WireMessage(decode_text(subject), decode_text(reply), data, headers))
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
        self.trying = s.uri.netloc
        if s.uri.scheme in ("ws", "wss"):
            if not isinstance(self._transport, _WebSocket) or self._transport._client is None:
                self._transport = _WebSocket()
        elif self._transport is None:
            self._transport = _Tcp(self.consume_messages)
        await super()._connect_to_server(s)

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if not self.is_connected:
            self._pending, self._pending_data_size = [], 0
        await super()._close(status, do_cbs)

    async def _process_connect_init(self) -> None:
        self._greeted = False
        try:
            await super()._process_connect_init()
            if not self.is_connected:  # nats-py takes the end of the stream for a success
                raise nats.errors.Error(_HUNG_UP)
        except BaseException as error:
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]
            if (told := self._explained(error)) is not error:
                raise told from error
            raise
        self._hung_up.discard(self.trying)
        self._dropped_by.discard(self.trying)

    def _explained(self, error: BaseException) -> BaseException:
        """Return the error to raise for one with which nats-py ends a try to connect: one that says more, if known."""
        first = bool(self.options["tls_handshake_first"])
        if isinstance(error, ConnectionError) and self._greeted:
            self._dropped_by.add(self.trying)
        hung_up = isinstance(error, ConnectionError) or _HUNG_UP in str(error)
        # The server ends the connection once it has seen the certificate, and its alert may be lost with what it had
        # not read. A server that is stopped at that moment looks the same, but not twice.
        if hung_up and (first if not self._greeted else self._asked_for_certificate):
            if self.trying in self._hung_up:
                return TlsRequiredError(
                    f"{self.trying} hangs up after the TLS handshake: it may refuse the client certificate; look at "
                    "POINTSMAN_TLS_CERT, and at the broker's log"
                )
            self._hung_up.add(self.trying)
        if not self._greeted and (isinstance(error, TimeoutError) or "empty response" in str(error)):
            hint = "has no handshake_first, unset" if first else "has handshake_first, set"
            return nats.errors.Error(
                f"{self.trying} sent no first line of a NATS server; if it {hint} POINTSMAN_TLS_HANDSHAKE_FIRST"
            )
        return error

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection:
            self._greeted = True
            await self._hear_refusal()
            self._require_tls(info)
        await super()._process_info(info, initial_connection)
        current = self._current_server
        if current is None:
            return
        for server in self._server_pool:
            if not server.discovered:
                continue
            if current.uri.scheme in ("ws", "wss"):
                server.uri = server.uri._replace(scheme=current.uri.scheme)
            elif self._demands_tls:
                server.uri = server.uri._replace(scheme="tls")
            if current.tls_name is not None and server.tls_name == current.uri.hostname:
                server.tls_name = current.tls_name  # the name that was configured, not the address that was named

    async def _hear_refusal(self) -> None:
        """Raise what a server that takes no more connections writes behind its first line.

        Such a server closes the connection at once. What this side writes then fails, and asyncio reads no more: at the
        first try the server's words may be lost, so a later try waits for them.
        """
        if self.trying in self._dropped_by:
            await asyncio.sleep(_REFUSAL_WAIT_S)
        if isinstance(transport := self._transport, _Tcp) and (said := _ERROR.search(transport.unread)):
            raise nats.errors.Error(f"nats: {said[1].decode('utf-8', 'replace')}")

    def _require_tls(self, info: dict[str, Any]) -> None:
        """Raise `TlsRequiredError` unless what is sent next, which is the login, is encrypted, where that is demanded.

        A server with `allow_non_tls` says that TLS is available, and not that TLS is required; nats-py only looks at
        the second.
        """
        server = self._current_server
        if server is None or server.uri.scheme in ("ws", "wss") or self.options["tls_handshake_first"]:
            return  # the WebSocket is encrypted, or is not; or TLS has begun
        offered = info.get("tls_required") or info.get("tls_available")
        if self._demands_tls and not offered:
            raise TlsRequiredError(
                f"{self.trying} offers no TLS, which tls:// or a POINTSMAN_TLS setting demands; no login was sent"
            )
        if self._demands_tls:
            info["tls_required"] = True
        self._asked_for_certificate = bool(info.get("tls_required") and info.get("tls_verify"))
        if self._asked_for_certificate and not self._has_certificate:
            raise TlsRequiredError(
                f"{self.trying} asks for a client certificate: set POINTSMAN_TLS_CERT and POINTSMAN_TLS_KEY"
            )

    def _connect_command(self) -> bytes:
        if self._login is not None:
            login = self._login.at(self.trying)
            self.options.update(user=login.user, password=login.password, token=login.token)
            self._auth_configured = self._auth_configured or login.has_login
        return super()._connect_command()

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
        sent = _ERROR.match(self._ps.buf)
        # nats-py passes the text in lower case.
        said = sent[1].decode("utf-8", "replace") if sent else err_msg.strip("'")
        refusal = Refusal.read(said)
        if _SUBSCRIPTIONS_EXCEEDED in said.lower() and self._subs:  # the connection goes on, without the newest
            refusal = Refusal("subscribe", self._subs[max(self._subs)].subject, said)
        if refusal is not None:
            self.on_refusal(refusal)
            return
        if "permissions violation" in err_msg.lower() or not self.is_connected:
            await super()._process_err(err_msg)
            return
        error = nats.errors.Error(f"nats: {said}")
        await self._error_cb(error)
        await self._process_op_err(error)


class _Tcp(TcpTransport):
    """Writing to a closed connection is a `ConnectionError`, as nats-py expects. uvloop says `RuntimeError`, at which
    nats-py ends its reconnecting for ever and lets its closing fail."""

    def __init__(self, take: Callable[[bytes], bytes]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._on_data = take

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        reader = _Reader(self._on_data, buffer_size)
        protocol = asyncio.StreamReaderProtocol(reader)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(connect_timeout):
            transport, _ = await loop.create_connection(lambda: protocol, uri.hostname, uri.port)
        self._bare_io_reader = self._io_reader = reader
        self._bare_io_writer = self._io_writer = asyncio.StreamWriter(transport, protocol, reader, loop)

    def __bool__(self) -> bool:
        return True  # nats-py makes one of its own in place of one that is not connected yet

    @property
    def unread(self) -> bytes:
        """Return what the server sent and was not read yet."""
        reader = self._io_reader
        return bytes(reader._buffer) if isinstance(reader, _Reader) else b""

    @property
    def is_idle(self) -> bool:
        """Whether all that was written before has been sent."""
        writer = self._io_writer
        return writer is not None and not writer.transport.get_write_buffer_size()

    async def connect_tls(self, uri: Any, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int) -> None:
        writer = self._io_writer
        assert writer is not None, "connect comes first"
        reader = _Reader(self._on_data, buffer_size)
        protocol = asyncio.StreamReaderProtocol(reader)
        protocol._over_ssl = True  # type: ignore[attr-defined]  # asyncio warns of the end of a stream else
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(connect_timeout):
            host = uri if isinstance(uri, str) else uri.hostname
            transport = await loop.start_tls(writer.transport, protocol, ssl_context, server_hostname=host)
        if transport is None:
            raise ConnectionResetError("the server left during the TLS handshake")
        reader.set_transport(transport)
        self._io_reader, self._io_writer = reader, asyncio.StreamWriter(transport, protocol, reader, loop)

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


class _WebSocket(WebSocketTransport):
    """Connect within a bounded time. nats-py gives its bound to aiohttp as the time of the closing handshake, and in a
    form that aiohttp warns of: a server that accepts and is silent would hold the client for minutes."""

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        await self._open(uri, None, connect_timeout)

    async def connect_tls(self, uri: Any, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int) -> None:
        if self._ws is None or self._ws.closed:  # the server's INFO says that TLS is required, which it is here
            await self._open(uri, ssl_context, connect_timeout)

    async def _open(self, uri: Any, context: ssl.SSLContext | None, timeout: int) -> None:
        closing: Any = import_module("aiohttp").ClientWSTimeout(ws_close=float(timeout))
        client: Any = self._client
        secure = {} if context is None else {"ssl": context}
        async with asyncio.timeout(timeout):
            self._ws = await client.ws_connect(uri.geturl(), timeout=closing, max_msg_size=0, **secure)
        self._using_tls = context is not None


class _Reader(asyncio.StreamReader):
    """Keeps what `take` has left of what came."""

    def __init__(self, take: Callable[[bytes], bytes], limit: int) -> None:
        super().__init__(limit)
        self._on_data = take
        self._buffer: bytearray

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        rest = bytes(data)
        if not self._buffer:  # else it comes after what is there
            rest = self._on_data(rest)
        if rest:
            super().feed_data(rest)


class _Inbox:
    def __init__(self, client: NatsClient, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription
        self.refused: Exception | None = None

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


def _ignored(refusal: Refusal) -> None:
    """Do nothing."""


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
