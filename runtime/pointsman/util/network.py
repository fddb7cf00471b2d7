"""Classify network addresses."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

__all__ = ["ip_address_of", "is_loopback", "is_public"]

_NAT64 = IPv6Network("64:ff9b::/96")  # the last four bytes of an address in this network are an IPv4 address
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)  # bytes 9 to 12 of an ISATAP address, whose last four bytes are an IPv4 address
_CLOSED = tuple(
    map(
        ip_network,
        (
            "168.63.129.16/32",  # a public address at which Azure's machines reach the Azure platform
            "192.0.0.0/24",  # addresses of protocols; a cloud has its metadata service at 192.0.0.192
            "192.88.99.0/24",  # former 6to4 relays
            "3fff::/20",  # documentation; Python 3.11 does not know this network
        ),
    )
)


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach `host`."""
    address = ip_address_of(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return True if an address belongs to the public internet. An IPv4 address within an IPv6 address is also checked.

    Private, shared, loopback, link-local, multicast, documentation and reserved addresses are not public. Most metadata
    services of cloud providers have such an address. The addresses of the others are in `_CLOSED`.
    """
    if any(address in network for network in _CLOSED):
        return False
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFF_FFFF)
        elif int(address) >> 32 & 0xFFFF_FFFF in _ISATAP:
            return False
        if inner is not None:
            return is_public(inner)
        if address.teredo is not None or address.is_site_local:
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def ip_address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return `host` as an address, or None if `host` is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None
