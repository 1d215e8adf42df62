"""What single changes do, and what they are refused with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from registry.access.principal import ANONYMOUS, Credential, operator
from registry.etcd3.ops import Delete, Put, Txn
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
    Canary,
    Placement,
    PoolLimits,
    Strategy,
)
from registry.model.status import DrainOrder
from registry.rollout.controller import PRINCIPAL
from registry.transactions.adapters import too_many_changes
from registry.transactions.builder import Commit, fence, is_fenced, replay
from registry.transactions.canaries import looks_at_replicas
from registry.transactions.changes import (
    ApplyAdapters,
    DeletePool,
    DrainReplica,
    HaltRollout,
    Remove,
    RollbackAdapter,
    SetTenant,
    UpdatePool,
)
from registry.transactions.context import TxnLimits
from registry.transactions.decode import all_keys_in, any_in, everything_in, newest_in, some_in
from registry.transactions.plan import reads_of
from tests.support.changes import ALICE, KEYS, POOL, Author, applying, creating, upsert
from tests.support.memory_etcd import MemoryEtcd
from tests.unit.transactions.conftest import audits, lives, record, refused

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
    "order to nobody": (DrainReplica(POOL, "r1", drain=False), NotFound, Reason.REPLICA_NOT_FOUND, "name"),
    "order in no pool": (DrainReplica("q", "r1", drain=True), NotFound, Reason.POOL_NOT_FOUND, "pool"),
    "quota": (applying(upsert("full/b")), ResourceExhausted, Reason.QUOTA_EXCEEDED, None),
    "quota below use": (SetTenant("full", 0), FailedPrecondition, Reason.QUOTA_BELOW_USE, "tenant.max_adapters"),
    "pool exists": (creating(), AlreadyExists, Reason.POOL_EXISTS, "pool.name"),
    "pool to update": (UpdatePool("q", ("b",), PoolLimits()), NotFound, Reason.POOL_NOT_FOUND, "pool.name"),
    "adapter as base": (
        UpdatePool(POOL, ("base", "Acme/A"), PoolLimits()),
        InvalidArgument,
        Reason.NAME_IS_BASE_MODEL,
        "pool.base_models[1]",
    ),
    "pool to delete": (DeletePool("q"), NotFound, Reason.POOL_NOT_FOUND, "name"),
    "pool not empty": (DeletePool(POOL), FailedPrecondition, Reason.POOL_NOT_EMPTY, "name"),
    "no history": (RollbackAdapter(POOL, "acme/a"), NotFound, Reason.GENERATION_NOT_FOUND, "name"),
    "no such generation": (RollbackAdapter(POOL, "acme/a", 9), NotFound, Reason.GENERATION_NOT_FOUND, "to_generation"),
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
    assert told.metadata.get("etag") != "0" or "there is no such record;" in told.message


def test_what_is_read_for_its_keys_comes_without_values():
    """R16 bounded: those of a pool's adapters may be many megabytes."""
    reads = (any_in, partial(some_in, count=3), all_keys_in, newest_in, everything_in)
    told = [(one.keys_only, one.limit) for one in (read(b"p/") for read in reads)]
    assert told == [(True, 1), (True, 3), (True, 0), (False, 1), (False, 0)]


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


@pytest.mark.parametrize("replica", ["", "r1"])
def test_a_retry_is_written_as_the_same_generation(author, replica):
    """R17, W6, W7: who asked stands in the record until the spec changes; what it changes itself is no retry."""
    author.change(applying(upsert("acme/a"), upsert("acme/b"), upsert("acme/c")))
    changes = (upsert("acme/a"), upsert("acme/b", "v2"), Remove("acme/c"), upsert("acme/d"))
    settled = author.change(ApplyAdapters(POOL, changes, retry=True, retry_replica=replica), "again")
    assert [one.outcome for one in settled.reply.adapters] == ["updated", "updated", "deleted", "created"]
    asked, changed = record(author), record(author, "acme/b")
    assert (asked.generation, asked.retry) == (1, AskedRetry(request_id="again", replica=replica))
    assert (changed.generation, changed.retry) == (2, None)
    author.change(ApplyAdapters(POOL, (upsert("acme/a", "v2"),), retry=True))
    assert (record(author).generation, record(author).retry) == (2, None)


