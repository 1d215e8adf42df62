"""Diagnoses an installation from the reports of its parts. Pure.

Every remedy names a command or a setting. An error needs somebody to act; a warning should be known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlsplit

from registry.cli.doctor.findings import CheckedPart, DoctorFinding, error, member_findings, named, warning
from registry.cli.doctor.placement_findings import placement_findings
from registry.cli.doctor.replica_findings import insecure, replica_findings
from registry.cli.views.columns import seconds_left
from registry.cli.views.replica_view import ReplicaView, disagreements, groups_told, short_span, silent_on_uses
from registry.model.names import label_text, matches, tenant_of
from registry.runtime.settings import is_loopback
from registry.v1 import registry_pb2 as pb

# Those that vLLM takes.
_VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_FAR_ABOVE = 4
_MOST_DIGITS = 9
_SOON_SECONDS = 86_400

# As sidecars of all releases write it.
_CONFIRM = re.compile(r"--revision ([0-9]{1,19})\b")


@dataclass(frozen=True, slots=True)
class PoolSeen:
    """A pool as the admin service lists it; `unreadable` are names of records that cannot be read.

    `missing` replicas are expected and do not live. `expected`: how many the pool says that it has; 0: it does not say.
    `limits`: those of the pool's record. `lacking`: how many replicas are expected and do not live, known by name or
    not; 0: none, or the admin service is of a release that does not say. `groups`: those that it expects by labels.
    """

    name: str
    adapters: Sequence[pb.Adapter]
    unreadable: Sequence[str]
    replicas: Sequence[ReplicaView]
    missing: Sequence[ReplicaView] = ()
    expected: int = 0
    limits: pb.PoolLimits = field(default_factory=pb.PoolLimits)
    lacking: int = 0
    groups: Sequence[pb.GroupPresence] = ()


@dataclass(frozen=True, slots=True)
class Survey:
    """All that was listed; the `unreadable_` are names of records that cannot be read.

    `version_here` and `version_admin` are those of this program and of the admin service; empty: not told.
    `insecure_admin`: what the admin service says that it bears unprotected on the network.
    `unknown_pools`: those that live replicas name and that do not exist.
    `etcd`: its members as the admin service sees them; none: that is of a release that does not tell, or may not.
    """

    pools: Sequence[PoolSeen]
    unreadable_pools: Sequence[str]
    tenants: Sequence[pb.Tenant]
    unreadable_tenants: Sequence[str]
    version_here: str = ""
    version_admin: str = ""
    insecure_admin: Sequence[str] = ()
    unknown_pools: Sequence[pb.UnknownPool] = ()
    etcd: Sequence[pb.EtcdMember] = ()


def looked_at(seen: Survey) -> str:
    """Extent of the look at an installation, in words."""
    adapters, replicas = (sum(len(getattr(pool, kind)) for pool in seen.pools) for kind in ("adapters", "replicas"))
    etcd = f", {len(seen.etcd)} members of etcd" if seen.etcd else ""
    return f"{len(seen.pools)} pools, {replicas} replicas, {adapters} adapters, {len(seen.tenants)} tenants{etcd}"


def diagnose(seen: Survey, now: datetime) -> list[DoctorFinding]:
    """Everything that is wrong with pools, replicas and tenants."""
    return [
        *_versions(seen),
        *(warning(CheckedPart.ADMIN, "its settings", *insecure(one)) for one in seen.insecure_admin),
        *member_findings(seen.etcd),
        *_no_pools(seen),
        *map(_unknown_pool, seen.unknown_pools),
        *(_unreadable(CheckedPart.POOL, name, "loraplane pool update") for name in seen.unreadable_pools),
        *(finding for pool in seen.pools for finding in _pool(pool, now)),
        *_shared_engines(seen.pools),
        *(_unreadable(CheckedPart.TENANT, name, "loraplane tenant set") for name in seen.unreadable_tenants),
        *(finding for tenant in seen.tenants for finding in _tenant(tenant)),
    ]


@dataclass(frozen=True, slots=True)
class Miscount:
    """A tenant whose counter differs from the number of its listed adapters."""

    tenant: str
    counter: int
    adapters: int


def miscounts(seen: Survey) -> list[Miscount]:
    """Tenants that need a closer look: changes between the listings show here too."""
    names = [name for pool in seen.pools for name in (*(one.name for one in pool.adapters), *pool.unreadable)]
    counts, counters = Counter(map(tenant_of, names)), {one.name: one.adapters for one in seen.tenants}
    tenants = sorted((counts.keys() | counters.keys()) - set(seen.unreadable_tenants))
    found = [Miscount(tenant, counters.get(tenant, 0), counts[tenant]) for tenant in tenants]
    return [one for one in found if one.counter != one.adapters]


def methods_differ(address: str, here: Iterable[str], there: Iterable[str]) -> list[DoctorFinding]:
    """Finding on an admin service of another release than this program, by the methods that each knows."""
    missing, unknown = sorted(set(here) - set(there)), sorted(set(there) - set(here))
    if missing:
        finding = f"it is of an earlier release than this program: it has no {', '.join(missing)}"
        return [
            error(CheckedPart.ADMIN, address, "version_skew", finding, "upgrade loraplane-admin: pip install loraplane")
        ]
    if unknown:
        finding = f"it is of a later release than this program, which does not know {', '.join(unknown)}"
        return [
            warning(
                CheckedPart.ADMIN, address, "version_skew", finding, "upgrade loraplane here: pip install loraplane"
            )
        ]
    return []


@dataclass(frozen=True, slots=True)
class AccessSeen:
    """Access file of an admin service.

    Attributes:
        digest: empty: it has none.
        trouble: why a newer one is not taken; empty: it is.
        unknown: sentences on bindings that name what is not there.
    """

    admin: str
    digest: str
    trouble: str
    unknown: Sequence[str] = ()


def access_findings(seen: Sequence[AccessSeen]) -> list[DoctorFinding]:
    """Findings on access files that are not taken, name what is not there, or are not the same everywhere."""
    findings = [
        error(
            CheckedPart.ADMIN,
            one.admin,
            "access_not_taken",
            f"it cannot use its access file as it is now, and goes by an earlier one: {one.trouble}",
            "mend the file; it is read again within a second",
        )
        for one in seen
        if one.trouble
    ]
    if seen and seen[0].unknown:
        told = f"in its access file {named(seen[0].unknown)}, and there is none of that name"
        remedy = "correct the name, unless it is to come: loraplane pool create, or the tenant's first adapter"
        findings.append(warning(CheckedPart.ADMIN, seen[0].admin, "access_unknown", told, remedy))
    for one in seen[1:]:
        if one.digest != seen[0].digest:
            told = (
                f"its access file ({one.digest or 'none'}) is not that of {seen[0].admin} ({seen[0].digest or 'none'})"
            )
            remedy = "give all admin services the same file"
            findings.append(error(CheckedPart.ADMIN, one.admin, "access_differs", told, remedy))
    return findings


def _versions(seen: Survey) -> Iterator[DoctorFinding]:
    """One finding for all parts that are not of one version."""
    parts: dict[str, list[str]] = {seen.version_here: ["this program"]}
    parts.setdefault(seen.version_admin, []).append("the admin service")
    for pool in seen.pools:
        for replica in pool.replicas:
            parts.setdefault(replica.version, []).append(f"sidecar {pool.name}/{replica.name}")
    if len(parts) > 1:
        told = "; ".join(f"{version or 'not told'}: {named(names)}" for version, names in sorted(parts.items()))
        remedy = "upgrade the older parts: pip install --upgrade loraplane"
        yield warning(
            CheckedPart.ADMIN, "versions", "versions_differ", f"parts are of several versions: {told}", remedy
        )


def _no_pools(seen: Survey) -> Iterator[DoctorFinding]:
    """An admin service of an earlier release tells of no sidecars whose pool does not exist."""
    if not seen.pools and not seen.unreadable_pools and not seen.unknown_pools:
        remedy = "loraplane pool create POOL --base-model NAME, with the name that its sidecars' --pool says"
        yield warning(CheckedPart.POOL, "all", "no_pools", "there is no pool, so nothing can be served", remedy)


def _unknown_pool(pool: pb.UnknownPool) -> DoctorFinding:
    more = f" and {pool.replicas - len(pool.names)} more" if pool.replicas > len(pool.names) else ""
    finding = f"it does not exist, and {pool.replicas} replicas are of it: {', '.join(pool.names)}{more}"
    remedy = f"loraplane pool create {pool.name} --base-model NAME, or start their sidecars with another --pool"
    return error(CheckedPart.POOL, pool.name, "pool_unknown", finding, remedy)


def _pool(pool: PoolSeen, now: datetime) -> Iterator[DoctorFinding]:
    for name in pool.unreadable:
        remedy = f"apply it again (loraplane apply), or loraplane delete adapter {name} --pool {pool.name}"
        yield error(CheckedPart.POOL, pool.name, "unreadable_record", f"the record of {name} cannot be read", remedy)
    if not pool.replicas and not pool.missing:
        yield _nobody(pool)
    yield from _missing(pool, now)
    yield from _held(pool)
    for replica in pool.replicas:
        yield from replica_findings(replica, now)
    yield from placement_findings(pool.name, pool.adapters, pool.replicas, pool.limits.roles)
    yield from _behind(pool)
    yield from _ranks(pool)
    yield from _too_small(pool)
    yield from _loopback(pool)
    yield from _ending(pool, now)
    yield from _untold(pool)
    for one in disagreements(pool.replicas):
        found = "; ".join(f"{digest} on {', '.join(names)}" for digest, names in sorted(one.digests.items()))
        finding = f"replicas found different files of {one.name}: {found}"
        remedy = "set the digest that is meant (loraplane digest URI): loraplane set NAME --digest"
        yield error(CheckedPart.POOL, pool.name, "digests_differ", finding, remedy)
    versions = sorted({replica.text("engine", "version") for replica in pool.replicas} - {"-"})
    if len(versions) > 1:
        finding = f"its engines are of different versions: {', '.join(versions)}"
        yield warning(
            CheckedPart.POOL, pool.name, "engine_versions_differ", finding, "upgrade the engines: pip install vllm"
        )


def _ending(pool: PoolSeen, now: datetime) -> Iterator[DoctorFinding]:
    """Adapters that are deleted soon: within the last tenth of their ttl, and a day at most."""
    left = {one.name: seconds for one in pool.adapters if (seconds := _soon(one, now)) is not None}
    if left:
        told = named([f"{name} in {short_span(left[name])}" for name in sorted(left, key=lambda name: left[name])])
        finding = f"{len(left)} adapters are deleted soon, since their ttl ends: {told}"
        remedy = f"if they are still needed: loraplane set NAME --pool {pool.name} --ttl with a longer span, or none"
        yield warning(CheckedPart.POOL, pool.name, "adapters_expire", finding, remedy)


def _untold(pool: PoolSeen) -> Iterator[DoctorFinding]:
    """Replicas that do not tell uses, so that nothing ends whose ttl begins with the last one."""
    waiting = sorted(one.name for one in pool.adapters if one.spec.ttl_from == "use")
    silent = silent_on_uses(pool.replicas)
    if waiting and silent:
        finding = (
            f"{len(waiting)} adapters end once they are unused ({named(waiting)}), and do not while these replicas "
            f"do not tell what they are asked for: {named(silent)}"
        )
        remedy = (
            "install the plugin in their engines, and upgrade their sidecars; or let the last change count alone: "
            f"loraplane set NAME --pool {pool.name} --ttl-from change"
        )
        yield warning(CheckedPart.POOL, pool.name, "uses_not_told", finding, remedy)


def _soon(adapter: pb.Adapter, now: datetime) -> int | None:
    """Seconds until an adapter is deleted; None: that is not soon, never, not before it is unused, or not known."""
    if adapter.spec.ttl_from == "use":
        return None
    left = seconds_left(adapter, now)
    return left if left is not None and left < min(_SOON_SECONDS, adapter.spec.ttl_seconds / 10) else None


def _nobody(pool: PoolSeen) -> DoctorFinding:
    remedy = f"start loraplane-sidecar --pool {pool.name} beside each engine, or loraplane pool delete {pool.name}"
    if pool.adapters:
        finding = f"it has {len(pool.adapters)} adapters, and no replica lives"
        return error(CheckedPart.POOL, pool.name, "no_replicas", finding, remedy)
    return warning(CheckedPart.POOL, pool.name, "no_replicas", "no replica lives", remedy)


def _held(pool: PoolSeen) -> Iterator[DoctorFinding]:
    """One finding for all replicas that hold a list, with the one revision that lets each follow its own."""
    held = [replica for replica in pool.replicas if replica.status.get("held")]
    if not held:
        return
    highest = max(_held_revision(replica.text("held")) for replica in held)
    confirm = f"loraplane pool confirm-removals {pool.name} --revision {highest or 'R, as they say'}"
    told = f"{len(held)} replicas ({named([one.name for one in held])})"
    finding = f"{told} do not follow etcd: {held[0].text('held')}"
    remedy = f"compare with loraplane get adapters; if it is right, for all of them: {confirm}"
    yield error(CheckedPart.POOL, pool.name, "held", finding, remedy)


def _held_revision(text: str) -> int:
    """The revision in the command that a sidecar tells with a list that it holds; 0: it tells none."""
    match = _CONFIRM.search(text)
    return int(match[1]) if match else 0


def _missing(pool: PoolSeen, now: datetime) -> Iterator[DoctorFinding]:
    """One finding for all replicas that are expected and do not live."""
    names = named([f"{one.name} ({one.seen_ago(now)})" for one in pool.missing])
    lacking = max(len(pool.missing), pool.expected - len(pool.replicas), pool.lacking)
    if lacking:
        told = "; ".join(filter(None, [names, groups_told(pool.groups, lacking=True)]))
        staying = sum(not one.leaving for one in pool.replicas)  # as `get pools` counts them
        finding = f"{lacking} of {lacking + staying} replicas do not live" + (f": {told}" if told else "")
        yield error(CheckedPart.POOL, pool.name, "replicas_missing", finding, _start(pool))


def _start(pool: PoolSeen) -> str:
    """Remedy where replicas do not live, by what they are expected for."""
    flags = [
        f"--expect-labels {label_text(one.expected.labels)}:{one.live}"
        for one in pool.groups
        if one.live < one.expected.replicas
    ]
    if pool.expected > len(pool.replicas):
        flags.insert(0, f"--expect {len(pool.replicas)}")
    if flags:
        return f"start their sidecars, or loraplane pool update {pool.name} {' '.join(flags)}"
    return "start their sidecars; those that are not to come back: loraplane replica forget NAME"


def _behind(pool: PoolSeen) -> Iterator[DoctorFinding]:
    newest = max((int(adapter.etag or 0) for adapter in pool.adapters), default=0)
    for replica in pool.replicas:
        seen = replica.status.get("observed_revision")
        if isinstance(seen, int) and not replica.status.get("stale") and seen < newest:
            finding = f"it has seen revision {seen}, and the newest adapter is of {newest}"
            remedy = f"if it stays so (loraplane get replicas --pool {pool.name}), restart its sidecar"
            yield warning(CheckedPart.REPLICA, f"{pool.name}/{replica.name}", "behind", finding, remedy)


def _ranks(pool: PoolSeen) -> Iterator[DoctorFinding]:
    """vLLM keeps room for the highest rank that it was started with, whatever it holds. Of what was not brought in
    nobody knows the rank.
    """
    if any(one.spec.load == "lazy" for one in pool.adapters) or any(one.items("pending") for one in pool.replicas):
        return
    highest = max((_number(replica, "highest_rank") for replica in pool.replicas), default=0)
    fitting = next((rank for rank in _VLLM_RANKS if rank >= highest), highest)
    for replica in pool.replicas if highest else ():
        limit = _number(replica, "limits", "max_lora_rank")
        if limit >= _FAR_ABOVE * fitting:
            finding = f"it is started for ranks up to {limit}, and the highest of the pool is {highest}"
            remedy = f"to save memory and time at each step, start vLLM with --max-lora-rank {fitting}"
            yield warning(CheckedPart.REPLICA, f"{pool.name}/{replica.name}", "rank_limit_too_high", finding, remedy)


def _too_small(pool: PoolSeen) -> Iterator[DoctorFinding]:
    """Engines that were started for less than their pool allows or holds."""
    for replica in pool.replicas:
        if not replica.leaving:
            yield from _rank_too_low(pool, replica)
            yield from _room_too_small(pool, replica)


def _rank_too_low(pool: PoolSeen, replica: ReplicaView) -> Iterator[DoctorFinding]:
    limit, allowed = _number(replica, "limits", "max_lora_rank"), pool.limits.max_rank
    if not limit or allowed <= limit:
        return
    finding = f"it is started for ranks up to {limit}, and the pool takes adapters of ranks up to {allowed}"
    fitting = next((rank for rank in _VLLM_RANKS if rank >= allowed), allowed)
    remedy = f"start vLLM with --max-lora-rank {fitting}, or loraplane pool update {pool.name} --max-rank {limit}"
    yield warning(CheckedPart.REPLICA, f"{pool.name}/{replica.name}", "rank_limit_too_low", finding, remedy)


def _room_too_small(pool: PoolSeen, replica: ReplicaView) -> Iterator[DoctorFinding]:
    """Replicas whose adapters exceed the engine's room."""
    room, allowed = _number(replica, "limits", "max_cpu_loras"), pool.limits.max_adapters
    if not room or any(one.get("reason") == "over_capacity" for one in replica.items("pending")):
        return
    wanted, subject = sum(_is_for_all(one, replica) for one in pool.adapters), f"{pool.name}/{replica.name}"
    if wanted > room:
        finding = f"its engine has room for {room} adapters, and {wanted} eager ones are for every replica"
        remedy = f"start vLLM with --max-cpu-loras {wanted}, or apply some as load: lazy (loraplane set NAME --lazy)"
        yield error(CheckedPart.REPLICA, subject, "room_too_small", finding, remedy)
    elif allowed > room:
        finding = f"its engine has room for {room} adapters, and the pool takes {allowed} for each"
        remedy = (
            f"start vLLM with --max-cpu-loras {allowed}, or loraplane pool update {pool.name} --max-adapters {room}"
        )
        yield warning(CheckedPart.REPLICA, subject, "room_too_small", finding, remedy)


