"""Addresses of hosts, looked up once, so that what was allowed is what is connected to.

A name whose address is allowed may have another one when it is looked up again (DNS rebinding). So
a download asks for a name's addresses here, and connects to these numbers alone. All of a name's
addresses have to be of the public internet: not of this machine, its network, a link or a group,
nor an IPv6 address that stands for such an IPv4 one (mapped, 6to4, NAT64).
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.request import getproxies, proxy_bypass

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def addresses_of(host: str, port: int) -> list[str]:
    """The addresses of a host, as this machine would ask them one after another.

    Raises:
        OSError: none is known.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet."""
    place = ipaddress.ip_address(address.partition("%")[0])
    inner = _inner(place)
    if inner is not None:
        return is_public(str(inner))
    return place.is_global and not place.is_multicast


def _inner(place: IPAddress) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 one stands for, if it does."""
    if isinstance(place, ipaddress.IPv4Address):
        return None
    if place in _NAT64:
        return ipaddress.IPv4Address(int(place) & 0xFFFFFFFF)
    return place.ipv4_mapped or place.sixtofour


def is_proxied(scheme: str, host: str) -> bool:
    """Whether the environment has a proxy for an address: then it is the proxy that looks up."""
    proxies = getproxies()
    return bool(proxies.get(scheme) or proxies.get("all")) and not proxy_bypass(host)
