"""Start a nats-server with the users and rights of a test, and read the violations that the server logged."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from support.configured_server import configured_server

__all__ = ["PASSWORD", "PermissionServer", "Rights", "permission_server", "users_config"]

PASSWORD = "pw"
"""The password of every user."""

_VIOLATION = re.compile(
    r'"[^"]*/user:([^"]*)" - (Publish|Publish Reply|Subscription) Violation - (?:Subject|Reply) "((?:[^"\\]|\\.)*)"'
)


@dataclass(frozen=True, slots=True)
class Rights:
    """The subjects that a user may publish on and subscribe to. Every other subject is denied.

    With `responses`, the user may also publish one reply to each received request.
    """

    publish: Sequence[str] = ()
    subscribe: Sequence[str] = ()
    responses: bool = False

    def config(self) -> str:
        """Return the block `permissions` of a nats-server configuration."""
        publish, subscribe = (_allowed(subjects) for subjects in (self.publish, self.subscribe))
        answers = ", allow_responses: true" if self.responses else ""
        return f"{{ publish: {publish}, subscribe: {subscribe}{answers} }}"


def _allowed(subjects: Sequence[str]) -> str:
    """Return the rule for `subjects`. Without subjects, deny all, because an empty `allow` would allow all."""
    return f"{{ allow: {json.dumps(list(subjects))} }}" if subjects else '{ deny: ">" }'


def users_config(users: Mapping[str, Rights | None]) -> str:
    """Return the block `authorization` of a nats-server configuration. A user without `Rights` may do everything."""
    entries = (
        f"  {{ user: {json.dumps(name)}, password: {PASSWORD}"
        + (f", permissions: {rights.config()}" if rights is not None else "")
        + " }"
        for name, rights in users.items()
    )
    return "authorization { users: [\n" + "\n".join(entries) + "\n] }\n"


@dataclass(frozen=True, slots=True)
class PermissionServer:
    """A running server with users."""

    port: int
    log: Path

    def url(self, user: str) -> str:
        """Return the URL with the login of `user`."""
        return f"nats://{user}:{PASSWORD}@127.0.0.1:{self.port}"

    def violations(self, user: str | None = None) -> list[str]:
        """Return the refused operations of `user` or of all users in order, such as `Publish own.log.crew.w`."""
        found = _VIOLATION.findall(self.log.read_text(errors="replace"))
        return [f"{operation} {subject}" for name, operation, subject in found if user in (None, name)]


@asynccontextmanager
async def permission_server(
    folder: Path,
    users: Mapping[str, Rights | None],
    *,
    config: str = "",
    port: int | None = None,
    jetstream: str = "{}",
    name: str = "server",
) -> AsyncIterator[PermissionServer]:
    """Run a server with `users`, whose password is `PASSWORD`. The server stops when the block ends.

    Args:
        folder: An existing folder for the store, the configuration and the log.
        users: The rights of each user. None allows every subject.
        config: More lines of a nats-server configuration.
        port: The port to listen on; by default a free port.
        jetstream: The block `jetstream` without its store, or an empty string for a server without JetStream.
        name: The name of the server and of its files.
    """
    whole = f"{users_config(users)}{config}\n"
    async with configured_server(folder, whole, port=port, jetstream=jetstream, name=name) as listening:
        yield PermissionServer(listening, folder / f"{name}.log")
