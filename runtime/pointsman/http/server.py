"""Listen on an address, and run an ASGI application until `stop` is set."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pointsman.errors import ConfigurationError
from pointsman.http.connections import BoundedConnection, ConnectionBounds

__all__ = ["listen", "run_server"]

_SHUTDOWN_TIMEOUT_S = 3  # seconds for which the server waits for open responses after a stop
_BACKLOG = 512  # number of connections that the kernel queues until they are accepted


async def run_server(
    app: ASGIApp,
    *,
    name: str,
    host: str,
    port: int,
    stop: asyncio.Event,
    ready: Callable[[str], None],
    on_stop: Callable[[], None],
    parts: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
    bounds: ConnectionBounds | None = None,
) -> None:
    """Serve `app` until `stop` is set.

    Args:
        app: The application.
        name: The name of the server, for messages.
        host: The address to listen on.
        port: The port to listen on; 0 for any free port.
        stop: Set to end the server.
        ready: Called with the URL when the server listens.
        on_stop: Called after `stop`. `on_stop` must end the streams of the application.
        parts: Functions whose coroutines run beside the server, and are cancelled when the server ends. An error in a
            coroutine ends the server.
        bounds: The bounds of the connections. Default: the defaults of `ConnectionBounds`.

    Raises:
        ConfigurationError: The port is not available.
    """
    connection = type("Connection", (BoundedConnection,), {"bounds": bounds or ConnectionBounds()})
    with listen(name, host, port) as listener:
        server = _Server(
            uvicorn.Config(
                _unambiguous(app),
                http=connection,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                ws="none",
                timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
            )
        )
        shown = f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{listener.getsockname()[1]}")
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(part()) for part in parts]
            serving = group.create_task(server.serve(sockets=[listener]))
            await stop.wait()
            on_stop()
            server.should_exit = True
            await serving
            for task in beside:
                task.cancel()


def _unambiguous(app: ASGIApp) -> ASGIApp:
    """Return an application that refuses requests with two headers for the length, and closes their connections.

    Suppose a proxy reads the body by `Content-Length`, and this server reads the body by `Transfer-Encoding`. This
    server could then take the rest of the body as the next request of the connection. If the proxy uses the connection
    for several clients, another client could get the response.

    Args:
        app: The application.

    Returns:
        The application.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope.get("headers", ())}
        if {b"content-length", b"transfer-encoding"} <= names:
            told = "the request has Content-Length and Transfer-Encoding; send one of them"
            await PlainTextResponse(told, 400, {"connection": "close"})(scope, receive, send)
            return
        await app(scope, receive, send)

    return serve


class _Server(uvicorn.Server):
    """A server that does not handle signals, because the process around the server handles signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(name: str, host: str, port: int) -> socket.socket:
    """Return a listening socket. Connections of the socket send small packets at once.

    Args:
        name: The name of the server, for messages.
        host: The address to listen on.
        port: The port to listen on; 0 for any free port.

    Returns:
        The socket.

    Raises:
        ConfigurationError: The port is not available.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        # Set the option here, because connections inherit it, and asyncio only sets it on sockets with an explicit
        # protocol.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise ConfigurationError(
            f"the {name} cannot listen on {host}:{port}: {error.strerror or error}; choose another --port, or 0 for "
            "a free port"
        ) from None
