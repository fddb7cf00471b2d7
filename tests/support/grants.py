"""Use the files that `pointsman grants` writes: a server configuration, and the settings of each user."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pointsman.bus.jetstream.connection import NatsConnection
from pointsman.errors import BusUnavailableError, PermissionDeniedError
from pointsman.grants.folder import GrantFolder
from pointsman.settings import Settings

__all__ = ["allowed", "connected", "environment_of", "server_config", "settings_of"]

_TIMEOUT_S = 10.0


def server_config(grants: GrantFolder) -> str:
    """Return server configuration lines that include the file of the grants, by a path relative to their folder."""
    return f"include {str(grants.server_file.relative_to(grants.path.parent))!r}"


def environment_of(grants: GrantFolder, name: str) -> dict[str, str]:
    """Return the variables in the file of a user."""
    lines = (grants.path / "users" / f"{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def settings_of(grants: GrantFolder, name: str, port: int) -> Settings:
    """Return the settings in the file of a user."""
    values = {key.removeprefix("POINTSMAN_").lower(): value for key, value in environment_of(grants, name).items()}
    return Settings(url=f"nats://127.0.0.1:{port}", request_timeout=_TIMEOUT_S, **values)


@asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[NatsConnection]:
    """Yield a connection to the broker that makes no streams."""
    connection = NatsConnection(
        settings,
        "test",
        on_lost=lambda: None,
        on_restored=lambda: None,
        on_no_responders=lambda subject: None,
    )
    await connection.open(_TIMEOUT_S)
    try:
        yield connection
    finally:
        await connection.close()


async def allowed(settings: Settings, subject: str) -> bool:
    """Return True if the broker accepts a message on a subject. An answer is not required."""
    async with connected(settings) as connection:
        try:
            await connection.request(subject)()
        except PermissionDeniedError:
            return False
        except BusUnavailableError:
            return True
    return True
