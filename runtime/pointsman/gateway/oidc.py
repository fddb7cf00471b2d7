"""Turn bearer tokens of an OpenID Connect issuer into callers of the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pointsman.gateway.callers import Caller
from pointsman.gateway.keys import RESERVED_PREFIX
from pointsman.index.callers import CallerLimits
from pointsman.settings import Settings
from pointsman.telemetry import get_logger
from pointsman.util.oidc import IssuerKeys, TokenRefusedError
from pointsman_schemas.ids import as_token, derive_id, is_token

__all__ = ["TokenVerifier"]

_log = get_logger(__name__)

_MAX_READABLE = 40  # number of characters of the claim that the caller's name repeats


class TokenVerifier:
    """Verifies the tokens of the issuer in `settings`.

    Args:
        settings: The settings, with an issuer.

    Raises:
        ConfigurationError: The URL of the issuer or of the keys is neither https nor on this machine.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._keys = IssuerKeys(settings.gateway_oidc_issuer or "", settings.gateway_oidc_jwks)

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
            claims = await self._keys.verify(token, self._settings.gateway_oidc_audience)
        except TokenRefusedError as error:
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


def _caller_name(claim: str) -> str:
    """Return the name of a caller for a claim.

    The name contains a digest of the claim, so different claims do not get the same name.
    """
    return f"{RESERVED_PREFIX}{as_token(claim)[:_MAX_READABLE]}-{derive_id('claim', claim, length=12)}"
