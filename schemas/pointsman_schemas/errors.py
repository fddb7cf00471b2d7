"""Define the base of all errors of Pointsman, and the errors of the wire contract."""

from __future__ import annotations

__all__ = [
    "BodyLostError",
    "ContractError",
    "InvalidTokenError",
    "NotJsonError",
    "OversizeEventError",
    "PointsmanError",
    "UndecodableEventError",
    "UnknownEventTypeError",
]


class PointsmanError(Exception):
    """The base of all errors of Pointsman.

    Attributes:
        kind: A short stable name for dead letters and metrics.
    """

    kind = "error"


class ContractError(PointsmanError, ValueError):
    """A value from outside does not fit the wire contract."""

    kind = "contract"


class InvalidTokenError(ContractError):
    """A name is not a token of a subject: `[A-Za-z0-9_-]{1,64}`."""

    kind = "invalid_token"


class UndecodableEventError(ContractError):
    """The headers or the body do not match the event type."""

    kind = "undecodable"


class BodyLostError(ContractError):
    """The body of an event, or a file, is missing in the object store or is damaged."""

    kind = "body_lost"


class UnknownEventTypeError(ContractError):
    """This release does not support the event type or its version."""

    kind = "unknown_type"


class OversizeEventError(ContractError):
    """Headers and body together are larger than the limit of an event."""

    kind = "oversize"


class NotJsonError(ContractError):
    """A Python value cannot be converted to strict JSON. The message names the path to the value."""

    kind = "not_json"
