"""Create, store and find API keys. A key-value bucket has the digest of each key; each gateway caches the bucket."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest
from typing import NamedTuple

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from pointsman.engine.log.bucket_follower import follow_bucket
from pointsman.errors import ConfigurationError, NotFoundError
from pointsman.index.callers import CallerLimits
from pointsman.ports.bus import Bus
from pointsman.ports.key_value import KeyValue, KeyValueEntry
from pointsman.telemetry import get_logger
from pointsman_schemas.ids import TeamName, Token, token
from pointsman_schemas.subjects import Subjects

__all__ = ["KEY_PREFIX", "ApiKey", "KeyCache", "KeyStore", "NewKey"]

_log = get_logger(__name__)

KEY_PREFIX = "pmk_"
_ID_BYTES, _SECRET_BYTES = 6, 32
RESERVED_PREFIX = "oidc-"
"""The prefix of the name of each caller that uses a bearer token. A key must not have a caller with this prefix,
because the key could then act as a caller with a token."""


class ApiKey(BaseModel):
    """A key as the broker stores it. The digest does not reveal the key, because a key has 256 random bits."""

    model_config = ConfigDict(frozen=True)

    id: Token = Field(description="The id, which is a part of the key.")
    caller: Token = Field(description="The caller. Several keys may have the same caller.")
    digest: str = Field(description="SHA-256 of the key, as hexadecimal digits.")
    teams: tuple[TeamName, ...] | None = Field(default=None, description="The teams; None for all teams.")
    operator: bool = Field(default=False, description="True for a key of an operator.")
    limits: CallerLimits = Field(default=CallerLimits(), description="The limits of the caller.")
    created_at: AwareDatetime = Field(description="Time at which the key was made.")
    expires_at: AwareDatetime | None = Field(default=None, description="Time after which the key is refused.")


class NewKey(NamedTuple):
    """A new key and its text, which cannot be read later."""

    text: str
    key: ApiKey


class KeyStore:
    """The keys of a namespace.

    Args:
        bucket: The bucket of the keys.
    """

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket

    @classmethod
    async def open(cls, bus: Bus, subjects: Subjects) -> KeyStore:
        """Open the bucket of a namespace. Create a missing bucket.

        Args:
            bus: The bus.
            subjects: The subjects of the namespace.

        Returns:
            The store.
        """
        return cls(await bus.key_value(subjects.gateway_bucket))

    async def create(
        self,
        caller: str,
        *,
        teams: Collection[str] | None = None,
        operator: bool = False,
        limits: CallerLimits | None = None,
        expires_at: datetime | None = None,
    ) -> NewKey:
        """Make a key.

        Args:
            caller: The caller, a token.
            teams: The teams that the caller may use. Default: all teams.
            operator: True for a key of an operator.
            limits: The limits. Default: the limits of the gateway.
            expires_at: Time after which the key is refused. Default: never.

        Returns:
            The key and its text.

        Raises:
            ConfigurationError: The caller has the prefix of callers with bearer tokens.
            InvalidTokenError: The caller or a team is not a token.
        """
        if token(caller, "caller").startswith(RESERVED_PREFIX):
            raise ConfigurationError(
                f"the caller is {caller!r}, but {RESERVED_PREFIX} is the prefix of callers with bearer tokens; choose "
                f"a different name"
            )
        for team in teams or ():
            token(team, "team")
        id = secrets.token_hex(_ID_BYTES)
        text = f"{KEY_PREFIX}{id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
        key = ApiKey(
            id=id,
            caller=caller,
            digest=_digest(text),
            teams=None if teams is None else tuple(sorted(set(teams))),
            operator=operator,
            limits=limits or CallerLimits(),
            created_at=datetime.now(UTC),
            expires_at=expires_at,
        )
        await self._bucket.put(id, key.model_dump_json().encode(), expect=0)
        return NewKey(text, key)

    async def list(self) -> Sequence[ApiKey]:
        """Read the keys.

        Returns:
            The keys, oldest first.
        """
        found = [_parse(entry) for entry in (await self._bucket.entries()).values()]
        return sorted((key for key in found if key is not None), key=lambda key: key.created_at)

    async def revoke(self, id: str) -> None:
        """Remove a key. Each gateway refuses the key as soon as the gateway has read the change.

        Args:
            id: The id of the key.

        Raises:
            NotFoundError: There is no such key.
        """
        if id not in await self._bucket.entries():
            raise NotFoundError(f"there is no key {id!r}; `pointsman gateway keys list` shows the keys")
        await self._bucket.delete(id)


class KeyCache:
    """The keys in memory, kept current by a watch. While the broker is unavailable, the known keys stay valid.

    Args:
        bucket: The bucket of the keys.
    """

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket
        self._keys: dict[str, ApiKey] = {}

    async def load(self) -> None:
        """Read all keys."""
        for entry in (await self._bucket.entries()).values():
            self._apply(entry)

    async def run(self) -> None:
        """Follow the changes, until cancelled."""
        await follow_bucket(self._bucket, self._apply, content="keys")

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, text: str) -> ApiKey | None:
        """Find a key that is valid now.

        Args:
            text: The text of the key.

        Returns:
            The key; None if the key is unknown, revoked or expired.
        """
        key = self._keys.get(text.removeprefix(KEY_PREFIX).partition("_")[0])
        if key is None or not compare_digest(_digest(text), key.digest):
            return None
        return key if key.expires_at is None or datetime.now(UTC) < key.expires_at else None

    def _apply(self, entry: KeyValueEntry) -> None:
        key = _parse(entry)
        if key is None:
            self._keys.pop(entry.key, None)
        else:
            self._keys[entry.key] = key


def _parse(entry: KeyValueEntry) -> ApiKey | None:
    """Return the key of an entry; None for a deleted or unreadable entry."""
    if entry.value is None:
        return None
    try:
        key = ApiKey.model_validate_json(entry.value)
    except ValidationError:
        _log.warning("gateway_key_unreadable", key=entry.key, hint="revoke the key and make a new key")
        return None
    return key if key.id == entry.key else None


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
