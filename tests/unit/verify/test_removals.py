"""Deletions past the admin service, what waits for somebody to account for them, and what does."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from registry.etcd3.ops import Op, Put, Txn
from registry.model.records import AdapterRecord, TenantRecord
from registry.tools.verify.history import HistoryBase, Violation
from registry.tools.verify.removals import LoggedRemoval, Removals, claims_of
from registry.transactions.changes import RepairTenant
from tests.support.changes import KEYS, POOL, Author, applying, upsert
from tests.unit.verify.conftest import found, steps_of

STANDS = KEYS.adapter(POOL, "acme/a")


def removed(author: Author) -> RepairTenant:
    """acme/a is deleted alone, at revision 7."""
    record = AdapterRecord.parse(author.etcd.kvs[STANDS].value)
    author.etcd.delete(STANDS)
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


A, B = ("p", "acme%2Fa"), ("p", "b")


def removal(revision: int, name: tuple[str, str] = A, **record: object) -> LoggedRemoval:
    return LoggedRemoval(revision, name, f"/t/adapters/{'/'.join(name)}", record)


def test_a_claim_settles_the_newest_removal_of_just_that_record():
    """W7: a name may have been deleted more than once, and another record of it is another removal."""
    waiting = [removal(3), removal(4), removal(5, generation=2), removal(6, B)]
    removals = Removals(list(waiting))
    assert removals.settle(removal(9))
    assert removals.waiting == [waiting[0], waiting[2], waiting[3]]
    assert removals.settle(removal(9))
    assert removals.waiting == waiting[2:]
    assert not removals.settle(removal(9))
    assert not removals.settle(removal(9, ("q", "acme%2Fa"), generation=2))
    assert removals.waiting == waiting[2:]


def test_a_claim_settles_what_was_deleted_before_the_history_begins():
    """W7: as many as the counter was off by, of its own tenant, and only where no removal waits."""
    removals = Removals([removal(3)], Counter({"acme": 1, "default": 0}))
    assert removals.settle(removal(9))
    assert (removals.waiting, removals.off_at_start["acme"]) == ([], 1)
    assert removals.settle(removal(9))
    assert removals.off_at_start["acme"] == 0
    assert not removals.settle(removal(9))
    assert not removals.settle(removal(9, B))
    assert removals.off_at_start == {"acme": 0, "default": 0}


def test_a_right_counter_accounts_for_all_of_its_tenant():
    """W5: and for nothing of another."""
    removals = Removals([removal(3), removal(4), removal(6, B)], Counter({"acme": 2, "default": -1}))
    assert [removals.off_by(tenant) for tenant in ("acme", "default", "other")] == [4, 0, 0]
    removals.recounted("acme")
    assert [one.revision for one in removals.waiting] == [6]
    assert [removals.off_by(tenant) for tenant in ("acme", "default")] == [0, 0]
    assert list(removals.findings(2)) == [
        Violation("W7", 6, "/t/adapters/p/b", "deleted past the admin service, and not repaired since"),
        Violation("W5", 6, "tenant default", "its counter still has what was deleted"),
        Violation("W5", 2, "tenant default", "its counter is off by -1"),
    ]
    removals.recounted("default")
    assert list(removals.findings(2)) == []


def claimed_by(**fields: object) -> dict[str, Any]:
    return {"kind": "adapter", "before": {"pool": "p", "name": "acme/A", "generation": 2}, "after": None} | fields


CLAIMED = [LoggedRemoval(9, A, "/t/adapters/p/acme%2Fa", {"pool": "p", "name": "acme/A", "generation": 2})]


@pytest.mark.parametrize(
    ("changes", "claimed"),
    [
        ([claimed_by()], CLAIMED),
        ([claimed_by(kind="pool")], []),
        ([claimed_by(kind="history")], []),
        ([claimed_by(after={})], []),
        ([claimed_by(after={"name": "acme/a"})], []),
        ([claimed_by(before=None)], []),
        ([claimed_by(before={"pool": "p"})], []),
        ([claimed_by(before={"pool": "p", "name": 7})], []),
        ([7, claimed_by(kind="pool"), claimed_by(after={}), claimed_by(before=None), claimed_by()], CLAIMED),
        ([claimed_by(), claimed_by()], CLAIMED * 2),
        ("all", []),
    ],
)
def test_an_audit_record_claims_the_deletions_that_it_tells_of(changes, claimed):
    """W7: of adapters, by their name and their record."""
    assert list(claims_of({"changes": changes}, {b"/t/audit/p/q": None}, "/t/adapters/", 9)) == claimed


def test_a_deletion_of_its_own_revision_is_no_claim():
    """W7: that one was seen."""
    audit = {"changes": [claimed_by(), claimed_by(before={"pool": "p", "name": "b"})]}
    (claim,) = claims_of(audit, {b"/t/adapters/p/acme%2Fa": None}, "/t/adapters/", 9)
    assert (claim.name, claim.tenant) == (B, "default")
