"""What single changes do, and what they are refused with."""

from __future__ import annotations

import pytest

from registry.errors import (
    AlreadyExists,
    Conflict,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Reason,
    ResourceExhausted,
)
from registry.etcd3.ops import Put, Range
from registry.model.records import (
    AuditRecord,
    Placement,
    PoolLimits,
    RequestRecord,
    RetiredRecord,
)
from registry.transactions.changes import (
    ApplyAdapters,
    DeletePool,
    Remove,
    RollbackAdapter,
    SetTenant,
    UpdatePool,
    payload_digest,
    tenants_of,
)
from registry.transactions.context import Limits
from registry.transactions.draft import Commit, Unchanged, fence
from registry.transactions.history import HISTORY_KEPT
from tests.support.changes import KEYS, POOL, Desk, applying, creating, upsert
from tests.unit.transactions.conftest import record, refused


def test_create(desk):
    settled = desk.change(applying(upsert("acme/a")), "r1")
    (outcome,) = settled.reply.adapters
    assert (outcome.outcome, outcome.etag, outcome.record) == ("created", None, record(desk, "acme/a"))
    made = record(desk, "acme/a")
    assert (made.generation, made.tenant, made.updated_by, made.request_id) == (1, "acme", "alice", "r1")
    request = desk.etcd.kvs[KEYS.request("r1")]
    assert (request.mod_revision, request.lease) == (settled.revision, 1)
    assert RequestRecord.parse(request.value).reply == settled.reply
    (audit,) = [kv for key, kv in desk.etcd.kvs.items() if key.startswith(KEYS.audit(POOL, "")) and kv.lease == 2][1:]
    told = AuditRecord.parse(audit.value)
    assert (told.method, told.request_id, told.changes[0].before) == ("ApplyAdapters", "r1", None)


def test_update_keeps_what_was(desk):
    desk.change(applying(upsert("acme/a")))
    desk.change(applying(upsert("acme/a", "v2")), "r2")
    retired = RetiredRecord.parse(desk.etcd.kvs[KEYS.history(POOL, "acme/a", 1)].value)
    assert (retired.spec.source.uri, retired.retired_by_request, retired.deleted) == ("file:///a/v1", "r2", False)
    assert record(desk, "acme/a").generation == 2


def test_history_keeps_the_last_ten(desk):
    for version in range(15):
        desk.change(applying(upsert("acme/a", f"v{version}")))
    kept = [key for key in desk.etcd.kvs if key.startswith(KEYS.history_of(POOL, "acme/a"))]
    assert kept == [KEYS.history(POOL, "acme/a", one) for one in range(5, 15)]
    assert len(kept) == HISTORY_KEPT


def test_unchanged(desk):
    made = desk.change(applying(upsert("acme/a")))
    again = desk.plan(applying(upsert("acme/a")))
    assert isinstance(again, Unchanged)
    assert again.reply.adapters[0].etag == made.revision
    remembered = desk.plan(applying(upsert("acme/a")), "r1")
    assert isinstance(remembered, Commit)
    assert not remembered.changes
    assert [type(op) for op in remembered.txn.success] == [Put]


def test_a_mixed_set_tells_only_what_changed(desk):
    desk.change(applying(upsert("acme/a"), upsert("acme/b")))
    settled = desk.change(applying(upsert("acme/a"), Remove("acme/b"), upsert("acme/c")))
    assert [one.outcome for one in settled.reply.adapters] == ["unchanged", "deleted", "created"]
    last = AuditRecord.parse(max(_audits(desk), key=lambda kv: kv.mod_revision).value)
    assert [one.name for one in last.changes] == ["acme/b", "acme/c"]


def _audits(desk: Desk):
    return [kv for key, kv in desk.etcd.kvs.items() if key.startswith(KEYS.audits())]


