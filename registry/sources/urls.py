"""Addresses and URLs that a request may go to. Pure.

A request stays below what the operator allowed, or goes from there by redirect to a public place.

A URL below an allowed prefix was named by the operator, so it may lead into his own network. Whatever a redirect
leads to was named by somebody else, so it may only be a public address. Whoever runs the name server of a name decides
where that leads, so a name never leads to this machine itself: that takes its address, or `localhost`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urljoin, urlsplit

from registry.model.source_uri import DEFAULT_PORTS, SourcePrefix, SourceUriError, check_authority, parse_prefix
from registry.sources.base import ArtifactError

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
    """Reach of a URL."""

    PUBLIC = "public"  # public addresses only
    NAMED = "named"  # the operator's own network too, but nothing that only the machine itself should ask
    LOCALHOST = "localhost"  # this machine, which the operator named
    LITERAL = "literal"  # the operator wrote this very address

    def allows(self, address: str) -> bool:
        """True if a connection may be made to this numeric address."""
        found = _embedded(ip_address(address.partition("%")[0]))
        match self:
            case Reach.PUBLIC:
                return _is_public(found)
            case Reach.NAMED:
                return not found.is_loopback and not _is_of_the_machine(found)
            case Reach.LOCALHOST:
                return found.is_loopback
            case Reach.LITERAL:
                return True


_LOCALHOST = "localhost"


def is_literal(host: str) -> bool:
    """True if a URL's host is an address and no name."""
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def named_reach(host: str) -> Reach:
    """Reach of a URL's host that the operator wrote."""
    if host == _LOCALHOST:
        return Reach.LOCALHOST
    return Reach.LITERAL if is_literal(host) else Reach.NAMED


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


@dataclass(frozen=True, slots=True)
class WebUrl:
    """A URL that a request can be sent to. `target` is path and query, and may hold a secret; `place` does not."""

    scheme: str
    authority: str
    target: str

    @property
    def place(self) -> str:
        """Text of the URL without secrets."""
        return f"{self.scheme}://{self.authority}"

    @property
    def host(self) -> str:
        host, colon, port = self.authority.rpartition(":")
        return host if colon and not port.endswith("]") else self.authority

    @property
    def name(self) -> str:
        """The last part of the path, which may be said of it too."""
        return self.target.partition("?")[0].rpartition("/")[2]

    def __str__(self) -> str:
        return self.place + self.target

    def is_same_origin(self, other: WebUrl) -> bool:
        return self.place == other.place

    def is_below(self, prefix: SourcePrefix) -> bool:
        """True if no spelling of the path could lead out of the prefix."""
        try:
            here = parse_prefix(self.place + self.target.partition("?")[0])
        except SourceUriError:
            return False
        return prefix.covers(here.scheme, here.authority, here.path)

    def reach(self, named: Sequence[SourcePrefix]) -> Reach:
        """Reach of it, where `named` is what the operator allowed."""
        if not any(self.is_below(prefix) for prefix in named):
            return Reach.PUBLIC
        return named_reach(self.host)

    def redirected(self, location: str) -> WebUrl:
        """Target of an answer's Location.

        Raises:
            ArtifactError: ``redirect_not_allowed``.
        """
        try:
            return parse_url(urljoin(str(self), location))
        except ValueError:
            message = f"{self.place} redirects to what is no URL that may be followed"
            raise ArtifactError("redirect_not_allowed", message) from None


def parse_url(url: str) -> WebUrl:
    """Reads a URL; a fragment is dropped.

    Raises:
        ValueError: it is not http(s), or has user information or no host. The message holds no secret.
    """
    parts = urlsplit(url)
    if parts.scheme not in DEFAULT_PORTS:
        raise ValueError("it is neither http nor https")
    target = parts.path or "/"
    target += f"?{parts.query}" if parts.query else ""
    if not target.isascii() or any(character <= " " or character == "\x7f" for character in target):
        raise ValueError("its path has characters that must be escaped")
    return WebUrl(parts.scheme, check_authority(parts.scheme, parts.netloc), target)


def check_redirect(target: WebUrl, named: Sequence[SourcePrefix]) -> None:
    """Raises ArtifactError unless what a redirect leads to was allowed, or is https at its usual port."""
    if any(target.is_below(prefix) for prefix in named):
        return
    if target.scheme != "https" or target.host != target.authority:
        message = f"a redirect leads to {target.place}, expected https at port 443, or a URL that --allow-source names"
        raise ArtifactError("redirect_not_allowed", message)
