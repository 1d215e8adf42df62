"""Repair of a tenant's counter and history after deletions past the admin service."""

from __future__ import annotations

import pytest

from registry.etcd3.ops import Delete, Put, Txn
from registry.model.errors import FailedPrecondition, InvalidArgument, Reason
from registry.model.records import AdapterRecord, AuditChange, AuditRecord, RetiredRecord, TenantRecord
from registry.transactions.changes import Remove, RepairTenant, RollbackAdapter, SetTenant, payload_digest, tenants_of
from registry.transactions.context import TxnLimits
from registry.transactions.plan import may_be_guessed
from registry.transactions.validate import make_repair_tenant
from tests.support.changes import KEYS, POOL, Desk, applying, creating, lost_records, upsert
from tests.support.history_check import check_history
from tests.unit.transactions.conftest import record as record_of
from tests.unit.transactions.conftest import refused

NAME = "acme/a"


@pytest.fixture
def desk(desk: Desk) -> Desk:
    """A pool with an adapter at its second generation, another at its first, and one of another tenant."""
    desk.change(applying(upsert(NAME), upsert("acme/b"), upsert("x")))
    desk.change(applying(upsert(NAME, "v2")))
    return desk


def delete_raw(desk: Desk, *names: str, pool: str = POOL) -> None:
    """Deletions past the admin service, all in one revision."""
    desk.etcd.txn(Txn((), tuple(Delete(KEYS.adapter(pool, name)) for name in names)))


def repair(desk: Desk, tenant: str = "acme") -> RepairTenant:
    """What is asked for, with the records that are lost now."""
    return RepairTenant(tenant, lost_records(desk.etcd, tenant))


def counter(desk: Desk, tenant: str = "acme") -> int:
    return TenantRecord.parse(desk.etcd.kvs[KEYS.tenant(tenant)].value).adapters


def test_counter_history_and_audit_are_made_good(desk):
    """W2, W5, W7: the history as a whole has no findings once the tenant is repaired."""
    stood = record_of(desk)
    delete_raw(desk, NAME)
    with pytest.raises(AssertionError, match=r"W7 .*deleted past the admin service"):
        check_history(KEYS, desk.etcd.history)
    reply = desk.change(repair(desk)).reply
    assert [(one.outcome, one.name, one.record) for one in reply.adapters] == [("deleted", NAME, stood)]
    assert (reply.tenant, reply.etag) == (TenantRecord(name="acme", adapters=1), None)
    kept = RetiredRecord.parse(desk.etcd.kvs[KEYS.history(POOL, NAME, 2)].value)
    assert (kept.deleted, kept.spec) == (True, stood.spec)
    check_history(KEYS, desk.etcd.history)


def test_a_repair_is_not_made_from_a_guess(desk):
    """W5: which records are lost is not compared, so it is read first."""
    assert not may_be_guessed(repair(desk))


def test_generations_go_on(desk):
    """W6 one-digest: also of a first generation, of which nothing but the audit trail tells."""
    delete_raw(desk, NAME, "acme/b")
    desk.change(repair(desk))
    desk.change(applying(upsert(NAME, "v3"), upsert("acme/b", "v3")))
    assert (record_of(desk).generation, record_of(desk, "acme/b").generation) == (3, 2)
    desk.change(RollbackAdapter(POOL, NAME))
    assert record_of(desk).spec.source.uri == "file:///a/v2"
    check_history(KEYS, desk.etcd.history)


def test_a_tenant_of_many_pools(desk):
    """W5: a tenant's adapters count over all pools."""
    desk.change(creating("q"))
    desk.change(applying(upsert("acme/z"), upsert("acme/a"), pool="q"))
    delete_raw(desk, "acme/a", pool="q")
    delete_raw(desk, "acme/b")
    desk.change(repair(desk))
    assert counter(desk) == 2
    check_history(KEYS, desk.etcd.history)


def test_what_is_right_is_left_alone(desk):
    """W3: a repair can be repeated; without a request id nothing is written."""
    delete_raw(desk, NAME)
    desk.change(repair(desk))
    revision = desk.etcd.revision
    again = desk.change(repair(desk))
    assert (desk.etcd.revision, again.reply.adapters) == (revision, [])
    assert again.reply.etag == desk.etcd.kvs[KEYS.tenant("acme")].mod_revision
    nobody = desk.change(RepairTenant("nobody")).reply
    assert (nobody.tenant, nobody.etag) == (TenantRecord(name="nobody"), 0)
    assert desk.etcd.revision == revision


def test_the_same_request_gets_the_same_reply(desk):
    """W3 idempotent: though the second time nothing is lost any more."""
    delete_raw(desk, NAME)
    first = desk.change(repair(desk), "once")
    assert desk.change(repair(desk), "once") == first
    assert payload_digest(RepairTenant("acme", (record_of(desk, "acme/b"),))) == payload_digest(RepairTenant("acme"))


def test_a_counter_alone_is_repaired(desk):
    """W5, W7: what was written past the admin service, or what no audit record tells of any more, is counted."""
    delete_raw(desk, NAME)
    settled = desk.change(RepairTenant("acme"))
    assert counter(desk) == 1
    audits = [kv.value for key, kv in desk.etcd.kvs.items() if key.startswith(KEYS.audits())]
    [told] = [audit for one in audits if (audit := AuditRecord.parse(one)).method == "RepairTenant"]
    assert [(one.kind, one.before["adapters"], one.after["adapters"]) for one in told.changes] == [("tenant", 2, 1)]
    assert settled.reply.adapters == []
    check_history(KEYS, desk.etcd.history)


