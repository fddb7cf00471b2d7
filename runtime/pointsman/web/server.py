"""Run the HTTP server of the dashboard, and refuse unsafe settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pointsman.client.client import Client
from pointsman.errors import ConfigurationError
from pointsman.http.server import run_server
from pointsman.util.network import is_loopback
from pointsman.web.dashboard import Dashboard

__all__ = ["check_access", "serve"]

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
    async with asyncio.TaskGroup() as group:
        folding = group.create_task(dashboard.run_projections())
        await run_server(
            dashboard.app, name="dashboard", host=host, port=port, stop=stop, ready=ready, on_stop=dashboard.stop
        )
        folding.cancel()
