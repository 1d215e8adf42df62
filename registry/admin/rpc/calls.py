"""Context of one call: principal, role, deadline, request id."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from ipaddress import ip_address

from registry.access.control import AccessControl, Shown
from registry.access.decision import Grant
from registry.access.principal import ANONYMOUS, NO_TRACE, CallTrace, Principal, address_of, operator
from registry.runtime.clock import Deadline
from registry.transactions.context import Caller


@dataclass(frozen=True, slots=True)
class CallContext:
    """One call: the name of its method or page, who makes it, and how long it may take.

    `origin` is whom limits count it to: the principal that a certificate names, or else the address. `connection` is
    as gRPC names it. `repeats`: its client says that it may be a repetition. `grant`: all that the principal may do;
    None: everything. `expires`: until when its credential counts, in seconds since 1970; None: as long as it takes.
    `traceparent`: the span that it is of, as its client says; empty: not known, or nobody traces.
    """

    method: str
    principal: Principal
    deadline: Deadline
    origin: str
    connection: str
    repeats: bool = False
    grant: Grant | None = None
    expires: float | None = None
    trace: CallTrace = NO_TRACE
    traceparent: str = ""

    def caller(self, request_id: str) -> Caller:
        """The caller of a change; an empty id is replaced by one of ours."""
        made, is_given = request_id or f"auto-{secrets.token_hex(12)}", bool(request_id)
        return Caller(self.principal, made, is_given, is_given and self.repeats, self.grant, self.trace)


async def call_of(
    method: str, shown: Shown, timeout_seconds: float, *, repeats: bool = False, access: AccessControl | None = None
) -> CallContext:
    """A call of whoever its credentials name; without access control, of anybody.

    Raises:
        Unauthenticated: they name nobody.
    """
    deadline, peer = Deadline.of(timeout_seconds), shown.peer
    if access is not None:
        known, expires = await access.principal(shown)
        origin = f"{known.credential} {known.name}"
        return CallContext(
            method, known, deadline, origin, peer, repeats, access.grant(known), expires, shown.trace(known)
        )
    names = shown.facts.get("x509_common_name", ())
    if name := next(iter(names), b"").decode(errors="replace"):
        known = operator(name)
        return CallContext(method, known, deadline, f"operator {name}", peer, repeats, trace=shown.trace(known))
    return CallContext(method, ANONYMOUS, deadline, address_of(peer), peer, repeats, trace=shown.trace(ANONYMOUS))


def is_local(peer: str) -> bool:
    """True for a peer, as gRPC names it, on this host: nobody else reads what it sends."""
    address = address_of(peer)
    try:
        return address == "unix" or ip_address(address).is_loopback
    except ValueError:
        return peer.startswith("unix-abstract:")
