"""Calls: the context of each, what it asks for, and the one hook before it.

A call is a verb and a resource, with the names that its request has: whoever decides about it decides by these and by
what the principal may do, also about dry runs. The hook is called with the parsed request, before anything is read or
prepared for it, and again after a preparation, which takes long. Only then names are checked: whoever may do nothing
hears nothing else.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address

from google.protobuf.message import Message

from registry.access.control import AccessControl, Shown
from registry.access.decision import Grant
from registry.access.methods import PAGES
from registry.access.principal import ANONYMOUS, NO_TRACE, CallTrace, Principal, address_of, operator
from registry.access.questions import BY_ADAPTER, AccessQuestion, Resource, Verb
from registry.access.roles import Action
from registry.model.names import check_adapter_name, check_request_id, check_segment, tenant_of
from registry.runtime.clock import Deadline
from registry.transactions.context import Caller
from registry.v1 import registry_pb2 as pb


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
        Unauthenticated: they name nobody, or have expired.
    """
    shown.check_resumed(time.time())
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


async def until_revoked(access: AccessControl | None, call: CallContext) -> None:
    """Ends with an error as `AccessControl.until_revoked`; without access control never."""
    if access is None or call.grant is None:
        await asyncio.Event().wait()
    else:
        await access.until_revoked(call.principal, call.grant, call.expires)


def is_local(peer: str) -> bool:
    """True for a peer, as gRPC names it, on this host: nobody else reads what it sends."""
    address = address_of(peer)
    try:
        return address == "unix" or ip_address(address).is_loopback
    except ValueError:
        return peer.startswith("unix-abstract:")


@dataclass(frozen=True, slots=True)
class Asked:
    """Question of a call.

    Attributes:
        principal: who asks.
        pool: in which pool; None: the resource is in none, as a pool itself is.
        names: of what, by the field of the request that has the name; empty: all there is of the resource.
        request: as it was parsed; of a page its query.
        grant: all that the principal may do; None: everything.
    """

    principal: Principal
    verb: Verb
    resource: Resource
    pool: str | None
    names: Mapping[str, str]
    request: Message | Mapping[str, str]
    grant: Grant | None = None


# Raises RegistryError where the call is not to go on.
Hook = Callable[[Asked], None]


def asked_of(action: Action, request: Message, principal: Principal, grant: Grant | None = None) -> Asked:
    """Question of a call of a method as `METHODS` has it. What may be done is asked about anything."""
    named = None if isinstance(request, pb.CheckAccessRequest) else getattr(request, "pool", None)
    may_be_of_none = isinstance(request, pb.ListAuditRequest | pb.WatchAuditRequest) and not named
    pool = named if isinstance(named, str) and not may_be_of_none else None
    return Asked(principal, *action, pool, dict(_names(request)), request, grant)


def page_asked(path: str, query: Mapping[str, str], principal: Principal, grant: Grant | None = None) -> Asked:
    """Question of a page; those that are about nothing of a pool do not look at the query."""
    verb, resource = PAGES[path]
    about = query if resource in BY_ADAPTER or resource is Resource.REPLICAS else {}
    names = {"name": about["name"]} if "name" in about else {}
    return Asked(principal, verb, resource, about.get("pool") or None, names, query, grant)


def _names(request: Message) -> Iterator[tuple[str, str]]:
    match request:
        case pb.ApplyAdaptersRequest():
            for index, one in enumerate(request.changes):
                yield from _names_of_change(one, f"changes[{index}]")
        case pb.CreatePoolRequest() | pb.UpdatePoolRequest():
            yield "pool.name", request.pool.name
        case pb.SetTenantRequest():
            yield "tenant.name", request.tenant.name
        case pb.WatchResidencyRequest(name="") | pb.CheckAccessRequest():
            return
        case _ if (name := getattr(request, "name", None)) is not None:
            yield "name", name


def _names_of_change(change: pb.AdapterChange, field: str) -> Iterator[tuple[str, str]]:
    match change.WhichOneof("change"):
        case "delete":
            yield f"{field}.delete", change.delete
        case "upsert" | "update" as kind:
            yield f"{field}.{kind}.name", getattr(change, kind).name


def permit(asked: Asked) -> None:
    """The hook of a service: nobody does what no binding of theirs allows, also not to learn whether something exists.

    Raises:
        PermissionDenied: the principal may not do it.
    """
    # About themselves everybody may ask.
    if asked.grant is not None and asked.resource is not Resource.ACCESS:
        for each in _questions(asked):
            asked.grant.check_any(*each)


def _questions(asked: Asked) -> Iterator[tuple[AccessQuestion, ...]]:
    """Questions of a call before anything is read; of each tuple one has to be allowed."""
    verb, resource = asked.verb, asked.resource
    for name in asked.names.values() or (None,):
        if resource in BY_ADAPTER:
            one = AccessQuestion(verb, resource, asked.pool, tenant_of(name) if name is not None else None)
        elif resource is Resource.POOLS:
            one = AccessQuestion(verb, resource, name)
        elif resource is Resource.TENANTS:
            one = AccessQuestion(verb, resource, tenant=name)
        else:
            one = AccessQuestion(verb, resource, asked.pool)
        # What else these may do, their outcome tells.
        if verb is Verb.APPLY and getattr(asked.request, "retry", False):
            yield one, replace(one, verb=Verb.RETRY)
        elif (verb, resource) == (Verb.UPDATE, Resource.POOLS):
            yield one, replace(one, verb=Verb.REQUIRE)
        else:
            yield (one,)


def then_checked(hook: Hook) -> Hook:
    """The same hook, and `check` after it."""

    def both(asked: Asked) -> None:
        hook(asked)
        check(asked)

    return both


def check(asked: Asked) -> None:
    """Refuses names that cannot be any, since they become part of a key.

    Raises:
        InvalidArgument: something cannot; the field at fault is named.
    """
    if request_id := getattr(asked.request, "request_id", ""):
        check_request_id(request_id)
    if asked.pool is not None:
        check_segment(asked.pool, field="pool")
    check_name = check_adapter_name if asked.resource in BY_ADAPTER else check_segment
    for field, name in asked.names.items():
        check_name(name, field=field)
