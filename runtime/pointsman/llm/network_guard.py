"""A switch that forbids calls of models that cost money, for tests. Servers on this machine may be called."""

from __future__ import annotations

from urllib.parse import urlsplit

from pointsman.errors import ConfigurationError
from pointsman.util.environment import variable

__all__ = ["ACTIVE_GUARDS", "check_allowed", "resolve_base_url"]

ACTIVE_GUARDS: list[list[str]] = []
"""Those who forbid it now, each a list of the calls that were stopped."""

_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


def check_allowed(provider: str, model: str, base_url: str | None) -> None:
    """Raises `ConfigurationError` when calls are forbidden and this one would leave the machine."""
    if not ACTIVE_GUARDS or (base_url is not None and urlsplit(base_url).hostname in _LOCAL_HOSTS):
        return
    for stopped in ACTIVE_GUARDS:
        stopped.append(f"{provider}:{model}")
    raise ConfigurationError(
        f"a test called the real model {provider}:{model}; give the agent a ScriptedModel or `offline`, or mark the "
        "test real_model"
    )


def resolve_base_url(provider: str, base_url: str | None) -> str | None:
    """The base URL to call `provider` at: the one given, or that of the environment; None for its own.

    Raises:
        ConfigurationError: it is no URL of HTTP.
    """
    name = f"{provider.upper()}_BASE_URL"
    url = base_url or variable(name)
    if url is not None and not _is_http(url):
        raise ConfigurationError(
            f"the base URL of {provider} is {url!r}{'' if base_url else f', by {name}'}; expected "
            "http://HOST:PORT/v1 or the like"
        )
    return url


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an address or a port that is none
        return False
