"""Principals: who calls, by which credential. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote

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


ANONYMOUS = Principal("anonymous", Credential.NONE)


def operator(common_name: str) -> Principal:
    """Somebody who showed a certificate of our authority."""
    return Principal(common_name, Credential.CERTIFICATE)
