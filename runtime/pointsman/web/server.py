"""The server that answers for the dashboard, and what it refuses to be started with."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from pointsman.client.client import Client
from pointsman.errors import ConfigurationError
from pointsman.web.auth import is_loopback
from pointsman.web.dashboard import Dashboard

__all__ = ["check_access", "serve"]

_SHUTDOWN_TIMEOUT_S = 3  # seconds open answers get at the end
_MIN_TOKEN_CHARS = 16  # characters: what `openssl rand -hex 8` prints cannot be tried out


def check_access(host: str, token: str | None) -> None:
    """Raises `ConfigurationError` for a token that can be guessed, or none where others can reach it."""
    if token is not None and len(token) < _MIN_TOKEN_CHARS:
        raise ConfigurationError(
            f"the dashboard's token has {len(token)} characters; give it at least {_MIN_TOKEN_CHARS}, such as "
            "`openssl rand -hex 16` prints"
        )
    if token is None and not is_loopback(host):
        raise ConfigurationError(
            f"the dashboard would answer on {host}, where others can reach it; give it a --token, or "
            "POINTSMAN_DASHBOARD_TOKEN, or leave it on 127.0.0.1"
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
    """Answer on `host` and `port` (0: a free one) until `stop`; `ready` is told the address.

    Raises:
        ConfigurationError: others could reach it and there is no token, or the port cannot be had.
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
    """Signals are the business of whoever runs it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigurationError(
            f"the dashboard cannot be had on {host}:{port}: {error.strerror or error}; choose another --port, 0 for a "
            "free one"
        ) from None
