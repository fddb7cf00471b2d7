"""Classify network addresses."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

__all__ = ["ip_address_of", "is_loopback"]


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach `host`."""
    address = ip_address_of(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def ip_address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that `host` spells, or None if `host` is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None