REFUSED = {
    "unknown pool": (applying(upsert("a"), pool="q"), NotFound, Reason.POOL_NOT_FOUND, "pool"),
    "no such adapter": (applying(Remove("none")), NotFound, Reason.ADAPTER_NOT_FOUND, "changes[0].delete"),
    "deleted meanwhile": (applying(Remove("none", 7)), Conflict, Reason.ETAG_MISMATCH, "changes[0].etag"),
    "exists": (applying(upsert("acme/a", etag=0)), Conflict, Reason.ETAG_MISMATCH, "changes[0].etag"),
    "stale": (applying(upsert("acme/a", etag=1)), Conflict, Reason.ETAG_MISMATCH, "changes[0].etag"),
    "base": (applying(upsert("BASE")), InvalidArgument, Reason.NAME_IS_BASE_MODEL, "changes[0].upsert.name"),
    "case": (applying(upsert("ACME/a")), AlreadyExists, Reason.ADAPTER_EXISTS, "changes[0].upsert.name"),
    "large": (
        applying(upsert("acme/b", labels={f"k{i}": "\0" * 256 for i in range(64)})),
        InvalidArgument,
        Reason.TOO_LARGE,
        "changes[0].upsert.spec",
    ),
    "quota": (applying(upsert("full/b")), ResourceExhausted, Reason.QUOTA_EXCEEDED, None),
    "quota below use": (SetTenant("full", 0), FailedPrecondition, Reason.QUOTA_BELOW_USE, "tenant.max_adapters"),
    "tenant's etag": (SetTenant("full", 5, 1), Conflict, Reason.ETAG_MISMATCH, "tenant.etag"),
    "pool exists": (creating(), AlreadyExists, Reason.POOL_EXISTS, "pool.name"),
    "pool to update": (UpdatePool("q", ("b",), PoolLimits()), NotFound, Reason.POOL_NOT_FOUND, "pool.name"),
    "pool's etag": (UpdatePool(POOL, ("b",), PoolLimits(), 1), Conflict, Reason.ETAG_MISMATCH, "pool.etag"),
    "adapter as base": (
        UpdatePool(POOL, ("base", "Acme/A"), PoolLimits()),
        InvalidArgument,
        Reason.NAME_IS_BASE_MODEL,
        "pool.base_models[1]",
    ),
    "pool to delete": (DeletePool("q"), NotFound, Reason.POOL_NOT_FOUND, "name"),
    "pool to delete, etag": (DeletePool(POOL, 1), Conflict, Reason.ETAG_MISMATCH, "etag"),
    "pool not empty": (DeletePool(POOL), FailedPrecondition, Reason.POOL_NOT_EMPTY, "name"),
    "no history": (RollbackAdapter(POOL, "acme/a"), NotFound, Reason.GENERATION_NOT_FOUND, "name"),
    "no such generation": (RollbackAdapter(POOL, "acme/a", 9), NotFound, Reason.GENERATION_NOT_FOUND, "to_generation"),
    "rollback's etag": (RollbackAdapter(POOL, "acme/a", 1, 1), Conflict, Reason.ETAG_MISMATCH, "etag"),
    "rollback's pool": (RollbackAdapter("q", "acme/a"), NotFound, Reason.POOL_NOT_FOUND, "pool"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(desk, name):
    """W4, W5: what is refused is refused with its kind, reason and field, and makes no revision."""
    desk.change(SetTenant("full", 1))
    desk.change(applying(upsert("acme/a"), upsert("full/a")))
    change, kind, reason, field = REFUSED[name]
    told = refused(desk, change)
    assert (type(told), told.reason, told.field) == (kind, reason, field)


def test_rollback(desk):
    for version in ("v1", "v2", "v3"):
        desk.change(applying(upsert("acme/a", version)))
    desk.change(RollbackAdapter(POOL, "acme/a"))
    assert (record(desk, "acme/a").generation, record(desk, "acme/a").spec.source.uri) == (4, "file:///a/v2")
    desk.change(RollbackAdapter(POOL, "acme/a", 1))
    assert record(desk, "acme/a").spec.source.uri == "file:///a/v1"
    same = desk.change(RollbackAdapter(POOL, "acme/a", 5))
    assert same.reply.adapters[0].outcome == "unchanged"
    desk.change(applying(Remove("acme/a")))
    desk.change(RollbackAdapter(POOL, "ACME/a"))
    assert (record(desk, "acme/a").name, record(desk, "acme/a").generation) == ("ACME/a", 6)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"credentials": "c"}, "spec.credentials"),
        ({"load": "lazy", "placement": Placement(replicas=2)}, "spec.placement"),
    ],
)
def test_rollback_to_what_is_not_supported(desk, values, field):
    """A generation of a later release may ask for what this one does not do."""
    desk.change(applying(upsert("acme/a", **values)))
    desk.change(applying(upsert("acme/a", "v2")))
    told = refused(desk, RollbackAdapter(POOL, "acme/a"))
    assert (told.reason, told.field) == (Reason.UNSUPPORTED, field)


