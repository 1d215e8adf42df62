"""Verb, resource and names of each call, and the one hook before it.

A call is a verb and a resource, with the names that its request has: whoever decides about it decides by these and by
the principal, also about dry runs. The tables have each method of the .proto and each page; one that they lack keeps
the service from starting. The hook is called with the parsed request, before anything is read or prepared for it, and
again after a preparation, which takes long. Only then names are checked: whoever may do nothing hears nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from google.protobuf.message import Message

from registry.model.names import check_adapter_name, check_request_id, check_segment
from registry.transactions.context import Principal
from registry.v1 import registry_pb2 as pb


class Verb(StrEnum):
    """Action on a resource."""

    GET = "get"
    LIST = "list"
    WATCH = "watch"
    APPLY = "apply"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    ROLLBACK = "rollback"
    PROMOTE = "promote"
    ABORT = "abort"
    CONFIRM_REMOVALS = "confirm-removals"
    DRAIN = "drain"
    FORGET = "forget"
    REPAIR = "repair"
    RESTORE = "restore"


class Resource(StrEnum):
    """Kind of what a call is about."""

    ADAPTERS = "adapters"
    HISTORY = "history"
    ROLLOUTS = "rollouts"
    RESIDENCY = "residency"
    POOLS = "pools"
    REPLICAS = "replicas"
    TENANTS = "tenants"
    CHANGES = "changes"
    BACKUPS = "backups"
    HEALTH = "health"
    METRICS = "metrics"


METHODS: Mapping[str, tuple[Verb, Resource]] = {
    "ApplyAdapters": (Verb.APPLY, Resource.ADAPTERS),
    "GetAdapter": (Verb.GET, Resource.ADAPTERS),
    "ListAdapters": (Verb.LIST, Resource.ADAPTERS),
    "WatchAdapters": (Verb.WATCH, Resource.ADAPTERS),
    "RollbackAdapter": (Verb.ROLLBACK, Resource.ADAPTERS),
    "ListAdapterHistory": (Verb.LIST, Resource.HISTORY),
    "RestoreHistory": (Verb.RESTORE, Resource.HISTORY),
    "WatchRollout": (Verb.WATCH, Resource.ROLLOUTS),
    "PromoteRollout": (Verb.PROMOTE, Resource.ROLLOUTS),
    "AbortRollout": (Verb.ABORT, Resource.ROLLOUTS),
    "WatchResidency": (Verb.WATCH, Resource.RESIDENCY),
    "CreatePool": (Verb.CREATE, Resource.POOLS),
    "UpdatePool": (Verb.UPDATE, Resource.POOLS),
    "ConfirmRemovals": (Verb.CONFIRM_REMOVALS, Resource.POOLS),
    "GetPool": (Verb.GET, Resource.POOLS),
    "ListPools": (Verb.LIST, Resource.POOLS),
    "DeletePool": (Verb.DELETE, Resource.POOLS),
    "GetReplica": (Verb.GET, Resource.REPLICAS),
    "ListReplicas": (Verb.LIST, Resource.REPLICAS),
    "DrainReplica": (Verb.DRAIN, Resource.REPLICAS),
    "ForgetReplica": (Verb.FORGET, Resource.REPLICAS),
    "SetTenant": (Verb.UPDATE, Resource.TENANTS),
    "ListTenants": (Verb.LIST, Resource.TENANTS),
    "RepairTenant": (Verb.REPAIR, Resource.TENANTS),
    "ListChanges": (Verb.LIST, Resource.CHANGES),
    "ReadBackup": (Verb.GET, Resource.BACKUPS),
}
# Pages of the HTTP port.
PAGES: Mapping[str, tuple[Verb, Resource]] = {
    "/livez": (Verb.GET, Resource.HEALTH),
    "/readyz": (Verb.GET, Resource.HEALTH),
    "/metrics": (Verb.GET, Resource.METRICS),
    "/v1/residency": (Verb.GET, Resource.RESIDENCY),
}
# Resources that adapters' names name.
_BY_ADAPTER = frozenset({Resource.ADAPTERS, Resource.HISTORY, Resource.ROLLOUTS, Resource.RESIDENCY})


@dataclass(frozen=True, slots=True)
class Asked:
    """Question of a call.

    Attributes:
        principal: who asks.
        pool: in which pool; None: the resource is in none, as a pool itself is.
        names: of what, by the field of the request that has the name; empty: all there is of the resource.
        request: as it was parsed; of a page its query.
    """

    principal: Principal
    verb: Verb
    resource: Resource
    pool: str | None
    names: Mapping[str, str]
    request: Message | Mapping[str, str]


# Raises RegistryError where the call is not to go on.
Hook = Callable[[Asked], None]


def asked_of(verb: Verb, resource: Resource, request: Message, principal: Principal) -> Asked:
    """Question of a call of a method as `METHODS` has it."""
    pool = getattr(request, "pool", None)
    return Asked(principal, verb, resource, pool if isinstance(pool, str) else None, dict(_names(request)), request)


def page_asked(path: str, query: Mapping[str, str], principal: Principal) -> Asked:
    """What a page is asked for; those that are about nothing of a pool do not look at the query."""
    verb, resource = PAGES[path]
    about = query if resource is Resource.RESIDENCY else {}
    names = {"name": about["name"]} if "name" in about else {}
    return Asked(principal, verb, resource, about.get("pool") or None, names, query)


def _names(request: Message) -> Iterator[tuple[str, str]]:
    match request:
        case pb.ApplyAdaptersRequest():
            for index, one in enumerate(request.changes):
                field = {"upsert": "upsert.name", "delete": "delete"}.get(one.WhichOneof("change") or "")
                if field:
                    yield f"changes[{index}].{field}", one.upsert.name or one.delete
        case pb.CreatePoolRequest() | pb.UpdatePoolRequest():
            yield "pool.name", request.pool.name
        case pb.SetTenantRequest():
            yield "tenant.name", request.tenant.name
        case pb.WatchResidencyRequest(name=""):
            return
        case _ if (name := getattr(request, "name", None)) is not None:
            yield "name", name


def let_pass(_: Asked) -> None:
    """The hook of a service whose callers may do everything."""


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
    check_name = check_adapter_name if asked.resource in _BY_ADAPTER else check_segment
    for field, name in asked.names.items():
        check_name(name, field=field)
