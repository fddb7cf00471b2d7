"""Run the HTTP server of the dashboard, and refuse unsafe settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pointsman.client.client import Client
from pointsman.errors import ConfigurationError
from pointsman.http.server import run_server
from pointsman.settings import Settings
from pointsman.util.network import is_loopback
from pointsman.web.dashboard import Dashboard
from pointsman.web.users import Users

__all__ = ["check_access", "serve"]

_MIN_TOKEN_CHARS = 16  # a random token of this length cannot be guessed


def check_access(host: str, token: str | None, users_file: str | None = None) -> Users:
    """Return the users that may log in.

    Args:
        host: The address to listen on.
        token: The token of a user with all rights; None for no such user.
        users_file: The path of the file of users; None for no file.

    Returns:
        The users.

    Raises:
        ConfigurationError: The token is too short, the file cannot be used, or other hosts can connect although there
            are no users.
    """
    if token is not None and len(token) < _MIN_TOKEN_CHARS:
        raise ConfigurationError(
            f"the dashboard's token has {len(token)} characters; use at least {_MIN_TOKEN_CHARS}, for example the "
            f"output of `openssl rand -hex 16`"
        )
    users = Users.load(token, users_file)
    if not users and not is_loopback(host):
        raise ConfigurationError(
            f"the dashboard would answer on {host}, where other hosts can connect; set --token, "
            f"POINTSMAN_DASHBOARD_TOKEN or POINTSMAN_DASHBOARD_USERS, or use 127.0.0.1"
        )
    return users


async def serve(
    client: Client,
    settings: Settings,
    *,
    users: Users,
    hosts: Sequence[str],
    stop: asyncio.Event,
    ready: Callable[[str], None],
) -> None:
    """Serve the dashboard until `stop` is set.

    Args:
        client: A connected client.
        settings: The settings.
        users: The users, as `check_access` returns them.
        hosts: Host names that requests may use, in addition to addresses, `localhost` and `dashboard_host`.
        stop: The event that ends the server when it is set.
        ready: Called with the URL when the server listens.

    Raises:
        ConfigurationError: The port is not available.
    """
    host = settings.dashboard_host
    named = [] if is_loopback(host) else [host]
    dashboard = await Dashboard.open(client, settings, users=users, hosts=[*hosts, *named])
    await run_server(
        dashboard.app,
        name="dashboard",
        host=host,
        port=settings.dashboard_port,
        stop=stop,
        ready=ready,
        on_stop=dashboard.stop,
        parts=(dashboard.run_projections,),
    )
