"""A NATS server double that records each byte that clients send, unencrypted or after a TLS handshake."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from support.servers import stop_accepting

__all__ = ["RecordingServer", "server_context"]

_INFO: Mapping[str, Any] = {
    "server_id": "FAKE", "server_name": "fake", "version": "2.15.1", "proto": 1, "headers": True,
    "max_payload": 1_048_576, "jetstream": True, "auth_required": True, "nonce": "nonce",
}  # fmt: skip


class RecordingServer:
    """Send `INFO` to each client and record the answers.

    Args:
        tls: The server's TLS context. With a context, the server requires TLS and upgrades the connection.
        info: More fields of `INFO`.

    `clear` has the bytes outside TLS, `inside` has the bytes inside TLS. `connections` counts clients. The server
    answers `PING`.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None, info: Mapping[str, Any] | None = None) -> None:
        self._tls = tls
        self._info = {**_INFO, **({"tls_required": True} if tls else {}), **(info or {})}
        self.clear, self.inside = bytearray(), bytearray()
        self.connections = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def place(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> RecordingServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self, port: int = 0) -> None:
        """Listen on the given port, or on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and each connection."""
        if self._server is not None:
            await stop_accepting(self._server)
            self._server.close()
            self.hang_up()
            self._server = None

    def hang_up(self) -> None:
        """Close each connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        record = self.clear
        try:
            writer.write(b"INFO " + json.dumps(self._info).encode() + b"\r\n")
            await writer.drain()
            if self._tls is not None:
                await writer.start_tls(self._tls)
                record = self.inside
            while data := await reader.read(65_536):
                record += data
                for _ in range(data.count(b"PING\r\n")):
                    writer.write(b"PONG\r\n")
        except (OSError, ssl.SSLError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()


def server_context(cert: str, key: str) -> ssl.SSLContext:
    """Return a server's TLS context with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context
