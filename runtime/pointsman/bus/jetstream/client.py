"""Adapt nats-py's client to the bus. Only this file imports `nats`."""

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

# Imported only when used: `bus.jetstream` replaces `nats.js`, which is two thirds of nats-py, and only ws:// needs
# aiohttp, whose import takes 0.2 s of CPU.
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
"""The errors that a client raises if the client is closed, refused, or not connected to its server."""

_MESSAGE_PATTERN = re.compile(rb"(?:HMSG (\S+) (\d+) (?:(\S+) )?(\d+)|MSG (\S+) (\d+)(?: (\S+))?) (\d+)\r\n")
"""The first line of a message, with or without headers. The groups are the subject, the subscription, the reply subject
if the message has a reply subject, the size of the headers, and the whole size."""
_LINE_END_BYTES = len(b"\r\n")
_ERROR = re.compile(rb"-ERR[ \t]+'(.*?)'[ \t]*\r\n", re.IGNORECASE)
_DEFAULT_PORT = 4222  # the default port of a NATS server
_REFUSAL_WAIT_S = 0.05  # seconds to wait for the error of a server that closes the connection
_SUBSCRIPTIONS_EXCEEDED = "maximum subscriptions exceeded"
_HUNG_UP = "the server hung up before it answered CONNECT"
_DRAIN_TIMEOUT_S = 1.0  # seconds that the drain of a subscription, which is one round trip, may take


class TlsRequiredError(nats.errors.Error):
    """TLS with a server is not possible.

    The server offers no TLS, requires a client certificate, or hung up twice after the TLS handshake.
    """

    def __init__(self, seen: str) -> None:
        super().__init__(seen)
        self.seen = seen

    def __str__(self) -> str:
        return self.seen


