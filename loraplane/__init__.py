"""The registry for programs: publish adapters and follow their replicas.

    from loraplane import Registry

    with Registry("admin:7600") as registry:
        published = registry.publish("/adapters/policy/step-7", "acme/policy", "qwen-prod")
        ...                                  # every replica that should serve it does, by now
        registry.withdraw("acme/policy", "qwen-prod")

`AsyncRegistry` is the same for programs with an event loop. All errors are of the tree of `RegistryError`, each with a
`Reason` that stays the same over releases.
"""

from registry.client.adapters import AdapterHistory, AdapterListing, AnsweredBy, Canaries, Published, RegisteredAdapter
from registry.client.address import Tls
from registry.client.asynchronous import AsyncRegistry
from registry.client.audit import AuditDenial, AuditedChange, AuditEntry
from registry.client.channel import UsedAfterFork
from registry.client.credentials import TokenCommand, TokenFile
from registry.client.fleet.values import (
    ChangedValue,
    FleetReplica,
    RecordedEvent,
    RegisteredPool,
    ReplicaListing,
    TenantQuota,
)
from registry.client.publication import KEEP, Keep, Publication, Upload, Withdrawal
from registry.client.residency import AdapterResidency, PoolResidency, Residence, State
from registry.client.synchronous import Registry
from registry.model.errors import (
    AlreadyExists,
    Conflict,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Reason,
    RegistryError,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)

__all__ = [
    "KEEP",
    "AdapterHistory",
    "AdapterListing",
    "AdapterResidency",
    "AlreadyExists",
    "AnsweredBy",
    "AsyncRegistry",
    "AuditDenial",
    "AuditEntry",
    "AuditedChange",
    "Canaries",
    "ChangedValue",
    "Conflict",
    "FailedPrecondition",
    "FleetReplica",
    "Internal",
    "InvalidArgument",
    "Keep",
    "NotFound",
    "PermissionDenied",
    "PoolResidency",
    "Publication",
    "Published",
    "Reason",
    "RecordedEvent",
    "RegisteredAdapter",
    "RegisteredPool",
    "Registry",
    "RegistryError",
    "ReplicaListing",
    "Residence",
    "ResourceExhausted",
    "State",
    "TenantQuota",
    "Tls",
    "TokenCommand",
    "TokenFile",
    "Unauthenticated",
    "Unavailable",
    "Upload",
    "UsedAfterFork",
    "Withdrawal",
]
