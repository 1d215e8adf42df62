"""Records that cannot be read, are of a later release, or have fields that this release does not know."""

from __future__ import annotations

import json

import pytest

from registry.model.errors import FailedPrecondition, Reason
from registry.model.records import MAX_GENERATION, AuditRecord, PoolLimits
from registry.model.stored import MAX_RECORD_BYTES
from registry.transactions.builder import Unchanged
from registry.transactions.changes import DeletePool, Remove, RollbackAdapter, SetTenant, UpdatePool
from tests.support.changes import ALICE, KEYS, POOL, applying, upsert
from tests.unit.transactions.conftest import record, refused


@pytest.mark.parametrize("value", [b"?", b'"x"', b"[1]", b"[" * 100_000, b'{"generation":0}', b'{"generation":true}'])
def test_a_damaged_record_is_replaced(author, value):
    """W6 one-digest: the generation goes on from history, and what was there is kept as far as it fits."""
    author.change(applying(upsert("acme/a")))
    author.change(applying(upsert("acme/a", "v2")))
    author.etcd.put(KEYS.adapter(POOL, "acme/a"), value)
    author.change(applying(upsert("acme/a", "v2")))
    assert record(author, "acme/a").generation == 3
    assert author.etcd.kvs[KEYS.history(POOL, "acme/a", 2)].value == value[:MAX_RECORD_BYTES]
    told = AuditRecord.parse(
        max(
            [kv for key, kv in author.etcd.kvs.items() if key.startswith(KEYS.audits())], key=lambda kv: kv.mod_revision
        ).value
    )
    assert told.changes[0].before == {"unreadable": value[:4096].decode()}


def test_a_damaged_record_is_deleted(author):
    author.change(applying(upsert("acme/a")))
    author.etcd.put(KEYS.adapter(POOL, "acme/a"), b'{"generation":40}')
    settled = author.change(applying(Remove("acme/a")))
    assert (settled.reply.adapters[0].record, settled.reply.adapters[0].name) == (None, "acme/a")
    author.change(applying(upsert("acme/a")))
    assert record(author, "acme/a").generation == 41
    assert json.loads(author.etcd.kvs[KEYS.tenant("acme")].value)["adapters"] == 1


def test_a_record_under_a_wrong_key_is_damaged(author):
    author.change(applying(upsert("acme/a")))
    author.etcd.put(KEYS.adapter(POOL, "acme/b"), author.etcd.kvs[KEYS.adapter(POOL, "acme/a")].value)
    author.change(applying(Remove("acme/b")))
    assert KEYS.adapter(POOL, "acme/b") not in author.etcd.kvs


def test_what_was_never_counted_does_not_count_below_zero(author):
    author.etcd.put(KEYS.adapter(POOL, "acme/a"), b"?")
    author.change(applying(Remove("acme/a")))
    assert json.loads(author.etcd.kvs[KEYS.tenant("acme")].value)["adapters"] == 0


def test_the_last_generation(author):
    """Generations end where readers of JSON would lose digits; that is refused, not written."""
    author.change(applying(upsert("acme/a")))
    last_but_one = record(author, "acme/a").model_copy(update={"generation": MAX_GENERATION - 1})
    author.etcd.put(KEYS.adapter(POOL, "acme/a"), last_but_one.to_bytes())
    author.change(applying(upsert("acme/a", "last")))
    assert record(author, "acme/a").generation == MAX_GENERATION
    assert refused(author, applying(upsert("acme/a", "v2"))).reason is Reason.UNREADABLE_RECORD
    author.change(applying(Remove("acme/a")))
    assert refused(author, applying(upsert("acme/a"))).reason is Reason.UNREADABLE_RECORD


FUTURE = b'{"schema":2}'


@pytest.mark.parametrize(
    ("key", "change"),
    [
        (KEYS.adapter(POOL, "acme/a"), applying(Remove("acme/a"))),
        (KEYS.pool(POOL), DeletePool(POOL)),
        (KEYS.request("r1", ALICE), applying(upsert("acme/a"))),
    ],
)
def test_a_future_schema(author, key, change):
    """What a later release wrote is never overwritten, and the refusal names the key."""
    author.etcd.put(key, FUTURE)
    told = refused(author, change, "r1")
    assert (type(told), told.reason) == (FailedPrecondition, Reason.FUTURE_SCHEMA)


