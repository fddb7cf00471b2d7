"""Check the host names in requests.

The owner of a foreign web page can give the address of this machine to a foreign name. The page could then send
requests to this machine under the foreign name (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Iterable

from pointsman.util.network import ip_address_of

__all__ = ["KnownHosts", "host_name"]


class KnownHosts:
    """The names under which clients may address a server.

    An IP address is always allowed. Any name that is not in `names` could be a foreign name that leads to this machine.

    Args:
        names: Allowed names, in addition to `localhost`.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {"localhost", *(name.lower() for name in names)}

    def allow(self, host: str) -> bool:
        """Return True if the value of a `Host` header is an IP address or an allowed name.

        Args:
            host: The value, with or without a port.
        """
        name = host_name(host)
        return name in self._names or ip_address_of(name) is not None


def host_name(host: str) -> str:
    """Return the name or the IP address in the value of a `Host` header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].lower() if host.rpartition(":")[2].isdigit() and ":" in host else host.lower()
