"""What stands in etcd and cannot be read, is of a later release, or has fields that this release does not know."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from registry.etcd3.ops import KeyValue
from registry.model.audit import AuditChange, AuditRecord
from registry.model.errors import FailedPrecondition, Reason
from registry.model.records import MAX_GENERATION, PoolLimits, PoolSpec, RetiredRecord, TenantRecord
from registry.model.stored import MAX_RECORD_BYTES
from registry.transactions.builder import Unchanged, is_fenced, replay
from registry.transactions.changes import (
    Change,
    ConfirmRemovals,
    DeletePool,
    DrainReplica,
    PromoteRollout,
    Remove,
    RepairTenant,
    RollbackAdapter,
    SetTenant,
    UpdatePool,
)
from registry.transactions.decode import (
    Damaged,
    ReadSet,
    engine_hosts_of,
    read_adapter,
    read_pool,
    read_tenant,
    snapshot_of,
    stored_adapter,
)
from registry.transactions.repair import AuditTrail
from tests.support.changes import ALICE, KEYS, POOL, Author, applying, upsert
from tests.unit.transactions.conftest import etag, lives, record, refused

A, POOL_KEY, ACME = KEYS.adapter(POOL, "acme/a"), KEYS.pool(POOL), KEYS.tenant("acme")
FUTURE = b'{"schema": 99}'
OLD = KEYS.history(POOL, "acme/a", 1)
REPLACE = "replace it whole, as loraplane pool update"
REFUSED: dict[str, tuple[Change, bytes, str]] = {
    "the pool of an apply": (applying(upsert("acme/a")), POOL_KEY, REPLACE),
    "the pool of a confirmation": (ConfirmRemovals(POOL, 1), POOL_KEY, REPLACE),
    "the pool of a rollout": (PromoteRollout(POOL, "acme/a"), POOL_KEY, REPLACE),
    "the adapter of a rollout": (PromoteRollout(POOL, "acme/a"), A, "apply or delete the adapter to replace it"),
    "a generation": (RollbackAdapter(POOL, "acme/a"), OLD, "choose another generation of the adapter's history"),
    "the counter of an apply": (applying(upsert("acme/b")), ACME, "put {"),
    "the counter of a quota": (SetTenant("acme", 9), ACME, "put {"),
    "the counter of a repair": (RepairTenant("acme"), ACME, "put {"),
}


@pytest.fixture
def author(author) -> Author:
    """acme/a, in its second generation."""
    author.change(applying(upsert("acme/a")))
    author.change(applying(upsert("acme/a", "v2")))
    return author


@pytest.mark.parametrize(
    "value", [b"?", FUTURE, b'{"schema": 1, "name": "elsewhere"}'], ids=["damaged", "future", "odd"]
)
@pytest.mark.parametrize(("change", "key", "remedy"), REFUSED.values(), ids=REFUSED)
def test_what_depends_on_it_is_refused_by_its_key(author, change, key, remedy, value):
    """X2, R14, W5: fail closed; the refusal says what to do, unless a later release wrote it."""
    author.etcd.put(key, value)
    told = refused(author, change)
    assert type(told) is FailedPrecondition
    assert told.metadata == {"key": key.decode()}
    assert told.message.startswith(f"the record at {key.decode()} cannot be read: ")
    if value == FUTURE:
        assert (told.reason, remedy in told.message) == (Reason.FUTURE_SCHEMA, False)
    else:
        assert told.reason is Reason.UNREADABLE_RECORD
        assert f"; {remedy}" in told.message
    if key == ACME:
        author.change(applying(upsert("acme/a", "v3")))  # which counts nothing


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (applying(upsert("acme/a")), A),
        (applying(Remove("acme/a")), A),
        (RollbackAdapter(POOL, "acme/a", 1), A),
        (UpdatePool(POOL, ("base",), PoolLimits()), POOL_KEY),
        (DeletePool(POOL), POOL_KEY),
        (DrainReplica(POOL, "r1", drain=True), KEYS.drain(POOL, "r1")),
    ],
)
def test_what_a_later_release_wrote_is_not_replaced(author, change, key):
    """R14: what cannot be read at all is."""
    lives(author, "r1")
    if isinstance(change, DeletePool):
        author.change(applying(Remove("acme/a")))
    author.etcd.put(key, FUTURE)
    told = refused(author, change)
    assert (told.reason, told.metadata) == (Reason.FUTURE_SCHEMA, {"key": key.decode()})
    author.etcd.put(key, b"?")
    author.change(change)
    assert key not in author.etcd.kvs or author.etcd.kvs[key].value != b"?"


@pytest.mark.parametrize("value", [b"?", FUTURE])
def test_a_request_record_that_cannot_be_read_is_no_reply(author, value):
    """W3 idempotent: neither that it was carried out nor that it was not is known."""
    change = applying(upsert("acme/b"))
    context = author.context(change, "q")
    key = KEYS.request("q", ALICE)
    author.etcd.put(key, value)
    view = author.view(change, context)
    for asked in (replay, is_fenced):
        with pytest.raises(FailedPrecondition) as told:
            asked(view, context)
        if value == FUTURE:
            assert told.value.reason is Reason.FUTURE_SCHEMA
        else:
            assert (told.value.reason, told.value.metadata) == (Reason.UNREADABLE_RECORD, {"key": key.decode()})
            assert told.value.message.endswith("; use a new request_id")


READERS: list[tuple[Callable[[KeyValue], object], bytes, bytes]] = [
    (read_pool, POOL_KEY, KEYS.pool("q")),
    (read_tenant, ACME, KEYS.tenant("other")),
    (lambda kv: read_adapter(POOL, kv), A, KEYS.adapter(POOL, "acme/b")),
    (lambda kv: read_adapter("p" if kv.key == A else "q", kv), A, KEYS.adapter("q", "acme/a")),
]


@pytest.mark.parametrize(("reader", "key", "elsewhere"), READERS)
def test_a_record_is_read_under_its_own_key(author, reader, key, elsewhere):
    """X2, R14: whoever copied it elsewhere, past the admin service, has made no record of it."""
    kv = author.etcd.kvs[key]
    assert reader(kv)
    with pytest.raises(FailedPrecondition, match="stands under another key than its own"):
        reader(replace(kv, key=elsewhere))


def test_the_hosts_that_a_pool_allows():
    """X2: of a record that cannot be read nothing is known, and without one anything is allowed."""
    spec = PoolSpec(name=POOL, base_models=["base"], limits=PoolLimits(engine_hosts=["a", "b"]))
    kv = KeyValue(POOL_KEY, spec.to_bytes(), 1, 1, 1, 0)
    assert engine_hosts_of(kv) == ("a", "b")
    assert engine_hosts_of(None) == ()
    assert engine_hosts_of(replace(kv, value=b"?")) is None
    assert engine_hosts_of(replace(kv, key=KEYS.pool("q"))) is None


@pytest.mark.parametrize(
    ("deleted", "last"), [(True, 1), (False, 2), (None, 1)], ids=["deleted", "replaced", "unreadable"]
)
def test_what_history_says_of_a_name_that_is_gone(author, deleted, last):
    """W6: the newest that was replaced and not deleted was followed by one that is gone without a trace."""
    retired = RetiredRecord.parse(author.etcd.kvs[OLD].value)
    value = b"?" if deleted is None else retired.model_copy(update={"deleted": deleted}).to_bytes()
    kv = KeyValue(OLD, value, 1, 1, 1, 0)
    view = ReadSet(1, (), {}, {KEYS.history_of(POOL, "acme/a"): (kv,)})
    assert stored_adapter(view, KEYS, POOL, "acme/a").last_generation == last
    author.etcd.put(OLD, value)
    author.etcd.delete(A)
    author.change(applying(upsert("acme/a", "v3")))
    assert record(author).generation == last + 1


@pytest.mark.parametrize(
    ("value", "generation"),
    [
        (b"?", 3),
        (b'"x"', 3),
        (b"[" * 100_000, 3),
        (b'{"generation": 2}', 3),
        (b'{"generation": 3}', 3),
        (b'{"generation": 4}', 4),
        (b'{"generation": 4.0}', 3),
        (b'{"generation": true}', 3),
        (b'{"generation": "9"}', 3),
        (b'{"generation": -1}', 3),
        (b'{"generation": %d}' % ((1 << 53) - 2), (1 << 53) - 2),
        (b'{"generation": %d}' % (1 << 63), 3),
        (b"[4]", 3),
    ],
    ids=lambda one: str(one)[:20],
)
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_damaged_record_stands_for_the_generation_that_it_claims_or_the_next(author, value, generation, is_deleted):
    """W6, W7, R16: the larger one, so that none is given twice; history keeps of it as much as may stand in etcd."""
    author.change(applying(Remove("acme/a")))
    author.etcd.put(A, value)
    change = applying(upsert("acme/a"))
    state = stored_adapter(author.view(change, author.context(change)), KEYS, POOL, "acme/a")
    assert state == Damaged(value, etag(author), generation)
    shown = {"unreadable": value[:4096].decode()}
    assert snapshot_of(state) == shown
    assert snapshot_of(replace(state, value=b"\xff" * 5000)) == {"unreadable": "\\xff" * 4096}
    if is_deleted:
        [gone] = author.change(applying(Remove("acme/a"))).reply.adapters
        assert (gone.record, gone.name) == (None, "acme/a")
    author.change(change)
    assert record(author).generation == generation + 1
    assert author.etcd.kvs[KEYS.history(POOL, "acme/a", generation)].value == value[:MAX_RECORD_BYTES]
    assert TenantRecord.parse(author.etcd.kvs[ACME].value).adapters == (1 if is_deleted else 0)


def test_the_last_generation(author):
    """Generations end where readers of JSON would lose digits; that is refused, not written."""
    last_but_one = record(author).model_copy(update={"generation": MAX_GENERATION - 1})
    author.etcd.put(A, last_but_one.to_bytes())
    author.change(applying(upsert("acme/a", "last")))
    assert record(author).generation == MAX_GENERATION
    assert refused(author, applying(upsert("acme/a", "v2"))).reason is Reason.UNREADABLE_RECORD
    author.change(applying(Remove("acme/a")))
    assert refused(author, applying(upsert("acme/a"))).reason is Reason.UNREADABLE_RECORD


def test_unknown_fields_survive(author):
    """R14: a field of a later release stays, at every depth, and counts as no change; a rollback takes it along."""
    author.change(SetTenant("acme", 5))
    for key in (A, POOL_KEY, ACME):
        document = json.loads(author.etcd.kvs[key].value) | {"new": 1}
        if key == A:
            document["spec"]["source"]["new"] = 2
        if key == POOL_KEY:
            document["limits"]["new"] = 3
        author.etcd.put(key, json.dumps(document).encode())
    for same in (applying(upsert("acme/a", "v2")), UpdatePool(POOL, ("base",), PoolLimits()), SetTenant("acme", 5)):
        assert isinstance(author.plan(same), Unchanged)
    author.change(applying(upsert("acme/a", "v3"), upsert("acme/b")))
    author.change(UpdatePool(POOL, ("base",), PoolLimits(max_rank=8)))
    adapter, pool, tenant = (json.loads(author.etcd.kvs[key].value) for key in (A, POOL_KEY, ACME))
    assert (adapter["new"], adapter["spec"]["source"]["new"], adapter["generation"]) == (1, 2, 3)
    assert (pool["new"], pool["limits"]) == (1, PoolLimits(max_rank=8).model_dump() | {"new": 3})
    assert tenant["new"] == 1
    first = json.loads(author.etcd.kvs[OLD].value)
    author.change(RollbackAdapter(POOL, "acme/a", 1))
    after = json.loads(author.etcd.kvs[A].value)
    assert (after["generation"], after["spec"]) == (4, first["spec"]), "W6: what was said of other weights is not"


def audit(number: int, *changes: AuditChange) -> KeyValue:
    made = AuditRecord(
        at="", principal="alice", role="operator", request_id="q", method="ApplyAdapters", changes=list(changes)
    )
    return KeyValue(KEYS.audit(POOL, f"{number}"), made.to_bytes(), number, number, 1, 0)


def test_the_last_record_of_each_adapter_is_known_from_its_audit_trail(author):
    """W5, W7: in whatever order it is read, of one tenant, and of what is not readable nothing."""
    known = json.loads(author.etcd.kvs[A].value)
    first = known | {"generation": 1}
    elsewhere = known | {"pool": "q"}

    def told(before: object, after: object, name: str = "acme/a", kind: str = "adapter") -> AuditChange:
        return AuditChange.model_validate({"kind": kind, "name": name, "before": before, "after": after})

    def lost(*records: KeyValue, standing: tuple[bytes, ...] = ()) -> list[tuple[str, int]]:
        trail = AuditTrail("acme")
        for one in records:
            trail.take(one)
        return [(one.pool, one.generation) for one in trail.lost(standing, KEYS)]

    made, changed, gone = audit(1, told(None, first)), audit(2, told(first, known)), audit(3, told(known, None))
    assert lost(made) == [(POOL, 1)]
    assert lost(made, changed) == lost(changed, made) == [(POOL, 2)]
    assert lost(changed, audit(2, told(known, first))) == [(POOL, 2)], "the same revision again"
    assert lost(gone, made, changed) == lost(made, changed, gone) == []
    assert lost(made, standing=(A,)) == []
    assert lost(made, standing=(KEYS.adapter("q", "acme/a"),)) == [(POOL, 1)]
    assert lost(audit(1, told(None, elsewhere), told(None, known))) == [(POOL, 2), ("q", 2)]
    assert lost(audit(1, told(None, known, kind="history"))) == []
    assert lost(audit(1, told(None, known, name="b/a"))) == []
    assert lost(audit(1, told(None, None)), audit(2, told(None, known))) == [(POOL, 2)]
    assert lost(audit(1, told(None, {"pool": POOL}))) == []
    assert lost(KeyValue(b"k", b"?", 1, 1, 1, 0), made) == [(POOL, 1)]
    assert lost(audit(3, told({"unreadable": "?"}, None)), made) == [(POOL, 1)], "of whatever pool that was"
