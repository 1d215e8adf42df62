"""Repair of a tenant's counter and history after deletions past the admin service."""

from __future__ import annotations

import pytest

from registry.etcd3.ops import Delete, Put, Txn
from registry.model.audit import AuditChange, AuditRecord
from registry.model.errors import Reason
from registry.model.records import AdapterRecord, RetiredRecord, TenantRecord
from registry.transactions.changes import Remove, RepairTenant, RollbackAdapter, SetTenant
from registry.transactions.context import TxnLimits
from tests.support.changes import KEYS, POOL, Author, applying, creating, lost_records, upsert
from tests.support.history_check import check_history
from tests.unit.transactions.conftest import record as record_of
from tests.unit.transactions.conftest import refused

NAME = "acme/a"


@pytest.fixture
def author(author: Author) -> Author:
    """A pool with an adapter at its second generation, another at its first, and one of another tenant."""
    author.change(applying(upsert(NAME), upsert("acme/b"), upsert("x")))
    author.change(applying(upsert(NAME, "v2")))
    return author


def delete_raw(author: Author, *names: str, pool: str = POOL) -> None:
    """Deletions past the admin service, all in one revision."""
    author.etcd.txn(Txn((), tuple(Delete(KEYS.adapter(pool, name)) for name in names)))


def repair(author: Author) -> RepairTenant:
    """What is asked for, with the records that are lost now."""
    return RepairTenant("acme", lost_records(author.etcd, "acme"))


def counter(author: Author) -> int:
    return TenantRecord.parse(author.etcd.kvs[KEYS.tenant("acme")].value).adapters


def test_counter_history_and_audit_are_made_good(author):
    """W2, W3, W5, W6, W7: no findings once the tenant is repaired; generations go on; a repeated repair is none."""
    stood = record_of(author)
    delete_raw(author, NAME, "acme/b")
    with pytest.raises(AssertionError, match=r"W7 .*deleted past the admin service"):
        check_history(KEYS, author.etcd.history)
    change = repair(author)
    settled = author.change(change, "once")
    reply = settled.reply
    assert {(one.outcome, one.name) for one in reply.adapters} == {("deleted", NAME), ("deleted", "acme/b")}
    assert stood in [one.record for one in reply.adapters]
    assert (reply.tenant, reply.etag) == (TenantRecord(name="acme", adapters=0), None)
    kept = RetiredRecord.parse(author.etcd.kvs[KEYS.history(POOL, NAME, 2)].value)
    assert (kept.deleted, kept.spec) == (True, stood.spec)
    revision = author.etcd.revision
    again = author.change(repair(author))
    assert (again.reply.adapters, again.reply.etag) == ([], author.etcd.kvs[KEYS.tenant("acme")].mod_revision)
    assert author.change(change).reply.adapters == [], "what another repair put in order is told once"
    nobody = author.change(RepairTenant("nobody")).reply
    assert (nobody.tenant, nobody.etag) == (TenantRecord(name="nobody"), 0)
    assert author.change(repair(author), "once") == settled, "though nothing is lost any more"
    assert author.etcd.revision == revision
    author.change(applying(upsert(NAME, "v3"), upsert("acme/b", "v3")))
    assert (record_of(author).generation, record_of(author, "acme/b").generation) == (3, 2)
    author.change(RollbackAdapter(POOL, NAME))
    assert record_of(author).spec.source.uri == "file:///a/v2"
    check_history(KEYS, author.etcd.history)


def test_a_tenant_of_many_pools(author):
    """W5: a tenant's adapters count over all pools, whatever the records say; and no other tenant's do."""
    author.change(creating("q"))
    author.change(applying(upsert("acme/z"), upsert("acme/a"), pool="q"))
    delete_raw(author, "acme/a", pool="q")
    delete_raw(author, "acme/b")
    author.change(repair(author))
    assert counter(author) == 2
    check_history(KEYS, author.etcd.history)
    odd = (("q", "acme/y"), ("q", "b"), ("gone", "acme/y"))
    author.etcd.txn(Txn((), tuple(Put(KEYS.adapter(pool, name), b"?") for pool, name in odd)))
    assert author.change(RepairTenant("acme")).reply.tenant == TenantRecord(name="acme", adapters=4)


