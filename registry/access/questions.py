"""Verbs and resources: the terms in which a call is allowed or refused. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verb(StrEnum):
    """Action on a resource."""

    GET = "get"
    LIST = "list"
    WATCH = "watch"
    APPLY = "apply"
    RETRY = "retry"
    CREATE = "create"
    UPDATE = "update"
    REQUIRE = "require"
    DELETE = "delete"
    ROLLBACK = "rollback"
    PROMOTE = "promote"
    ABORT = "abort"
    CONFIRM_REMOVALS = "confirm-removals"
    DRAIN = "drain"
    FORGET = "forget"
    REPAIR = "repair"
    CHECK = "check"
    RESTORE = "restore"


# Verbs that change nothing.
READING = frozenset({Verb.GET, Verb.LIST, Verb.WATCH, Verb.CHECK})


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
    AUDIT = "audit"
    BACKUPS = "backups"
    HEALTH = "health"
    METRICS = "metrics"
    ACCESS = "access"


# Resources that adapters' names name, and so belong to tenants.
BY_ADAPTER = frozenset({Resource.ADAPTERS, Resource.HISTORY, Resource.ROLLOUTS, Resource.RESIDENCY})


@dataclass(frozen=True, slots=True)
class AccessQuestion:
    """One thing that somebody wants to do.

    Attributes:
        pool: pool that it is about; None: about none, or about each that there is, one by one.
        tenant: tenant that it is about; None: as of `pool`.
        source: URI that an adapter is to be fetched from; None: it gets no other one.
        credentials: name of the credential for that; None: it gets no other one, or needs none.
    """

    verb: Verb
    resource: Resource
    pool: str | None = None
    tenant: str | None = None
    source: str | None = None
    credentials: str | None = None
