"""A switch that forbids calls of models that cost money, for tests. Servers on this machine may be called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from pointsman.errors import ConfigurationError
from pointsman.util.environment import variable

__all__ = ["ACTIVE_GUARDS", "check_allowed", "forbid_real_models", "resolve_base_url"]

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


@contextmanager
def forbid_real_models() -> Iterator[None]:
    """Stop every call of a model that is not on this machine, and fail in the end if there was one.

    Raises:
        AssertionError: a call was stopped, even if whoever made it passed over its failure.
    """
    stopped: list[str] = []
    ACTIVE_GUARDS.append(stopped)
    try:
        yield
    finally:
        ACTIVE_GUARDS[:] = [each for each in ACTIVE_GUARDS if each is not stopped]  # another's may be equal
    assert not stopped, f"{len(stopped)} calls of real models were stopped: {', '.join(sorted(set(stopped)))}"


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
