"""Verify tokens of an OpenID Connect issuer with the issuer's keys. The keys are read when a token is verified."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import jwt

from pointsman.errors import ConfigurationError, PeerError, PointsmanError
from pointsman.util.lazy_import import structlog
from pointsman.util.network import is_loopback
from pointsman.util.threads import run_in_thread

__all__ = ["IssuerKeys", "TokenRefusedError", "named_issuer"]

_log = structlog.get_logger(__name__)

_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Algorithms with a public key. HS256 is not accepted, because everyone who has the shared secret could make tokens."""
_KEY_TYPES = ("RSA", "EC", "OKP")
_MAX_AGE_S = 300.0  # seconds between two reads of the issuer's keys
# Shortest time between two reads, in seconds. Otherwise, each token with an unknown key would cause a read.
_MIN_PAUSE_S = 30.0
_RETRY_PAUSE_S = 5.0  # seconds between a failed read and the next read
_STALE_S = 60.0  # seconds for which known keys are used while reads fail, so that a short outage stops no login
_FETCH_TIMEOUT_S = 5.0
_READING_TIMEOUT_S = 15.0  # seconds to read both documents; limited, because all tokens wait during a read
_MAX_DOCUMENT_BYTES = 1_000_000
_LEEWAY_S = 30.0  # seconds by which clocks may differ


class TokenRefusedError(PointsmanError):
    """The token is not valid, or its signing key is not a key of the issuer."""


class IssuerKeys:
    """The public keys of one issuer.

    Args:
        issuer: The issuer, as in the claim `iss`. Its configuration is below this URL.
        jwks: The URL of the keys. Default: from the issuer's configuration.

    Raises:
        ConfigurationError: A URL is not https, and its host is not this machine.
    """

    def __init__(self, issuer: str, jwks: str | None = None) -> None:
        self._issuer = issuer
        self._jwks = jwks
        self._keys: dict[str, Any] = {}
        self._read_at = float("-inf")
        self._failed_at = float("-inf")
        self._failing_since: float | None = None
        self._failure = ""
        self._reading = asyncio.Lock()
        for url in filter(None, (issuer, jwks)):
            if not _is_secure(url):
                raise ConfigurationError(
                    f"{url} is not https, so an attacker could replace the keys; give the issuer and the address of "
                    "its keys as https URLs"
                )

    async def verify(self, token: str, audience: str) -> Mapping[str, Any]:
        """Verify the signature, issuer, audience and times of a token.

        Args:
            token: The token.
            audience: The audience that the token must name.

        Returns:
            The claims of the token.

        Raises:
            TokenRefusedError: The token is not valid.
            PeerError: The issuer's keys cannot be read.
        """
        try:
            key = await self._find(str(jwt.get_unverified_header(token).get("kid", "")))
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(_ALGORITHMS),
                audience=audience,
                issuer=self._issuer,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (jwt.PyJWTError, TypeError) as error:  # a TypeError if key and signature are of different kinds
            raise TokenRefusedError(f"the token of {self._issuer} is refused: {error}") from None
        return claims

    async def _find(self, id: str) -> Any:
        async with self._reading:
            now = time.monotonic()
            age = now - self._read_at
            due = age > _MAX_AGE_S or (id not in self._keys and age > _MIN_PAUSE_S)
            if due and now - self._failed_at > _RETRY_PAUSE_S:
                await self._read()
        if self._failing_since is not None and time.monotonic() - self._failing_since > _STALE_S:
            self._keys = {}
        if not self._keys:
            raise PeerError(f"the keys of {self._issuer} cannot be read: {self._failure}")
        if id not in self._keys:
            raise TokenRefusedError(f"the token of {self._issuer} is refused: its signing key {id[:64]!r} is not known")
        return self._keys[id]

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(_READING_TIMEOUT_S):
                self._keys = await run_in_thread(_read_keys, self._issuer, self._jwks)
        except (OSError, HTTPException, ValueError, jwt.PyJWTError) as error:
            self._failed_at = time.monotonic()
            if self._failing_since is None:
                self._failing_since = self._failed_at
            self._failure = str(error) or type(error).__name__
            _log.warning(
                "oidc_keys_unreadable", issuer=self._issuer, reason=self._failure,
                hint=f"known keys are used for {_STALE_S:g} s; check that this host reaches the issuer",
            )  # fmt: skip
        else:
            self._read_at = time.monotonic()
            self._failing_since = None


def named_issuer(token: str) -> str | None:
    """Read the issuer that a token names, before the token is verified.

    Args:
        token: The token.

    Returns:
        The claim `iss`; None if `token` is not a token, or if the claim is missing or is not a text.
    """
    try:
        named = jwt.decode(token, options={"verify_signature": False}).get("iss")
    except jwt.PyJWTError:
        return None
    return named if isinstance(named, str) else None


class _NoRedirects(HTTPRedirectHandler):
    """Refuses redirects, because a redirect could lead to a host of this network."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None:
        return None


def _is_secure(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


def _read_keys(issuer: str, jwks: str | None) -> dict[str, Any]:
    """Return the keys for signatures by their ids. A key without `alg` fits every algorithm of its type."""
    if jwks is None:
        jwks = _read_document(f"{issuer.rstrip('/')}/.well-known/openid-configuration").get("jwks_uri")
        if not isinstance(jwks, str):
            raise ValueError("the issuer's configuration has no URL in jwks_uri")
    listed = _read_document(jwks).get("keys")
    found: dict[str, Any] = {}
    for each in listed if isinstance(listed, list) else ():
        if not isinstance(each, dict) or each.get("kty") not in _KEY_TYPES or each.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK(each)
        except jwt.PyJWTError:  # this kind of key is not supported; other keys may be
            continue
        found[str(key.key_id or "")] = key if "alg" in each else key.key
    if not found:
        raise ValueError(f"{jwks} has no key for signatures")
    return found


def _read_document(url: str) -> dict[str, Any]:
    if not _is_secure(url):
        raise ValueError(f"{url} is not https")
    request = Request(url, headers={"accept": "application/json"})
    try:
        with build_opener(_NoRedirects).open(request, timeout=_FETCH_TIMEOUT_S) as response:
            text = response.read(_MAX_DOCUMENT_BYTES + 1)
    except HTTPError as error:
        error.close()  # closes the connection of the answer
        raise ValueError(f"{url} answered with status {error.code}") from None
    if len(text) > _MAX_DOCUMENT_BYTES:
        raise ValueError(f"{url} has more than {_MAX_DOCUMENT_BYTES} bytes")
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError(f"{url} is not a JSON object")
    return document