def test_unreadable_neighbours(author):
    """W5 quota-never: a quota that cannot be read allows nothing that counts; a pool is replaced by an update."""
    author.change(applying(upsert("acme/a")))
    good = author.etcd.kvs[KEYS.tenant("acme")].value
    for value in (b"?", good.replace(b'"acme"', b'"other"')):
        author.etcd.put(KEYS.tenant("acme"), value)
        assert refused(author, applying(upsert("acme/b"))).reason is Reason.UNREADABLE_RECORD
        assert refused(author, SetTenant("acme", 3)).reason is Reason.UNREADABLE_RECORD
    author.change(applying(upsert("acme/a", "v2")))
    author.etcd.put(KEYS.pool(POOL), author.etcd.kvs[KEYS.pool(POOL)].value.replace(b'"p"', b'"other"'))
    assert refused(author, applying(upsert("acme/b"))).metadata == {"key": KEYS.pool(POOL).decode()}
    author.change(UpdatePool(POOL, ("base",), PoolLimits()))
    author.etcd.put(KEYS.tenant("acme"), good)
    author.change(applying(Remove("acme/a")))
    author.etcd.put(KEYS.pool(POOL), b"?")
    author.change(DeletePool(POOL))
    assert KEYS.pool(POOL) not in author.etcd.kvs


def test_unknown_fields_survive(author):
    """A field of a later release stays, at every depth, and does not count as a change."""
    author.change(applying(upsert("acme/a")))
    author.change(SetTenant("acme", 5))
    for key in (KEYS.adapter(POOL, "acme/a"), KEYS.pool(POOL), KEYS.tenant("acme")):
        document = json.loads(author.etcd.kvs[key].value) | {"new": 1}
        if "spec" in document:
            document["spec"]["source"]["new"] = 2
        if "limits" in document:
            document["limits"]["new"] = 3
        author.etcd.put(key, json.dumps(document).encode())
    assert isinstance(author.plan(applying(upsert("acme/a"))), Unchanged)
    assert isinstance(author.plan(UpdatePool(POOL, ("base",), PoolLimits())), Unchanged)
    assert isinstance(author.plan(SetTenant("acme", 5)), Unchanged)
    author.change(applying(upsert("acme/a", "v2"), upsert("acme/b")))
    author.change(UpdatePool(POOL, ("base",), PoolLimits(max_rank=8)))
    adapter = json.loads(author.etcd.kvs[KEYS.adapter(POOL, "acme/a")].value)
    assert (adapter["new"], adapter["spec"]["source"]["new"], adapter["generation"]) == (1, 2, 2)
    pool = json.loads(author.etcd.kvs[KEYS.pool(POOL)].value)
    assert (pool["new"], pool["limits"]) == (1, PoolLimits(max_rank=8).model_dump() | {"new": 3})
    assert json.loads(author.etcd.kvs[KEYS.tenant("acme")].value)["new"] == 1


def test_a_rollback_has_no_field_that_the_earlier_generation_had_not(author):
    """W6: what a later release said of the newest weights is nothing that it said of these."""
    author.change(applying(upsert("acme/a")))
    before = json.loads(author.etcd.kvs[KEYS.adapter(POOL, "acme/a")].value)["spec"]
    author.change(applying(upsert("acme/a", "v2")))
    document = json.loads(author.etcd.kvs[KEYS.adapter(POOL, "acme/a")].value)
    document["spec"]["new"] = 1
    document["spec"]["source"]["new"] = 2
    author.etcd.put(KEYS.adapter(POOL, "acme/a"), json.dumps(document).encode())
    author.change(RollbackAdapter(POOL, "acme/a"))
    after = json.loads(author.etcd.kvs[KEYS.adapter(POOL, "acme/a")].value)
    assert (after["generation"], after["spec"]) == (3, before)
