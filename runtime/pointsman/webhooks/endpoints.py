"""Endpoints of webhooks: in a key-value bucket, and their secrets in another that only the service reads."""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from pydantic import AnyHttpUrl, AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pointsman.errors import ConfigurationError, ConflictError, NotFoundError
from pointsman.ports.bus import Bus
from pointsman.ports.key_value import KeyValue, KeyValueEntry
from pointsman.telemetry import get_logger
from pointsman_schemas.ids import TeamName, Token, token
from pointsman_schemas.subjects import Subjects

__all__ = ["EVENT_TYPES", "Endpoint", "EndpointStore", "EventType", "NewEndpoint", "SecretRef", "SecretStore"]

_log = get_logger(__name__)

EventType: TypeAlias = Literal["workflow.ended", "question.asked", "dead_letter.stored"]
"""The type of an event that webhooks carry."""
EVENT_TYPES: tuple[EventType, ...] = ("workflow.ended", "question.asked", "dead_letter.stored")

MAX_ENDPOINTS = 100
"""Endpoints of a namespace. Each event is stored once for each endpoint that wants it."""
_MAX_URL_CHARS = 2_000
_MAX_SECRETS = 3  # secrets of an endpoint that sign at a time, the newest included
_SECRET_BYTES = 32
_MAX_TRIES = 5  # tries of a change that meets the change of another process
_Url = TypeAdapter(AnyHttpUrl)
_Change: TypeAlias = Callable[["Endpoint"], "Endpoint"]


class SecretRef(BaseModel):
    """A secret of an endpoint, without its text."""

    model_config = ConfigDict(frozen=True)

    id: Token = Field(description="The id of the secret.")
    created_at: AwareDatetime = Field(description="Time at which the secret was made.")
    expires_at: AwareDatetime | None = Field(
        default=None, description="Time after which the secret signs no more; None for the newest secret."
    )


class Endpoint(BaseModel):
    """An endpoint as the broker stores it."""

    model_config = ConfigDict(frozen=True)

    id: Token = Field(description="The id.")
    url: str = Field(description="The URL that receives the deliveries.")
    events: tuple[EventType, ...] = Field(default=EVENT_TYPES, description="The types of the events.")
    teams: tuple[TeamName, ...] | None = Field(default=None, description="The teams; None for all teams.")
    secrets: tuple[SecretRef, ...] = Field(default=(), description="The secrets that sign, the newest first.")
    created_at: AwareDatetime = Field(description="Time at which the endpoint was made. Earlier events are not sent.")
    disabled_at: AwareDatetime | None = Field(default=None, description="Time since which nothing is sent.")
    disabled_reason: str = Field(default="", description="The reason for which nothing is sent.")

    def wants(self, type: EventType, teams: Collection[str], at: datetime) -> bool:
        """Return True if the endpoint wants an event.

        Args:
            type: The type of the event.
            teams: The teams that the event concerns.
            at: The time of the event.
        """
        return (
            self.disabled_at is None
            and type in self.events
            and at >= self.created_at
            and (self.teams is None or not set(self.teams).isdisjoint(teams))
        )


class NewEndpoint(NamedTuple):
    """An endpoint that was just made or has a new secret. The secret cannot be read again."""

    secret: str
    endpoint: Endpoint


class SecretStore:
    """The secrets of a namespace, for the process that signs.

    Args:
        bucket: The bucket of the secrets.
    """

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket
        self._known: dict[str, str] = {}

    async def of(self, endpoint: Endpoint, now: datetime) -> Sequence[str]:
        """Return the secrets of an endpoint that sign now, the newest first.

        Args:
            endpoint: The endpoint.
            now: The time.

        Returns:
            The secrets.
        """
        wanted = [ref.id for ref in endpoint.secrets if ref.expires_at is None or now < ref.expires_at]
        if not self._known.keys() >= set(wanted):
            found = await self._bucket.entries()
            self._known = {key: entry.value.decode() for key, entry in found.items() if entry.value is not None}
        return [self._known[id] for id in wanted if id in self._known]


