"""Findings about where the adapters of a pool may be placed. Pure.

An adapter that fewer live replicas may serve than it asks for is an error. That it leaves live replicas out is mostly
meant, and worth knowing all the same: their engines answer 404 to its name. A replica on which nothing may be placed is
rather a label that was misspelt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from registry.cli.doctor.findings import CheckedPart, DoctorFinding, error, info, named, warning
from registry.cli.views.replica_view import ReplicaView
from registry.model.names import label_text, matches
from registry.model.placement import ROLE_LABEL, roles_lacking
from registry.v1 import registry_pb2 as pb


def placement_findings(
    pool: str, adapters: Sequence[pb.Adapter], replicas: Sequence[ReplicaView], roles: Sequence[str]
) -> Iterator[DoctorFinding]:
    """Placement of a pool's adapters on its live replicas: what is wrong, or else what is meant to be so.

    `roles`: of each of these, a replica is to serve each adapter.
    """
    if not replicas:
        return
    staying = [replica for replica in replicas if not replica.leaving]
    enabled = [one for one in adapters if one.spec.enabled or not one.spec.HasField("enabled")]
    fitting = _fitting(enabled, staying)
    found = [*_too_few(pool, enabled, fitting), *_without_role(pool, enabled, fitting, staying, roles)]
    found = found or list(_unused(pool, enabled, fitting, staying))
    yield from found or _left_out(pool, enabled, fitting, len(staying))


Selector = frozenset[tuple[str, str]]


def _selector(adapter: pb.Adapter) -> Selector:
    return frozenset(adapter.spec.placement.selector.items())


def _fitting(adapters: Sequence[pb.Adapter], staying: Sequence[ReplicaView]) -> dict[Selector, list[str]]:
    """Names of the replicas that each selector matches: thousands of adapters have a few of them."""
    selectors = {_selector(adapter) for adapter in adapters}
    return {one: [replica.name for replica in staying if matches(dict(one), replica.labels)] for one in selectors}


def _too_few(pool: str, adapters: Sequence[pb.Adapter], fitting: dict[Selector, list[str]]) -> Iterator[DoctorFinding]:
    for adapter in adapters:
        placement, live = adapter.spec.placement, len(fitting[_selector(adapter)])
        if live < (placement.replicas or 1):
            asked = f"{adapter.name} asks for {placement.replicas or 'all'} replicas"
            finding = f"{asked}, and {live} that match live and do not drain"
            remedy = "start more sidecars with its --labels, undrain one, or apply another placement (loraplane apply)"
            yield error(CheckedPart.POOL, pool, "too_few_replicas", finding, remedy)


def _without_role(
    pool: str,
    enabled: Sequence[pb.Adapter],
    fitting: dict[Selector, list[str]],
    staying: Sequence[ReplicaView],
    roles: Sequence[str],
) -> Iterator[DoctorFinding]:
    """Findings on roles that the pool asks for and no replica plays on which an adapter may be placed."""
    labels = {replica.name: replica.labels for replica in staying}
    lacking = {key: roles_lacking(roles, [labels[name] for name in names]) for key, names in fitting.items()}
    for role in roles:
        names = [one.name for one in enabled if role in lacking[_selector(one)]]
        if names:
            finding = f"{len(names)} adapters may be placed on no live replica of the role {role}: {named(names)}"
            remedy = f"start a sidecar with --labels {ROLE_LABEL}={role}, or loraplane pool update {pool} --role any"
            yield error(CheckedPart.POOL, pool, "role_not_served", finding, remedy)


def _left_out(
    pool: str, enabled: Sequence[pb.Adapter], fitting: dict[Selector, list[str]], live: int
) -> Iterator[DoctorFinding]:
    """Finding on adapters that are meant for some of the live replicas, and not for the others."""
    meant = [(one.name, min(one.spec.placement.replicas or live, len(fitting[_selector(one)]))) for one in enabled]
    out = [f"{name} ({count} of {live})" for name, count in meant if count < live]
    if out:
        finding = f"{len(out)} adapters are placed on some live replicas alone, the others answer 404: {named(out)}"
        remedy = f"nothing if that is meant; of one: loraplane why NAME --pool {pool}; --replicas 0 is all"
        yield info(CheckedPart.POOL, pool, "replicas_left_out", finding, remedy)


def _unused(
    pool: str, enabled: Sequence[pb.Adapter], fitting: dict[Selector, list[str]], staying: Sequence[ReplicaView]
) -> Iterator[DoctorFinding]:
    """Findings on replicas that match the placement of no adapter, where there are adapters."""
    used = {name for selector in set(map(_selector, enabled)) for name in fitting[selector]}
    for replica in staying if enabled else ():
        if replica.name not in used:
            labels = label_text(replica.labels) or "none"
            finding = f"no adapter of its pool that is seen here may be placed on it: its labels are {labels}"
            remedy = "start its sidecar with --labels that a placement.selector asks for, or apply another placement"
            yield warning(CheckedPart.REPLICA, f"{pool}/{replica.name}", "replica_unused", finding, remedy)
