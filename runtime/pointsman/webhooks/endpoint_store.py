"""Store endpoints of webhooks in a key-value bucket, and secrets in a second bucket that only the service reads."""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from pydantic import ValidationError

from pointsman.errors import ConfigurationError, ConflictError, NotFoundError
from pointsman.ports.bus import Bus
from pointsman.ports.key_value import KeyValue, KeyValueEntry
from pointsman.telemetry import get_logger
from pointsman.webhooks.endpoints import (
    CALLER_EVENT_TYPES,
    EVENT_TYPES,
    Endpoint,
    EventType,
    SecretRef,
    checked_url,
)
from pointsman_schemas.ids import token
from pointsman_schemas.subjects import Subjects

__all__ = ["CallerBounds", "EndpointLimitError", "EndpointStore", "NewEndpoint", "SecretStore"]

_log = get_logger(__name__)

MAX_ENDPOINTS = 100
"""Largest number of endpoints of operators in a namespace. Each event is stored once for each of these endpoints."""
_MAX_SECRETS = 3  # largest number of secrets with which one delivery is signed
_SECRET_BYTES = 32
_MAX_TRIES = 5  # number of tries to make a change while other processes change the same entry
_Change: TypeAlias = Callable[[Endpoint], Endpoint]


class EndpointLimitError(ConfigurationError):
    """The largest number of endpoints is reached."""

    kind = "too_many_webhooks"


class CallerBounds(NamedTuple):
    """The largest numbers of endpoints that callers may have.

    Attributes:
        of_one: Largest number of endpoints of one caller.
        of_all: Largest number of endpoints of all callers together.
    """

    of_one: int
    of_all: int


class NewEndpoint(NamedTuple):
    """An endpoint that is new or has a new secret, and this secret. The secret cannot be read again later."""

    secret: str
    endpoint: Endpoint


