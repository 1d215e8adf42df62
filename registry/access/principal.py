"""Principals: who calls, by which credential. Pure."""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv6Address
from types import MappingProxyType
from urllib.parse import quote, unquote

# Names of our own, which nothing that others issue may claim.
RESERVED_PREFIX = "loraplane:"
# Of names that certificates alone have.
SPIFFE = "spiffe://"


class Credential(StrEnum):
    """Kind of credential by which a principal is known. The words stand in keys of etcd, where roles stood once."""

    NONE = ""
    CERTIFICATE = "operator"
    TOKEN = "token"  # noqa: S105 - a kind, none itself
    SOCKET = "socket"
    SERVICE = "conductor"


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody: `name` as `credential` has it; `groups` as the token's issuer says."""

    name: str
    credential: Credential
    groups: frozenset[str] = frozenset()

    @property
    def space(self) -> str:
        """Key space of this principal's request ids, so that nobody else can take one; "" for all that are unknown.

        It has a colon, which a quoted name has not, so that a credential never reads as a part of somebody's name.
        What the principal may do is no part of it: after a change of that, a repeated request is answered the same.
        """
        return f"{self.credential}:{quote(self.name, safe='')}" if self.credential else ""

    @property
    def usual_role(self) -> str:
        """Role in the audit where no access file gives any. The conductor is the admin service itself."""
        return self.credential.value or "unauthenticated"


# Kinds of credentials as people are told of them.
CREDENTIAL_KINDS: Mapping[Credential, str] = MappingProxyType(
    {
        Credential.NONE: "",
        Credential.CERTIFICATE: "certificate",
        Credential.TOKEN: "token",
        Credential.SOCKET: "socket",
        Credential.SERVICE: "service",
    }
)
MAX_AGENT_CHARACTERS, MAX_PEER_CHARACTERS = 200, 128


@dataclass(frozen=True, slots=True)
class CallTrace:
    """Marks of a call by which its caller can be found later, for the audit alone: nothing is decided by them.

    Attributes:
        fingerprint: ``sha256:`` and 64 hex digits, of the certificate or of the whole token; empty: neither was shown.
        peer: address as gRPC names it.
        user_agent: as the client says, at most `MAX_AGENT_CHARACTERS`.
    """

    fingerprint: str = ""
    peer: str = ""
    user_agent: str = ""


NO_TRACE = CallTrace()


def trace_of(peer: str, credential: bytes, user_agent: str) -> CallTrace:
    """Marks of a call.

    Args:
        peer: as gRPC names it.
        credential: certificate as PEM, or token; empty: neither.
        user_agent: as the client says.
    """
    fingerprint = f"sha256:{hashlib.sha256(_der(credential)).hexdigest()}" if credential else ""
    return CallTrace(
        fingerprint, clipped(unquote(peer), MAX_PEER_CHARACTERS), clipped(user_agent, MAX_AGENT_CHARACTERS)
    )


def clipped(text: str, most: int) -> str:
    """A text of at most so many characters, all of which can be shown: anybody may have written it."""
    cut = text[:most]
    return cut if cut.isprintable() else "".join(one if one.isprintable() else "?" for one in cut)


def _der(credential: bytes) -> bytes:
    """The bytes of a certificate, whose hash all tools call its fingerprint; what is no certificate, as it stands."""
    body = credential.partition(b"-----BEGIN CERTIFICATE-----")[2].partition(b"-----END")[0]
    try:
        return binascii.a2b_base64(body) or credential
    except binascii.Error:
        return credential


ANONYMOUS = Principal("anonymous", Credential.NONE)


def operator(common_name: str) -> Principal:
    """Somebody who showed a certificate of our authority."""
    return Principal(common_name, Credential.CERTIFICATE)


def address_of(peer: str) -> str:
    """The address in what gRPC names a peer, without its port: whoever opens another connection is the same caller.

    An IPv4 address is the same on a socket of either kind. All callers of a unix socket are one.
    """
    kind, _, rest = unquote(peer).partition(":")
    if kind == "unix":
        return kind
    if kind not in {"ipv4", "ipv6"}:
        return peer
    host = rest.rpartition(":")[0].strip("[]")
    mapped = IPv6Address(host).ipv4_mapped if kind == "ipv6" else None
    return str(mapped or host)
