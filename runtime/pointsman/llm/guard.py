"""A switch that forbids calls of models that cost money, for tests. Servers on this machine may be called."""

from __future__ import annotations

from urllib.parse import urlsplit

from pointsman.errors import ConfigurationError

__all__ = ["FORBIDDEN", "check"]

FORBIDDEN: list[list[str]] = []
"""Those who forbid it now, each a list of the calls that were stopped."""

_HERE = frozenset({"localhost", "127.0.0.1", "::1"})


def check(provider: str, model: str, base_url: str | None) -> None:
    """Raises `ConfigurationError` when calls are forbidden and this one would leave the machine."""
    if not FORBIDDEN or (base_url is not None and urlsplit(base_url).hostname in _HERE):
        return
    for stopped in FORBIDDEN:
        stopped.append(f"{provider}:{model}")
    raise ConfigurationError(
        f"a test called the real model {provider}:{model}; give the agent a ScriptedModel or `offline`, or mark the "
        "test real_model"
    )