def test_what_is_told_of_a_change(author):
    """W7: only what changed, by the name that it has in its record, however it was written."""
    made = author.change(applying(upsert("acme/a")), "r1").reply.adapters[0]
    assert (made.outcome, made.etag, made.record) == ("created", None, record(author))
    assert (made.record.generation, made.record.tenant, made.record.updated_by, made.record.request_id) == (
        *(1, "acme"),
        *("alice", "r1"),
    )
    author.change(applying(upsert("acme/b")))
    settled = author.change(applying(upsert("acme/a"), Remove("ACME/B"), upsert("acme/c")))
    assert [one.outcome for one in settled.reply.adapters] == ["unchanged", "deleted", "created"]
    assert [one.name for one in audits(author)[-1].changes] == ["acme/b", "acme/c"]
    author.change(applying(upsert("acme/a", "v2")))
    rolled = author.change(RollbackAdapter(POOL, "ACME/A"))
    assert (rolled.reply.adapters[0].name, record(author).generation) == ("acme/a", 3)
    assert [one.name for one in audits(author)[-1].changes] == ["acme/a"]
    author.change(applying(Remove("acme/a")))
    author.change(RollbackAdapter(POOL, "ACME/a"))
    assert (record(author).name, record(author).generation) == ("ACME/a", 4), "of what is gone, as it is written"


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


OTHERS = [operator("bob"), operator("alice/x"), replace(operator("alice"), credential=Credential.SERVICE), ANONYMOUS]


@pytest.mark.parametrize("principal", OTHERS)
def test_the_same_request_gets_its_first_reply(author, principal):
    """W3 idempotent: another with its id is refused, but not that of somebody else, who chose the id as well."""
    first = author.change(applying(upsert("acme/a")), "r1")
    other = Author(author.etcd, made=100, principal=principal)
    theirs = other.change(applying(upsert("acme/b")), "r1")
    assert theirs.reply.adapters[0].outcome == "created"
    author.change(applying(upsert("acme/a", "v2")))
    assert author.change(applying(upsert("acme/a")), "r1") == first
    assert other.change(applying(upsert("acme/b")), "r1") == theirs
    told = refused(author, applying(upsert("acme/c")), "r1")
    assert (told.reason, told.field) == (Reason.REQUEST_ID_REUSED, "request_id")


@pytest.mark.parametrize("principal", [operator("alice"), ANONYMOUS])
def test_a_request_belongs_to_whoever_made_it_in_whatever_role(principal):
    """W3 idempotent: who is promoted between a call and its repetition is told what became of it, and nothing twice."""
    etcd = MemoryEtcd()
    Author(etcd).change(creating())
    first = Author(etcd, made=10, principal=principal).change(applying(upsert("acme/a")), "r1")
    promoted = Author(etcd, made=20, principal=replace(principal, groups=frozenset({"releasers"})))
    assert promoted.change(applying(upsert("acme/a")), "r1") == first
    assert refused(promoted, applying(upsert("acme/b")), "r1").reason is Reason.REQUEST_ID_REUSED


def test_nobody_takes_an_id_of_the_conductor(author):
    """W3 idempotent: its ids follow from the adapter, but not where they stand; also not by its own name."""
    conductor = Author(author.etcd, made=100, principal=PRINCIPAL)
    halt = HaltRollout(POOL, "acme/a", 1, 1, "why")
    for number, principal in enumerate([ANONYMOUS, operator(PRINCIPAL.name)]):
        somebody = Author(author.etcd, made=200 + 100 * number, principal=principal)
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
    """W3, W8 no-false-fail: neither a delayed copy nor the same id again does anything; a fence is of one payload."""
    change, other = applying(upsert("acme/a")), applying(upsert("acme/a", "v2"))
    context = author.context(change, "r1")
    assert not is_fenced(author.view(change, context), context)
    assert author.etcd.txn(fence(context)).succeeded
    assert is_fenced(author.view(change, context), context)
    assert refused(author, change, "r1").reason is Reason.REQUEST_ID_REUSED
    assert not author.etcd.txn(fence(context)).succeeded
    another = author.context(other, "r1")
    assert not is_fenced(author.view(other, another), another)
    author.change(change, "s")
    done = author.context(change, "s")
    assert not is_fenced(author.view(change, done), done)


# What happens one after another: a replica says something, under a lease; or it is ordered to drain, or not to, which
# changes something or does not.
ORDERS: dict[str, list[tuple[str, bool, object]]] = {
    "the order stands": [("is", False, 7), ("to", False, False), ("to", True, True), ("to", True, False)],
    "it is taken back": [("is", False, 7), ("to", True, True), ("to", False, True), ("to", False, False)],
    "it drains by itself": [("is", True, 7), ("to", True, False), ("to", False, True), ("to", False, True)],
    "what it says is older": [("is", True, 7), ("to", False, True), ("to", True, True)],
    "the next process": [("is", False, 7), ("to", True, True), ("is", False, 8), ("to", True, True)],
    "it may read the old one": [
        *[("is", False, 7), ("to", True, True), ("is", False, 9)],
        *[("to", False, True), ("to", False, False)],
    ],
}


