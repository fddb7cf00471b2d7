"""Verify OIDC bearer tokens with the keys of their issuers. The keys are fetched when a token needs them, and kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from pointsman.errors import ConfigurationError
from pointsman.grants.policy import OidcIssuer

if TYPE_CHECKING:
    from jwt import PyJWKClient

__all__ = ["OidcVerifier"]

_KEYS_LIFESPAN_S = 300  # seconds until the keys are fetched again, besides when a token names an unknown key
_FETCH_TIMEOUT_S = 5.0
_MAX_CONFIGURATION_BYTES = 1 << 20
_LEEWAY_S = 30.0  # seconds that clocks may differ


class OidcVerifier:
    """Verifies the tokens of some issuers.

    Args:
        issuers: The issuers.
    """

    def __init__(self, issuers: Sequence[OidcIssuer]) -> None:
        self._issuers = {each.issuer: each for each in issuers}
        self._clients: dict[str, PyJWKClient] = {}

    async def verify(self, token: str) -> tuple[OidcIssuer, Mapping[str, Any]] | None:
        """Verify a token: signature, issuer, audience and times.

        Args:
            token: The token.

        Returns:
            The issuer and the claims; None if the text is not a token of a known issuer.

        Raises:
            ConfigurationError: The token is refused.
        """
        import jwt

        try:
            named = jwt.decode(token, options={"verify_signature": False}).get("iss")
        except jwt.PyJWTError:
            return None
        issuer = self._issuers.get(named) if isinstance(named, str) else None
        if issuer is None:
            return None
        try:
            return issuer, await asyncio.to_thread(self._decode, issuer, token)
        except jwt.PyJWTError as error:
            raise ConfigurationError(f"the token of {issuer.issuer} is refused: {error}") from None
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"the keys of {issuer.issuer} cannot be read: {error}") from None

    def _decode(self, issuer: OidcIssuer, token: str) -> Mapping[str, Any]:
        import jwt

        client = self._clients.get(issuer.issuer)
        if client is None:
            client = jwt.PyJWKClient(
                issuer.jwks or _keys_address(issuer.issuer), lifespan=_KEYS_LIFESPAN_S, timeout=_FETCH_TIMEOUT_S
            )
            self._clients[issuer.issuer] = client
        key = client.get_signing_key_from_jwt(token)
        claims: Mapping[str, Any] = jwt.decode(
            token,
            key,
            algorithms=list(issuer.algorithms),
            audience=issuer.audience,
            issuer=issuer.issuer,
            leeway=_LEEWAY_S,
            options={"require": ["exp", "iss", "aud"]},
        )
        return claims


def _keys_address(issuer: str) -> str:
    """Return the address of the keys in the issuer's configuration.

    Raises:
        ValueError: The configuration has no such address, or the issuer's address is not HTTP.
    """
    address = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    if urlsplit(address).scheme not in ("http", "https"):
        raise ValueError(f"{address} is not an address of HTTP")
    with urlopen(Request(address), timeout=_FETCH_TIMEOUT_S) as answer:
        configuration = json.loads(answer.read(_MAX_CONFIGURATION_BYTES))
    found = configuration.get("jwks_uri")
    if not isinstance(found, str) or urlsplit(found).scheme not in ("http", "https"):
        raise ValueError(f"{address} names no jwks_uri")
    return found
