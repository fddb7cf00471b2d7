"""Read the configuration of the signed webhooks that the gateway receives."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from standardwebhooks.webhooks import Webhook

from pointsman.errors import ConfigurationError
from pointsman.util.environment import variable
from pointsman_schemas.ids import TeamName, Token
from pointsman_schemas.strict_json import describe

__all__ = ["Hook", "HookForm", "load_hooks"]

HookForm = Literal["standard", "github", "slack", "stripe"]
"""The form of a signature: Standard Webhooks, or the form of one vendor."""


class HookEntry(BaseModel):
    """One webhook of the configuration."""

    model_config = ConfigDict(extra="forbid")

    team: TeamName = Field(description="The team that serves the deliveries.")
    form: HookForm = Field(default="standard", description="The form of the signature.")
    secrets_env: str = Field(min_length=1, description="The environment variable with the secrets.")
    caller: Token | None = Field(default=None, description="The caller. Default: `hook-` and the webhook's name.")


class Hook(NamedTuple):
    """A webhook with its secrets. During a rotation, a webhook has several secrets."""

    name: str
    team: str
    form: HookForm
    caller: str
    secrets: tuple[str, ...]


_Entries = TypeAdapter(dict[Token, HookEntry])


def load_hooks(path: str | None) -> Mapping[str, Hook]:
    """Read the webhooks and their secrets.

    Args:
        path: The TOML file with a table for each webhook. None for no webhooks.

    Returns:
        The webhooks by name.

    Raises:
        ConfigurationError: The file cannot be read, an entry is not valid, or a secret is missing.
    """
    if path is None:
        return {}
    try:
        entries = _Entries.validate_python(tomllib.loads(Path(path).read_text("utf-8")))
    except (OSError, ValueError) as error:
        seen = describe(error) if isinstance(error, ValidationError) else str(error)
        raise ConfigurationError(f"the webhooks in {path} cannot be read: {seen}; see docs/gateway.md") from None
    return {name: _hook(name, entry) for name, entry in entries.items()}


def _hook(name: str, entry: HookEntry) -> Hook:
    secrets = tuple((variable(entry.secrets_env) or "").split())
    if not secrets:
        raise ConfigurationError(
            f"the webhook {name!r} has no secret; set {entry.secrets_env} to the secret of the sender"
        )
    if entry.form == "standard":
        for secret in secrets:
            try:
                Webhook(secret)
            except Exception:  # the library raises several classes of errors
                raise ConfigurationError(
                    f"a secret of the webhook {name!r} is not base64; set {entry.secrets_env} to the text after whsec_"
                ) from None
    return Hook(name, entry.team, entry.form, entry.caller or f"hook-{name}"[:64], secrets)
