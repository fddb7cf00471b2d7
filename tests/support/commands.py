"""Run CLI commands on a test's event loop, with the test's client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pointsman.cli.render.output import Code
from pointsman.cli.support import session as sessions
from pointsman.client.client import Client

__all__ = ["command", "use_client"]


def use_client(patch: pytest.MonkeyPatch, client: Client) -> None:
    """Make each command use `client` instead of its own connection."""

    @asynccontextmanager
    async def session(*_: object, **__: object) -> AsyncIterator[Client]:
        yield client

    patch.setattr(sessions, "session", session)


async def command(call: Any, *given: Any, **options: Any) -> Code:
    """Run a command on the test's event loop, although the command calls `asyncio.run`."""
    runs: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "run", runs.append)
        call(*given, **options)
    return await runs[0] or Code.OK
