"""Verb and resource of each method of the .proto, and of each page. Pure.

Whoever decides about a call decides by these. One that the tables lack keeps the service from starting.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from registry.access.questions import Resource, Verb
from registry.access.roles import Action

METHODS: Mapping[str, Action] = MappingProxyType(
    {
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
        "ListAudit": (Verb.LIST, Resource.AUDIT),
        "WatchAudit": (Verb.WATCH, Resource.AUDIT),
        "ReadBackup": (Verb.GET, Resource.BACKUPS),
        "WhoAmI": (Verb.GET, Resource.ACCESS),
        "CheckAccess": (Verb.CHECK, Resource.ACCESS),
    }
)
# Pages of the HTTP port.
PAGES: Mapping[str, Action] = MappingProxyType(
    {
        "/livez": (Verb.GET, Resource.HEALTH),
        "/readyz": (Verb.GET, Resource.HEALTH),
        "/metrics": (Verb.GET, Resource.METRICS),
        "/v1/models": (Verb.GET, Resource.RESIDENCY),
        "/v1/residency": (Verb.GET, Resource.RESIDENCY),
    }
)
