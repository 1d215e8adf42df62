"""Pools, replicas, tenants and recorded changes as programs see them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from registry.v1 import registry_pb2 as pb


@dataclass(frozen=True, slots=True)
class RegisteredPool:
    """A pool: the replicas that serve one base model. The rest of it is shown by ``loraplane get pool -o json``.

    Attributes:
        name: of the pool.
        base_models: names under which its engines serve the base model.
        engine: kind of its engines, such as ``vllm``.
        engine_names: ``plain``, or ``versioned``: engines call an adapter ``name@generation``.
        max_rank: highest rank of an adapter; None: no limit.
        max_adapters: adapters that one engine is asked to hold at once; None: no limit.
        expected_replicas: how many it is to have; None: those that lived within the last day.
        require_digest: no adapter is taken without the digest of its source.
        require_signature: no adapter is served without a signature.
        etag: guards a change against a race.
    """

    name: str
    base_models: tuple[str, ...]
    engine: str
    engine_names: str
    max_rank: int | None
    max_adapters: int | None
    expected_replicas: int | None
    require_digest: bool
    require_signature: bool
    etag: str


@dataclass(frozen=True, slots=True)
class FleetReplica:
    """A replica that lives: an engine with its sidecar.

    Attributes:
        name: of the replica.
        pool: its pool.
        labels: its labels, which placements select by.
        engine_url: where requests to its engine go; empty: it has not said, or the pool does not allow it.
        version: of its sidecar; empty: of one that does not say.
        leaving: it drains: nothing is placed on it, and routers leave it out.
        host: the same for all replicas of one host; empty: not known.
        started_at: when its sidecar started, RFC 3339.
        status: its report, as ``/status`` of its sidecar shows it; empty: it has not reported yet, or no such thing.
    """

    name: str
    pool: str
    labels: Mapping[str, str]
    engine_url: str
    version: str
    leaving: bool
    host: str
    started_at: str
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReplicaListing:
    """The replicas of a pool.

    Attributes:
        replicas: those that live, in the order of their names.
        missing: names of those that are expected and do not live, as far as they are known.
        lacking: how many are expected and do not live.
    """

    replicas: tuple[FleetReplica, ...]
    missing: tuple[str, ...]
    lacking: int


@dataclass(frozen=True, slots=True)
class TenantQuota:
    """A tenant, how many adapters it has, and how many it may have; None: any number."""

    name: str
    adapters: int
    max_adapters: int | None
    etag: str


@dataclass(frozen=True, slots=True)
class ChangedValue:
    """A field before and after a change, as JSON; empty: it was not there."""

    path: str
    before_json: str
    after_json: str


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """One request's effect on one thing, as the audit trail has it.

    Attributes:
        at: RFC 3339, by the clock of the admin service that did it.
        principal: who asked.
        request_id: of the request.
        method: of the admin API, such as ``ApplyAdapters``.
        kind: ``adapter``, ``pool``, ``replica`` or ``history``.
        name: of the thing.
        action: ``created``, ``updated``, ``deleted``, ``promoted``, ``halted``, ``drain`` or ``undrain``.
        generation: of an adapter, after the change or, if it was deleted, before; 0: none.
        fields: those that have other values than before.
        note: why a rollout was halted; empty: it was not.
        values: old and new of those fields, the first 20 of them and cut where they are long; empty: of no spec, pool
            or quota, or the service is of an earlier release.
    """

    at: str
    principal: str
    request_id: str
    method: str
    kind: str
    name: str
    action: str
    generation: int
    fields: tuple[str, ...]
    note: str
    values: tuple[ChangedValue, ...] = ()


def pool_of(wire: pb.Pool) -> RegisteredPool:
    """A pool from its message."""
    limits = wire.limits
    return RegisteredPool(
        name=wire.name,
        base_models=tuple(wire.base_models),
        engine=wire.engine or "vllm",
        engine_names=wire.engine_names or "plain",
        max_rank=limits.max_rank or None,
        max_adapters=limits.max_adapters or None,
        expected_replicas=limits.expected_replicas or None,
        require_digest=limits.require_digest,
        require_signature=limits.require_signature,
        etag=wire.etag,
    )


def replica_of(wire: pb.Replica) -> FleetReplica:
    """A replica from its message."""
    status = _status(wire.status_json)
    engine = status.get("engine")
    url = engine.get("url") if isinstance(engine, dict) else ""
    return FleetReplica(
        name=wire.name,
        pool=wire.pool,
        labels=MappingProxyType(dict(wire.labels)),
        engine_url=wire.engine_url or ("" if wire.withheld_engine_url or not isinstance(url, str) else url),
        version=wire.version,
        leaving=wire.leaving,
        host=wire.host,
        started_at=wire.started_at,
        status=MappingProxyType(status),
    )


def _status(text: str) -> dict[str, Any]:
    """A report; empty where it is none: one replica that tells nonsense is no reason to tell of no other."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def replicas_of(pages: Sequence[pb.ListReplicasResponse]) -> ReplicaListing:
    """A listing from all its pages, of which the last tells who is missing."""
    return ReplicaListing(
        tuple(replica_of(one) for page in pages for one in page.replicas),
        tuple(one.name for page in pages for one in page.missing),
        pages[-1].lacking,
    )


def tenant_of_wire(wire: pb.Tenant) -> TenantQuota:
    """A tenant from its message."""
    return TenantQuota(wire.name, wire.adapters, wire.max_adapters or None, wire.etag)


def event_of(wire: pb.RecordedChange) -> RecordedEvent:
    """A recorded change from its message."""
    told = (wire.at, wire.principal, wire.request_id, wire.method, wire.kind, wire.name, wire.action, wire.generation)
    values = (ChangedValue(one.path, one.before_json, one.after_json) for one in wire.values)
    return RecordedEvent(*told, tuple(wire.fields), wire.note, tuple(values))
