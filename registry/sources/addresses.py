"""Which network addresses a source may be at. Pure.

A URL below an allowed prefix was named by the operator, so it may lead into his own network. Whatever a redirect
leads to was named by somebody else, so it may only be a public address.
"""

from __future__ import annotations

from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_Address = IPv4Address | IPv6Address

# Global to the library, and yet not the internet: IETF protocol assignments, Azure's own services, 6to4 relays.
_NOT_PUBLIC_4 = tuple(IPv4Network(net) for net in ("192.0.0.0/24", "168.63.129.16/32", "192.88.99.0/24"))
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(IPv6Network(net) for net in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
_NAT64 = IPv6Network("64:ff9b::/96")
# Where clouds tell a machine its own credentials.
_METADATA = frozenset(
    ip_address(one) for one in ("169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254")
)


class Reach(Enum):
    """How far a URL may lead."""

    PUBLIC = "public"  # public addresses only
    NAMED = "named"  # the operator's own network too, but nothing that only the machine itself should ask
    LITERAL = "literal"  # the operator wrote this very address

    def allows(self, address: str) -> bool:
        """True if a connection may be made to this numeric address."""
        found = _embedded(ip_address(address.partition("%")[0]))
        match self:
            case Reach.PUBLIC:
                return _is_public(found)
            case Reach.NAMED:
                return not _is_of_the_machine(found)
            case Reach.LITERAL:
                return True


def is_literal(host: str) -> bool:
    """True if a URL's host is an address and no name."""
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _embedded(address: _Address) -> _Address:
    """The IPv4 address that an IPv6 address stands for, else itself."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _is_public(address: _Address) -> bool:
    if isinstance(address, IPv6Address):
        return address in _GLOBAL_UNICAST and not any(address in network for network in _NOT_PUBLIC_6)
    special = address.is_multicast or address.is_reserved or not address.is_global
    return not special and not any(address in network for network in _NOT_PUBLIC_4)


def _is_of_the_machine(address: _Address) -> bool:
    special = address.is_link_local or address.is_multicast or address.is_unspecified
    # All of ::/8 is reserved too, and with it ::1.
    return special or address in _METADATA or (address.version == 4 and address.is_reserved)