def test_a_name_that_came_back_is_counted_once(desk):
    """W5, W6: the generation that vanished is not given again, and the counter is right after the repair."""
    delete_raw(desk, NAME)
    desk.change(applying(upsert(NAME, "v3")))
    assert (record_of(desk).generation, counter(desk)) == (3, 3)
    desk.change(repair(desk))
    assert counter(desk) == 2
    check_history(KEYS, desk.etcd.history)


def test_a_record_written_by_hand_is_counted(desk):
    """W5: a counter that is too low becomes right, whatever the quota."""
    desk.change(SetTenant("acme", 2))
    stood = desk.etcd.kvs[KEYS.adapter(POOL, NAME)].value
    desk.etcd.put(KEYS.adapter(POOL, "acme/hand"), stood)
    assert desk.change(repair(desk)).reply.tenant == TenantRecord(name="acme", max_adapters=2, adapters=3)


def test_a_quota_is_counted_rightly_afterwards(desk):
    """W5 quota-never: the place that was freed can be taken once the tenant is repaired."""
    desk.change(SetTenant("acme", 2))
    delete_raw(desk, NAME)
    assert refused(desk, applying(upsert("acme/c"))).reason is Reason.QUOTA_EXCEEDED
    desk.change(repair(desk))
    desk.change(applying(upsert("acme/c")))
    check_history(KEYS, desk.etcd.history)


def test_a_change_amid_a_repair(desk):
    """W5, W6: what was created or deleted since the trail was read is neither lost nor miscounted."""
    delete_raw(desk, NAME, "acme/b")
    change = repair(desk)
    context = desk.context(change)
    view = desk.view(change, context)
    desk.change(applying(upsert("acme/b", "v2"), upsert("acme/c")))
    desk.change(applying(upsert("acme/d")))
    desk.change(applying(Remove("acme/d")))
    desk.settle(change, context, view)
    assert counter(desk) == 2
    assert KEYS.history(POOL, "acme/b", 1) not in desk.etcd.kvs


def test_a_change_amid_a_count(desk):
    """W5: a counter that was read before another adapter was made is not written."""
    desk.etcd.put(KEYS.tenant("acme"), TenantRecord(name="acme", adapters=7).to_bytes())
    change = RepairTenant("acme")
    context = desk.context(change)
    view = desk.view(change, context)
    desk.change(applying(upsert("acme/c")))
    desk.settle(change, context, view)
    assert counter(desk) == 3


def test_a_repair_that_was_overtaken_by_another(desk):
    """W2: a generation that history has already is not put there again."""
    delete_raw(desk, NAME)
    change = repair(desk)
    desk.change(change)
    delete_raw(desk, "acme/b")
    desk.change(RepairTenant("acme", (*change.lost, *repair(desk).lost)))
    assert counter(desk) == 0
    check_history(KEYS, desk.etcd.history)


@pytest.mark.parametrize("limits", [TxnLimits(max_ops=12), TxnLimits(max_bytes=4000)])
def test_more_than_one_transaction_takes(desk, limits):
    """W2, W5: those that do not fit stay counted, and the next repairs find them."""
    names = [f"acme/n{number}" for number in range(10)]
    desk.change(applying(*map(upsert, names)))
    delete_raw(desk, *names)
    desk.limits, repairs = limits, 0
    while (change := repair(desk)).lost:
        left = len(change.lost) - len(desk.change(change).reply.adapters)
        assert counter(desk) == 2 + left
        repairs += 1
    assert repairs > 1
    check_history(KEYS, desk.etcd.history)


def test_what_the_trail_does_not_tell(desk):
    """R14: audit records that cannot be read, or tell of records that cannot be, are left out."""
    delete_raw(desk, NAME)
    audit = next(key for key in desk.etcd.kvs if key.startswith(KEYS.audits()))
    desk.etcd.put(audit, b"{")
    assert [one.name for one in repair(desk).lost] == [NAME]
    change = AuditChange(kind="adapter", name=NAME, before=None, after={"schema": 9, "pool": POOL})
    told = AuditRecord(at="", principal="p", role="r", request_id="i", method="m", changes=[change])
    desk.etcd.put(audit, told.to_bytes())
    assert repair(desk).lost == ()


def test_an_unreadable_tenant_is_refused(desk):
    """W5: its quota is not guessed."""
    desk.etcd.put(KEYS.tenant("acme"), b"{")
    with pytest.raises(FailedPrecondition):
        desk.change(RepairTenant("acme"))


def test_it_is_of_the_tenant_whose_counter_it_sets():
    """W5: no other change of that tenant is made meanwhile."""
    assert tenants_of(RepairTenant("acme")) == ("acme",)
    assert make_repair_tenant("Acme") == RepairTenant("acme")
    with pytest.raises(InvalidArgument) as caught:
        make_repair_tenant("a/b")
    assert caught.value.field == "name"


def test_a_record_of_an_earlier_release_is_readable(desk):
    """R14: earlier releases wrote when a record had been deleted without space (`removed`)."""
    key = next(key for key in desk.etcd.kvs if key.startswith(KEYS.audits()))
    value = desk.etcd.kvs[key].value
    old = value[:-1] + b',"removed":{"revision":3,"at":"then","by":"alice"}}'
    desk.etcd.txn(Txn((), (Put(key, old),)))
    assert AuditRecord.parse(old).changes == AuditRecord.parse(value).changes
    assert AdapterRecord.parse(desk.etcd.kvs[KEYS.adapter(POOL, NAME)].value).name == NAME
