"""Verify signatures of webhooks: Standard Webhooks, GitHub, Slack and Stripe.

Checking the age of a delivery needs no body, so a stale delivery is refused before the body is read.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from hashlib import sha256

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from pointsman.gateway.hook_config import Hook, HookForm

__all__ = ["MAX_AGE_S", "is_stale", "is_verified", "missing_header"]

MAX_AGE_S = 300
"""Greatest difference between the time of a delivery and the clock, in seconds.

Standard Webhooks, Slack and Stripe recommend this value. GitHub signs no time, so its deliveries are never too old.
"""

_HEADERS: Mapping[HookForm, tuple[str, ...]] = {
    "standard": ("webhook-id", "webhook-timestamp", "webhook-signature"),
    "github": ("x-hub-signature-256", "x-github-delivery"),
    "slack": ("x-slack-signature", "x-slack-request-timestamp"),
    "stripe": ("stripe-signature",),
}


def missing_header(form: HookForm, headers: Mapping[str, str]) -> str | None:
    """Return the name of the first missing header.

    Args:
        form: The form of the signature.
        headers: The headers.

    Returns:
        The name; None if the delivery has all headers of the form.
    """
    return next((name for name in _HEADERS[form] if not headers.get(name)), None)


def is_stale(form: HookForm, headers: Mapping[str, str], now: float) -> bool:
    """Return True if the signed time of a delivery is not a time, or differs too much from the clock.

    Args:
        form: The form of the signature.
        headers: The headers.
        now: The time in seconds since 1970.

    Returns:
        False for a form without a time.
    """
    if form == "github":
        return False
    given = _timestamp(form, headers)
    if not (given.isascii() and given.isdecimal() and len(given) <= 12):
        return True
    return abs(now - int(given)) > MAX_AGE_S


def is_verified(hook: Hook, headers: Mapping[str, str], body: bytes) -> bool:
    """Return True if a signature of a delivery was made with a secret of the webhook.

    Args:
        hook: The webhook.
        headers: The headers.
        body: The body.

    Returns:
        True for a valid signature.
    """
    match hook.form:
        case "standard":
            return any([_is_standard(secret, headers, body) for secret in hook.secrets])
        case "github":
            return _matches(hook, body, [headers["x-hub-signature-256"].removeprefix("sha256=")])
        case "slack":
            signed = b"v0:" + headers["x-slack-request-timestamp"].encode() + b":" + body
            return _matches(hook, signed, [headers["x-slack-signature"].removeprefix("v0=")])
        case "stripe":
            signed = _timestamp("stripe", headers).encode() + b"." + body
            return _matches(hook, signed, _stripe_values(headers, "v1"))


def _is_standard(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    try:
        Webhook(secret).verify(body, dict(headers), json_parse=False)
    except (WebhookVerificationError, ValueError):  # the library raises ValueError for a malformed signature
        return False
    return True


def _matches(hook: Hook, signed: bytes, signatures: Iterable[str]) -> bool:
    given = [each.encode("utf-8", "replace") for each in signatures]
    expected = [hmac.new(secret.encode(), signed, sha256).hexdigest().encode() for secret in hook.secrets]
    return any([hmac.compare_digest(one, other) for one in expected for other in given])


def _timestamp(form: HookForm, headers: Mapping[str, str]) -> str:
    match form:
        case "standard":
            return headers["webhook-timestamp"]
        case "slack":
            return headers["x-slack-request-timestamp"]
    return next(iter(_stripe_values(headers, "t")), "")


def _stripe_values(headers: Mapping[str, str], name: str) -> list[str]:
    parts = [part.strip().partition("=") for part in headers["stripe-signature"].split(",")[:20]]
    return [value for key, _, value in parts if key == name]