class EndpointStore:
    """The endpoints of a namespace.

    Args:
        bus: The bus, whose clock stamps the endpoints.
        endpoints: The bucket of the endpoints.
        secrets: The bucket of the secrets, which this class only writes.
    """

    def __init__(self, bus: Bus, endpoints: KeyValue, secrets: KeyValue) -> None:
        self._bus = bus
        self._endpoints = endpoints
        self._secrets = secrets

    @classmethod
    async def open(cls, bus: Bus, subjects: Subjects) -> EndpointStore:
        """Open the buckets of a namespace, and create missing ones.

        Args:
            bus: The bus.
            subjects: The subjects of the namespace.

        Returns:
            The store.
        """
        return cls(
            bus, await bus.key_value(subjects.webhooks_bucket), await bus.key_value(subjects.webhook_secrets_bucket)
        )

    async def create(
        self,
        url: str,
        *,
        events: Collection[EventType] = EVENT_TYPES,
        teams: Collection[str] | None = None,
        plain_http: bool = False,
    ) -> NewEndpoint:
        """Make an endpoint with a secret.

        Args:
            url: The URL.
            events: The types of the events. Default: all types.
            teams: The teams whose events are sent. Default: all teams.
            plain_http: Accept a URL with `http`. Default: False.

        Returns:
            The endpoint and its secret.

        Raises:
            ConfigurationError: The URL does not fit, or there are too many endpoints.
            InvalidTokenError: A team is not a token.
        """
        address = _checked_url(url, plain_http=plain_http)
        for team in teams or ():
            token(team, "team")
        if len(await self._endpoints.entries()) >= MAX_ENDPOINTS:
            raise ConfigurationError(f"there are {MAX_ENDPOINTS} endpoints already; delete one first")
        now = await self._bus.time()
        id = f"wh_{secrets.token_hex(6)}"
        text, ref = await self._new_secret(id, now)
        endpoint = Endpoint(
            id=id,
            url=address,
            events=tuple(each for each in EVENT_TYPES if each in events) or EVENT_TYPES,
            teams=None if teams is None else tuple(sorted(set(teams))),
            secrets=(ref,),
            created_at=now,
        )
        await self._endpoints.put(id, endpoint.model_dump_json().encode(), expect=0)
        return NewEndpoint(text, endpoint)

    async def list(self) -> Sequence[Endpoint]:
        """Read the endpoints.

        Returns:
            The endpoints, oldest first.
        """
        found = [_parse(entry) for entry in (await self._endpoints.entries()).values()]
        return sorted((each for each in found if each is not None), key=lambda each: each.created_at)

    async def get(self, id: str) -> Endpoint:
        """Read an endpoint.

        Args:
            id: The id.

        Returns:
            The endpoint.

        Raises:
            NotFoundError: There is no such endpoint.
        """
        return (await self._read(id))[0]

    async def rotate(self, id: str, *, overlap: timedelta) -> NewEndpoint:
        """Make a new secret. The secrets before it also sign until the overlap has passed.

        Args:
            id: The endpoint.
            overlap: Time during which the present secret also signs.

        Returns:
            The endpoint and its new secret.

        Raises:
            NotFoundError: There is no such endpoint.
            ConflictError: Other processes change the endpoint at this time.
        """
        now = await self._bus.time()
        until = now + overlap
        text, ref = await self._new_secret(id, now)

        def change(endpoint: Endpoint) -> Endpoint:
            older = [
                each.model_copy(update={"expires_at": min(each.expires_at or until, until)})
                for each in endpoint.secrets
                if until > now and (each.expires_at is None or each.expires_at > now)
            ]
            return endpoint.model_copy(update={"secrets": (ref, *older[: _MAX_SECRETS - 1])})

        before, after = await self._change(id, change)
        kept = {each.id for each in after.secrets}
        for each in before.secrets:
            if each.id not in kept:
                await self._secrets.delete(each.id)
        return NewEndpoint(text, after)

    async def disable(self, id: str, reason: str, *, at: datetime | None = None) -> Endpoint:
        """Send nothing more to an endpoint. Events are not kept for it.

        Args:
            id: The endpoint.
            reason: The reason.
            at: The time. Default: that of the broker.

        Returns:
            The endpoint.

        Raises:
            NotFoundError: There is no such endpoint.
            ConflictError: Other processes change the endpoint at this time.
        """
        update = {"disabled_at": at or await self._bus.time(), "disabled_reason": reason}
        return (await self._change(id, lambda found: found if found.disabled_at else found.model_copy(update=update)))[
            1
        ]

    async def enable(self, id: str) -> Endpoint:
        """Send events to an endpoint again.

        Args:
            id: The endpoint.

        Returns:
            The endpoint.

        Raises:
            NotFoundError: There is no such endpoint.
            ConflictError: Other processes change the endpoint at this time.
        """
        update = {"disabled_at": None, "disabled_reason": ""}
        return (await self._change(id, lambda found: found.model_copy(update=update)))[1]

    async def delete(self, id: str) -> None:
        """Delete an endpoint and its secrets.

        Args:
            id: The endpoint.

        Raises:
            NotFoundError: There is no such endpoint.
        """
        endpoint, _ = await self._read(id)
        await self._endpoints.delete(id)
        for each in endpoint.secrets:
            await self._secrets.delete(each.id)

    async def _new_secret(self, endpoint: str, now: datetime) -> tuple[str, SecretRef]:
        id = f"{token(endpoint, 'endpoint')}-{secrets.token_hex(6)}"
        text = f"whsec_{b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()}"
        await self._secrets.put(id, text.encode(), expect=0)
        return text, SecretRef(id=id, created_at=now)

    async def _read(self, id: str) -> tuple[Endpoint, int]:
        entry = (await self._endpoints.entries()).get(id)
        endpoint = _parse(entry) if entry is not None else None
        if entry is None or endpoint is None:
            raise NotFoundError(f"there is no endpoint {id[:64]!r}; `pointsman webhooks list` shows the endpoints")
        return endpoint, entry.revision

    async def _change(self, id: str, change: _Change) -> tuple[Endpoint, Endpoint]:
        """Apply a change, and apply it again to what another process stored meanwhile. Return both versions."""
        tries = 0
        while True:
            tries += 1
            before, revision = await self._read(id)
            after = change(before)
            if after == before:
                return before, after
            try:
                await self._endpoints.put(id, after.model_dump_json().encode(), expect=revision)
            except ConflictError:
                if tries == _MAX_TRIES:
                    raise
            else:
                return before, after