class SecretStore:
    """The secrets of a namespace, for the process that signs deliveries.

    Args:
        bucket: The bucket of the secrets.
    """

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket
        self._known: dict[str, str] = {}

    async def of(self, endpoint: Endpoint, now: datetime) -> Sequence[str]:
        """Return the secrets with which the deliveries of an endpoint are signed now, the newest first.

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
        secrets: The bucket of the secrets. This class only writes to the bucket.
    """

    def __init__(self, bus: Bus, endpoints: KeyValue, secrets: KeyValue) -> None:
        self._bus = bus
        self._endpoints = endpoints
        self._secrets = secrets

    @classmethod
    async def open(cls, bus: Bus, subjects: Subjects) -> EndpointStore:
        """Open the buckets of a namespace. Create missing buckets.

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
        caller: str | None = None,
        bounds: CallerBounds | None = None,
    ) -> NewEndpoint:
        """Make an endpoint with a secret.

        Args:
            url: The URL.
            events: The types of the events. Default: all types.
            teams: The teams whose events are sent. Default: all teams.
            plain_http: Accept a URL with `http`. Default: False.
            caller: The caller whose events are sent. Default: the endpoint belongs to operators.
            bounds: The largest numbers of endpoints that callers may have. Default: no limit.

        Returns:
            The endpoint and its secret.

        Raises:
            ConfigurationError: The URL is not valid, or the endpoint may not receive events of one of the types.
            EndpointLimitError: The largest number of endpoints is reached.
            InvalidTokenError: A team or the caller is not a token.
        """
        allowed = EVENT_TYPES if caller is None else CALLER_EVENT_TYPES
        if unfit := [each for each in events if each not in allowed]:
            raise ConfigurationError(
                f"the endpoint cannot receive events of the type {unfit[0]!r}; choose from: {', '.join(allowed)}"
            )
        address = checked_url(url, plain_http=plain_http)
        for team in teams or ():
            token(team, "team")
        if caller is not None:
            token(caller, "caller")
        now = await self._bus.time()
        _check_bounds(await self._entries(), caller, bounds)
        id = f"wh_{secrets.token_hex(6)}"
        text, ref = await self._new_secret(id, now)
        endpoint = Endpoint(
            id=id,
            url=address,
            caller=caller,
            events=tuple(each for each in allowed if each in events) or allowed,
            teams=None if teams is None else tuple(sorted(set(teams))),
            secrets=(ref,),
            created_at=now,
        )
        revision = await self._endpoints.put(id, endpoint.model_dump_json().encode(), expect=0)
        # Another process might have made an endpoint since the first check. So check again, with the endpoints that
        # have a smaller revision or an earlier `created_at` than this endpoint. If two processes make an endpoint at
        # the same time, at least one of them counts the endpoint of the other, and deletes its own endpoint if the
        # limit is exceeded.
        earlier = [each for each in await self._entries() if each[1] < revision or each[0].created_at < now]
        try:
            _check_bounds([each for each in earlier if each[0].id != id], caller, bounds)
        except EndpointLimitError:
            await self.delete(id)
            raise
        return NewEndpoint(text, endpoint)

    async def _entries(self) -> Sequence[tuple[Endpoint, int]]:
        """Return the endpoints with their revisions."""
        found = [(_parse(entry), entry.revision) for entry in (await self._endpoints.entries()).values()]
        return [(endpoint, revision) for endpoint, revision in found if endpoint is not None]

    async def list(self) -> Sequence[Endpoint]:
        """Read the endpoints.

        Returns:
            The endpoints, oldest first.
        """
        return sorted((endpoint for endpoint, _ in await self._entries()), key=lambda each: each.created_at)

    async def get(self, id: str, *, caller: str | None = None) -> Endpoint:
        """Read an endpoint.

        Args:
            id: The id.
            caller: The caller to whom the endpoint must belong. Default: any caller.

        Returns:
            The endpoint.

        Raises:
            NotFoundError: There is no such endpoint, or the endpoint belongs to a different caller.
        """
        endpoint, _ = await self._read(id)
        if caller is not None and endpoint.caller != caller:
            raise NotFoundError(_missing(id))
        return endpoint

    async def rotate(self, id: str, *, overlap: timedelta) -> NewEndpoint:
        """Make a new secret. Until the end of the overlap, deliveries are also signed with the earlier secrets.

        Args:
            id: The endpoint.
            overlap: Time for which deliveries are also signed with earlier secrets, which are at most two.

        Returns:
            The endpoint and the new secret.

        Raises:
            NotFoundError: There is no such endpoint.
            ConflictError: Other processes changed the endpoint during each of five tries.
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
        """Send nothing to an endpoint until `enable` is called. The endpoint never gets the events of this time.

        Args:
            id: The endpoint.
            reason: The reason.
            at: The time. Default: the time of the broker.

        Returns:
            The endpoint.

        Raises:
            NotFoundError: There is no such endpoint.
            ConflictError: Other processes changed the endpoint during each of five tries.
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
            ConflictError: Other processes changed the endpoint during each of five tries.
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
            raise NotFoundError(_missing(id))
        return endpoint, entry.revision

    async def _change(self, id: str, change: _Change) -> tuple[Endpoint, Endpoint]:
        """Apply a change to the newest version of an endpoint. Return the version before and the version after."""
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


def _check_bounds(entries: Sequence[tuple[Endpoint, int]], caller: str | None, bounds: CallerBounds | None) -> None:
    """Refuse a further endpoint if the limit for it is reached.

    Raises:
        EndpointLimitError: The limit is reached.
    """
    if caller is None:
        own = sum(endpoint.caller is None for endpoint, _ in entries)
        if own >= MAX_ENDPOINTS:
            raise EndpointLimitError(f"operators have {own} of {MAX_ENDPOINTS} endpoints; delete an endpoint first")
        return
    if bounds is None:
        return
    own = sum(endpoint.caller == caller for endpoint, _ in entries)
    if own >= bounds.of_one:
        raise EndpointLimitError(f"{caller} has {own} of {bounds.of_one} endpoints; delete an endpoint first")
    of_all = sum(endpoint.caller is not None for endpoint, _ in entries)
    if of_all >= bounds.of_all:
        raise EndpointLimitError(f"all callers together have {of_all} of {bounds.of_all} endpoints; ask an operator")


def _missing(id: str) -> str:
    return f"there is no endpoint {id[:64]!r}; list the endpoints to see their ids"


def _parse(entry: KeyValueEntry) -> Endpoint | None:
    """Return the endpoint of an entry; None for a deleted or unreadable entry."""
    if entry.value is None:
        return None
    try:
        endpoint = Endpoint.model_validate_json(entry.value)
    except ValidationError:
        _log.warning("webhook_unreadable", endpoint=entry.key, hint="delete the endpoint and make a new endpoint")
        return None
    return endpoint if endpoint.id == entry.key else None