class NatsClient(Client):
    """nats-py's client, with changes for which nats-py has no option.

    - `tls://` and `wss://` require TLS. nats-py sends `CONNECT`, with the login, unencrypted to a server without TLS.
      A server that the cluster announces gets the scheme of the current connection. nats-py uses `nats://` for such a
      server, even behind a WebSocket.
    - The login of a URL is percent-decoded, and is also used for the servers that a cluster announces.
    - A refused permission is reported in the original text of the broker. nats-py changes the text to lower case, so
      the text names another subject.
    - No error of the server ends the client permanently. nats-py closes the client on any `-ERR` except a stale
      connection, for example on expired credentials.
    - No message ends the reading. nats-py stops reading after a header block of only `NATS/1.0`, and any client can
      publish such a block.
    - If the server sends no first line, the connection is closed. nats-py leaves the socket open.
    - After the connection is lost, the client can still be closed, and drops its unsent messages. nats-py tries to send
      the messages and fails.
    - The transport reports a lost connection as the rest of nats-py expects; see `_Tcp`.
    - `flush` returns when the server has processed all earlier commands. nats-py sends its PING before commands that
      wait for the flusher, for example before a new subscription.
    - The late answer to an abandoned flush is ignored. In nats-py, such an answer ends the connection.
    - Headers are read without a check of each character. nats-py checks every character of every name, and every event
      has a dozen headers.
    - `subscribe_raw` calls a plain function for each message from the socket, and `publish_raw` takes a finished header
      block. This avoids nats-py's queue, task switch and second check of the headers, which are a third of the cost of
      a message. The message also does not pass through asyncio's StreamReader and its reading task, and is matched with
      one pattern instead of two.
    """

    def __init__(self, inbox_prefix: str = "_INBOX") -> None:
        super().__init__()
        self._inbox_prefix = bytearray(inbox_prefix.encode())  # set now: the first inbox is made before `connect`
        self._login: Login | None = None
        self._demands_tls = False
        self._has_certificate = False
        self._greeted = False  # True once the server of the current try has sent its first line
        self._asked_for_certificate = False  # True if the server of the current try requires a client certificate
        self._hung_up: set[str] = set()  # servers that closed the connection after the TLS handshake, at the last try
        self._dropped_by: set[str] = set()  # servers that sent their first line and closed the connection
        self.trying = ""
        """HOST:PORT of the server to which the client connected, or tried to connect, last."""
        self.on_refusal: Callable[[Refusal], None] = _ignored
        self._callbacks: dict[int, Callable[[WireMessage], None]] = {}
        self._inboxes: dict[int, _Inbox] = {}
        self._writes = False  # True if `_write` is scheduled for later in this turn of the loop
        # a running error handler; without this reference, the handler could be garbage-collected before its end
        self._handlers: asyncio.Future[None] | None = None

    @property
    def server(self) -> Server | None:
        """Return the connected server. If the URL has no port, the port in nats-py is None, so the default is used."""
        url = self.connected_url
        return Server(url.hostname, url.port or _DEFAULT_PORT) if url is not None and url.hostname else None

    @property
    def server_id(self) -> str:
        """Return the server's id, which changes at each start of a server."""
        return str(self._server_info.get("server_id", ""))

    @property
    def is_clustered(self) -> bool:
        return bool(self._server_info.get("cluster"))

    @property
    def has_jetstream(self) -> bool:
        return bool(self._server_info.get("jetstream"))

    @property
    def places(self) -> set[str]:
        """Return HOST:PORT of every server in the URL, and of every server that the cluster announced."""
        return {server.uri.netloc for server in self._server_pool}

    async def open(self, login: Login, *, tls: ssl.SSLContext | None, handshake_first: bool, **options: Any) -> None:
        """Connect as `login`. With `tls`, connect only to servers with TLS. nats-py's `connect` receives `options`."""
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
        """Call `on_message` for each message when the message is read. A failed subscription raises `CLIENT_ERRORS`."""
        sid = self._sid + 1
        self._callbacks[sid] = on_message
        try:
            return self._inbox(await self.subscribe(subject, cb=_no_callback))
        except BaseException:
            del self._callbacks[sid]
            raise

    async def subscribe_async(self, subject: str, handler: Callable[[Msg], Awaitable[None]]) -> BusSubscription:
        """Call the async `handler` for one message at a time. nats-py's limits, which drop messages, are off."""
        return self._inbox(await self.subscribe(subject, cb=handler, pending_msgs_limit=0, pending_bytes_limit=0))

    def _inbox(self, subscription: Subscription) -> _Inbox:
        inbox = self._inboxes[subscription._id] = _Inbox(self, subscription)
        return inbox

    async def shutdown(self) -> None:
        """Close the client permanently. A failed close raises `CLIENT_ERRORS`, a cancellation `CancelledError`.

        nats-py first sends its unsent data, so a close can hang until the caller cancels the close. The socket and the
        tasks of the client end in each case.
        """
        try:
            await _cancellable(self.close())
        finally:
            own = self._reading_task, self._ping_interval_task, self._flusher_task
            for task in (*own, *(subscription._wait_for_msgs_task for subscription in self._subs.values())):
                if task is not None:
                    task.cancel()
            if isinstance(self._transport, _Tcp | _WebSocket):
                await self._transport.abort()

    def mark_refused(self, refusal: Refusal, error: Exception) -> None:
        """Set `refused` to `error` on each subscription to the refused subject."""
        for sid, inbox in self._inboxes.items():
            if refusal.operation == "subscribe" and sid in self._subs and self._subs[sid].subject == refusal.subject:
                inbox.refused = error

    def _newest_accepted(self) -> int:
        """Return the id of the newest subscription that the server did not refuse, or 0.

        An error about the limit of subscriptions names no subscription. The server sends one error for each
        subscription above the limit, so each error belongs to the newest subscription without an error.
        """
        refused = {sid for sid, inbox in self._inboxes.items() if inbox.refused is not None}
        return max(self._subs.keys() - refused, default=0)

    def unsubscribe(self, subscription: Subscription) -> None:
        self._callbacks.pop(subscription._id, None)
        self._inboxes.pop(subscription._id, None)

    @property
    def was_greeted(self) -> bool:
        """Return True if the server of the last try sent its first line."""
        return self._greeted

    @property
    def is_full(self) -> bool:
        """Return True if the unsent data exceeds the limit, because the server or the network is slow."""
        return self._pending_data_size > self._max_pending_size

    async def wait_for_capacity(self) -> None:
        """Wait until the unsent data is below the limit. Callers wait here, because `publish_raw` cannot wait."""
        if self.is_full:
            await _cancellable(self._flush_pending(force_flush=True))

    def publish_raw(self, subject: str, reply: str, headers: bytes, body: bytes) -> None:
        """Publish a message without waiting. The caller must have checked the subject and the header block.

        Afterwards the caller must await an answer or call `wait_for_capacity`. Otherwise the unsent data has no bound.

        Args:
            subject: The checked subject.
            reply: The reply subject; empty without a reply.
            headers: The finished header block; empty without headers.
            body: The body.

        Raises:
            ConnectionClosedError: The client is closed.
            OutboundBufferLimitError: The connection is down, and its buffer is full.
        """
        if not self.is_connected:
            if self.is_closed:
                raise nats.errors.ConnectionClosedError
            if len(body) + self._pending_data_size > self._max_pending_size:
                raise nats.errors.OutboundBufferLimitError
        size = len(body)
        if headers:
            block = len(headers)
            order = f"HPUB {subject} {reply} {block} {block + size}\r\n"
        else:
            order = f"PUB {subject} {reply} {size}\r\n"
        command = b"%b%b%b\r\n" % (order.encode("utf-8", "surrogateescape"), headers, body)
        self._pending.append(command)
        self._pending_data_size += len(command)
        if not self._writes:
            self._writes = True
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        """Send the commands of this turn of the loop directly, if no wait is needed.

        Otherwise the flusher sends the commands, because the flusher can wait and handles a broken connection.
        """
        self._writes = False
        if not self._pending or not self.is_connected:  # the reconnect sends the commands
            return
        if isinstance(transport := self._transport, _Tcp) and transport.is_idle:
            with suppress(OSError):
                transport.writelines(self._pending)
                self._pending, self._pending_data_size = [], 0
                return
        if self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    def drop_settlements_of(self, stream: str) -> None:
        """Drop unsent commands whose subject or reply subject acknowledges a delivery of `stream`.

        The reply subject counts, because a supervisor that forwards a delivery puts the acknowledgement subject there.
        """
        settles = re.compile(rb"[^\r]*\$JS\.ACK\.(?:[^\r]*\.)?" + re.escape(stream.encode()) + rb"\.")
        self._pending = [command for command in self._pending if not settles.match(command)]
        self._pending_data_size = sum(map(len, self._pending))

    def consume_messages(self, data: bytes) -> bytes:
        """Process the messages at the start of `data` from the socket. Return the rest, which nats-py reads."""
        if not self.is_connected or self._ps.buf or self._ps.state != AWAITING_CONTROL_LINE:
            return data  # nats-py has read a part of a command, so nats-py must read the rest
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
            except Exception as error:  # an error would end the reading
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
            except Exception as error:  # an error would end the reading
                await self._error_cb(error)

    async def flush(self, timeout: int = 10) -> None:
        await _cancellable(self._flush_pending(force_flush=True))
        await _cancellable(super().flush(timeout))

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()  # for an abandoned flush, whose future is done
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
            await _cancellable(super()._process_connect_init())
            if not self.is_connected:  # nats-py does not raise an error if the server hangs up
                raise nats.errors.Error(_HUNG_UP)
        except BaseException as error:
            if isinstance(self._transport, _Tcp):
                self._transport.abandon()
            elif self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]
            if (told := self._explained(error)) is not error:
                raise told from error
            raise
        self._hung_up.discard(self.trying)
        self._dropped_by.discard(self.trying)

    def _explained(self, error: BaseException) -> BaseException:
        """Return the error to raise after `error` ended a try to connect: a more precise error, or `error`."""
        first = bool(self.options["tls_handshake_first"])
        if isinstance(error, ConnectionError) and self._greeted:
            self._dropped_by.add(self.trying)
        hung_up = isinstance(error, ConnectionError) or _HUNG_UP in str(error)
        # A server that refuses the client certificate sends a TLS alert and closes the connection. The alert can be
        # lost if data was unread. Then a server that shuts down during the try looks the same, but not at two tries in
        # a row. So only the second such end is reported.
        if hung_up and (first if not self._greeted else self._asked_for_certificate):
            if self.trying in self._hung_up:
                return TlsRequiredError(
                    f"{self.trying} hangs up after the TLS handshake; perhaps the server refuses the client "
                    "certificate; check POINTSMAN_TLS_CERT, and the broker's log"
                )
            self._hung_up.add(self.trying)
        if not self._greeted and (isinstance(error, TimeoutError) or "empty response" in str(error)):
            hint = "has no handshake_first, unset" if first else "has handshake_first, set"
            return nats.errors.Error(
                f"{self.trying} sent no first line of a NATS server; if the server {hint} POINTSMAN_TLS_HANDSHAKE_FIRST"
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
                server.tls_name = current.tls_name  # verify this name, not the cluster's address

    async def _hear_refusal(self) -> None:
        """Raise the error that a server at its limit of connections writes after its first line.

        Such a server closes the connection at once. A write from this side then fails, and asyncio stops reading. So
        the server's error can be lost at the first try, and a later try waits for the error.

        Raises:
            Error: The server sent an error.
        """
        if self.trying in self._dropped_by:
            await asyncio.sleep(_REFUSAL_WAIT_S)
        if isinstance(transport := self._transport, _Tcp) and (said := _ERROR.search(transport.unread)):
            raise nats.errors.Error(f"nats: {said[1].decode('utf-8', 'replace')}")

    def _require_tls(self, info: dict[str, Any]) -> None:
        """Raise an error if TLS is required and the next command, which contains the login, would not be encrypted.

        A server with `allow_non_tls` reports TLS as available, not as required. nats-py begins TLS only if `info`
        reports TLS as required, so this method changes `info`.

        Raises:
            TlsRequiredError: The server offers no TLS, or requires a client certificate that is not configured.
        """
        server = self._current_server
        if server is None or server.uri.scheme in ("ws", "wss") or self.options["tls_handshake_first"]:
            return  # TLS has begun, or the scheme `ws` or `wss` in the URL decides about encryption
        offered = info.get("tls_required") or info.get("tls_available")
        if self._demands_tls and not offered:
            raise TlsRequiredError(
                f"{self.trying} offers no TLS, which tls:// or a POINTSMAN_TLS setting requires; no login was sent"
            )
        if self._demands_tls:
            info["tls_required"] = True
        self._asked_for_certificate = bool(info.get("tls_required") and info.get("tls_verify"))
        if self._asked_for_certificate and not self._has_certificate:
            raise TlsRequiredError(
                f"{self.trying} requires a client certificate: set POINTSMAN_TLS_CERT and POINTSMAN_TLS_KEY"
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
        # Read the buffer, because nats-py passes `err_msg` in lower case.
        said = sent[1].decode("utf-8", "replace") if sent else err_msg.strip("'")
        refusal = Refusal.read(said)
        if _SUBSCRIPTIONS_EXCEEDED in said.lower() and (sid := self._newest_accepted()):
            refusal = Refusal("subscribe", self._subs[sid].subject, said)
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
    """A TCP transport that raises `ConnectionError` on a write to a closed connection, as nats-py expects.

    uvloop raises `RuntimeError` for such a write. After a `RuntimeError`, nats-py never reconnects and cannot close.
    """

    def __init__(self, take: Callable[[bytes], bytes]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._on_data = take
        self._is_abandoned = False

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        self._is_abandoned = False
        reader = _Reader(self._on_data, buffer_size)
        protocol = asyncio.StreamReaderProtocol(reader)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(connect_timeout):
            transport, _ = await loop.create_connection(lambda: protocol, uri.hostname, uri.port)
        self._bare_io_reader = self._io_reader = reader
        self._bare_io_writer = self._io_writer = asyncio.StreamWriter(transport, protocol, reader, loop)

    def __bool__(self) -> bool:
        return True  # if this were False before the connection, nats-py would replace the transport

    @property
    def unread(self) -> bytes:
        """Return the bytes that have arrived and are still unread."""
        reader = self._io_reader
        return bytes(reader._buffer) if isinstance(reader, _Reader) else b""

    @property
    def is_idle(self) -> bool:
        """Return True if all written data has been sent."""
        writer = self._io_writer
        return writer is not None and not writer.transport.get_write_buffer_size()

    async def connect_tls(self, uri: Any, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int) -> None:
        writer = self._io_writer
        assert writer is not None, "call `connect` before `connect_tls`"
        reader = _Reader(self._on_data, buffer_size)
        protocol = asyncio.StreamReaderProtocol(reader)
        protocol._over_ssl = True  # type: ignore[attr-defined]  # asyncio warns without this at a lost connection
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(connect_timeout):
            host = uri if isinstance(uri, str) else uri.hostname
            transport = await loop.start_tls(writer.transport, protocol, ssl_context, server_hostname=host)
        if transport is None:
            raise ConnectionResetError("the server closed the connection during the TLS handshake")
        reader.set_transport(transport)
        self._io_reader, self._io_writer = reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def abandon(self) -> None:
        """Close the connection after a failed try to connect. `wait_closed` then raises no error."""
        self._is_abandoned = True
        self.close()  # type: ignore[no-untyped-call]

    async def abort(self) -> None:
        """Close the socket at once, and drop the unsent data."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed.

        All waiters share a future of asyncio. The future is shielded, because a cancelled waiter would cancel the
        future for the other waiters.

        Raises:
            OSError: The connection was lost by an error, and `abandon` was not called. After `abandon`, the server's
                reason is reported already, and nats-py would report this error instead of the reason.
        """
        try:
            await asyncio.shield(super().wait_closed())  # type: ignore[no-untyped-call]
        except OSError:
            if not self._is_abandoned:
                raise

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
    """A WebSocket transport that connects within a bounded time.

    nats-py limits only the closing handshake, not the connecting, and uses a form of timeout for which aiohttp logs a
    warning. So a server that accepts the connection and then sends nothing would block the client for minutes.
    """

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        await self._open(uri, None, connect_timeout)

    async def connect_tls(self, uri: Any, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int) -> None:
        if self._ws is None or self._ws.closed:  # an open WebSocket is encrypted already
            await self._open(uri, ssl_context, connect_timeout)

    async def _open(self, uri: Any, context: ssl.SSLContext | None, timeout: int) -> None:
        closing: Any = import_module("aiohttp").ClientWSTimeout(ws_close=float(timeout))
        client: Any = self._client
        secure = {} if context is None else {"ssl": context}
        async with asyncio.timeout(timeout):
            self._ws = await client.ws_connect(uri.geturl(), timeout=closing, max_msg_size=0, **secure)
        self._using_tls = context is not None

    async def abort(self) -> None:
        """Close the socket and the session of aiohttp at once, and drop the unsent data."""
        own: Any = self
        if own._ws is not None and (connection := own._ws._response.connection) is not None:
            connection.transport.abort()
        if own._client is not None:
            await own._client.close()
        own._ws = own._client = None


class _Reader(asyncio.StreamReader):
    """A stream reader for nats-py. `take` processes new bytes, and the reader buffers the rest that `take` returns."""

    def __init__(self, take: Callable[[bytes], bytes], limit: int) -> None:
        super().__init__(limit)
        self._on_data = take
        self._buffer: bytearray

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        rest = bytes(data)
        if not self._buffer:  # otherwise the new bytes follow unread bytes
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
    """Do nothing, because `NatsClient.subscribe_raw` takes each message before nats-py calls this function."""


async def _cancellable(work: Awaitable[_Result]) -> _Result:
    """Await `work`, and raise a cancellation that `work` swallowed.

    nats-py uses `asyncio.wait_for`. Before Python 3.12, `wait_for` returns the result if the result arrives in the same
    turn of the loop as the cancellation. nats-py also drops a cancellation that arrives while nats-py waits for its
    flusher. A time-out around the call would then never end the call.

    Args:
        work: The call to nats-py.

    Returns:
        The result of `work`.

    Raises:
        CancelledError: The task was cancelled.
        ConnectionResetError: Another task of nats-py was cancelled. All tasks that write to a WebSocket wait for one
            future of aiohttp, and the cancellation of one of them cancels the future.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        result = await work
    except asyncio.CancelledError:
        if task is not None and task.cancelling() == before:
            raise ConnectionResetError("the connection was closed during a write") from None
        raise
    except Exception:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError from None
        raise
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
    return result
