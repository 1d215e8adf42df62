"""What stands in etcd and cannot be read: who is refused, and what the refusal says."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from registry.etcd3.ops import KeyValue, Put, Txn
from registry.model.errors import FailedPrecondition, Reason, RegistryError
from registry.model.records import AuditChange, AuditRecord, PoolLimits, PoolSpec, RetiredRecord
from registry.model.stored import MAX_RECORD_BYTES
from registry.transactions.builder import is_fenced, replay
from registry.transactions.changes import (
    ApplyAdapters,
    Change,
    ConfirmRemovals,
    PromoteRollout,
    RepairTenant,
    RollbackAdapter,
    SetTenant,
    UpdatePool,
)
from registry.transactions.decode import (
    ReadSet,
    engine_hosts_of,
    read_pool,
    read_tenant,
    stored_adapter,
    stored_tenant,
)
from registry.transactions.repair import AuditTrail, is_of_tenant
from tests.support.changes import ALICE, KEYS, POOL, Author, applying, upsert
from tests.unit.transactions.conftest import record, refused

A, POOL_KEY, ACME = KEYS.adapter(POOL, "acme/a"), KEYS.pool(POOL), KEYS.tenant("acme")
FUTURE = b'{"schema": 99}'
OLD = KEYS.history(POOL, "acme/a", 1)
REFUSED: dict[str, tuple[Change, bytes, str]] = {
    "the pool of an apply": (applying(upsert("acme/a")), POOL_KEY, "replace it whole, as loraplane pool update"),
    "the pool of a confirmation": (ConfirmRemovals(POOL, 1), POOL_KEY, "replace it whole, as loraplane pool update"),
    "the pool of a rollout": (PromoteRollout(POOL, "acme/a"), POOL_KEY, "replace it whole, as loraplane pool update"),
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
    """X2, R14: fail closed; the refusal says what to do, unless a later release wrote it."""
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


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (applying(upsert("acme/a")), A),
        (RollbackAdapter(POOL, "acme/a", 1), A),
        (UpdatePool(POOL, ("base",), PoolLimits()), POOL_KEY),
    ],
)
def test_what_a_later_release_wrote_is_not_replaced(author, change, key):
    """R14: what cannot be read at all is."""
    author.etcd.put(key, FUTURE)
    told = refused(author, change)
    assert (told.reason, told.metadata) == (Reason.FUTURE_SCHEMA, {"key": key.decode()})
    author.etcd.put(key, b"?")
    author.change(change)
    assert author.etcd.kvs[key].value != b"?"


def test_a_request_record_that_cannot_be_read_is_no_reply(author):
    """W3 idempotent: neither that it was carried out nor that it was not is known."""
    change = applying(upsert("acme/b"))
    context = author.context(change, "q")
    key = KEYS.request("q", ALICE)
    assert is_fenced(author.view(change, context), context) is False
    author.etcd.put(key, b"?")
    view = author.view(change, context)
    for asked in (replay, is_fenced):
        with pytest.raises(FailedPrecondition) as told:
            asked(view, context)
        assert (told.value.reason, told.value.metadata) == (Reason.UNREADABLE_RECORD, {"key": key.decode()})
        assert told.value.message.endswith("; use a new request_id")


Reader = Callable[[KeyValue], object]
MISPLACED: list[tuple[Reader, bytes]] = [(read_pool, POOL_KEY), (read_tenant, ACME)]


@pytest.mark.parametrize(("reader", "key"), MISPLACED)
def test_a_record_is_read_under_its_own_key(author, reader, key):
    """X2: whoever copied it elsewhere has made no record of it."""
    kv = author.etcd.kvs[key]
    assert reader(kv)
    with pytest.raises(FailedPrecondition, match="stands under another key than its own"):
        reader(KeyValue(key + b"x", kv.value, 1, 1, 1, 0))


def test_the_hosts_that_a_pool_allows():
    """X2: of a record that cannot be read nothing is known, and without one anything is allowed."""
    spec = PoolSpec(name=POOL, base_models=["base"], limits=PoolLimits(engine_hosts=["a", "b"]))
    kv = KeyValue(POOL_KEY, spec.to_bytes(), 1, 1, 1, 0)
    assert engine_hosts_of(kv) == ("a", "b")
    assert engine_hosts_of(None) == ()
    assert engine_hosts_of(KeyValue(POOL_KEY, b"?", 1, 1, 1, 0)) is None
    assert engine_hosts_of(KeyValue(KEYS.pool("q"), spec.to_bytes(), 1, 1, 1, 0)) is None


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


def test_what_is_cut_off_of_a_damaged_record(author):
    """R16 bounded: history keeps as much of it as may stand in etcd."""
    author.etcd.put(A, b"?" * (MAX_RECORD_BYTES + 1))
    author.change(applying(upsert("acme/a")))
    assert author.etcd.kvs[KEYS.history(POOL, "acme/a", 2)].value == b"?" * MAX_RECORD_BYTES


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


def test_whose_an_adapter_is():
    assert is_of_tenant(A, "acme")
    assert not is_of_tenant(A, "default")
    assert is_of_tenant(KEYS.adapter(POOL, "b"), "default")


def test_a_counter_of_nobody_is_none():
    with pytest.raises(RegistryError):
        stored_tenant(ReadSet(1, (), {ACME: KeyValue(ACME, b"?", 1, 1, 1, 0)}), KEYS, "acme")
    assert stored_tenant(ReadSet(1, (), {}), KEYS, "acme").revision == 0


def test_a_repair_counts_what_stands_in_all_pools(author):
    """W5: of its own tenant, whatever the records say."""
    ops = tuple(Put(KEYS.adapter(pool, name), b"?") for pool, name in (("q", "acme/z"), ("q", "b"), (POOL, "acme/y")))
    author.etcd.txn(Txn((), ops))
    settled = author.change(RepairTenant("acme"))
    assert settled.reply.tenant is not None
    assert settled.reply.tenant.adapters == 3
    assert author.change(RepairTenant("acme")).reply.etag == author.etcd.kvs[ACME].mod_revision


def test_a_retry_of_one_replica_is_no_change_of_another_kind(author):
    """R17: what was changed by the same request is no retry."""
    author.change(ApplyAdapters(POOL, (upsert("acme/a", "v2"), upsert("acme/b")), retry=True))
    assert [record(author, name).retry is not None for name in ("acme/a", "acme/b")] == [True, False]
