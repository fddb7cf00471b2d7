"""Processes that each have only the rights of their own grant."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from types import TracebackType
from unittest.mock import patch

from pointsman.client.client import Client, connect
from pointsman.grants.folder import GrantFolder
from pointsman.grants.permissions import Grant
from pointsman.settings import Settings
from support import ready
from support.configured_server import configured_server
from support.grants import environment_of, server_config, settings_of
from support.processes import Service
from support.ready import Finished

__all__ = ["GrantedSystem"]

_VIOLATION = re.compile(
    r'"[^"]*?/(?:user|nkey|jwt)?:?([^"/]*)" - (Publish|Publish Reply|Subscription) Violation - '
    r'.*?(?:Subject|Reply) "((?:[^"\\]|\\.)*)"'
)
_LOG_TAIL_CHARS = 4000


class GrantedSystem:
    """A server with two accounts, and processes that each have the environment variables of one user.

    Args:
        folder: An existing folder for everything.
        grants: The users.
        jwt: True for users with JWTs; False for users in the server's configuration.
        namespaces: The namespaces of the tenant. `grants` are for the first namespace.
        environment: More variables for every process.
    """

    def __init__(
        self,
        folder: Path,
        grants: Sequence[Grant],
        *,
        jwt: bool,
        namespaces: Sequence[str] = ("own",),
        **environment: str,
    ) -> None:
        self.folder = folder
        self.services: list[Service] = []
        self.grants = GrantFolder.create(
            folder / "grants", account="APP", namespaces=namespaces, jwt=jwt, resolver=str(folder / "jwt")
        )
        # A cheap hash: the server checks a hash for each connection, and ten processes connect at the same time.
        with patch("pointsman.grants.folder._BCRYPT_ROUNDS", 4):
            for grant in grants:
                self.grants.add(grant)
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("POINTSMAN_", "OTEL_"))},
            "POINTSMAN_MODEL": "offline",
            "POINTSMAN_LOG_FORMAT": "json",
            "PYTHONWARNINGS": "error",
            **environment,
        }
        self._stack = AsyncExitStack()
        self.port = 0
        self._started = 0

    async def __aenter__(self) -> GrantedSystem:
        self.port = await self._stack.enter_async_context(configured_server(self.folder, server_config(self.grants)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for service in self.services:
            await service.kill()
        if kind is not None:
            for service in self.services:
                sys.stdout.write(f"\n--- {service.name} ({service.pid})\n{service.text[-_LOG_TAIL_CHARS:]}\n")
            sys.stdout.write(f"\n--- refused\n{chr(10).join(self.violations())}\n")
        await self._stack.aclose()

    def environment(self, user: str) -> dict[str, str]:
        return {
            **self._environment,
            "POINTSMAN_URL": f"nats://127.0.0.1:{self.port}",
            **environment_of(self.grants, user),
        }

    def settings(self, user: str, **others: object) -> Settings:
        return Settings(**{**settings_of(self.grants, user, self.port).model_dump(exclude_unset=True), **others})

    async def start(self, user: str, *arguments: str, event: str, **environment: str) -> Service:
        """Start `pointsman ARGUMENTS` as a user. Wait until the log has `event`, if `event` is given."""
        self._started += 1
        name = "-".join(Path(each).name for each in arguments)
        log = self.folder / f"{self._started:02}-{name}.log"
        with log.open("wb") as said:
            process = await ready.start(
                ["-m", "pointsman", *arguments, "--with-parent"],
                said,
                said,
                environment={**self.environment(user), **environment},
                folder=self.folder,
            )
        service = Service(name, process, log)
        self.services.append(service)
        if event:
            await service.logged(event)
        return service

    async def command(self, user: str, *arguments: str, seconds: float = 40.0) -> Finished:
        """Run `pointsman ARGUMENTS` as a user until it exits."""
        return await ready.run(
            ["-m", "pointsman", *arguments],
            environment=self.environment(user),
            folder=self.folder,
            seconds=seconds,
        )

    async def succeed(self, user: str, *arguments: str, seconds: float = 40.0) -> Finished:
        """Run a command that must succeed without an error."""
        finished = await self.command(user, *arguments, seconds=seconds)
        assert finished.code == 0, f"{user}: pointsman {' '.join(arguments)}\n{finished.output}\n{finished.errors}"
        return finished

    def client(self, user: str) -> AbstractAsyncContextManager[Client]:
        """Return a client with the rights of a user."""
        return connect(settings=self.settings(user))

    def violations(self) -> list[str]:
        """Return the refused operations without repetition, such as `boss: Publish own.log.crew.w`."""
        text = (self.folder / "server.log").read_text(errors="replace")
        names = {user.public_key: user.name for user in self.grants.content.users}
        found = [f"{names.get(user, user)}: {verb} {subject}" for user, verb, subject in _VIOLATION.findall(text)]
        return list(dict.fromkeys(found))
