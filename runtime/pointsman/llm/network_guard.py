"""Forbid calls of paid models in tests. Calls to servers on this machine are allowed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from pointsman.errors import ConfigurationError
from pointsman.util.environment import variable

__all__ = ["ACTIVE_GUARDS", "check_allowed", "forbid_real_models", "resolve_base_url"]

ACTIVE_GUARDS: list[list[str]] = []
"""The active guards. Each guard is a list of the calls that the guard has stopped."""

_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


def check_allowed(provider: str, model: str, base_url: str | None) -> None:
    """Check that a call may be made.

    Raises:
        ConfigurationError: Calls of real models are forbidden, and this call would leave the machine.
    """
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
    """Stop every call of a model that is not on this machine. Raise an error at the end if a call was stopped.

    Yields:
        None.

    Raises:
        AssertionError: A call was stopped, even if the caller ignored the failure.
    """
    stopped: list[str] = []
    ACTIVE_GUARDS.append(stopped)
    try:
        yield
    finally:
        # Compare by identity, because `remove` would remove the first equal list, which may belong to another guard.
        ACTIVE_GUARDS[:] = [each for each in ACTIVE_GUARDS if each is not stopped]
    assert not stopped, f"{len(stopped)} calls of real models were stopped: {', '.join(sorted(set(stopped)))}"


def resolve_base_url(provider: str, base_url: str | None) -> str | None:
    """Return the base URL of a provider's server.

    Args:
        provider: The provider.
        base_url: The URL that an author gave. None for the URL of the environment.

    Returns:
        The URL, or None for the provider's own server.

    Raises:
        ConfigurationError: The URL is not an HTTP URL.
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
    except ValueError:  # an invalid address or port
        return False