def test_rollback_to_what_cannot_be_read(desk):
    desk.change(applying(upsert("acme/a")))
    desk.etcd.put(KEYS.history(POOL, "acme/a", 7), b"?")
    assert refused(desk, RollbackAdapter(POOL, "acme/a", 7)).reason is Reason.UNREADABLE_RECORD


def test_request_ids(desk):
    """W3 idempotent: the same request gets its first reply, another one with the id is refused."""
    first = desk.change(applying(upsert("acme/a")), "r1")
    desk.change(applying(upsert("acme/a", "v2")))
    assert desk.change(applying(upsert("acme/a")), "r1") == first
    told = refused(desk, applying(upsert("acme/b")), "r1")
    assert (told.reason, told.field) == (Reason.REQUEST_ID_REUSED, "request_id")


def test_a_fenced_request_stays_refused(desk):
    """W8 no-false-fail: after the fence neither a delayed copy nor the same id again does anything."""
    change = applying(upsert("acme/a"))
    context = desk.context(change, "r1")
    assert desk.etcd.txn(fence(context)).succeeded
    assert refused(desk, change, "r1").reason is Reason.REQUEST_ID_REUSED
    assert not desk.etcd.txn(fence(context)).succeeded


def test_too_many_changes():
    """The number that fits is told exactly where the records are known, and safely where they are not."""
    desk = Desk(limits=Limits(max_ops=20))
    desk.change(creating())
    told = refused(desk, applying(*(upsert(f"acme/n{i}") for i in range(30))))
    assert (told.reason, told.metadata) == (Reason.TOO_MANY_CHANGES, {"max_changes": "5"})
    names = [f"acme/n{i}" for i in range(8)]
    desk.change(applying(*map(upsert, names)))
    for version in range(12):
        desk.change(applying(upsert("acme/n0", f"{version}"), upsert("acme/n1", f"{version}")))
    for version in range(12, 24):
        desk.change(applying(*(upsert(name, f"{version}") for name in names[2:7])))
    told = refused(desk, applying(*(upsert(name, "last") for name in names)))
    assert told.metadata == {"max_changes": "6"}
    desk.change(applying(*(upsert(name, "last") for name in names[:6])))
    told = refused(desk, applying(*(upsert(f"t{i}/a") for i in range(10))))
    assert told.metadata == {"max_changes": "4"}


def test_too_large():
    """Bytes count as well as operations."""
    desk = Desk(limits=Limits(max_ops=1000, max_bytes=20_000))
    desk.change(creating())
    told = refused(desk, applying(*(upsert(f"acme/n{i}", labels={"k": "x" * 250}) for i in range(30))))
    assert told.reason is Reason.TOO_MANY_CHANGES
    most = int(told.metadata["max_changes"])
    desk.change(applying(*(upsert(f"acme/n{i}", labels={"k": "x" * 250}) for i in range(most))))
    told = refused(desk, creating("q", *(f"{i}{'x' * 500}" for i in range(32))))
    assert told.reason is Reason.TOO_LARGE


def test_tenants_and_digests():
    """What is locked, and what makes two requests the same."""
    assert tenants_of(applying(upsert("B/x"), upsert("a/x"), upsert("x"))) == ("a", "b", "default")
    assert tenants_of(SetTenant("t", 1)) == ("t",)
    assert tenants_of(RollbackAdapter(POOL, "a/x")) == ("a",)
    assert tenants_of(DeletePool(POOL)) == ()
    one = applying(upsert("a"))
    assert payload_digest(one) == payload_digest(applying(upsert("a")))
    assert payload_digest(one) != payload_digest(applying(upsert("a", etag=0)))
    assert payload_digest(DeletePool("x")) != payload_digest(ApplyAdapters("x", ()))


def test_reads_need_no_revision(desk):
    """A Range inside a transaction never names a revision."""
    planned = desk.plan(applying(upsert("acme/a")))
    assert isinstance(planned, Commit)
    assert all(isinstance(op, Range) and op.revision == 0 for op in planned.txn.failure)
