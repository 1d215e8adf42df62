"""What single changes do, and what they are refused with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.etcd3.ops import Put, Txn
from registry.model.errors import (
    AlreadyExists,
    Conflict,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Reason,
    ResourceExhausted,
)
from registry.model.records import (
    AskedRetry,
    AuditRecord,
    DrainOrder,
    Placement,
    PoolLimits,
    RequestRecord,
)
from registry.model.status import Presence
from registry.transactions.builder import fence, replay
from registry.transactions.changes import (
    ApplyAdapters,
    DeletePool,
    DrainReplica,
    HaltRollout,
    Remove,
    RollbackAdapter,
    SetTenant,
    UpdatePool,
    payload_digest,
    tenants_of,
)
from registry.transactions.context import TxnLimits
from registry.transactions.decode import read_adapter
from tests.support.changes import ALICE, KEYS, POOL, Author, applying, creating, upsert
from tests.unit.transactions.conftest import record, refused


def test_create(author):
    settled = author.change(applying(upsert("acme/a")), "r1")
    (outcome,) = settled.reply.adapters
    assert (outcome.outcome, outcome.etag, outcome.record) == ("created", None, record(author, "acme/a"))
    made = record(author, "acme/a")
    assert (made.generation, made.tenant, made.updated_by, made.request_id) == (1, "acme", "alice", "r1")
    request = author.etcd.kvs[KEYS.request("r1", ALICE)]
    assert (request.mod_revision, request.lease) == (settled.revision, 1)
    assert RequestRecord.parse(request.value).reply == settled.reply
    (audit,) = [kv for key, kv in author.etcd.kvs.items() if key.startswith(KEYS.audit(POOL, "")) and kv.lease == 2][1:]
    told = AuditRecord.parse(audit.value)
    assert (told.method, told.request_id, told.changes[0].before) == ("ApplyAdapters", "r1", None)


@pytest.mark.parametrize("replica", ["", "r1"])
def test_a_retry_is_written_as_the_same_generation(author, replica):
    """R17, W6, W7: who asked stands in the record, until the spec changes."""
    author.change(applying(upsert("acme/a")))
    settled = author.change(ApplyAdapters(POOL, (upsert("acme/a"),), retry=True, retry_replica=replica), "again")
    assert [one.outcome for one in settled.reply.adapters] == ["updated"]
    asked = record(author)
    assert (asked.generation, asked.retry) == (1, AskedRetry(request_id="again", replica=replica))
    assert [one.name for one in AuditRecord.parse(_audits(author)[-1].value).changes] == ["acme/a"]
    author.change(ApplyAdapters(POOL, (upsert("acme/a", "v2"),), retry=True))
    assert (record(author).generation, record(author).retry) == (2, None)


def test_a_mixed_set_tells_only_what_changed(author):
    author.change(applying(upsert("acme/a"), upsert("acme/b")))
    settled = author.change(applying(upsert("acme/a"), Remove("acme/b"), upsert("acme/c")))
    assert [one.outcome for one in settled.reply.adapters] == ["unchanged", "deleted", "created"]
    last = AuditRecord.parse(max(_audits(author), key=lambda kv: kv.mod_revision).value)
    assert [one.name for one in last.changes] == ["acme/b", "acme/c"]


def _audits(author: Author):
    return [kv for key, kv in author.etcd.kvs.items() if key.startswith(KEYS.audits())]


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
def test_refused(author, name):
    """W4, W5: what is refused is refused with its kind, reason and field, and makes no revision."""
    author.change(SetTenant("full", 1))
    author.change(applying(upsert("acme/a"), upsert("full/a")))
    change, kind, reason, field = REFUSED[name]
    told = refused(author, change)
    assert (type(told), told.reason, told.field) == (kind, reason, field)


def test_rollback(author):
    for version in ("v1", "v2", "v3"):
        author.change(applying(upsert("acme/a", version)))
    author.change(RollbackAdapter(POOL, "acme/a"))
    assert (record(author, "acme/a").generation, record(author, "acme/a").spec.source.uri) == (4, "file:///a/v2")
    author.change(RollbackAdapter(POOL, "acme/a", 1))
    assert record(author, "acme/a").spec.source.uri == "file:///a/v1"
    same = author.change(RollbackAdapter(POOL, "acme/a", 5))
    assert same.reply.adapters[0].outcome == "unchanged"
    author.change(applying(Remove("acme/a")))
    author.change(RollbackAdapter(POOL, "ACME/a"))
    assert (record(author, "acme/a").name, record(author, "acme/a").generation) == ("ACME/a", 6)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"credentials": "c"}, "spec.credentials"),
        ({"load": "lazy", "placement": Placement(replicas=2)}, "spec.placement"),
    ],
)
def test_rollback_to_what_is_not_supported(author, values, field):
    """A generation of a later release may ask for what this one does not do."""
    author.change(applying(upsert("acme/a", **values)))
    author.change(applying(upsert("acme/a", "v2")))
    told = refused(author, RollbackAdapter(POOL, "acme/a"))
    assert (told.reason, told.field) == (Reason.UNSUPPORTED, field)


@pytest.mark.parametrize(("pool", "name"), [("q", "acme/a"), (POOL, "acme/b")])
def test_a_record_under_a_key_that_is_not_its_own_is_not_read(author, pool, name):
    """R14, X2: somebody copied it there, past the admin service."""
    author.change(applying(upsert("acme/a")))
    kv = author.etcd.kvs[KEYS.adapter(POOL, "acme/a")]
    assert read_adapter(POOL, kv) == record(author, "acme/a")
    with pytest.raises(FailedPrecondition, match="under another key than its own"):
        read_adapter(pool, replace(kv, key=KEYS.adapter(pool, name)))


def test_request_ids(author):
    """W3 idempotent: the same request gets its first reply, another one with the id is refused."""
    first = author.change(applying(upsert("acme/a")), "r1")
    author.change(applying(upsert("acme/a", "v2")))
    assert author.change(applying(upsert("acme/a")), "r1") == first
    told = refused(author, applying(upsert("acme/b")), "r1")
    assert (told.reason, told.field) == (Reason.REQUEST_ID_REUSED, "request_id")


@pytest.mark.parametrize(
    ("principal", "role"), [("bob", "operator"), ("alice/x", "operator"), ("anonymous", "unauthenticated")]
)
def test_request_ids_are_of_who_chose_them(author, principal, role):
    """W3 idempotent: an id that somebody else took, with whatever request, is none that is taken."""
    other = Author(author.etcd, made=100, principal=principal, role=role)
    theirs = other.change(applying(upsert("acme/a")), "r1")
    ours = author.change(applying(upsert("acme/b")), "r1")
    assert (ours.reply.adapters[0].outcome, ours.reply.adapters[0].name) == ("created", "acme/b")
    assert other.change(applying(upsert("acme/a")), "r1") == theirs
    assert author.change(applying(upsert("acme/b")), "r1") == ours


def test_nobody_takes_an_id_of_the_conductor(author):
    """W3 idempotent: its ids follow from the adapter, but not where they stand; also not by its own name."""
    conductor = Author(author.etcd, made=100, principal="loraplane-admin", role="conductor")
    halt = HaltRollout(POOL, "acme/a", 1, 1, "why")
    for number, (principal, role) in enumerate([("anonymous", "unauthenticated"), ("loraplane-admin", "operator")]):
        somebody = Author(author.etcd, made=200 + 100 * number, principal=principal, role=role)
        somebody.change(applying(upsert(f"acme/x{number}")), "halt-p-1")
    context = conductor.context(halt, "halt-p-1")
    assert replay(conductor.view(halt, context), context) is None


def test_a_request_of_the_release_before(author):
    """W3 idempotent: what it noted under the bare id counts for the same request, and for no other one."""
    change = applying(upsert("acme/a"))
    first = author.change(change, "r1")
    mine = KEYS.request("r1", ALICE)
    noted = author.etcd.kvs[mine].value
    author.etcd.delete(mine)
    assert author.etcd.put(KEYS.request("r1"), noted) > first.revision
    assert author.change(change, "r1").reply == first.reply
    assert mine not in author.etcd.kvs, "it was carried out before"
    assert author.change(applying(upsert("acme/b")), "r1").reply.adapters[0].outcome == "created"


def test_a_fenced_request_stays_refused(author):
    """W8 no-false-fail: after the fence neither a delayed copy nor the same id again does anything."""
    change = applying(upsert("acme/a"))
    context = author.context(change, "r1")
    assert author.etcd.txn(fence(context)).succeeded
    assert refused(author, change, "r1").reason is Reason.REQUEST_ID_REUSED
    assert not author.etcd.txn(fence(context)).succeeded


def test_too_many_changes():
    """The number that fits is told so that it holds whatever stands in etcd."""
    author = Author(limits=TxnLimits(max_ops=20))
    author.change(creating())
    told = refused(author, applying(*(upsert(f"acme/n{i}") for i in range(30))))
    assert (told.reason, told.metadata) == (Reason.TOO_MANY_CHANGES, {"max_changes": "5"})
    names = [f"acme/n{i}" for i in range(8)]
    author.change(applying(*map(upsert, names)))
    for version in range(12):
        author.change(applying(upsert("acme/n0", f"{version}"), upsert("acme/n1", f"{version}")))
    for version in range(12, 24):
        author.change(applying(*(upsert(name, f"{version}") for name in names[2:7])))
    told = refused(author, applying(*(upsert(name, "last") for name in names)))
    assert told.metadata == {"max_changes": "5"}
    author.change(applying(*(upsert(name, "last") for name in names[:6])))
    told = refused(author, applying(*(upsert(f"t{i}/a") for i in range(10))))
    assert told.metadata == {"max_changes": "4"}


@pytest.mark.parametrize("done", [0, 3, 8])
def test_the_number_that_fits_holds_for_each_part(done):
    """Entries that stay as they are take less room than the others, and one tenant less than many."""
    author = Author(limits=TxnLimits(max_ops=20))
    author.change(creating())
    changes = [upsert(f"acme/n{i}") for i in range(8)] + [upsert(f"t{i}/a") for i in range(8)]
    for change in changes[:done]:
        author.change(applying(change))
    most = int(refused(author, applying(*changes)).metadata["max_changes"])
    assert most == 4
    for start in range(0, len(changes), most):
        author.change(applying(*changes[start : start + most]))


def test_too_large():
    """Bytes count as well as operations."""
    author = Author(limits=TxnLimits(max_ops=1000, max_bytes=20_000))
    author.change(creating())
    told = refused(author, applying(*(upsert(f"acme/n{i}", labels={"k": "x" * 250}) for i in range(30))))
    assert told.reason is Reason.TOO_MANY_CHANGES
    most = int(told.metadata["max_changes"])
    author.change(applying(*(upsert(f"acme/n{i}", labels={"k": "x" * 250}) for i in range(most))))
    told = refused(author, creating("q", *(f"{i}{'x' * 500}" for i in range(32))))
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


def present(author: Author, *, leaving: bool = False, lease: int = 7, name: str = "r1") -> None:
    """A replica lives, or says something new."""
    presence = Presence(
        pool=POOL, replica=name, incarnation="i", owner="host:1", labels={}, started_at="", leaving=leaving
    )
    author.etcd.txn(Txn((), (Put(KEYS.replica(POOL, name), presence.to_bytes(), lease),)))


def ordered(author: Author, *, drain: bool) -> bool:
    """Gives the order; True if that changed something."""
    settled = author.change(DrainReplica(POOL, "r1", drain))
    return settled.reply.etag is None


def test_an_order_to_drain_stands_under_the_lease_of_the_presence(author):
    """R20 drain, W7: so it goes with the replica; who gave it stands in the audit trail."""
    present(author)
    assert not ordered(author, drain=False)
    assert ordered(author, drain=True)
    kv = author.etcd.kvs[KEYS.drain(POOL, "r1")]
    order = DrainOrder.parse(kv.value)
    assert (kv.lease, order.pool, order.replica, order.drain, order.by) == (7, POOL, "r1", True, "alice")
    audit = AuditRecord.parse(_audits(author)[-1].value)
    assert (audit.method, [(one.kind, one.name) for one in audit.changes]) == ("DrainReplica", [("replica", "r1")])
    assert not ordered(author, drain=True)
    assert ordered(author, drain=False)
    assert AuditRecord.parse(_audits(author)[-1].value).changes[0].before == order.model_dump(by_alias=True)
    assert not ordered(author, drain=False)
    assert tenants_of(DrainReplica(POOL, "r1", drain=True)) == ()


def test_a_drain_that_began_without_an_order_counts(author):
    """R20: it is taken back by an order; and one that was taken back just now is ordered anew."""
    present(author, leaving=True)
    assert not ordered(author, drain=True)
    assert ordered(author, drain=False)
    assert ordered(author, drain=False), "it still says that it drains"
    assert ordered(author, drain=True), "what it says is older than the order"


def test_an_order_to_a_process_that_is_gone_says_nothing_of_the_next(author):
    present(author)
    assert ordered(author, drain=True)
    present(author, lease=8)
    assert ordered(author, drain=True)
    assert author.etcd.kvs[KEYS.drain(POOL, "r1")].lease == 8
    present(author, lease=9)
    assert ordered(author, drain=False), "it may yet read the order of before"
    assert not ordered(author, drain=False)


def test_orders_to_nobody_are_refused_and_what_cannot_be_read_is_replaced(author):
    told = refused(author, DrainReplica(POOL, "r1", drain=False))
    assert (told.reason, told.field) == (Reason.REPLICA_NOT_FOUND, "name")
    assert refused(author, DrainReplica("q", "r1", drain=True)).reason is Reason.POOL_NOT_FOUND
    author.etcd.txn(Txn((), (Put(KEYS.replica(POOL, "r1"), b"?", 7), Put(KEYS.drain(POOL, "r1"), b"?", 7))))
    assert not ordered(author, drain=False)
    assert ordered(author, drain=True)
    assert AuditRecord.parse(_audits(author)[-1].value).changes[0].before == {"unreadable": "?"}