def _is_for_all(adapter: pb.Adapter, replica: ReplicaView) -> bool:
    """True for an eager adapter that is for each replica of its labels, and so for this one."""
    spec = adapter.spec
    if spec.load == "lazy" or spec.placement.replicas or (spec.HasField("enabled") and not spec.enabled):
        return False
    return matches(spec.placement.selector, replica.labels)


def _number(replica: ReplicaView, *path: str) -> int:
    text = replica.text("engine", *path)
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else 0


def _loopback(pool: PoolSeen) -> Iterator[DoctorFinding]:
    """A router reaches no engine of another host by an address of the loopback."""
    if len({replica.host for replica in pool.replicas if replica.host}) < 2:
        return
    found = [one.name for one in pool.replicas if _is_on_loopback(one.router_url)]
    if found:
        finding = f"replicas on several hosts tell routers addresses of the loopback: {named(found)}"
        remedy = "start each sidecar with --advertise-url URL, by which routers reach its engine"
        yield warning(CheckedPart.POOL, pool.name, "engine_url_loopback", finding, remedy)


def _is_on_loopback(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def _shared_engines(pools: Sequence[PoolSeen]) -> Iterator[DoctorFinding]:
    """An engine is told by its address and its incarnation, and by its host where that address is of the loopback.

    An incarnation is the time at which a process began: of a hundred that begin together, some have the same.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    for pool in pools:
        for replica in pool.replicas:
            url, incarnation = replica.text("engine", "url"), replica.text("engine", "incarnation")
            if "-" not in {url, incarnation}:
                engine = url, incarnation, replica.host if _is_on_loopback(url) else ""
                found.setdefault(engine, []).append(f"{pool.name}/{replica.name}")
    for (url, *_), replicas in found.items():
        if len(replicas) > 1:
            finding = f"several sidecars drive the engine at {url}: {', '.join(replicas)}"
            remedy = "stop all but one of them, or give each its own --engine and --replica"
            yield error(CheckedPart.REPLICA, replicas[0], "engine_shared", finding, remedy)


def _tenant(tenant: pb.Tenant) -> Iterator[DoctorFinding]:
    if tenant.max_adapters and tenant.adapters > tenant.max_adapters:
        finding = f"it has {tenant.adapters} adapters and may have {tenant.max_adapters}: it can add none"
        remedy = f"loraplane delete some, or loraplane tenant set {tenant.name} --max-adapters {tenant.adapters}"
        yield error(CheckedPart.TENANT, tenant.name, "over_quota", finding, remedy)


def _unreadable(part: CheckedPart, name: str, command: str) -> DoctorFinding:
    remedy = f"write it anew: {command} {name}; if it is of a later release, upgrade: pip install loraplane"
    return error(part, name, "unreadable_record", "its record cannot be read", remedy)