@pytest.mark.parametrize("course", ORDERS.values(), ids=ORDERS)
def test_an_order_to_drain_stands_under_the_lease_of_the_presence(author, course):
    """R20 drain, W7: so it goes with the replica; who gave it stands in the audit trail."""
    lease, before = 0, None
    for kind, drain, about in course:
        if kind == "is":
            lease = int(about)
            lives(author, "r1", lease=lease, leaving=drain)
            continue
        told = len(audits(author))
        assert (author.change(DrainReplica(POOL, "r1", drain)).reply.etag is None) == about
        if about:
            kv = author.etcd.kvs[KEYS.drain(POOL, "r1")]
            order = DrainOrder.parse(kv.value)
            assert (kv.lease, order.pool, order.replica, order.drain, order.by) == (lease, POOL, "r1", drain, "alice")
            [change] = audits(author)[-1].changes
            assert (change.kind, change.name, change.before) == ("replica", "r1", before)
            before = order.model_dump(by_alias=True)
        else:
            assert len(audits(author)) == told


def test_an_order_that_cannot_be_read_is_replaced(author):
    author.etcd.txn(Txn((), (Put(KEYS.replica(POOL, "r1"), b"?", 7), Put(KEYS.drain(POOL, "r1"), b"?", 7))))
    assert author.change(DrainReplica(POOL, "r1", drain=False)).reply.etag is not None
    assert author.change(DrainReplica(POOL, "r1", drain=True)).reply.etag is None
    assert audits(author)[-1].changes[0].before == {"unreadable": "?"}


NAMES = ("ax/a", "ax/b", "bx/a", "bx/b", "ax/c", "cx/a")


def operations() -> dict[tuple[str, ...], int]:
    """What a real change of each part takes at most: deletions, of which each takes the oldest out of history."""
    author = Author()
    author.change(creating())
    for version in range(12):
        author.change(applying(*(upsert(name, f"{version}") for name in NAMES)))
    found = {}
    for part in {NAMES[start:end] for start in range(6) for end in range(start + 1, 7)}:
        planned = author.plan(applying(*map(Remove, part)), "q")
        assert isinstance(planned, Commit)
        found[part] = len(planned.txn.success)
    return found


def test_the_number_that_fits_is_the_largest_of_which_each_part_fits():
    """Whatever stands in etcd; the parts are those into which the set is split."""
    needed = operations()
    for limit in range(5, 26):
        fitting = [
            count
            for count in range(1, len(NAMES))
            if all(needed[NAMES[start : start + count]] <= limit for start in range(0, len(NAMES), count))
        ]
        told = too_many_changes(NAMES, "6", TxnLimits(max_ops=limit))
        assert (told.reason, told.field) == (Reason.TOO_MANY_CHANGES, "changes")
        assert told.metadata == {"max_changes": str(max(fitting, default=0))}, limit


@pytest.mark.parametrize(("canaries", "needed"), [(0, 10), (1, 12)])
def test_a_set_that_can_never_fit_is_refused_before_anything_is_read(canaries, needed):
    """Its reads alone are too many: two of the request, the pool, a tenant, two of each adapter, two of replicas."""
    strategy = {"strategy": Strategy(canary=Canary(replicas=canaries))} if canaries else {}
    change = applying(*(upsert(f"acme/{name}", **strategy) for name in "abc"))
    assert looks_at_replicas(change) is bool(canaries)
    author = Author(limits=TxnLimits(max_ops=needed))
    assert len(reads_of(change, author.context(change, "q"))) == needed
    author.limits = TxnLimits(max_ops=needed - 1)
    with pytest.raises(InvalidArgument) as told:
        reads_of(change, author.context(change, "q"))
    assert told.value.reason is Reason.TOO_MANY_CHANGES


def test_history_keeps_ten_generations():
    """R16 bounded: the eleventh that goes in takes the first one out, and no earlier one does."""
    author = Author()
    author.change(creating())
    author.change(applying(upsert("a", "0")))
    for generation in range(1, 13):
        planned = author.plan(applying(upsert("a", f"{generation}")))
        assert isinstance(planned, Commit)
        gone = [op.key for op in planned.txn.success if isinstance(op, Delete)]
        assert gone == ([KEYS.history(POOL, "a", generation - 10)] if generation > 10 else []), generation
        author.change(applying(upsert("a", f"{generation}")))
