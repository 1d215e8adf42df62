"""What each change reads, compares and writes, to the last part of its transaction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

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
from registry.model.status import Presence
from registry.model.stored import MAX_RECORD_BYTES
from registry.transactions.builder import Commit, Unchanged, check_fits, fence, fits, put_record
from registry.transactions.changes import (
    AbortRollout,
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
from registry.transactions.context import TxnLimits, check_etag
from registry.transactions.decode import Absent, Damaged, generation_of_key, read_set_of, snapshot_of, stored_adapter
from registry.transactions.plan import may_be_guessed, reads_of
from tests.support.changes import ALICE, KEYS, POOL, Author, applying, creating, lost_records, spec, upsert
from tests.support.memory_etcd import MemoryEtcd
from tests.unit.transactions.conftest import record, refused

POOL_KEY, A, ACME = KEYS.pool(POOL), KEYS.adapter(POOL, "acme/a"), KEYS.tenant("acme")
OURS, BARE = KEYS.request("q", ALICE), KEYS.request("q")
HISTORY = KEYS.history_of(POOL, "acme/a")
CANARY = Strategy(canary=Canary(replicas=1))


def revision(author: Author, key: bytes) -> int:
    kv = author.etcd.kvs.get(key)
    return kv.mod_revision if kv else 0


def one(author: Author) -> None:
    """acme/a, in its first generation."""
    author.change(applying(upsert("acme/a")))


def two(author: Author) -> None:
    """acme/a, in its second generation."""
    one(author)
    author.change(applying(upsert("acme/a", "v2")))


def canaries(author: Author) -> None:
    """acme/a, in a second generation that canaries are to have first."""
    one(author)
    author.change(applying(upsert("acme/a", "v2", strategy=CANARY)))


def nothing(author: Author) -> None:
    """The pool alone."""


def lives(author: Author) -> None:
    presence = Presence(pool=POOL, replica="r1", incarnation="i", owner="o", started_at="")
    author.etcd.txn(Txn((), (Put(KEYS.replica(POOL, "r1"), presence.to_bytes(), 7),)))


def lost(author: Author) -> None:
    """Two adapters of acme, one of which is deleted past the admin service."""
    author.change(applying(upsert("acme/a"), upsert("acme/b")))
    author.etcd.delete(A)


Compares = Callable[[Author], Sequence[Compare]]
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


def same(*keys: bytes, more: Callable[[Author], Sequence[Compare]] = lambda _: ()) -> Compares:
    """That each of these keys is as it was read, and more."""
    return lambda made: [*(mod_is(key, revision(made, key)) for key in keys), *more(made)]


def unwritten(made: Author) -> Compare:
    return unwritten_since(HISTORY, made.etcd.revision)


def draining(made: Author) -> None:
    lives(made)
    made.change(DrainReplica(POOL, "r1", drain=True))


def damaged(made: Author) -> None:
    two(made)
    made.etcd.put(A, b"?")


# What stands, the change, what it reads, compares and writes (a key: it is put, under no lease), and its audit scope.
Row = tuple[Callable[[Author], None], Change, list[Range], Compares, list[bytes | Written], str]
PLANS: dict[str, Row] = {
    "create": (
        nothing,
        applying(upsert("acme/a")),
        [*OF_A, NEWEST],
        same(POOL_KEY, more=lambda made: [absent(A), unwritten(made), mod_is(ACME, 0)]),
        [A, ACME],
        POOL,
    ),
    "update": (one, applying(upsert("acme/a", "v2")), [*OF_A, NEWEST], same(POOL_KEY, A), [A, H1], POOL),
    "unchanged": (one, applying(upsert("acme/a")), [*OF_A, NEWEST], same(POOL_KEY, A), [], ""),
    "delete": (
        one,
        applying(Remove("acme/a")),
        [*OF_A, NEWEST],
        same(POOL_KEY, A, ACME),
        [(Delete, A, 0), H1, ACME],
        POOL,
    ),
    "replace what is damaged": (
        damaged,
        applying(upsert("acme/a")),
        [*OF_A, NEWEST],
        same(POOL_KEY, A, more=lambda made: [unwritten(made)]),
        [A, H2],
        POOL,
    ),
    "roll back": (two, RollbackAdapter(POOL, "acme/a"), [*OF_A, ALL_BELOW], same(POOL_KEY, A), [A, H2], POOL),
    "promote": (canaries, PromoteRollout(POOL, "acme/a"), OF_A[::2], same(POOL_KEY, A), [A], POOL),
    "abort": (canaries, AbortRollout(POOL, "acme/a"), OF_A[::2], same(POOL_KEY, A), [A, H2], POOL),
    "halt": (canaries, HaltRollout(POOL, "acme/a", 2, 4, "why"), OF_A[::2], same(POOL_KEY, A), [A], POOL),
    "create a pool": (
        nothing,
        creating("q", "b1", "b2"),
        [*map(Range, OTHER_POOL)],
        lambda _: [*map(absent, OTHER_POOL)],
        OTHER_POOL[:1],
        "q",
    ),
    "change a pool": (
        one,
        UpdatePool(POOL, ("base",), PoolLimits(max_rank=8)),
        [Range(POOL_KEY), Range(BASE), ANY_ADAPTER],
        same(POOL_KEY, more=lambda _: [absent(BASE)]),
        [POOL_KEY],
        POOL,
    ),
    "give a pool other engines": (
        nothing,
        UpdatePool(POOL, ("base",), PoolLimits(), engine="sglang"),
        [Range(POOL_KEY), Range(BASE), ANY_ADAPTER],
        same(POOL_KEY, more=lambda _: [absent(BASE), none_in(ADAPTERS)]),
        [POOL_KEY],
        POOL,
    ),
    "delete a pool": (
        nothing,
        DeletePool(POOL),
        [Range(POOL_KEY), ANY_ADAPTER],
        same(POOL_KEY, more=lambda _: [none_in(ADAPTERS)]),
        [(Delete, POOL_KEY, 0)],
        POOL,
    ),
    "confirm removals": (nothing, ConfirmRemovals(POOL, 1), [Range(POOL_KEY)], same(POOL_KEY), [POOL_KEY], POOL),
    "drain": (lives, DrainReplica(POOL, "r1", drain=True), ORDERS, same(REPLICA, DRAIN), [(Put, DRAIN, 7)], POOL),
    "serve again": (
        draining,
        DrainReplica(POOL, "r1", drain=False),
        ORDERS,
        same(REPLICA, DRAIN),
        [(Put, DRAIN, 7)],
        POOL,
    ),
    "set a quota": (one, SetTenant("acme", 5), [Range(ACME)], same(ACME), [ACME], "_"),
    "repair": (
        lost,
        RepairTenant("acme", (LOST,)),
        [Range(ACME), ALL_KEYS, Range(H1)],
        same(ACME, more=lambda _: [absent(A), absent(H1)]),
        [H1, ACME],
        "_",
    ),
    "restore": (
        nothing,
        RestoreHistory(POOL, "acme/a", (GENERATION_4,), None),
        [Range(POOL_KEY), Range(A), Range(HISTORY, prefix_end(HISTORY), keys_only=True)],
        lambda _: [absent(A), absent(H4)],
        [H4],
        POOL,
    ),
}


def written(op: Op) -> Written:
    assert isinstance(op, Put | Delete)
    return type(op), op.key, op.lease if isinstance(op, Put) else 0


@pytest.mark.parametrize(("before", "change", "reads", "compares", "writes", "scope"), PLANS.values(), ids=PLANS)
def test_the_transaction_of_each_change(author, before, change, reads, compares, writes, scope):
    """W2 atomic-set, W3, W4: it holds only where all stands that it was made from, and has its bookkeeping in it."""
    before(author)
    context = author.context(change, "q")
    assert list(reads_of(change, context)) == [Range(OURS), Range(BARE), *reads]
    planned = author.plan(change, "q")
    assert isinstance(planned, Commit)
    assert list(planned.txn.compare) == [absent(OURS), absent(BARE), *compares(author)]
    books: list[Written] = [(Put, OURS, 1)]
    if scope:
        books.append((Put, KEYS.audit(scope, f"a{author.made:06}"), 2))
    wanted = [(Put, one, 0) if isinstance(one, bytes) else one for one in writes]
    assert [written(op) for op in planned.txn.success] == [*wanted, *books]
    assert list(planned.txn.failure) == [Range(OURS), Range(BARE), *reads]
    assert planned.changes == bool(scope)
    assert author.etcd.txn(planned.txn).succeeded


@pytest.mark.parametrize(("before", "change"), [plan[:2] for plan in PLANS.values()], ids=PLANS)
def test_a_stale_etag_stops_each_change_that_takes_one(author, before, change):
    """W4 etag: whatever it is of; with the right one it goes on, and without any."""
    before(author)
    if not hasattr(change, "etag"):
        return
    key = ACME if isinstance(change, SetTenant) else A if hasattr(change, "pool") else POOL_KEY
    right = revision(author, key)
    told = refused(author, replace(change, etag=right - 1))
    assert (type(told), told.reason, told.metadata) == (Conflict, Reason.ETAG_MISMATCH, {"etag": str(right)})
    assert isinstance(author.plan(replace(change, etag=right)), Commit)


def test_the_etag_decides_before_all_else(author):
    """W4: whoever sends an old one is told so, and not what is wrong with it besides."""
    one(author)
    assert refused(author, UpdatePool(POOL, ("acme/a",), PoolLimits(), 1)).reason is Reason.ETAG_MISMATCH
    assert refused(author, DeletePool(POOL, 1)).reason is Reason.ETAG_MISMATCH
    assert refused(author, ConfirmRemovals(POOL, 99, 1)).reason is Reason.ETAG_MISMATCH
    assert refused(author, SetTenant("acme", 0, 1)).reason is Reason.ETAG_MISMATCH
    assert refused(author, PromoteRollout(POOL, "acme/a", 9, 1)).reason is Reason.ETAG_MISMATCH


@pytest.mark.parametrize(("etag_now", "sent", "is_stale"), [(0, 0, False), (0, 1, True), (3, 3, False), (3, 0, True)])
def test_an_etag_is_that_of_what_stands(etag_now, sent, is_stale):
    """W4: 0 is that of nothing."""
    state = Damaged(b"?", etag_now) if etag_now else Absent()
    check_etag(None, state, field="etag")
    if is_stale:
        with pytest.raises(Conflict):
            check_etag(sent, state, field="etag")
    else:
        check_etag(sent, state, field="etag")


def count(author: Author, tenant: str = "acme") -> int:
    return TenantRecord.parse(author.etcd.kvs[KEYS.tenant(tenant)].value).adapters


def test_counters_follow_each_change(author):
    """W5 quota-never: one up for what is created, one down for what is deleted, of each tenant by itself."""
    author.change(applying(upsert("acme/a"), upsert("acme/b"), upsert("c"), upsert("acme/d")))
    assert (count(author), count(author, "default")) == (3, 1)
    author.change(applying(upsert("acme/a", "v2"), Remove("acme/b"), upsert("acme/d")))
    assert count(author) == 2
    author.change(applying(Remove("acme/a"), upsert("acme/e"), Remove("c")))
    assert (count(author), count(author, "default")) == (2, 0)
    author.etcd.put(KEYS.adapter(POOL, "acme/d"), b"?")
    author.change(applying(upsert("acme/d")))
    assert count(author) == 2
    author.etcd.put(KEYS.adapter(POOL, "acme/d"), b"?")
    author.change(applying(Remove("acme/d")))
    assert count(author) == 1
    author.change(RollbackAdapter(POOL, "acme/a"))
    assert count(author) == 2


@pytest.mark.parametrize(("quota", "fits_in"), [(2, True), (1, False)])
def test_a_quota_is_full_when_it_is_full(author, quota, fits_in):
    """W5: as many as it says, and none more; one that goes makes room in the same change."""
    one(author)
    author.change(SetTenant("acme", quota))
    if fits_in:
        author.change(applying(upsert("acme/b")))
        assert count(author) == 2
    else:
        told = refused(author, applying(upsert("acme/b")))
        numbers = {"tenant": "acme", "max_adapters": "1", "adapters": "1", "added": "1"}
        assert (told.reason, told.metadata) == (Reason.QUOTA_EXCEEDED, numbers)
        author.change(applying(Remove("acme/a"), upsert("acme/b")))
        assert count(author) == 1


def test_a_quota_is_not_set_below_what_there_is(author):
    """W5: at it, it is."""
    author.change(applying(upsert("acme/a"), upsert("acme/b")))
    told = refused(author, SetTenant("acme", 1))
    assert (told.reason, told.metadata) == (Reason.QUOTA_BELOW_USE, {"adapters": "2"})
    assert author.change(SetTenant("acme", 2)).reply.etag is None
    again = author.change(SetTenant("acme", 2))
    assert (again.reply.etag, again.reply.tenant) == (
        revision(author, ACME),
        TenantRecord(name="acme", adapters=2, max_adapters=2),
    )
    author.change(SetTenant("acme", None))
    assert TenantRecord.parse(author.etcd.kvs[ACME].value).max_adapters is None


def test_what_a_tenant_has_too_much_of_may_still_go(author):
    """W5: a quota refuses what is added, and nothing else."""
    author.change(applying(upsert("acme/a"), upsert("acme/b")))
    author.etcd.put(ACME, TenantRecord(name="acme", adapters=3, max_adapters=1).to_bytes())
    author.change(applying(Remove("acme/a")))
    assert count(author) == 2


@pytest.mark.parametrize(("limit", "taken"), [(20, 8), (21, 8), (22, 9), (6, 1)])
def test_a_repair_takes_as_many_as_one_transaction_has_room_for(limit, taken):
    """W5: two compares and two operations each, and four besides; the rest stays counted."""
    author = Author()
    author.change(creating())
    names = [f"acme/n{number}" for number in range(10)]
    author.change(applying(*map(upsert, names)))
    for name in names:
        author.etcd.delete(KEYS.adapter(POOL, name))
    author.limits = TxnLimits(max_ops=limit)
    settled = author.change(RepairTenant("acme", lost_records(author.etcd, "acme")))
    assert [one.name for one in settled.reply.adapters] == names[:taken]
    assert {one.outcome for one in settled.reply.adapters} == {"deleted"}
    assert count(author) == 10 - taken
    assert settled.reply.tenant == TenantRecord(name="acme", adapters=10 - taken)


def txn(compare: int = 1, success: int = 1, failure: int = 1, value: int = 100) -> Commit:
    puts = tuple(Put(b"k" * 10, b"v" * value) for _ in range(success))
    ranges = tuple(Range(b"k" * 10, b"e" * 5) for _ in range(failure))
    compares = tuple(absent(b"k" * 10) for _ in range(compare))
    return Commit(Txn(compares, puts, ranges), ChangeReply(), changes=True)


@pytest.mark.parametrize("part", ["compare", "success", "failure"])
def test_no_part_of_a_transaction_has_more_operations_than_etcd_takes(part):
    """Each of the three counts by itself."""
    limits = TxnLimits(max_ops=3, max_bytes=10_000)
    assert fits(txn(**{part: 3}), limits)
    assert not fits(txn(**{part: 4}), limits)
    with pytest.raises(InvalidArgument) as told:
        check_fits(txn(**{part: 4}), limits)
    assert told.value.reason is Reason.TOO_LARGE
    assert fits(Unchanged(ChangeReply()), TxnLimits(max_ops=0, max_bytes=0))


def test_no_transaction_has_more_bytes_than_etcd_takes():
    """Its keys, values and ends of ranges, and 32 for each part: one of three parts has 10 + 110 + 15, and 96."""
    whole = txn()
    assert fits(whole, TxnLimits(max_bytes=231))
    assert not fits(whole, TxnLimits(max_bytes=230))
    assert check_fits(whole, TxnLimits(max_bytes=231)) is whole


def test_no_record_is_larger_than_readers_take():
    """R16 bounded: with what history adds to it."""
    most = MAX_RECORD_BYTES - 512
    assert put_record(b"k", b"v" * most, field="f") == Put(b"k", b"v" * most)
    with pytest.raises(InvalidArgument) as told:
        put_record(b"k", b"v" * (most + 1), field="f")
    assert (told.value.reason, told.value.field) == (Reason.TOO_LARGE, "f")


@pytest.mark.parametrize(
    ("role", "keys"),
    [
        ("operator", [KEYS.request("q", "operator:alice"), KEYS.request("q")]),
        ("conductor", [KEYS.request("q", "conductor:alice")]),
        ("unauthenticated", [KEYS.request("q")]),
    ],
)
def test_where_a_request_is_looked_for(role, keys):
    """W3 idempotent: in the space of its caller, and where a release before 0.2 put those of people."""
    change = SetTenant("acme", 1)
    author = Author(role=role)
    context = author.context(change, "q")
    assert [read.key for read in reads_of(change, context)][:-1] == keys
    planned = author.plan(change, "q")
    assert isinstance(planned, Commit)
    assert [part.key for part in planned.txn.compare][:-1] == keys
    made = fence(context)
    assert (made.compare, [op.key for op in made.success]) == ((absent(keys[0]),), keys[:1])
    assert [op.key for op in made.failure] == keys


def test_what_makes_two_requests_the_same():
    """W3: what is asked, without what is left at its default, so that a later release may add to it."""
    known = b'SetTenant\0{"name":"acme","max_adapters":1}'
    assert payload_digest(SetTenant("acme", 1)) == "sha256:" + hashlib.sha256(known).hexdigest()
    known = b'DrainReplica\0{"pool":"p","name":"r1","drain":true}'
    assert payload_digest(DrainReplica("p", "r1", drain=True)) == "sha256:" + hashlib.sha256(known).hexdigest()
    assert payload_digest(RepairTenant("acme", (LOST,))) == payload_digest(RepairTenant("acme"))


@pytest.mark.parametrize("name", PLANS)
def test_whose_counters_a_change_touches(name):
    """W5: those are locked while it is made."""
    of_acme = {"create", "update", "unchanged", "delete", "replace what is damaged", "roll back", "set a quota"}
    assert tenants_of(PLANS[name][1]) == (("acme",) if name in of_acme | {"repair", "restore"} else ())


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


@pytest.mark.parametrize(
    ("value", "generation"),
    [
        (b"?", 3),
        (b'{"generation": 2}', 3),
        (b'{"generation": 3}', 3),
        (b'{"generation": 4}', 4),
        (b'{"generation": 4.0}', 3),
        (b'{"generation": true}', 3),
        (b'{"generation": "9"}', 3),
        (b'{"generation": -1}', 3),
        (b'{"generation": %d}' % ((1 << 53) - 2), (1 << 53) - 2),
        (b'{"generation": %d}' % (1 << 63), 3),
        (b"[4]", 3),
    ],
)
def test_a_damaged_record_stands_for_the_generation_that_it_claims_or_the_next(author, value, generation):
    """W6: the larger one, so that none is given twice."""
    two(author)
    author.change(applying(Remove("acme/a")))
    author.etcd.put(A, value)
    change = applying(upsert("acme/a"))
    state = stored_adapter(author.view(change, author.context(change)), KEYS, POOL, "acme/a")
    assert state == Damaged(value, revision(author, A), generation)
    assert snapshot_of(state) == {"unreadable": value.decode()}
    assert json.loads(json.dumps(snapshot_of(replace(state, value=b"\xff" * 5000)))) == {"unreadable": "\\xff" * 4096}
    author.change(change)
    assert record(author).generation == generation + 1
    assert author.etcd.kvs[KEYS.history(POOL, "acme/a", generation)].value == value


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


def told(change: Change) -> Callable[[Author], object]:
    """The change was made before."""
    return lambda made: made.change(change)


def serving_again(made: Author) -> None:
    draining(made)
    made.change(DrainReplica(POOL, "r1", drain=False))


SAME: dict[str, tuple[Callable[[Author], object], Change, bytes]] = {
    "an adapter": (one, applying(upsert("acme/a")), A),
    "a pool": (nothing, UpdatePool(POOL, ("base",), PoolLimits()), POOL_KEY),
    "a confirmation": (told(ConfirmRemovals(POOL, 1)), ConfirmRemovals(POOL, 1), POOL_KEY),
    "a quota": (told(SetTenant("acme", 5)), SetTenant("acme", 5), ACME),
    "a repair": (one, RepairTenant("acme"), ACME),
    "an order": (lives, DrainReplica(POOL, "r1", drain=False), REPLICA),
    "an order that was given": (draining, DrainReplica(POOL, "r1", drain=True), REPLICA),
    "the end of an order": (serving_again, DrainReplica(POOL, "r1", drain=False), REPLICA),
}


@pytest.mark.parametrize(("before", "change", "key"), SAME.values(), ids=SAME)
def test_what_is_so_already_is_not_written(author, before, change, key):
    """W3, W7: it is no change; whoever gave a request id finds the reply again, and it tells the etag that stands."""
    before(author)
    stands = revision(author, key)
    assert isinstance(author.plan(change), Unchanged)
    planned = author.plan(change, "q")
    assert isinstance(planned, Commit)
    assert (planned.changes, [written(op) for op in planned.txn.success]) == (False, [(Put, OURS, 1)])
    told = planned.reply.adapters[0].etag if planned.reply.adapters else planned.reply.etag
    assert told == stands
    first = author.change(change, "q")
    assert (author.change(change, "q"), revision(author, key)) == (first, stands)


def test_a_change_tells_no_etag_but_that_of_its_revision():
    """W4: the reply of what was written has none of its own, so that the revision is taken."""
    author = Author()
    for change in (creating(), SetTenant("acme", 5), ConfirmRemovals(POOL, 1), UpdatePool(POOL, ("c",), PoolLimits())):
        assert author.change(change).reply.etag is None
    lives(author)
    assert author.change(DrainReplica(POOL, "r1", drain=True)).reply.etag is None


@pytest.mark.parametrize(
    ("names", "most", "is_right"),
    [
        ("plain", 1, True),
        ("plain", 2, True),
        ("versioned", 1, False),
        ("versioned", 2, True),
        ("versioned", None, True),
    ],
)
def test_versioned_names_need_room_for_two(author, names, most, is_right):
    change = UpdatePool(POOL, ("base",), PoolLimits(max_adapters=most), engine_names=names)
    if is_right:
        author.plan(change)
    else:
        told = refused(author, change)
        assert (told.reason, told.field) == (Reason.INVALID_FIELD, "pool.engine_names")


@pytest.mark.parametrize("deleted", [False, True])
def test_history_has_the_record_as_it_stood(author, deleted):
    """W2 atomic-set: each of its fields, who replaced it, and that it was deleted; and nothing else."""
    one(author)
    stood = json.loads(author.etcd.kvs[A].value)
    author.change(applying(Remove("acme/a") if deleted else upsert("acme/a", "v2")), "q")
    kept = json.loads(author.etcd.kvs[KEYS.history(POOL, "acme/a", 1)].value)
    assert kept == stood | {"retired_by_request": "q", "deleted": deleted, "restored_by": None}
    other = Author()
    other.change(creating())
    other.change(RestoreHistory(POOL, "acme/a", (), AdapterRecord.model_validate(stood)), "q")
    assert json.loads(other.etcd.kvs[KEYS.history(POOL, "acme/a", 1)].value) == stood | {
        "retired_by_request": "q",
        "deleted": True,
        "restored_by": {"principal": "alice", "at": "2026-01-01T00:00:02Z"},
    }


def test_an_audit_record_shows_values_as_they_stand(author):
    """W7 audit-complete."""
    one(author)
    stood = json.loads(author.etcd.kvs[A].value)
    author.change(applying(Remove("acme/a")), "q")
    audits = [json.loads(kv.value) for key, kv in author.etcd.kvs.items() if key.startswith(KEYS.audits())]
    (told,) = (audit for audit in audits if audit["request_id"] == "q")
    assert told["changes"] == [{"kind": "adapter", "name": "acme/a", "before": stood, "after": None}]
    assert (told["principal"], told["role"], told["method"]) == ("alice", "operator", "ApplyAdapters")
