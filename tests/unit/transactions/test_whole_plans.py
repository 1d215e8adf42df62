"""What each change reads, compares and writes, to the last part of its transaction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from registry.access.decision import grant_of
from registry.access.file import read_access
from registry.access.principal import Credential, Principal
from registry.etcd3.ops import (
    Compare,
    Delete,
    DeleteResult,
    KeyValue,
    Op,
    Put,
    Range,
    RangeResult,
    SortTarget,
    Txn,
    absent,
    mod_is,
    none_in,
    prefix_end,
    unwritten_since,
)
from registry.model.errors import Conflict, InvalidArgument, Reason
from registry.model.records import AdapterRecord, Canary, ChangeReply, PoolLimits, RetiredRecord, Strategy, TenantRecord
from registry.model.stored import MAX_RECORD_BYTES
from registry.transactions.builder import Commit, Unchanged, check_fits, fence, fits, put_record
from registry.transactions.changes import (
    AbortRollout,
    ApplyAdapters,
    Change,
    ConfirmRemovals,
    DeletePool,
    DrainReplica,
    HaltRollout,
    PromoteRollout,
    Remove,
    RepairTenant,
    RestoreHistory,
    RollbackAdapter,
    SetTenant,
    UpdatePool,
    payload_digest,
    tenants_of,
)
from registry.transactions.context import TxnLimits
from registry.transactions.decode import generation_of_key, read_set_of
from registry.transactions.plan import may_be_guessed, reads_of
from tests.support.changes import ALICE, KEYS, POOL, Author, applying, creating, spec, upsert
from tests.support.memory_etcd import MemoryEtcd
from tests.unit.transactions.conftest import audits, lives, refused

POOL_KEY, A, ACME = KEYS.pool(POOL), KEYS.adapter(POOL, "acme/a"), KEYS.tenant("acme")
OURS, BARE = KEYS.request("q", ALICE), KEYS.request("q")
HISTORY = KEYS.history_of(POOL, "acme/a")
CANARY = Strategy(canary=Canary(replicas=1))


def revision(author: Author, key: bytes) -> int:
    kv = author.etcd.kvs.get(key)
    return kv.mod_revision if kv else 0


Written = tuple[type[Put] | type[Delete], bytes, int]
REPLICA, DRAIN = KEYS.replica(POOL, "r1"), KEYS.drain(POOL, "r1")
NEWEST = Range(HISTORY, prefix_end(HISTORY), limit=1, descending_by=SortTarget.MOD)
ALL_BELOW = Range(HISTORY, prefix_end(HISTORY))
ADAPTERS, EVERYWHERE = KEYS.adapters(POOL), KEYS.all_adapters()
ANY_ADAPTER = Range(ADAPTERS, prefix_end(ADAPTERS), limit=1, keys_only=True)
BASE = KEYS.adapter(POOL, "base")
LOST = AdapterRecord(
    name="acme/a",
    pool=POOL,
    tenant="acme",
    generation=1,
    spec=spec(),
    updated_at="2026-01-01T00:00:02Z",
    updated_by="alice",
    request_id="auto-2",
)
GENERATION_4 = RetiredRecord.model_validate(
    LOST.model_dump(by_alias=True) | {"generation": 4, "retired_by_request": "x", "deleted": True}
)
H1, H2, H4 = (KEYS.history(POOL, "acme/a", generation) for generation in (1, 2, 4))
OF_A = [Range(POOL_KEY), Range(ACME), Range(A)]
ALL_KEYS = Range(EVERYWHERE, prefix_end(EVERYWHERE), keys_only=True)
ORDERS = [Range(REPLICA), Range(DRAIN), Range(POOL_KEY)]
OTHER_POOL = [KEYS.pool("q"), KEYS.adapter("q", "b1"), KEYS.adapter("q", "b2")]


@dataclass(frozen=True)
class Plan:
    """A change of what stands, and the transaction that it has to be.

    Attributes:
        before: what is changed first.
        reads: beside what was noted of the request.
        same: the keys which have to be as they were read.
        more: what is compared besides.
        writes: what is written (a key: it is put, under no lease), beside the books.
        scope: where its audit record stands; empty: it changes nothing.
    """

    before: Sequence[Change | bytes]
    change: Change
    reads: Sequence[Range]
    same: Sequence[bytes]
    writes: Sequence[bytes | Written]
    more: Callable[[Author], Sequence[Compare]] = lambda _: ()
    scope: str = POOL
    of_acme: bool = False

    def stand(self, author: Author) -> None:
        """Makes what stands: by changes, of a replica that lives, or of a key that somebody wrote or deleted."""
        for one in self.before:
            if not isinstance(one, bytes):
                author.change(one)
            elif one == REPLICA:
                lives(author, "r1")
            elif one:
                author.etcd.delete(one)
            else:
                author.etcd.put(A, b"?")


def unwritten(made: Author) -> Compare:
    return unwritten_since(HISTORY, made.etcd.revision)


ONE, V2 = applying(upsert("acme/a")), applying(upsert("acme/a", "v2"))
CANARIES = [ONE, applying(upsert("acme/a", "v2", strategy=CANARY))]
LOST_ONE = [applying(upsert("acme/a"), upsert("acme/b")), A]
DRAINS, SERVES = (DrainReplica(POOL, "r1", drain) for drain in (True, False))
APPLY, ROLLOUT, OF_POOL = [*OF_A, NEWEST], OF_A[::2], [Range(POOL_KEY), Range(BASE), ANY_ADAPTER]
QUOTA_5, CONFIRM = SetTenant("acme", 5), ConfirmRemovals(POOL, 1)
WIDER, SGLANG = PoolLimits(max_rank=8), {"engine": "sglang"}
PLANS = {
    "create": Plan(
        [], ONE, APPLY, [POOL_KEY], [A, ACME], lambda made: [absent(A), unwritten(made), mod_is(ACME, 0)], of_acme=True
    ),
    "update": Plan([ONE], V2, APPLY, [POOL_KEY, A], [A, H1], of_acme=True),
    "unchanged": Plan([ONE], ONE, APPLY, [POOL_KEY, A], [], scope="", of_acme=True),
    "delete": Plan(
        [ONE], applying(Remove("acme/a")), APPLY, [POOL_KEY, A, ACME], [(Delete, A, 0), H1, ACME], of_acme=True
    ),
    "replace what is damaged": Plan(
        [ONE, V2, b""], ONE, APPLY, [POOL_KEY, A], [A, H2], lambda made: [unwritten(made)], of_acme=True
    ),
    "roll back": Plan(
        [ONE, V2], RollbackAdapter(POOL, "acme/a"), [*OF_A, ALL_BELOW], [POOL_KEY, A], [A, H2], of_acme=True
    ),
    "promote": Plan(CANARIES, PromoteRollout(POOL, "acme/a"), ROLLOUT, [POOL_KEY, A], [A]),
    "abort": Plan(CANARIES, AbortRollout(POOL, "acme/a"), ROLLOUT, [POOL_KEY, A], [A, H2]),
    "halt": Plan(CANARIES, HaltRollout(POOL, "acme/a", 2, 4, "why"), ROLLOUT, [POOL_KEY, A], [A]),
    "create a pool": Plan(
        *([], creating("q", "b1", "b2"), [*map(Range, OTHER_POOL)], [], OTHER_POOL[:1]),
        lambda _: [*map(absent, OTHER_POOL)],
        "q",
    ),
    "change a pool": Plan(
        [ONE], UpdatePool(POOL, ("base",), WIDER), OF_POOL, [POOL_KEY], [POOL_KEY], lambda _: [absent(BASE)]
    ),
    "give a pool other engines": Plan(
        *([], UpdatePool(POOL, ("base",), PoolLimits(), **SGLANG), OF_POOL, [POOL_KEY], [POOL_KEY]),
        lambda _: [absent(BASE), none_in(ADAPTERS)],
    ),
    "delete a pool": Plan(
        *([], DeletePool(POOL), [Range(POOL_KEY), ANY_ADAPTER], [POOL_KEY], [(Delete, POOL_KEY, 0)]),
        lambda _: [none_in(ADAPTERS)],
    ),
    "confirm removals": Plan([], CONFIRM, [Range(POOL_KEY)], [POOL_KEY], [POOL_KEY]),
    "drain": Plan([REPLICA], DRAINS, ORDERS, [REPLICA, DRAIN], [(Put, DRAIN, 7)]),
    "serve again": Plan([REPLICA, DRAINS], SERVES, ORDERS, [REPLICA, DRAIN], [(Put, DRAIN, 7)]),
    "set a quota": Plan([ONE], QUOTA_5, [Range(ACME)], [ACME], [ACME], scope="_", of_acme=True),
    "repair": Plan(
        *(LOST_ONE, RepairTenant("acme", (LOST,)), [Range(ACME), ALL_KEYS, Range(H1)], [ACME], [H1, ACME]),
        *(lambda _: [absent(A), absent(H1)], "_", True),
    ),
    "restore": Plan(
        [],
        RestoreHistory(POOL, "acme/a", (GENERATION_4,), None),
        [Range(POOL_KEY), Range(A), Range(HISTORY, prefix_end(HISTORY), keys_only=True)],
        *([], [H4], lambda _: [absent(A), absent(H4)], POOL, True),
    ),
}


def written(op: Op) -> Written:
    assert isinstance(op, Put | Delete)
    return type(op), op.key, op.lease if isinstance(op, Put) else 0


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_transaction_of_each_change(author, plan):
    """W2 atomic-set, W3, W4: it holds only where all stands that it was made from, and has its bookkeeping in it.

    W5: of whose counters it touches some, those are locked while it is made.
    """
    plan.stand(author)
    reads = [Range(OURS), Range(BARE), *plan.reads]
    assert list(reads_of(plan.change, author.context(plan.change, "q"))) == reads
    planned = author.plan(plan.change, "q")
    assert isinstance(planned, Commit)
    same = [mod_is(key, revision(author, key)) for key in plan.same]
    assert list(planned.txn.compare) == [absent(OURS), absent(BARE), *same, *plan.more(author)]
    books: list[Written] = [(Put, OURS, 1)]
    if plan.scope:
        books.append((Put, KEYS.audit(plan.scope, f"a{author.made:06}"), 2))
    wanted = [(Put, one, 0) if isinstance(one, bytes) else one for one in plan.writes]
    assert [written(op) for op in planned.txn.success] == [*wanted, *books]
    assert list(planned.txn.failure) == reads
    assert planned.changes == bool(plan.scope)
    assert tenants_of(plan.change) == (("acme",) if plan.of_acme else ())
    assert author.etcd.txn(planned.txn).succeeded


@pytest.mark.parametrize("plan", [plan for plan in PLANS.values() if hasattr(plan.change, "etag")])
def test_a_stale_etag_stops_each_change_that_takes_one(author, plan):
    """W4 etag: whatever it is of; with the right one it goes on, and without any."""
    plan.stand(author)
    key = ACME if isinstance(plan.change, SetTenant) else A if hasattr(plan.change, "pool") else POOL_KEY
    right = revision(author, key)
    told = refused(author, replace(plan.change, etag=right - 1))
    assert (type(told), told.reason, told.metadata) == (Conflict, Reason.ETAG_MISMATCH, {"etag": str(right)})
    assert f"current is {right};" in told.message
    named = {SetTenant: "tenant.etag", UpdatePool: "pool.etag"}
    assert told.field == named.get(type(plan.change), "etag")
    assert isinstance(author.plan(replace(plan.change, etag=right)), Commit)


@pytest.mark.parametrize(
    "change",
    [
        UpdatePool(POOL, ("acme/a",), PoolLimits(), 1),
        DeletePool(POOL, 1),
        ConfirmRemovals(POOL, 99, 1),
        SetTenant("acme", 0, 1),
        PromoteRollout(POOL, "acme/a", 9, 1),
    ],
)
def test_the_etag_decides_before_all_else(author, change):
    """W4: whoever sends an old one is told so, and not what is wrong with it besides."""
    author.change(ONE)
    assert refused(author, change).reason is Reason.ETAG_MISMATCH


@pytest.mark.parametrize(
    ("credential", "keys"),
    [
        (Credential.CERTIFICATE, [KEYS.request("q", "operator:alice"), KEYS.request("q")]),
        (Credential.SERVICE, [KEYS.request("q", "conductor:alice")]),
        (Credential.NONE, [KEYS.request("q")]),
    ],
)
def test_where_a_request_is_looked_for(credential, keys):
    """W3 idempotent: in the space of its caller, and where a release before 0.2 put those of people."""
    change = SetTenant("acme", 1)
    author = Author(principal=Principal("alice", credential))
    context = author.context(change, "q")
    assert [read.key for read in reads_of(change, context)][:-1] == keys
    planned = author.plan(change, "q")
    assert isinstance(planned, Commit)
    assert [part.key for part in planned.txn.compare][:-1] == keys
    made = fence(context)
    assert (made.compare, [op.key for op in made.success]) == ((absent(keys[0]),), keys[:1])
    assert [op.key for op in made.failure] == keys


@pytest.mark.parametrize(
    ("change", "guessed"),
    [
        (applying(upsert("a"), Remove("b")), True),
        (applying(upsert("a", strategy=CANARY)), False),
        (applying(upsert("a"), upsert("b", strategy=CANARY)), False),
        (applying(upsert("a", strategy=Strategy(canary=Canary(replicas="25%")))), True),
        (RepairTenant("acme"), False),
        (RestoreHistory(POOL, "a", (), None), False),
        (SetTenant("acme", 1), True),
        (PromoteRollout(POOL, "a"), True),
    ],
)
def test_what_may_be_planned_from_a_guess(change, guessed):
    """What its compares do not verify has to be read."""
    assert may_be_guessed(change) is guessed


def test_what_a_transaction_found_is_told_by_what_was_read():
    """A key has one value, a range all of them; what answers with something else found nothing."""
    kvs = tuple(KeyValue(key, b"{}", 1, number, 1, 0) for number, key in enumerate((b"a/1", b"a/2"), start=1))
    reads = (Range(b"a/", b"a0"), Range(b"a/2"), Range(b"b"), Range(b"c/", b"c0"), Range(b"d"))
    found = [
        RangeResult(7, kvs, more=False, count=2),
        RangeResult(7, kvs[1:], more=False, count=1),
        RangeResult(7, (), more=False, count=0),
        RangeResult(7, (), more=False, count=0),
        DeleteResult(0),
    ]
    view = read_set_of(reads, 7, found)
    assert (view.revision, view.reads) == (7, reads)
    assert [view.key(key) for key in (b"a/2", b"b", b"d")] == [kvs[1], None, None]
    assert [view.below(key) for key in (b"a/", b"c/")] == [kvs[0], None]
    assert [view.all_below(key) for key in (b"a/", b"a/2", b"c/")] == [kvs, (), ()]
    with pytest.raises(ValueError, match="zip"):
        read_set_of(reads, 7, found[1:])


@pytest.mark.parametrize(
    ("part", "generation"),
    [
        ("1", 1),
        ("17", 17),
        ("0" * 16, 0),
        ("9" * 16, int("9" * 16)),
        ("1" * 17, 0),
        ("-1", 0),
        ("x", 0),
        ("", 0),
        ("²", 0),
        ("٣", 0),
    ],
)
def test_the_generation_of_a_key(part, generation):
    """W6: digits of ours, and few enough of them for a generation."""
    assert generation_of_key(KeyValue(f"/t/history/p/a/{part}".encode(), b"", 1, 1, 1, 0)) == generation
    assert generation_of_key(None) == 0


@pytest.mark.parametrize(("pool_revision", "is_taken"), [(1, True), (2, True), (3, False)])
def test_removals_are_confirmed_up_to_what_was_seen(pool_revision, is_taken):
    """R15 brake: not for a revision that is still to come; a lower one changes nothing."""
    author = Author(MemoryEtcd(revision=0))
    author.change(creating())
    author.change(SetTenant("acme", 1))
    change = ConfirmRemovals(POOL, pool_revision)
    if not is_taken:
        told = refused(author, change)
        assert (told.reason, told.field) == (Reason.INVALID_FIELD, "revision")
        return
    settled = author.change(change)
    assert settled.reply.pool is not None
    assert (settled.reply.etag, settled.reply.pool.removals_confirmed_revision) == (None, pool_revision)
    again = author.change(ConfirmRemovals(POOL, pool_revision - 1 or 1))
    assert again.reply.pool == settled.reply.pool
    assert again.reply.etag == revision(author, POOL_KEY)


def count(author: Author, tenant: str = "acme") -> int:
    return TenantRecord.parse(author.etcd.kvs[KEYS.tenant(tenant)].value).adapters


def test_a_quota_is_full_when_it_is_full(author):
    """W5: as many as it says and none more; one that goes makes room in the same change, and whatever goes may go."""
    author.change(ONE)
    author.change(SetTenant("acme", 2))
    author.change(applying(upsert("acme/b")))
    told = refused(author, applying(upsert("acme/c")))
    numbers = {"tenant": "acme", "max_adapters": "2", "adapters": "2", "added": "1"}
    assert (told.reason, told.metadata) == (Reason.QUOTA_EXCEEDED, numbers)
    author.change(applying(Remove("acme/a"), upsert("acme/c")))
    assert count(author) == 2
    told = refused(author, SetTenant("acme", 1))
    assert (told.reason, told.metadata) == (Reason.QUOTA_BELOW_USE, {"adapters": "2"})
    author.change(SetTenant("acme", None))
    assert TenantRecord.parse(author.etcd.kvs[ACME].value).max_adapters is None
    assert author.change(SetTenant("acme", 2)).reply.tenant == TenantRecord(name="acme", adapters=2, max_adapters=2)
    author.etcd.put(ACME, TenantRecord(name="acme", adapters=3, max_adapters=1).to_bytes())
    author.change(applying(Remove("acme/c")))
    assert count(author) == 2


def txn(compare: int = 1, success: int = 1, failure: int = 1) -> Commit:
    puts = tuple(Put(b"k" * 10, b"v" * 100) for _ in range(success))
    ranges = tuple(Range(b"k" * 10, b"e" * 5) for _ in range(failure))
    compares = tuple(absent(b"k" * 10) for _ in range(compare))
    return Commit(Txn(compares, puts, ranges), ChangeReply(), changes=True)


def test_no_transaction_is_larger_than_etcd_takes():
    """R16: each of its three parts counts by itself; its bytes are keys, values, ends, and 32 for each operation."""
    limits = TxnLimits(max_ops=3, max_bytes=10_000)
    for part in ("compare", "success", "failure"):
        assert fits(txn(**{part: 3}), limits)
        assert not fits(txn(**{part: 4}), limits)
        with pytest.raises(InvalidArgument) as told:
            check_fits(txn(**{part: 4}), limits)
        assert told.value.reason is Reason.TOO_LARGE
    whole = txn()
    assert [fits(whole, TxnLimits(max_bytes=10 + 110 + 15 + 96 - less)) for less in (0, 1)] == [True, False]
    assert check_fits(whole, TxnLimits(max_bytes=231)) is whole
    assert fits(Unchanged(ChangeReply()), TxnLimits(max_ops=0, max_bytes=0))
    most = MAX_RECORD_BYTES - 512  # with what history adds to it
    assert put_record(b"k", b"v" * most, field="f") == Put(b"k", b"v" * most)
    with pytest.raises(InvalidArgument) as told:
        put_record(b"k", b"v" * (most + 1), field="f")
    assert (told.value.reason, told.value.field) == (Reason.TOO_LARGE, "f")


def test_what_makes_two_requests_the_same():
    """W3: what is asked, without what is left at its default, so that a later release may add to it."""
    for change, known in (
        (SetTenant("acme", 1), b'SetTenant\0{"name":"acme","max_adapters":1}'),
        (DRAINS, b'DrainReplica\0{"pool":"p","name":"r1","drain":true}'),
    ):
        assert payload_digest(change) == "sha256:" + hashlib.sha256(known).hexdigest()
    assert payload_digest(RepairTenant("acme", (LOST,))) == payload_digest(RepairTenant("acme"))
    assert payload_digest(ONE) == payload_digest(applying(upsert("acme/a"))) != payload_digest(V2)
    assert payload_digest(DeletePool("x")) != payload_digest(ApplyAdapters("x", ()))
    assert tenants_of(applying(upsert("B/x"), upsert("a/x"), upsert("x"))) == ("a", "b", "default")


SAME: dict[str, tuple[Plan, bytes]] = {
    "an adapter": (Plan([ONE], ONE, [], [], []), A),
    "a pool": (Plan([], UpdatePool(POOL, ("base",), PoolLimits()), [], [], []), POOL_KEY),
    "a confirmation": (Plan([CONFIRM], CONFIRM, [], [], []), POOL_KEY),
    "a quota": (Plan([QUOTA_5], QUOTA_5, [], [], []), ACME),
    "a repair": (Plan([ONE], RepairTenant("acme"), [], [], []), ACME),
    "an order": (Plan([REPLICA], SERVES, [], [], []), REPLICA),
    "an order that was given": (Plan([REPLICA, DRAINS], DRAINS, [], [], []), REPLICA),
    "the end of an order": (Plan([REPLICA, DRAINS, SERVES], SERVES, [], [], []), REPLICA),
}


@pytest.mark.parametrize(("plan", "key"), SAME.values(), ids=SAME)
def test_what_is_so_already_is_not_written(author, plan, key):
    """W3, W7: it is no change; whoever gave a request id finds the reply again, and it tells the etag that stands."""
    plan.stand(author)
    stands = revision(author, key)
    assert isinstance(author.plan(plan.change), Unchanged)
    planned = author.plan(plan.change, "q")
    assert isinstance(planned, Commit)
    assert (planned.changes, [written(op) for op in planned.txn.success]) == (False, [(Put, OURS, 1)])
    told = planned.reply.adapters[0].etag if planned.reply.adapters else planned.reply.etag
    assert told == stands
    first = author.change(plan.change, "q")
    assert (author.change(plan.change, "q"), revision(author, key)) == (first, stands)


@pytest.mark.parametrize(
    ("names", "most", "is_right"),
    [("plain", 1, True), ("versioned", 1, False), ("versioned", 2, True), ("versioned", None, True)],
)
def test_versioned_names_need_room_for_two(author, names, most, is_right):
    change = UpdatePool(POOL, ("base",), PoolLimits(max_adapters=most), engine_names=names)
    if is_right:
        author.plan(change)
    else:
        told = refused(author, change)
        assert (told.reason, told.field) == (Reason.INVALID_FIELD, "pool.engine_names")


@pytest.mark.parametrize("deleted", [False, True])
def test_history_and_audit_have_the_record_as_it_stood(author, deleted):
    """W2 atomic-set, W7: each of its fields, who replaced it, and that it was deleted; and nothing else."""
    author.change(ONE)
    stood = json.loads(author.etcd.kvs[A].value)
    author.change(applying(Remove("acme/a") if deleted else upsert("acme/a", "v2")), "q")
    kept = json.loads(author.etcd.kvs[H1].value)
    assert kept == stood | {"retired_by_request": "q", "deleted": deleted, "restored_by": None}
    told = audits(author)[-1]
    stands = None if deleted else json.loads(author.etcd.kvs[A].value)
    changes = [{"kind": "adapter", "name": "acme/a", "before": stood, "after": stands}]
    assert [one.model_dump(by_alias=True) for one in told.changes] == changes
    assert (told.principal, told.role, told.method, told.request_id) == ("alice", "operator", "ApplyAdapters", "q")
    other = Author()
    other.change(creating())
    other.change(RestoreHistory(POOL, "acme/a", (), AdapterRecord.model_validate(stood)), "q")
    assert json.loads(other.etcd.kvs[H1].value) == stood | {
        "retired_by_request": "q",
        "deleted": True,
        "restored_by": {"principal": "alice", "at": "2026-01-01T00:00:02Z"},
    }


def test_an_access_file_is_asked_about_what_a_change_comes_to():
    """A2 deny-by-default: the audit has the roles and bindings that allowed it, and a refusal makes no transaction."""
    text = """apiVersion: loraplane/v1
kind: Access
bindings:
  - {role: security, users: [root]}
  - {role: publisher, users: [alice], tenants: [acme]}
"""
    etcd = MemoryEtcd()
    Author(etcd).change(creating())
    author = Author(etcd, made=10)
    author.grant = grant_of(read_access(text.encode(), "access"), author.principal)
    author.change(applying(upsert("acme/a")))
    assert [(one.role, one.bindings) for one in audits(author)] == [("operator", []), ("publisher", [2])]
    assert refused(author, applying(upsert("other/a"))).reason is Reason.PERMISSION_DENIED
    assert refused(author, SetTenant("acme", 1)).metadata["roles"] == "tenant-admin,restorer"
