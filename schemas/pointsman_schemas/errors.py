"""The root of every error Pointsman raises, and the errors of the wire contract itself."""

from __future__ import annotations

__all__ = [
    "ContractError",
    "InvalidToken",
    "LostBody",
    "NotJson",
    "OversizeEvent",
    "PointsmanError",
    "UndecodableEvent",
    "UnknownEventType",
]


class PointsmanError(Exception):
    """Everything this project raises on purpose. `kind` is a short stable name for dead letters and metrics."""

    kind = "error"


class ContractError(PointsmanError, ValueError):
    """Something from outside does not fit the wire contract."""

    kind = "contract"


class InvalidToken(ContractError):
    """A name that was to become part of a subject is not `[A-Za-z0-9_-]{1,64}`."""

    kind = "invalid_token"


class UndecodableEvent(ContractError):
    """Headers or body cannot be read as the event they claim to be."""

    kind = "undecodable"


class LostBody(ContractError):
    """The event's body is kept apart, and is not to be had there: it is gone, or is not what was stored."""

    kind = "lost_body"


class UnknownEventType(ContractError):
    """The type or its version is not one this release knows."""

    kind = "unknown_type"


class OversizeEvent(ContractError):
    """Headers and body together are larger than an event may be."""

    kind = "oversize"


class NotJson(ContractError):
    """A Python value cannot be carried as strict JSON. The message names the path to it."""

    kind = "not_json"
