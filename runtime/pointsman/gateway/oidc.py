"""Verify bearer tokens of an OpenID Connect issuer with the issuer's keys, which are cached."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import jwt

from pointsman.errors import ConfigurationError, PeerError
from pointsman.gateway.callers import Caller, CallerLimits
from pointsman.gateway.keys import RESERVED_PREFIX
from pointsman.settings import Settings
from pointsman.telemetry import get_logger
from pointsman.util.network import is_loopback
from pointsman.util.threads import run_in_thread
from pointsman_schemas.ids import as_token, derive_id, is_token

__all__ = ["TokenVerifier"]

_log = get_logger(__name__)

_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures with a public key. A shared secret (HS256) would let each holder of the secret make tokens."""
_MAX_AGE_S = 300.0  # seconds after which the issuer's keys are read again
_MIN_PAUSE_S = 30.0  # seconds between two readings: a token with an unknown key must not cause a reading each
_FETCH_TIMEOUT_S = 5.0
_MAX_DOCUMENT_BYTES = 1_000_000
_LEEWAY_S = 30.0  # seconds by which clocks may differ
_MAX_READABLE = 40  # characters of a claim in the caller's name


class TokenVerifier:
    """Verifies the tokens of the issuer in `settings`.

    Args:
        settings: The settings, with an issuer.

    Raises:
        ConfigurationError: The issuer or the URL of the keys is not https, and not on this machine.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._issuer = settings.gateway_oidc_issuer or ""
        self._keys: dict[str, Any] = {}
        self._read_at = -_MAX_AGE_S
        self._reading = asyncio.Lock()
        for url in filter(None, (self._issuer, settings.gateway_oidc_jwks)):
            parts = urlsplit(url)
            if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
                raise ConfigurationError(
                    f"{url} is not https, so its keys could be replaced on the way; give "
                    "POINTSMAN_GATEWAY_OIDC_ISSUER and POINTSMAN_GATEWAY_OIDC_JWKS as https URLs"
                )

    async def verify(self, token: str) -> Caller | None:
        """Verify a token.

        Args:
            token: The token.

        Returns:
            The caller; None if the token is not valid.

        Raises:
            PeerError: The issuer's keys cannot be read.
        """
        try:
            key = await self._key_for(jwt.get_unverified_header(token))
            if key is None:
                return None
            claims = jwt.decode(
                token,
                key,
                algorithms=list(_ALGORITHMS),
                audience=self._settings.gateway_oidc_audience,
                issuer=self._issuer,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.PyJWTError as error:
            _log.debug("gateway_token_refused", reason=str(error))
            return None
        return self._caller(claims)

    def _caller(self, claims: Mapping[str, Any]) -> Caller | None:
        named = claims.get(self._settings.gateway_oidc_caller)
        if not isinstance(named, str) or not named:
            return None
        teams = claims.get(self._settings.gateway_oidc_teams, ())
        listed = frozenset(teams.split() if isinstance(teams, str) else teams if isinstance(teams, list) else ())
        return Caller(
            name=_caller_name(named),
            teams=None if "*" in listed else frozenset(filter(is_token, listed)),
            operator=claims.get(self._settings.gateway_oidc_operator) is True,
            limits=CallerLimits().over(self._settings),
        )

    async def _key_for(self, header: Mapping[str, Any]) -> Any:
        id = str(header.get("kid", ""))
        async with self._reading:
            age = time.monotonic() - self._read_at
            if age > _MAX_AGE_S or (id not in self._keys and age > _MIN_PAUSE_S):
                try:
                    self._keys = await run_in_thread(_read_keys, self._issuer, self._settings.gateway_oidc_jwks)
                    self._read_at = time.monotonic()
                except (OSError, URLError, HTTPException, ValueError, KeyError, jwt.PyJWTError) as error:
                    if not self._keys:
                        raise PeerError(f"the keys of {self._issuer} cannot be read: {error}") from None
                    # Known keys stay valid for another minute; the issuer may be back by then.
                    self._read_at = time.monotonic() - _MAX_AGE_S + 60.0
                    _log.warning("gateway_oidc_keys_stale", issuer=self._issuer, reason=str(error))
        return self._keys.get(id)


class _NoRedirects(HTTPRedirectHandler):
    """An issuer answers at the URL that was configured. A redirect could lead to a host of this network."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None:
        return None


def _read_keys(issuer: str, url: str | None) -> dict[str, Any]:
    address = url or str(_read_document(f"{issuer.rstrip('/')}/.well-known/openid-configuration")["jwks_uri"])
    keys = jwt.PyJWKSet.from_dict(_read_document(address)).keys
    return {str(key.key_id or ""): key for key in keys}


def _read_document(url: str) -> dict[str, Any]:
    if urlsplit(url).scheme not in ("https", "http"):
        raise ValueError(f"{url} is not an HTTP URL")
    request = Request(url, headers={"accept": "application/json"})
    with build_opener(_NoRedirects).open(request, timeout=_FETCH_TIMEOUT_S) as response:
        text = response.read(_MAX_DOCUMENT_BYTES + 1)
    if len(text) > _MAX_DOCUMENT_BYTES:
        raise ValueError(f"{url} has more than {_MAX_DOCUMENT_BYTES} bytes")
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError(f"{url} is not a JSON object")
    return document


def _caller_name(claim: str) -> str:
    """Return a token for a claim. The digest keeps two claims from sharing a name."""
    return f"{RESERVED_PREFIX}{as_token(claim)[:_MAX_READABLE]}-{derive_id('claim', claim, length=12)}"