def _checked_url(url: str, *, plain_http: bool) -> str:
    """Return a URL in ASCII.

    Raises:
        ConfigurationError: The URL does not fit.
    """
    try:
        address = str(_Url.validate_python(url.strip()))
        parts = urlsplit(address)
        (parts.hostname or "").encode("idna")  # a label has at most 63 characters
        port = parts.port
    except (ValidationError, ValueError):
        raise ConfigurationError(f"{url[:200]!r} is no URL; expected https://HOST/PATH") from None
    if parts.username or parts.password or parts.fragment or port == 0 or not address.isascii():
        raise ConfigurationError("the URL has a login, a fragment or port 0; expected https://HOST/PATH")
    if len(address) > _MAX_URL_CHARS:
        raise ConfigurationError(f"the URL has {len(address)} characters; at most {_MAX_URL_CHARS} are accepted")
    if parts.scheme != "https" and not plain_http:
        raise ConfigurationError(
            "the URL begins with http://, so others could read the deliveries; use https://, or set "
            "POINTSMAN_WEBHOOK_PRIVATE_NETWORKS=true for receivers in your own network"
        )
    return address


def _parse(entry: KeyValueEntry) -> Endpoint | None:
    """Return the endpoint of an entry; None for a deleted or unreadable one."""
    if entry.value is None:
        return None
    try:
        endpoint = Endpoint.model_validate_json(entry.value)
    except ValidationError:
        _log.warning("webhook_unreadable", endpoint=entry.key, hint="delete the endpoint and make another")
        return None
    return endpoint if endpoint.id == entry.key else None
