"""Run the HTTP server of the dashboard, and refuse unsafe settings."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from pointsman.client.client import Client
from pointsman.errors import ConfigurationError
from pointsman.util.network import is_loopback
from pointsman.web.dashboard import Dashboard

__all__ = ["check_access", "serve"]

_SHUTDOWN_TIMEOUT_S = 3  # seconds that open responses get to finish after a stop
_MIN_TOKEN_CHARS = 16  # a random token of this length cannot be guessed


def check_access(host: str, token: str | None) -> None:
    """Raise `ConfigurationError` if the token is too short, or if there is no token and other hosts can connect."""
    if token is not None and len(token) < _MIN_TOKEN_CHARS:
        raise ConfigurationError(
            f"the dashboard's token has {len(token)} characters; give it at least {_MIN_TOKEN_CHARS}, such as "
            "`openssl rand -hex 16` prints"
        )
    if token is None and not is_loopback(host):
        raise ConfigurationError(
            f"the dashboard would answer on {host}, where others can reach it; give it a --token, or "
            "POINTSMAN_DASHBOARD_TOKEN, or use 127.0.0.1"
        )


async def serve(
    client: Client,
    *,
    host: str,
    port: int,
    token: str | None,
    hosts: Sequence[str],
    stop: asyncio.Event,
    ready: Callable[[str], None],
) -> None:
    """Serve the dashboard until `stop` is set.

    Args:
        client: A connected client.
        host: The address to listen on.
        port: The port to listen on; 0 for any free port.
        token: The token that users must give; None for no token.
        hosts: More host names that requests may use.
        stop: Ends the server.
        ready: Called with the URL when the server listens.

    Raises:
        ConfigurationError: Other hosts could connect and there is no token, or the port is not available.
    """
    check_access(host, token)
    named = [] if is_loopback(host) else [host]
    dashboard = Dashboard(client, token=token, hosts=[*hosts, *named])
    with _listen(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{listener.getsockname()[1]}")
        server = _Server(
            uvicorn.Config(
                dashboard.app,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                ws="none",
                timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
            )
        )
        async with asyncio.TaskGroup() as group:
            folding = group.create_task(dashboard.run_projections())
            serving = group.create_task(server.serve(sockets=[listener]))
            await stop.wait()
            dashboard.stop()
            server.should_exit = True
            await serving
            folding.cancel()


class _Server(uvicorn.Server):
    """A server that does not handle signals: the process that runs the server handles them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigurationError(
            f"the dashboard cannot listen on {host}:{port}: {error.strerror or error}; choose another --port, or 0 for "
            "a free port"
        ) from None
