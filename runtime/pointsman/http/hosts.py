"""Distinguish names of this machine from names that a foreign page may have bound to the machine's address."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from pointsman.util.network import ip_address_of

__all__ = ["KnownHosts", "constant_time_equal"]


class KnownHosts:
    """The names under which clients may address a server.

    An address is always allowed. Any other name may be a foreign name for this machine (DNS rebinding).

    Args:
        names: Allowed names, in addition to `localhost`.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {"localhost", *(name.lower() for name in names)}

    def allow(self, host: str) -> bool:
        """Return True if the value of a `Host` header is an address or an allowed name.

        Args:
            host: The value, with or without a port.
        """
        name = _name_of(host)
        return name in self._names or ip_address_of(name) is not None


def constant_time_equal(one: str, other: str) -> bool:
    """Return True if the texts are equal, in a time that is the same for every position of a difference."""
    return hmac.compare_digest(one.encode(), other.encode())


def _name_of(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].lower() if host.rpartition(":")[2].isdigit() and ":" in host else host.lower()
