"""Residency over random pools: what changed is found without deriving everything, and rollouts say the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from registry.etcd3.ops import KeyValue
from registry.model.names import name_key
from registry.model.placement import members_digest
from registry.model.records import Canary, CanaryRollout, Placement, Strategy
from registry.model.status import Failed, Found, Lazy, Pending, ReplicaStatus, Resident
from registry.store.judgement import ReplicaState
from registry.store.pool_facts import facts_of
from registry.store.pool_view import Held, PoolView, renewed
from registry.store.residency import residency
from registry.store.residency_changes import changed
from registry.store.rollout import Question, derive_rollout
from tests.support.records import KEYS, POOL, kv, record
from tests.support.replicas import engine_status, members, presence, replica_status

NAMES = st.sampled_from(["a", "b", "t/c"])
REPLICAS = st.sampled_from(["r1", "r2", "r3"])
REVISIONS = st.integers(1, 6)
Kvs = dict[bytes, KeyValue]


@st.composite
def records(draw: st.DrawFn) -> Kvs:
    found = {}
    for name in draw(st.sets(NAMES)):
        revision = draw(REVISIONS)
        placement = Placement(
            replicas=draw(st.sampled_from(["all", 1, 2])), selector=draw(st.sampled_from([{}, {}, {"z": "1"}]))
        )
        strategy = Strategy(canary=Canary(replicas=1)) if draw(st.booleans()) else None
        load = draw(st.sampled_from(["eager", "eager", "lazy"]))
        made = record(name, 2, pinned=draw(st.booleans()), load=load, placement=placement, strategy=strategy)
        if strategy is not None and draw(st.booleans()):
            made = made.model_copy(
                update={"rollout": CanaryRollout(stable_generation=1, stable_spec=record(name, pinned=False).spec)}
            )
        one = kv(name, revision, draw(st.sampled_from([made.to_bytes()] * 7 + [b"?"])))
        found[one.key] = one
    return found


@st.composite
def presences(draw: st.DrawFn) -> Kvs:
    found = {}
    for name in draw(st.sets(REPLICAS)):
        labels = draw(st.sampled_from([{}, {"z": "1"}]))
        value = presence(name, labels=labels, capacity=draw(st.sampled_from([None, 2]))).to_bytes()
        key = KEYS.replica(POOL, name)
        found[key] = KeyValue(key, value, 1, draw(REVISIONS), 1)
    return found


@st.composite
def statuses(draw: st.DrawFn) -> Kvs:
    found = {}
    for name in draw(st.sets(REPLICAS)):
        value = replica_status(name, draw(REVISIONS), **draw(complaints())).to_bytes()
        key = KEYS.status(POOL, name)
        found[key] = KeyValue(key, draw(st.sampled_from([value] * 7 + [b"?"])), 1, draw(REVISIONS), 1)
    return found


@st.composite
def complaints(draw: st.DrawFn) -> dict[str, Any]:
    failed = [
        Failed(name=name, generation=2, reason="BAD", message="", attempts=1, retry_at=None)
        for name in draw(st.sets(NAMES))
    ]
    used = [Resident(name=name, generation=2, last_used="t") for name in draw(st.sets(NAMES))]
    digests = st.sampled_from(["sha256:1", "sha256:2"])
    lists = st.sampled_from([[], ["r1"], ["r1", "r2"], ["r1", "r2", "r3"]])
    return {
        "stale": draw(st.sampled_from([False, False, False, True])),
        "failed": failed if draw(st.booleans()) else [],
        "pending": [Pending(name=name, generation=2, reason="staging") for name in draw(st.sets(NAMES, max_size=1))],
        "found": [Found(name=name, generation=2, digest=draw(digests)) for name in draw(st.sets(NAMES))],
        "lazy": Lazy(count=1, servable=draw(st.booleans()), resident=used),
        "members": members_digest(members(*draw(lists))),
        "omitted": draw(st.sampled_from([0, 0, 0, 1])),
        "engine": engine_status(names=draw(st.sampled_from(["plain", "versioned"]))),
    }


@st.composite
def held(draw: st.DrawFn) -> Held:
    return Held(draw(st.integers(4, 6)), draw(st.integers(0, 3)), draw(records()), draw(presences()), draw(statuses()))


@settings(max_examples=300, deadline=None)
@given(st.lists(held(), min_size=1, max_size=4))
def test_what_changed_is_what_is_derived_otherwise(history: list[Held]) -> None:
    """No subscriber misses a change, and none is told of what stayed as it was."""
    view = PoolView(POOL)
    for now in history:
        old, view = view, renewed(view, now)
        keys = {*old.records, *view.records}
        assert changed(old, view) == {key for key in keys if residency(old, key) != residency(view, key)}


@settings(max_examples=200, deadline=None)
@given(held())
def test_a_rollout_says_the_same(now: Held) -> None:
    """R9: of adapters that are on all replicas, rollout and residency give one answer."""
    view = renewed(PoolView(POOL), now)
    for name in ("a", "b", "t/c"):
        adapter, found = view.adapter(name_key(name)), residency(view, name_key(name))
        if adapter is None or found is None or adapter.is_chosen or adapter.spec.placement.selector:
            continue
        record_kv = now.records[KEYS.adapter(POOL, name)]
        facts = facts_of([[record_kv], list(now.presences.values()), _known(now)])
        rollout = derive_rollout(Question(POOL, name, 0), facts)
        told = [(one.replica, one.state, one.reason) for one in found.replicas]
        assert told == [(one.replica, one.state, one.reason) for one in rollout.replicas]


@settings(max_examples=200, deadline=None)
@given(held())
def test_serving_is_proven(now: Held) -> None:
    """R9 status-truth, by a check of its own: no replica is said to serve against its own newest status."""
    view = renewed(PoolView(POOL), now)
    for key in view.records:
        found = residency(view, key)
        for one in found.replicas if found else ():
            if one.state is ReplicaState.SERVING:
                _proves(now.statuses, one.replica, key, view)


def _known(now: Held) -> list[KeyValue]:
    """Statuses that speak of no later revision than the records are known up to: others are waited for."""
    view = renewed(PoolView(POOL), now)
    return [replica.status for replica in view.replicas.values() if replica.status is not None]


def _proves(said: Mapping[bytes, KeyValue], replica: str, key: str, view: PoolView) -> None:
    status = ReplicaStatus.parse(said[KEYS.status(POOL, replica)].value)
    adapter = view.adapter(key)
    assert adapter is not None
    assert not status.stale
    assert view.revision >= status.observed_revision >= adapter.revision
    assert key not in {name_key(one.name) for one in (*status.failed, *status.pending)}
    assert not status.omitted
    assert status.lazy.servable or not adapter.lazy
    assert not adapter.is_chosen or status.members == members_digest([one.member for one in view.replicas.values()])