def test_what_is_written_under_a_name_with_its_slash_is_counted_where_listings_tell_it(author):
    """W5: doctor compares the counter with what is listed, so that another number would be found wrong for ever."""
    author.etcd.put(KEYS.adapters(POOL) + b"acme/x", b"?")
    assert [author.change(RepairTenant(one)).reply.tenant.adapters for one in ("acme", "default")] == [3, 1]


def test_a_name_that_came_back_is_counted_once(author):
    """W5 quota-never, W6: its generation is not given again; the place that was freed can be taken after the repair."""
    delete_raw(author, NAME)
    author.change(applying(upsert(NAME, "v3")))
    assert (record_of(author).generation, counter(author)) == (3, 3)
    author.change(SetTenant("acme", 3))
    assert refused(author, applying(upsert("acme/c"))).reason is Reason.QUOTA_EXCEEDED
    author.change(repair(author))
    assert counter(author) == 2
    author.change(applying(upsert("acme/c")))
    check_history(KEYS, author.etcd.history)
    author.etcd.put(KEYS.adapter(POOL, "acme/hand"), author.etcd.kvs[KEYS.adapter(POOL, NAME)].value)
    assert author.change(repair(author)).reply.tenant == TenantRecord(name="acme", max_adapters=3, adapters=4)


def test_a_change_amid_a_repair(author):
    """W5, W6: what was created or deleted since the trail was read is neither lost nor miscounted."""
    delete_raw(author, NAME, "acme/b")
    change = repair(author)
    context = author.context(change)
    view = author.view(change, context)
    author.change(applying(upsert("acme/b", "v2"), upsert("acme/c")))
    author.change(applying(upsert("acme/d")))
    author.change(applying(Remove("acme/d")))
    author.settle(change, context, view)
    assert counter(author) == 2
    assert KEYS.history(POOL, "acme/b", 1) not in author.etcd.kvs


@pytest.mark.parametrize(
    ("limits", "taken"),
    [
        (TxnLimits(max_ops=20), 8),
        (TxnLimits(max_ops=21), 8),
        (TxnLimits(max_ops=22), 9),
        (TxnLimits(max_ops=6), 1),
        (TxnLimits(max_bytes=4000), None),
    ],
)
def test_a_repair_takes_as_many_as_one_transaction_has_room_for(author, limits, taken):
    """W2, W5: two compares and two operations each, and four besides; the rest stays counted until the next."""
    names = [f"acme/n{number}" for number in range(10)]
    author.change(applying(*map(upsert, names)))
    delete_raw(author, *names)
    author.limits, repairs = limits, 0
    while (change := repair(author)).lost:
        reply = author.change(change).reply
        found = [one.name for one in reply.adapters]
        assert found == [one.name for one in change.lost][: taken or len(found)]
        assert {one.outcome for one in reply.adapters} == {"deleted"}
        left = 2 + len(change.lost) - len(found)
        assert (
            reply.tenant
            == TenantRecord(name="acme", adapters=left)
            == TenantRecord(name="acme", adapters=counter(author))
        )
        repairs += 1
    assert repairs > 1
    check_history(KEYS, author.etcd.history)


def test_what_the_trail_does_not_tell(author):
    """R14: audit records that cannot be read, or tell of records that cannot be, are left out."""
    delete_raw(author, NAME)
    audit = next(key for key in author.etcd.kvs if key.startswith(KEYS.audits()))
    author.etcd.put(audit, b"{")
    assert [one.name for one in repair(author).lost] == [NAME]
    change = AuditChange(kind="adapter", name=NAME, before=None, after={"schema": 9, "pool": POOL})
    told = AuditRecord(at="", principal="p", role="r", request_id="i", method="m", changes=[change])
    author.etcd.put(audit, told.to_bytes())
    assert repair(author).lost == ()


def test_a_record_of_an_earlier_release_is_readable(author):
    """R14: earlier releases wrote when a record had been deleted without space (`removed`)."""
    key = next(key for key in author.etcd.kvs if key.startswith(KEYS.audits()))
    value = author.etcd.kvs[key].value
    old = value[:-1] + b',"removed":{"revision":3,"at":"then","by":"alice"}}'
    assert AuditRecord.parse(old).changes == AuditRecord.parse(value).changes
    assert AdapterRecord.parse(author.etcd.kvs[KEYS.adapter(POOL, NAME)].value).name == NAME
