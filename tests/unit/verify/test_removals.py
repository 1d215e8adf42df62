"""Deletions past the admin service, and what accounts for them."""

from __future__ import annotations

import json

from registry.etcd3.ops import Delete, Op, Put, Txn
from registry.model.records import AdapterRecord, TenantRecord
from registry.tools.verify.history import HistoryBase
from registry.transactions.changes import RepairTenant
from tests.support.changes import KEYS, POOL, Author, applying, upsert
from tests.unit.verify.conftest import found, steps_of

A = KEYS.adapter(POOL, "acme/a")


def removed(author: Author) -> RepairTenant:
    """acme/a is deleted alone, at revision 7."""
    record = AdapterRecord.parse(author.etcd.kvs[A].value)
    author.etcd.delete(A)
    return RepairTenant("acme", (record,))


def settle_as_before(author: Author, record: AdapterRecord, request_id: str) -> None:
    """The settlement of a removal without space, as earlier releases wrote it."""
    shown = json.loads(record.to_bytes())
    audit = {
        "schema": 1,
        "at": "now",
        "principal": "alice",
        "role": "operator",
        "request_id": request_id,
        "method": "SettleRemoval",
        "removed": {"revision": 7, "at": "then", "by": "alice"},
        "changes": [{"kind": "adapter", "name": record.name, "before": shown, "after": None}],
    }
    tenant = TenantRecord.parse(author.etcd.kvs[KEYS.tenant("acme")].value)
    retired = {**shown, "retired_by_request": request_id, "deleted": True}
    ops: tuple[Op, ...] = (
        Put(KEYS.history(POOL, record.name, record.generation), json.dumps(retired).encode()),
        Put(KEYS.tenant("acme"), tenant.model_copy(update={"adapters": tenant.adapters - 1}).to_bytes()),
        Put(KEYS.request(request_id), b"{}"),
        Put(KEYS.audit(POOL, request_id), json.dumps(audit).encode()),
    )
    author.etcd.txn(Txn((), ops))


def test_a_deletion_alone_is_found_until_it_is_repaired(author):
    """W5, W7: what followed under its too high counter is no finding by itself."""
    change = removed(author)
    author.change(applying(upsert("acme/c")))
    assert found(steps_of(author)) == {("W7", 7), ("W5", 7)}
    author.change(change)
    assert found(steps_of(author)) == set()


def test_several_at_once(author):
    """W5, W7: as a deletion of a whole prefix makes them."""
    author.change(applying(upsert("acme/b", "v3")))
    records = [AdapterRecord.parse(author.etcd.kvs[KEYS.adapter(POOL, name)].value) for name in ("acme/a", "acme/b")]
    author.etcd.txn(Txn((), (Delete(A), Delete(KEYS.adapter(POOL, "acme/b")))))
    author.change(RepairTenant("acme", tuple(records[:1])))
    assert found(steps_of(author)) == set()


def test_a_deletion_before_the_history_begins(author):
    """W5, W6, W7: compaction follows upon a full store, and takes the deletion out of the history."""
    assert found([HistoryBase(author.etcd.revision, tuple(author.etcd.kvs.values()))]) == set()
    change = removed(author)
    base = HistoryBase(author.etcd.revision, tuple(author.etcd.kvs.values()))
    assert found([base]) == {("W5", 7)}
    author.change(applying(upsert("acme/c")))
    author.change(change)
    author.change(applying(upsert("acme/a", "v9")))
    assert found([base, *steps_of(author)[7:]]) == set()


def test_what_earlier_releases_settled(author):
    """W2, W5, W7: one that was deleted without space, and settled; one of two, before and in the history."""
    (record,) = removed(author).lost
    base = HistoryBase(author.etcd.revision, tuple(author.etcd.kvs.values()))
    author.change(applying(upsert("acme/c")))
    settle_as_before(author, record, "q9")
    assert found(steps_of(author)) == set()
    assert found([base, *steps_of(author)[7:]]) == set()


def test_a_repair_of_nothing_is_found(author):
    """W7: each deletion is accounted for once."""
    change = removed(author)
    author.change(change)
    settle_as_before(author, change.lost[0], "q9")
    assert ("W7", 9) in found(steps_of(author))
