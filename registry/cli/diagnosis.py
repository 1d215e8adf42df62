"""What is wrong with an installation, from what its parts say of themselves. Pure.

Every remedy names a command or a setting. An error needs somebody to act; a warning should be known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from registry.cli.finding import Finding, Part, error, warning
from registry.cli.replica_findings import replica_findings
from registry.cli.replica_view import ReplicaView, disagreements
from registry.v1 import registry_pb2 as pb


@dataclass(frozen=True, slots=True)
class PoolSeen:
    """A pool as the admin service lists it; `unreadable` are names of records that cannot be read."""

    name: str
    adapters: Sequence[pb.Adapter]
    unreadable: Sequence[str]
    replicas: Sequence[ReplicaView]


@dataclass(frozen=True, slots=True)
class Seen:
    """All that was listed; the `unreadable_` are names of records that cannot be read."""

    pools: Sequence[PoolSeen]
    unreadable_pools: Sequence[str]
    tenants: Sequence[pb.Tenant]
    unreadable_tenants: Sequence[str]


def diagnose(seen: Seen, now: datetime) -> list[Finding]:
    """Everything that is wrong with pools, replicas and tenants."""
    return [
        *_no_pools(seen),
        *(_unreadable(Part.POOL, name, "loraplane pool update") for name in seen.unreadable_pools),
        *(finding for pool in seen.pools for finding in _pool(pool, now)),
        *_shared_engines(seen.pools),
        *(_unreadable(Part.TENANT, name, "loraplane tenant set") for name in seen.unreadable_tenants),
        *(finding for tenant in seen.tenants for finding in _tenant(tenant)),
    ]


def methods_differ(address: str, here: Iterable[str], there: Iterable[str]) -> list[Finding]:
    """That the admin service is of another release than this program, by the methods that each knows."""
    missing, unknown = sorted(set(here) - set(there)), sorted(set(there) - set(here))
    if missing:
        finding = f"it is of an earlier release than this program: it has no {', '.join(missing)}"
        return [error(Part.ADMIN, address, "version_skew", finding, "upgrade loraplane-admin: pip install loraplane")]
    if unknown:
        finding = f"it is of a later release than this program, which does not know {', '.join(unknown)}"
        return [warning(Part.ADMIN, address, "version_skew", finding, "upgrade loraplane here: pip install loraplane")]
    return []


def _no_pools(seen: Seen) -> Iterator[Finding]:
    """Sidecars of a pool without a record are not told of anywhere: its replicas cannot be listed."""
    if not seen.pools and not seen.unreadable_pools:
        remedy = "loraplane pool create POOL --base-model NAME, with the name that its sidecars' --pool says"
        yield warning(Part.POOL, "all", "no_pools", "there is no pool, so nothing can be served", remedy)


def _pool(pool: PoolSeen, now: datetime) -> Iterator[Finding]:
    for name in pool.unreadable:
        remedy = f"apply it again (loraplane apply), or loraplane delete adapter {name} --pool {pool.name}"
        yield error(Part.POOL, pool.name, "unreadable_record", f"the record of {name} cannot be read", remedy)
    if not pool.replicas:
        yield _nobody(pool)
    for replica in pool.replicas:
        yield from replica_findings(replica, now)
    yield from _placements(pool)
    yield from _behind(pool)
    for one in disagreements(pool.replicas):
        found = "; ".join(f"{digest} on {', '.join(names)}" for digest, names in sorted(one.digests.items()))
        finding = f"replicas found different files of {one.name}: {found}"
        remedy = "apply the digest that is meant (loraplane digest URI): loraplane add … --digest"
        yield error(Part.POOL, pool.name, "digests_differ", finding, remedy)
    versions = sorted({replica.text("engine", "version") for replica in pool.replicas} - {"-"})
    if len(versions) > 1:
        finding = f"its engines are of different versions: {', '.join(versions)}"
        yield warning(Part.POOL, pool.name, "engine_versions_differ", finding, "upgrade the engines: pip install vllm")


def _nobody(pool: PoolSeen) -> Finding:
    remedy = f"start loraplane-sidecar --pool {pool.name} beside each engine, or loraplane pool delete {pool.name}"
    if pool.adapters:
        finding = f"it has {len(pool.adapters)} adapters, and no replica lives"
        return error(Part.POOL, pool.name, "no_replicas", finding, remedy)
    return warning(Part.POOL, pool.name, "no_replicas", "no replica lives", remedy)


def _placements(pool: PoolSeen) -> Iterator[Finding]:
    for adapter in pool.adapters if pool.replicas else ():
        placement = adapter.spec.placement
        fitting = sum(_fits(placement.selector, replica.labels) for replica in pool.replicas)
        if fitting < (placement.replicas or 1):
            finding = f"{adapter.name} asks for {placement.replicas or 'all'} replicas, and {fitting} that match live"
            remedy = "start more sidecars with its --labels, or apply another placement (loraplane apply)"
            yield error(Part.POOL, pool.name, "too_few_replicas", finding, remedy)


def _fits(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


def _behind(pool: PoolSeen) -> Iterator[Finding]:
    newest = max((int(adapter.etag or 0) for adapter in pool.adapters), default=0)
    for replica in pool.replicas:
        seen = replica.status.get("observed_revision")
        if isinstance(seen, int) and not replica.status.get("stale") and seen < newest:
            finding = f"it has seen revision {seen}, and the newest adapter is of {newest}"
            remedy = f"if it stays so (loraplane get replicas --pool {pool.name}), restart its sidecar"
            yield warning(Part.REPLICA, f"{pool.name}/{replica.name}", "behind", finding, remedy)


def _shared_engines(pools: Sequence[PoolSeen]) -> Iterator[Finding]:
    """An engine is told by its address and its incarnation: addresses of the loopback are equal on every host."""
    found: dict[tuple[str, str], list[str]] = {}
    for pool in pools:
        for replica in pool.replicas:
            engine = replica.text("engine", "url"), replica.text("engine", "incarnation")
            if "-" not in engine:
                found.setdefault(engine, []).append(f"{pool.name}/{replica.name}")
    for (url, _), replicas in found.items():
        if len(replicas) > 1:
            finding = f"several sidecars drive the engine at {url}: {', '.join(replicas)}"
            remedy = "stop all but one of them, or give each its own --engine and --replica"
            yield error(Part.REPLICA, replicas[0], "engine_shared", finding, remedy)


def _tenant(tenant: pb.Tenant) -> Iterator[Finding]:
    if tenant.max_adapters and tenant.adapters > tenant.max_adapters:
        finding = f"it has {tenant.adapters} adapters and may have {tenant.max_adapters}: it can add none"
        remedy = f"loraplane delete some, or loraplane tenant set {tenant.name} --max-adapters {tenant.adapters}"
        yield error(Part.TENANT, tenant.name, "over_quota", finding, remedy)


def _unreadable(part: Part, name: str, command: str) -> Finding:
    remedy = f"write it anew: {command} {name}; if it is of a later release, upgrade: pip install loraplane"
    return error(part, name, "unreadable_record", "its record cannot be read", remedy)
