"""What a removal under NOSPACE left undone is written afterwards, once, and its generation is not given again."""

from __future__ import annotations

import pytest

from registry.errors import FailedPrecondition, InvalidArgument, Reason
from registry.model.records import Removed, TenantRecord
from registry.transactions.changes import Remove, RollbackAdapter, SetTenant, SettleRemoval, tenants_of
from registry.transactions.make import make_settle_removal
from tests.support.changes import KEYS, POOL, Desk, applying, upsert
from tests.support.history_check import check_history
from tests.unit.transactions.conftest import record as record_of

NAME = "acme/a"


@pytest.fixture
def desk(desk: Desk) -> Desk:
    """A pool with an adapter at its second generation, and another one."""
    desk.change(applying(upsert(NAME), upsert("acme/b")))
    desk.change(applying(upsert(NAME, "v2")))
    return desk


def break_glass(desk: Desk, name: str = NAME) -> SettleRemoval:
    """What etcd takes under NOSPACE: the deletion alone."""
    record = record_of(desk, name)
    revision = desk.etcd.delete(KEYS.adapter(POOL, name))
    return SettleRemoval(record, Removed(revision=revision, at="2026-01-01T00:00:00Z", by="alice"))


def counter(desk: Desk) -> int:
    return TenantRecord.parse(desk.etcd.kvs[KEYS.tenant("acme")].value).adapters


def test_counter_history_and_audit_are_made_good(desk):
    """W2, W5, W7: the history as a whole has no findings once the removal is settled."""
    change = break_glass(desk)
    assert counter(desk) == 2
    with pytest.raises(AssertionError, match=r"W7 .*removed without an audit record"):
        check_history(KEYS, desk.etcd.history)
    reply = desk.change(change).reply
    assert [(one.outcome, one.name) for one in reply.adapters] == [("deleted", NAME)]
    assert counter(desk) == 1
    assert KEYS.history(POOL, NAME, 2) in desk.etcd.kvs
    check_history(KEYS, desk.etcd.history)


def test_it_is_of_the_tenant_whose_counter_it_touches(desk):
    """W5: no other change of that tenant is made meanwhile."""
    assert tenants_of(break_glass(desk)) == ("acme",)


def test_a_removal_is_settled_once(desk):
    """W3, W5: also with another request id, and after the name was applied anew."""
    change = break_glass(desk)
    desk.change(change, "one")
    desk.change(applying(upsert(NAME, "v3")))
    desk.change(change, "two")
    revision = desk.etcd.revision
    desk.change(change)
    assert (counter(desk), desk.etcd.revision) == (2, revision)
    check_history(KEYS, desk.etcd.history)


def test_a_name_that_is_applied_before_it_is_settled_goes_on_with_its_generations(desk):
    """W6 one-digest: the generation that vanished without history is not given again."""
    change = break_glass(desk)
    desk.change(applying(upsert(NAME, "v3")))
    assert record_of(desk).generation == 3
    desk.change(change)
    assert counter(desk) == 2
    check_history(KEYS, desk.etcd.history)


def test_a_first_generation_that_was_given_again_is_named(desk):
    """W6: nothing in etcd tells of a first generation; settling says so instead of writing over another's history."""
    change = break_glass(desk, "acme/b")
    desk.change(applying(upsert("acme/b", "other")))
    desk.change(applying(Remove("acme/b")))
    with pytest.raises(FailedPrecondition) as caught:
        desk.change(change)
    assert caught.value.reason is Reason.GENERATION_REUSED
    with pytest.raises(AssertionError, match="W6"):
        check_history(KEYS, desk.etcd.history)


def test_after_ten_generations_more_nobody_can_tell(desk):
    """R9: that is what is said, and not that the generation was given again."""
    change = break_glass(desk)
    for number in range(12):
        desk.change(applying(upsert(NAME, f"w{number}")))
    with pytest.raises(FailedPrecondition, match="history keeps 10 and has 13, so nobody can tell"):
        desk.change(change)


def test_what_was_not_removed_is_not_settled(desk):
    """W5: a receipt for what is still there does not touch the counter."""
    record = record_of(desk)
    change = SettleRemoval(record, Removed(revision=desk.etcd.revision, at="2026-01-01T00:00:00Z", by="alice"))
    with pytest.raises(FailedPrecondition) as caught:
        desk.change(change)
    assert caught.value.reason is Reason.NOT_REMOVED


def test_a_receipt_from_the_future_is_of_another_store(desk):
    change = break_glass(desk)
    later = change.removed.model_copy(update={"revision": 999})
    with pytest.raises(InvalidArgument, match="no receipt of this store"):
        desk.change(SettleRemoval(change.record, later))


def test_a_damaged_history_does_not_count_as_lost(desk):
    """W6: generations go on after what can be read."""
    desk.etcd.put(KEYS.history(POOL, NAME, 1), b"{")
    desk.etcd.delete(KEYS.adapter(POOL, NAME))
    desk.change(applying(upsert(NAME, "v3")))
    assert record_of(desk).generation == 2


def test_a_quota_is_counted_rightly_afterwards(desk):
    """W5 quota-never: the place that was freed can be taken once the removal is settled."""
    desk.change(SetTenant("acme", 2))
    change = break_glass(desk)
    desk.change(change)
    desk.change(applying(upsert("acme/c")))
    assert counter(desk) == 2
    check_history(KEYS, desk.etcd.history)


@pytest.mark.parametrize(
    ("pool", "name", "record", "revision", "field"),
    [
        ("a/b", NAME, b"", 1, "removal.pool"),
        (POOL, "/", b"", 1, "removal.name"),
        (POOL, NAME, b"{", 1, "removal.record"),
        (POOL, "acme/b", None, 1, "removal.record"),
        (POOL, NAME, None, 0, "removal.revision"),
    ],
)
def test_what_is_no_receipt_is_named(desk, pool, name, record, revision, field):
    value = record_of(desk).to_bytes() if record is None else record
    with pytest.raises(InvalidArgument) as caught:
        make_settle_removal(pool, name, value, {"revision": revision, "at": "now", "by": "alice"})
    assert caught.value.field == field


def test_a_receipt_is_read_as_it_was_written(desk):
    record = record_of(desk)
    made = make_settle_removal(POOL, NAME, record.to_bytes(), {"revision": 3, "at": "now", "by": "alice"})
    assert made == SettleRemoval(record, Removed(revision=3, at="now", by="alice"))


def test_a_late_settlement_does_not_lead_a_rollback_astray(desk):
    """W6: the generation before is the one with the next lower number, whatever was written to history last."""
    change = break_glass(desk)
    desk.change(applying(upsert(NAME, "v3")))
    desk.change(applying(upsert(NAME, "v4")))
    desk.change(change)
    desk.change(RollbackAdapter(POOL, NAME))
    assert record_of(desk).spec.source.uri == "file:///a/v3"
    check_history(KEYS, desk.etcd.history)
