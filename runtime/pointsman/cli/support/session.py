"""The session of a command with the broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pointsman import telemetry
from pointsman.cli.render.output import print_error
from pointsman.client.client import Client, connect
from pointsman.settings import Settings, misspelled_variables

__all__ = ["session", "settings_for"]


def settings_for(url: str | None, namespace: str | None, *, log_level: str | None = None) -> Settings:
    """Load the settings of a command: options first, then the environment.

    Args:
        url: The value of `--url`, or None.
        namespace: The value of `--namespace`, or None.
        log_level: The log level if the environment sets none. Default: `info`.

    Returns:
        The settings.
    """
    settings = Settings.load(url=url, namespace=namespace)
    if log_level is None or "log_level" in settings.model_fields_set:
        return settings
    return Settings.load(**{**settings.model_dump(exclude_unset=True), "log_level": log_level})


@asynccontextmanager
async def session(url: str | None, namespace: str | None, *, create: bool = False) -> AsyncIterator[Client]:
    """Connect a client for one command. Log errors only: the command prints everything else.

    Args:
        url: The value of `--url`, or None.
        namespace: The value of `--namespace`, or None.
        create: Create the namespace if it does not exist. Default: False, for commands that only read.

    Yields:
        The client.
    """
    for variable, meant in misspelled_variables().items():
        print_error(f"{variable} is not a setting; did you mean {meant}?")
    settings = settings_for(url, namespace, log_level="error")
    observed = telemetry.setup("pointsman-cli", settings=settings)
    try:
        async with connect(settings=settings, create=create) as client:
            yield client
    finally:
        await observed.shutdown()
