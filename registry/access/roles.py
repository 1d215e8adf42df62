"""Roles, and the actions of each: the one table. Pure.

A role names actions. Whose adapters and which pools they may touch says the binding that gives somebody the role.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType

from registry.access.questions import Resource, Verb


class AccessRole(StrEnum):
    """Job that somebody has in a fleet."""

    VIEWER = "viewer"
    PUBLISHER = "publisher"
    RELEASER = "releaser"
    OPERATOR = "operator"
    POOL_OPERATOR = "pool-operator"
    SECURITY = "security"
    TENANT_ADMIN = "tenant-admin"
    BACKUP = "backup"
    RESTORER = "restorer"
    ROUTER = "router"
    AUDITOR = "auditor"


Action = tuple[Verb, Resource]


def _each(verbs: Iterable[Verb], *resources: Resource) -> frozenset[Action]:
    return frozenset((verb, resource) for verb in verbs for resource in resources)


_READ = (Verb.GET, Verb.LIST, Verb.WATCH)
_FLEET = _each(_READ, Resource.POOLS, Resource.REPLICAS)
_SEEN = (
    _FLEET
    | _each(_READ, Resource.ADAPTERS, Resource.HISTORY, Resource.ROLLOUTS, Resource.RESIDENCY)
    | _each(_READ, Resource.TENANTS, Resource.CHANGES)
    | _each((Verb.GET,), Resource.METRICS)
)
ROLES: Mapping[AccessRole, frozenset[Action]] = MappingProxyType(
    {
        AccessRole.VIEWER: _SEEN,
        AccessRole.PUBLISHER: _SEEN | _each((Verb.APPLY, Verb.RETRY, Verb.ROLLBACK), Resource.ADAPTERS),
        AccessRole.RELEASER: _SEEN | _each((Verb.PROMOTE, Verb.ABORT), Resource.ROLLOUTS),
        AccessRole.OPERATOR: _SEEN
        | _each((Verb.RETRY,), Resource.ADAPTERS)
        | _each((Verb.DRAIN, Verb.FORGET), Resource.REPLICAS)
        | _each((Verb.CONFIRM_REMOVALS,), Resource.POOLS),
        AccessRole.POOL_OPERATOR: _FLEET | _each((Verb.CREATE, Verb.UPDATE, Verb.DELETE), Resource.POOLS),
        AccessRole.SECURITY: _FLEET | _each((Verb.REQUIRE,), Resource.POOLS) | _each((Verb.CHECK,), Resource.ACCESS),
        AccessRole.TENANT_ADMIN: _each((*_READ, Verb.UPDATE, Verb.REPAIR), Resource.TENANTS),
        AccessRole.BACKUP: _each((Verb.GET,), Resource.BACKUPS),
        AccessRole.RESTORER: _SEEN
        | _each((Verb.GET,), Resource.BACKUPS)
        | _each((Verb.RESTORE,), Resource.HISTORY)
        | _each((Verb.APPLY,), Resource.ADAPTERS)
        | _each((Verb.CREATE, Verb.UPDATE, Verb.REQUIRE), Resource.POOLS)
        | _each((Verb.UPDATE,), Resource.TENANTS),
        AccessRole.ROUTER: _each(_READ, Resource.RESIDENCY),
        AccessRole.AUDITOR: _each(_READ, Resource.CHANGES) | _each((Verb.LIST, Verb.WATCH), Resource.AUDIT),
    }
)
# Roles whose bindings say of which tenants, and those that may be narrowed to pools; the others are about everything.
OF_TENANTS = frozenset(
    {AccessRole.VIEWER, AccessRole.PUBLISHER, AccessRole.RELEASER, AccessRole.TENANT_ADMIN, AccessRole.AUDITOR}
)
OF_POOLS = frozenset(AccessRole) - {AccessRole.TENANT_ADMIN, AccessRole.BACKUP, AccessRole.RESTORER}


def roles_for(action: Action) -> tuple[AccessRole, ...]:
    """Roles that allow an action, those that allow the least first."""
    return tuple(sorted((role for role, actions in ROLES.items() if action in actions), key=lambda r: len(ROLES[r])))
