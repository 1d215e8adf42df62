"""Context of one call: principal, role, deadline, request id."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from ipaddress import IPv6Address
from urllib.parse import unquote

from registry.runtime.clock import Deadline
from registry.transactions.context import ANONYMOUS, Caller, Principal, operator


@dataclass(frozen=True, slots=True)
class CallContext:
    """One call: the name of its method or page, who makes it, and how long it may take.

    `origin` is whom limits count it to: the principal that a certificate names, or else the address. `connection` is
    as gRPC names it. `repeats`: its client says that it may be a repetition.
    """

    method: str
    principal: Principal
    deadline: Deadline
    origin: str
    connection: str
    repeats: bool = False

    def caller(self, request_id: str) -> Caller:
        """Who asks for a change; an empty id is replaced by one of ours."""
        made, is_given = request_id or f"auto-{secrets.token_hex(12)}", bool(request_id)
        return Caller(self.principal, made, is_given, repeats=is_given and self.repeats)


def call_of(method: str, common_name: str, peer: str, timeout_seconds: float, *, repeats: bool = False) -> CallContext:
    """A call of whoever a certificate names (empty: nobody) from a peer, as gRPC names it."""
    deadline = Deadline.of(timeout_seconds)
    if common_name:
        return CallContext(method, operator(common_name), deadline, f"operator {common_name}", peer, repeats)
    return CallContext(method, ANONYMOUS, deadline, address_of(peer), peer, repeats)


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
