"""How far a rollout is, from what stands in etcd."""

from __future__ import annotations

import pytest

from registry.etcd3.ops import KeyValue
from registry.model.status import Failed, Found, Lazy, Pending
from registry.rollout.status import Question, ReplicaFailure, derive_rollout
from tests.support.records import KEYS, POOL, kv, record
from tests.support.residency_world import (
    FAILED,
    LEASE,
    PENDING,
    SERVING,
    UNKNOWN,
    engine_status,
    pool_snapshot,
    replica_status,
)

ASKED = Question(POOL, "acme/a", 2)
RECORD = kv("acme/a", 50, generation=2)


def status(incarnation: str = "e", **fields) -> bytes:
    return replica_status("r", 50, engine=engine_status(incarnation=incarnation), **fields).to_bytes()


def presence(name: str) -> KeyValue:
    return KeyValue(KEYS.replica(POOL, name), b"", 1, 1, 1, LEASE)


def derive(*statuses: bytes | None, asked: Question = ASKED, of: KeyValue | None = RECORD):
    names = [f"r{i}" for i in range(len(statuses))]
    said = [
        KeyValue(KEYS.status(POOL, n), s, 1, 1, 1, LEASE) for n, s in zip(names, statuses, strict=True) if s is not None
    ]
    return derive_rollout(asked, of, pool_snapshot([presence(name) for name in names], said))


def failed(name: str = "acme/a", retry_at: str | None = None) -> list[Failed]:
    return [Failed(name=name, generation=2, reason="BAD", message="m", attempts=1, retry_at=retry_at)]


@pytest.mark.parametrize(
    ("said", "state", "reason"),
    [
        (status(), SERVING, ""),
        (None, PENDING, "no_status"),
        (b"?", UNKNOWN, "unreadable_status"),
        (status(stale=True), UNKNOWN, "stale"),
        (status("", ready=False), UNKNOWN, "engine_unreachable"),
        (status(""), UNKNOWN, "engine_unreachable"),
        (status(ready=False), SERVING, ""),
        (replica_status("r", 49).to_bytes(), PENDING, "not_seen"),
        (status(pending=[Pending(name="ACME/a", generation=2, reason="staging")]), PENDING, "staging"),
        (status(pending=[Pending(name="acme/b", generation=2, reason="staging")]), SERVING, ""),
        (status(failed=failed(retry_at="soon")), PENDING, "BAD"),
        (status(failed=failed()), FAILED, "BAD"),
        (status(failed=failed("acme/b")), SERVING, ""),
        (status(omitted=1), UNKNOWN, "omitted"),
        (status(omitted=1, failed=failed()), FAILED, "BAD"),
        (status(omitted=1, serves=[("acme/a", 2)]), SERVING, ""),
        (status(omitted=1, serves=[("acme/a", 1)]), PENDING, "omitted"),
        (status(omitted=1, serves=[], omitted_reason="over_capacity"), PENDING, "over_capacity"),
        (status(omitted=1, omitted_reason="over_capacity"), UNKNOWN, "omitted"),
    ],
)
def test_one_replica(said, state, reason):
    """R9 status-truth: serving only if the status as a whole proves it."""
    (replica,) = derive(said).replicas
    assert (replica.state, replica.reason) == (state, reason)


def test_lazy():
    """A lazy adapter is served where it could be loaded, and refused where it could not."""
    lazy = kv("acme/a", 50, value=record("acme/a", 2, load="lazy").to_bytes())
    (one,) = derive(status(lazy=Lazy(count=1, servable=True)), of=lazy).replicas
    assert one.state is SERVING
    rollout = derive(status(lazy=Lazy(count=1, servable=False, reason="needs_plugin")), of=lazy)
    assert (rollout.replicas[0].state, rollout.replicas[0].reason) == (FAILED, "needs_plugin")
    assert rollout.failure is ReplicaFailure.REPLICAS_FAILED
    # R9: it may be among the failures that a large status leaves out.
    (one,) = derive(status(lazy=Lazy(count=1, servable=True), omitted=1), of=lazy).replicas
    assert (one.state, one.reason) == (UNKNOWN, "omitted")


@pytest.mark.parametrize("lease", [0, LEASE + 1])
def test_a_status_counts_only_under_the_lease_of_its_presence(lease):
    """R9 status-truth: what a process before wrote, or somebody who is no sidecar, proves nothing."""
    here = [presence("r1")]
    pool = pool_snapshot(here, [KeyValue(KEYS.status(POOL, "r1"), status(), 1, 1, 1, lease)])
    (told,) = derive_rollout(ASKED, RECORD, pool).replicas
    assert (told.state, told.reason) == (PENDING, "no_status")
    without = KeyValue(KEYS.replica(POOL, "r1"), b"", 1, 1, 1, lease)
    pool = pool_snapshot([without], [KeyValue(KEYS.status(POOL, "r1"), status(), 1, 1, 1, lease)])
    (told,) = derive_rollout(ASKED, RECORD, pool).replicas
    assert (told.state is SERVING) == bool(lease), "nobody keeps alive what stands under no lease"
    dead = pool_snapshot([], [KeyValue(KEYS.status(POOL, "r1"), status(), 1, 1, 1, lease)])
    assert derive_rollout(ASKED, RECORD, dead).replicas == ()


ONE, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def found(digest: str, name: str = "acme/a", generation: int = 2) -> list[Found]:
    return [Found(name=name, generation=generation, digest=digest)]


def test_replicas_that_found_different_files_do_not_serve_one_generation():
    """W6 one-digest, R9: a record without a digest means what was found, and that must be the same everywhere."""
    unpinned = kv("acme/a", 50, value=record("acme/a", 2, pinned=False).to_bytes())
    agreed = derive(status(found=found(ONE)), status(found=found(ONE, "ACME/a")), of=unpinned)
    assert (agreed.failure, [one.state for one in agreed.replicas]) == (None, [SERVING, SERVING])
    differing = derive(status(found=found(ONE)), status(found=found(OTHER)), status(), of=unpinned)
    assert differing.failure is ReplicaFailure.REPLICAS_FAILED
    assert [one.reason for one in differing.replicas] == ["digests_differ", "digests_differ", ""]
    assert all(digest in differing.replicas[0].message for digest in (ONE, OTHER))


@pytest.mark.parametrize("other", [found(OTHER, "acme/b"), found(OTHER, generation=1), [], None], ids=repr)
def test_only_what_was_found_of_this_generation_is_compared(other):
    """What a replica found of an earlier, unpinned record says nothing of one with a digest."""
    of = kv("acme/a", 50, value=record("acme/a", 2, pinned=other is None).to_bytes())
    told = derive(status(found=found(ONE)), status(found=found(OTHER) if other is None else other), of=of)
    assert told.failure is None
