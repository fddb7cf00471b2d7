"""Model the endpoints of webhooks, select the events of an endpoint, and check the URL of an endpoint."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

from pydantic import AnyHttpUrl, AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pointsman.errors import ConfigurationError
from pointsman_schemas.ids import TeamName, Token

__all__ = ["CALLER_EVENT_TYPES", "EVENT_TYPES", "Endpoint", "EventType", "SecretRef", "checked_url"]

EventType: TypeAlias = Literal["workflow.ended", "question.asked", "dead_letter.stored"]
"""The type of an event that is sent to webhooks."""
EVENT_TYPES: tuple[EventType, ...] = ("workflow.ended", "question.asked", "dead_letter.stored")
CALLER_EVENT_TYPES: tuple[EventType, ...] = ("workflow.ended", "question.asked")
"""The types of the events that the endpoint of a caller may receive.

Dead letters are excluded, because a dead letter may contain a message of any caller.
"""

_MAX_URL_CHARS = 2_000
_Url = TypeAdapter(AnyHttpUrl)


class _Event(Protocol):
    """The parts of an event that decide to which endpoints the event is sent."""

    @property
    def type(self) -> EventType: ...
    @property
    def teams(self) -> Collection[str]: ...
    @property
    def caller(self) -> str | None: ...
    @property
    def at(self) -> datetime: ...


class SecretRef(BaseModel):
    """A secret of an endpoint, without its text."""

    model_config = ConfigDict(frozen=True)

    id: Token = Field(description="The id of the secret.")
    created_at: AwareDatetime = Field(description="Time at which the secret was made.")
    expires_at: AwareDatetime | None = Field(
        default=None, description="Time after which nothing is signed with the secret; None for the newest secret."
    )


class Endpoint(BaseModel):
    """An endpoint as the broker stores it."""

    model_config = ConfigDict(frozen=True)

    id: Token = Field(description="The id.")
    url: str = Field(description="The URL that receives the deliveries.")
    caller: Token | None = Field(
        default=None, description="The caller whose workflows the events are about; None for an endpoint of operators."
    )
    events: tuple[EventType, ...] = Field(default=EVENT_TYPES, description="The types of the events.")
    teams: tuple[TeamName, ...] | None = Field(default=None, description="The teams; None for all teams.")
    secrets: tuple[SecretRef, ...] = Field(
        default=(), description="The secrets with which deliveries are signed, the newest first."
    )
    created_at: AwareDatetime = Field(description="Time at which the endpoint was made. Earlier events are not sent.")
    disabled_at: AwareDatetime | None = Field(
        default=None, description="Time at which the endpoint was disabled; None if events are sent to it."
    )
    disabled_reason: str = Field(
        default="", description="The reason why the endpoint was disabled; empty if it is enabled."
    )

    def wants(self, event: _Event) -> bool:
        """Return True if an event must be sent to the endpoint.

        Args:
            event: The event.
        """
        return (
            self.disabled_at is None
            and event.type in self.events
            and event.at >= self.created_at
            and (self.teams is None or not set(self.teams).isdisjoint(event.teams))
            and (self.caller is None or (self.caller == event.caller and event.type in CALLER_EVENT_TYPES))
        )


def checked_url(url: str, *, plain_http: bool) -> str:
    """Return the URL of an endpoint in ASCII.

    Args:
        url: The URL.
        plain_http: Accept a URL with `http`.

    Returns:
        The URL.

    Raises:
        ConfigurationError: The URL is not valid.
    """
    try:
        address = str(_Url.validate_python(url.strip()))
        parts = urlsplit(address)
        (parts.hostname or "").encode("idna")  # refuses a label of more than 63 characters
        port = parts.port
    except (ValidationError, ValueError):
        raise ConfigurationError(f"{url[:200]!r} is not a URL; expected https://HOST/PATH") from None
    if parts.username or parts.password or parts.fragment or port == 0 or not address.isascii():
        raise ConfigurationError("the URL has a login, a fragment or port 0; expected https://HOST/PATH")
    if len(address) > _MAX_URL_CHARS:
        raise ConfigurationError(f"the URL has {len(address)} characters; use at most {_MAX_URL_CHARS}")
    if parts.scheme != "https" and not plain_http:
        raise ConfigurationError(
            "the URL begins with http://, so others could read the deliveries; use https://, or set "
            "POINTSMAN_WEBHOOK_PRIVATE_NETWORKS=true for receivers in your own network"
        )
    return address
