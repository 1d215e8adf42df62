"""Which adapters' residency differs between two views of a pool. Pure.

A pool may have 20,000 adapters on 100 replicas, and each status of a replica is a new view: what cannot have changed
is not derived again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from registry.model.status import ReplicaStatus
from registry.store.judgement import BLOCKED, Told
from registry.store.pool_view import Adapter, PoolView
from registry.store.residency import residence_on, residency


def changed(old: PoolView, new: PoolView) -> frozenset[str]:
    """The name keys whose `residency` is not the same, those of adapters that came or are gone too."""
    causes = [name for name in {*old.replicas, *new.replicas} if old.replicas.get(name) is not new.replicas.get(name)]
    return frozenset(key for key in _candidates(old, new, causes) if _differs(old, new, key, causes))


def _candidates(old: PoolView, new: PoolView, causes: Iterable[str]) -> Iterable[str]:
    """The name keys that may have changed."""
    keys: set[str] = set()
    for name in causes:
        touched = _touched(old, new, name)
        if touched is None:
            return {*old.records, *new.records}
        keys |= touched
    if old.records is not new.records:
        names = {*old.records, *new.records}
        keys |= {key for key in names if old.records.get(key) is not new.records.get(key)}
    return keys | _chosen(new) if old.rooms is not new.rooms else keys


def _chosen(view: PoolView) -> set[str]:
    return {key for key, entry in view.records.items() if entry.adapter and entry.adapter.is_chosen}


def _touched(old: PoolView, new: PoolView, name: str) -> set[str] | None:
    """The name keys that a change of a replica is about; None: it may be about all."""
    one, other = old.replicas.get(name), new.replicas.get(name)
    if one is None or other is None or one.member != other.member:
        return None
    before, now = one.said, other.said
    if not (isinstance(before, Told) and isinstance(now, Told)) or _whole(before.status) != _whole(now.status):
        return None
    keys = _seen_between(new, before.status.observed_revision, now.status.observed_revision) | _named(before, now)
    is_same = (before.status.members, before.status.weights) == (now.status.members, now.status.weights)
    return keys if is_same else keys | _chosen(new)


def _seen_between(view: PoolView, *revisions: int) -> set[str]:
    """The name keys of the records that one of two statuses knew and the other did not."""
    first, last = (bisect_right(view.by_revision, (revision, "\U0010ffff")) for revision in sorted(revisions))
    return {key for _, key in view.by_revision[first:last]}


def _whole(status: ReplicaStatus) -> tuple[object, ...]:
    """What of a status every adapter of the replica depends on."""
    is_reachable = status.ready or bool(status.engine.incarnation)
    engine, lazy = status.engine, status.lazy
    return (
        status.stale,
        is_reachable,
        engine.url,
        engine.names,
        lazy.servable,
        lazy.reason,
        status.omitted > 0,
        any(one.reason == BLOCKED for one in status.warnings),
    )


def _named(before: Told, now: Told) -> set[str]:
    """The name keys of which the two statuses do not say the same."""
    pairs = (
        (before.failed, now.failed),
        (before.pending, now.pending),
        (before.found, now.found),
        (before.resident, now.resident),
        (before.leaving, now.leaving),
    )
    return {key for one, other in pairs for key in {*one, *other} if one.get(key) != other.get(key)}


def _differs(old: PoolView, new: PoolView, key: str, causes: Iterable[str]) -> bool:
    before, now = old.adapter(key), new.adapter(key)
    if before is None or now is None:
        return before is not now
    if before is now and _stands_alone(now):
        return any(residence_on(old, now, name) != residence_on(new, now, name) for name in causes)
    return residency(old, key) != residency(new, key)


def _stands_alone(adapter: Adapter) -> bool:
    """True if what is said of one replica does not depend on the others."""
    return adapter.pinned and not adapter.is_chosen
