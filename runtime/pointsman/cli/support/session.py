"""How a command meets the broker: settings from options and environment, a bounded wait, quiet logs."""

from __future__ import annotations

import getpass
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pointsman import telemetry
from pointsman.cli.render.output import print_error
from pointsman.client.client import Client, connect
from pointsman.settings import Settings, misspelled_variables

__all__ = ["default_by", "session", "settings_for"]


def settings_for(url: str | None, namespace: str | None, *, log_level: str | None = None) -> Settings:
    """Settings from the environment, the options on top. `log_level` counts when the environment sets none."""
    settings = Settings.load(url=url, namespace=namespace)
    if log_level is None or "log_level" in settings.model_fields_set:
        return settings
    return Settings.load(**{**settings.model_dump(exclude_unset=True), "log_level": log_level})


@asynccontextmanager
async def session(url: str | None, namespace: str | None, *, create: bool = False) -> AsyncIterator[Client]:
    """A client for one command. Only errors are logged: what a person should know, the command says itself.

    Commands that look must not make what they look for: a namespace is made by those that `create`.
    """
    for variable, meant in misspelled_variables().items():
        print_error(f"{variable} is no setting; did you mean {meant}?")
    settings = settings_for(url, namespace, log_level="error")
    observed = telemetry.setup("pointsman-cli", settings=settings)
    try:
        async with connect(settings=settings, create=create) as client:
            yield client
    finally:
        await observed.shutdown()


def default_by(given: str | None) -> str:
    """The name under which a person's answer is kept: as given, else that of who is logged in here."""
    if given:
        return given
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container a user may have a number and no name
        return "somebody at the command line"
