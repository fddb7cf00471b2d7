"""Read the users of the dashboard, and make and check the sessions of browsers.

| Role | may |
|---|---|
| `look` | see all pages |
| `approve` | also answer questions, approve and reject |
| `operate` | also start, cancel, replay and discard |

The file of users has the SHA-256 of each token. A token has 192 random bits, so the digest does not reveal the token.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, StringConstraints

from pointsman.errors import ConfigurationError, ContractError
from pointsman.util.files import read_file
from pointsman_schemas.ids import Token
from pointsman_schemas.strict_json import parse

__all__ = ["SESSION_HOURS", "Role", "User", "Users", "UsersFile", "new_session", "new_token", "token_digest"]

Role: TypeAlias = Literal["look", "approve", "operate"]
_RANK: dict[Role, int] = {"look": 0, "approve": 1, "operate": 2}

SESSION_HOURS = 12.0
"""Time after which a browser must log in again, in hours."""
_TOKEN_BYTES = 24


@dataclass(frozen=True, slots=True)
class User:
    """A user of the dashboard.

    Attributes:
        name: The name. Events that the user causes contain this name.
        role: The role.
        digest: The SHA-256 of the user's token, in hexadecimal digits.
    """

    name: str
    role: Role
    digest: str

    def may(self, role: Role) -> bool:
        """Return True if the user has all rights of `role`."""
        return _RANK[self.role] >= _RANK[role]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    role: Role
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class UsersFile(BaseModel):
    """The content of the file in POINTSMAN_DASHBOARD_USERS.

    Attributes:
        users: The role and the digest of the token of each user, by name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    users: dict[Token, _Entry]

    def with_user(self, name: str, role: Role, digest: str) -> UsersFile:
        """Return the file with a user added or replaced."""
        return UsersFile.model_validate(
            {"users": {**self.model_dump()["users"], name: {"role": role, "sha256": digest}}}
        )


class Users:
    """The users that may log in.

    Args:
        users: The users.
    """

    def __init__(self, users: Iterable[User]) -> None:
        self._by_name = {user.name: user for user in users}

    def __bool__(self) -> bool:
        return bool(self._by_name)

    @classmethod
    def load(cls, token: str | None, path: str | None) -> Users:
        """Return the users of the settings.

        Args:
            token: The token of the user `dashboard`, who has all rights; None for no such user.
            path: The path of the file of users; None for no file.

        Returns:
            The users; empty if both arguments are None.

        Raises:
            ConfigurationError: The file cannot be read, or is not a file of users.
        """
        found = [User("dashboard", "operate", token_digest(token))] if token is not None else []
        if path is not None:
            text = read_file("POINTSMAN_DASHBOARD_USERS", path)
            try:
                entries = parse(UsersFile, text.encode()).users
            except ContractError as error:
                raise ConfigurationError(
                    f"POINTSMAN_DASHBOARD_USERS: {path}: {error}; `pointsman dashboard-user NAME` writes the file"
                ) from None
            found += [User(name, entry.role, entry.sha256) for name, entry in entries.items()]
        return cls(found)

    def of_token(self, token: str) -> User | None:
        """Return the user of a token, or None. The time that the call takes reveals no part of a token."""
        digest, found = token_digest(token), None
        for user in self._by_name.values():
            if hmac.compare_digest(digest, user.digest):
                found = user
        return found

    def of_session(self, session: str, now: float) -> User | None:
        """Return the user of a session cookie, or None.

        Args:
            session: The value of the cookie.
            now: The time in seconds since 1970.

        Returns:
            The user; None if the session has expired or is forged, or if the user was removed or has a new token.
        """
        name, _, rest = session.partition(".")
        expires = rest.partition(".")[0]
        user = self._by_name.get(name)
        if user is None or not expires.isascii() or not expires.isdecimal() or len(expires) > 12:
            return None
        valid = hmac.compare_digest(session.encode("utf-8", "surrogateescape"), _session(user, int(expires)).encode())
        return user if valid and now < int(expires) else None


def new_session(user: User, now: float) -> str:
    """Return the value of a session cookie. The token cannot be derived from the value.

    The cookie is signed (HMAC) with the digest of the user's token. So a new token ends all sessions of the user, and
    every replica of the dashboard accepts the session.
    """
    return _session(user, int(now + SESSION_HOURS * 3600))


def _session(user: User, expires: int) -> str:
    text = f"{user.name}.{expires}"
    return f"{text}.{hmac.new(user.digest.encode(), f'{user.role}.{text}'.encode(), sha256).hexdigest()}"


def token_digest(token: str) -> str:
    """Return the digest of a token, as the file of users contains it."""
    return sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(_TOKEN_BYTES)
