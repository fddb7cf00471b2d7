"""Read the policy of an auth callout, and find the grant of an API key or of an OIDC token.

The policy is a TOML file. The file has the SHA-256 hash of each API key. A slow hash is not needed, because a key has
256 random bits. The rules for OIDC tokens are tried in order; the first matching rule decides about the grant.
"""

from __future__ import annotations

import secrets
import tomllib
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pointsman.errors import ConfigurationError
from pointsman.grants.permissions import Grant, GrantRole
from pointsman_schemas.ids import Token, is_token
from pointsman_schemas.strict_json import describe

__all__ = ["ApiKey", "OidcIssuer", "OidcRule", "Policy", "new_api_key"]

_KEY_PREFIX = "pmk_"  # scanners for leaked secrets recognise keys by this prefix


class _Rights(BaseModel):
    """The grant of a key or of a rule."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: GrantRole = Field(description="The role.")
    teams: tuple[str, ...] = Field(default=(), description="The teams.")
    agents: tuple[str, ...] = Field(default=(), description="The agents.")
    actions: tuple[str, ...] = Field(default=(), description="The actions.")
    namespace: Token = Field(default="pointsman", description="The namespace.")

    def grant(self, name: str) -> Grant:
        """Return the grant of a user with these rights.

        Args:
            name: The user.

        Returns:
            The grant.
        """
        return Grant(self.role, name, self.teams, self.agents, self.actions)


class ApiKey(_Rights):
    """An API key and its grant."""

    name: Token = Field(description="The user.")
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] = Field(description="The SHA-256 hash of the key.")


class OidcRule(_Rights):
    """A rule for the tokens of an issuer."""

    claim: str = Field(description="The claim that the rule reads, such as `groups`.")
    value: str = Field(description="The value of the claim, or an element of the claim if the claim is a list.")
    name: str = Field(default="sub", description="The claim with the name of the user.")

    def fits(self, claims: Mapping[str, Any]) -> bool:
        """Return True if the claims of a token have the value that the rule demands.

        Args:
            claims: The claims.

        Returns:
            True if the rule applies.
        """
        found = claims.get(self.claim)
        return self.value in found if isinstance(found, list) else found == self.value


class OidcIssuer(BaseModel):
    """An issuer of OIDC tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: str = Field(description="The issuer: the value of `iss`, and the address of the issuer's configuration.")
    audience: str = Field(description="The audience that a token must name.")
    jwks: str | None = Field(
        default=None, description="The address of the keys. Default: the address in the issuer's configuration."
    )
    rules: tuple[OidcRule, ...] = Field(description="The rules. The first matching rule applies.")


class Policy(BaseModel):
    """The keys and rules of an auth callout."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[ApiKey, ...] = Field(default=(), description="The API keys.")
    issuers: tuple[OidcIssuer, ...] = Field(default=(), description="The issuers of OIDC tokens.")

    @classmethod
    def load(cls, path: Path) -> Policy:
        """Read a policy file.

        Args:
            path: The file.

        Returns:
            The policy.

        Raises:
            ConfigurationError: The file cannot be read, or a part of the file is not valid.
        """
        try:
            policy = cls.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{path} is not TOML: {error}") from None
        except ValidationError as error:
            raise ConfigurationError(f"{path} is not valid: {describe(error)}") from None
        known: dict[str, tuple[Grant, str]] = {}
        for key in policy.keys:
            rights = key.grant(key.name), key.namespace  # an unusable grant is an error here, when the callout starts
            if known.setdefault(key.name, rights) != rights:
                raise ConfigurationError(
                    f"{path} has two API keys named {key.name!r} with different rights, and each key would receive "
                    f"the answers to the other key; rename one key"
                )
        for issuer in policy.issuers:
            for rule in issuer.rules:
                rule.grant("user")
        return policy

    def key(self, given: str) -> tuple[Grant, str] | None:
        """Find the grant of an API key.

        Args:
            given: The key.

        Returns:
            The grant and its namespace; None for an unknown key.
        """
        digest = sha256(given.encode()).hexdigest()
        for key in self.keys:
            if secrets.compare_digest(key.sha256, digest):
                return key.grant(key.name), key.namespace
        return None

    def oidc(self, issuer: OidcIssuer, claims: Mapping[str, Any]) -> tuple[Grant, str]:
        """Find the grant of a verified OIDC token.

        Args:
            issuer: The issuer of the token.
            claims: The claims of the token.

        Returns:
            The grant and its namespace.

        Raises:
            ConfigurationError: No rule matches, or the name in the OIDC token is not a token of a subject.
        """
        rule = next((each for each in issuer.rules if each.fits(claims)), None)
        if rule is None:
            raise ConfigurationError(f"no rule of the policy matches the token of {issuer.issuer}")
        name = str(claims.get(rule.name, ""))
        # Do not convert the name, because the converted name could be the name of another user.
        if not is_token(name):
            raise ConfigurationError(
                f"the claim {rule.name} is {name[:64]!r}; expected 1 to 64 of A-Z a-z 0-9 _ -; name a different claim"
            )
        return rule.grant(name), rule.namespace


def new_api_key() -> tuple[str, str]:
    """Make an API key.

    Returns:
        The key, and the hash of the key for the policy file.
    """
    key = _KEY_PREFIX + secrets.token_urlsafe(32)
    return key, sha256(key.encode()).hexdigest()
