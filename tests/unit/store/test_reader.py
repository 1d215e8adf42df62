"""What is read of the store: single records and what is told where there is none, and pages of one revision."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace

import pytest

from registry.etcd3.errors import Compacted, EtcdUnavailable, ResponseTooLarge
from registry.etcd3.ops import Put, Range, RangeResult, Txn
from registry.model.errors import FailedPrecondition, Internal, NotFound, Reason, Unavailable
from registry.model.names import tenant_of
from registry.model.records import PoolLimits, RetiredRecord
from registry.runtime.clock import Deadline
from registry.store import pages
from registry.store import reader as reader_module
from registry.store.pages import Page, PageToken, UnseenPlaces, parse_filter
from registry.store.reader import Reader
from registry.transactions.changes import DeletePool, Remove, UpdatePool
from registry.transactions.decode import last_part
from tests.support.changes import KEYS, POOL, Author, applying, creating, upsert
from tests.support.residency_world import presence, replica_status

LEASE = 5


class Defect(Exception):
    """A fault of ours."""


class Store(Author):
    """A store in memory whose reads are noted; it fails if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Range] = []
        self.fails: Exception | None = None
        self.most = 1 << 30
        self.compacts = False

    async def range(self, read: Range, *, timeout_seconds: float | None = None) -> RangeResult:
        assert timeout_seconds is not None
        self.asked.append(read)
        if self.fails is not None:
            raise self.fails
        if read.limit > self.most:
            raise ResponseTooLarge("too large", maybe_applied=False)
        (found,) = self.etcd.txn(Txn((), (read,))).responses
        assert isinstance(found, RangeResult)
        if self.compacts and read.revision and read.limit > 1 and not found.more:
            self.fails = Compacted("compacted", compact_revision=read.revision)
            return replace(found, kvs=found.kvs[:-1])
        return found

    def fill(self, *names: str) -> None:
        """Unreadable records under these names."""
        self.etcd.txn(Txn((), tuple(Put(KEYS.adapter(POOL, name), b"{") for name in names)))
        self.asked.clear()

    def lives(self, name: str, *, says: bool, pool: str = POOL) -> None:
        """A replica, which has reported or not."""
        ops = [Put(KEYS.replica(pool, name), presence(name, pool).to_bytes(), LEASE)]
        if says:
            ops.append(Put(KEYS.status(pool, name), replica_status(name, 7, pool).to_bytes(), LEASE))
        self.etcd.txn(Txn((), tuple(ops)))


@pytest.fixture
def store() -> Store:
    store = Store()
    store.change(creating())
    return store


@pytest.fixture
def reader(store) -> Reader:
    return Reader(store, KEYS)


async def missing(call: Awaitable[object]) -> Reason:
    """Why there is nothing to be read."""
    with pytest.raises(NotFound) as told:
        await call
    return told.value.reason


def soon() -> Deadline:
    return Deadline.of(60)


@pytest.mark.parametrize(("pool", "reason"), [(POOL, Reason.ADAPTER_NOT_FOUND), ("gone", Reason.POOL_NOT_FOUND)])
@pytest.mark.parametrize("what", ["adapter", "history"])
async def test_what_is_not_there_is_told_from_a_pool_that_is_not(store, reader, pool, reason, what):
    """Who mistook the pool looks for the name in vain."""
    store.change(applying(upsert("b")))
    with pytest.raises(NotFound) as told:
        await getattr(reader, what)(pool, "a", soon())
    assert (told.value.reason, told.value.field) == (reason, "name" if pool == POOL else "pool")


async def test_history_of_what_was_deleted(store, reader):
    """W7: all generations that are kept, of one revision, whether it stands or not."""
    for uri in ("v1", "v2"):
        store.change(applying(upsert("a", uri)))
    store.change(applying(upsert("ab")))
    found = await reader.history(POOL, "A", soon())
    assert found.present is not None
    assert (found.present.record.generation, [one.generation for one in found.retired]) == (2, [1])
    assert [one.revision for one in store.asked] == [0, store.etcd.revision]
    fresh = await reader.history(POOL, "ab", soon())
    assert (fresh.present is not None, fresh.retired) == (True, ())
    store.change(applying(Remove("a")))
    found = await reader.history(POOL, "a", soon())
    assert (found.present, [one.generation for one in found.retired]) == (None, [2, 1])


async def all_of(reader: Reader, size: int, wanted: str = "") -> tuple[list[str], list[str], int]:
    """Names on all pages of a pool, what is unreadable, and how many pages there were."""
    names, unreadable, pages, token = list[str](), list[str](), 0, None
    while True:
        page = await reader.adapters(POOL, parse_filter(wanted), size, token, soon())
        names += [one.record.name for one in page.records]
        unreadable += page.unreadable
        pages, token = pages + 1, page.token
        if token is None:
            return names, unreadable, pages


@pytest.mark.parametrize("scan", [1, 2, 3, 500])
@pytest.mark.parametrize(("size", "pages"), [(1, 5), (2, 3), (5, 1), (50, 1)])
async def test_pages_of_adapters_are_of_one_revision(store, reader, monkeypatch, scan, size, pages):
    monkeypatch.setattr(reader_module, "_SCAN_PAGE", scan)
    store.change(applying(*(upsert(f"n{number}") for number in range(5))))
    names, unreadable, count = await all_of(reader, size)
    assert (names, unreadable) == ([f"n{number}" for number in range(5)], [])
    assert pages <= count <= pages + 1
    assert {one.revision for one in store.asked[2:]} <= {store.etcd.revision}


async def test_what_somebody_wrote_further_down_is_told_by_its_own_name(store, reader):
    """R14 nack, A2: not as the adapter whose name is the end of it, whoever that is of; a copy of a record is none."""
    store.change(applying(upsert("sql")))
    good = store.etcd.kvs[KEYS.adapter(POOL, "sql")].value
    store.etcd.put(KEYS.adapters(POOL) + b"acme/sql", good)
    assert (await all_of(reader, 9))[:2] == (["sql"], ["acme/sql"])
    seen = await reader.adapters(POOL, parse_filter(""), 9, None, soon(), lambda name: tenant_of(name) == "default")
    assert ([one.record.name for one in seen.records], seen.unreadable) == (["sql"], ())


async def test_what_is_too_large_for_one_message_is_asked_for_once(store, reader):
    """R16 bounded: etcd makes such an answer before it is refused, of audit records up to 200 MB each time."""
    for number in range(100):
        store.lives(f"r{number:03}", says=True)
    store.most = 40
    found = await reader.expected(POOL, store.etcd.revision, soon())
    assert ([len(kvs) for kvs in (found.presences, found.statuses)]) == [100, 100]
    assert sum(one.limit > store.most for one in store.asked) == 2


async def test_a_filter_reads_on_until_the_page_is_full_or_it_read_enough(store, reader, monkeypatch):
    monkeypatch.setattr(reader_module, "_SCAN_PAGE", 2)
    store.change(applying(*(upsert(f"n{number}", load="lazy" if number % 4 == 3 else "eager") for number in range(9))))
    assert await all_of(reader, 1, "load=lazy") == (["n3", "n7"], [], 3)
    monkeypatch.setattr(reader_module, "_SCANNED_AT_MOST", 2)
    assert await all_of(reader, 1, "load=lazy") == (["n3", "n7"], [], 5)


async def test_a_list_of_a_pool_that_is_not_there_is_refused_at_its_first_page(store, reader):
    """An empty list would say that there is such a pool. Of one that is deleted meanwhile the pages go on."""
    for listing in (
        reader.adapters("gone", parse_filter(""), 5, None, soon()),
        reader.replicas("gone", 5, None, soon()),
    ):
        assert await missing(listing) is Reason.POOL_NOT_FOUND
    token = PageToken(7, KEYS.adapters("gone"))
    assert (await reader.adapters("gone", parse_filter(""), 5, token, soon())).records == ()
    assert (await reader.replicas("gone", 5, PageToken(7, KEYS.replicas("gone")), soon()))[1] == []


async def test_pools_and_tenants(store, reader):
    store.change(creating("q"))
    store.change(applying(upsert("acme/a"), upsert("zeta/a")))
    store.etcd.put(KEYS.pool("torn"), b"{")
    page = await reader.pools(2, None, soon())
    assert ([one.record.name for one in page.records], page.unreadable) == ([POOL, "q"], ())
    rest = await reader.pools(2, page.token, soon())
    assert (rest.records, rest.unreadable, rest.token) == ((), ("torn",), None)
    assert [one.record.name for one in (await reader.tenants(9, None, soon())).records] == ["acme", "zeta"]


async def pages_of_stored(reader: Reader, size: int) -> list[Page]:
    pages = [await reader.stored(size, None, soon())]
    while (token := pages[-1].token) is not None:
        pages.append(await reader.stored(size, token, soon()))
    return pages


@pytest.mark.parametrize("size", [1, 2, 50])
async def test_a_backup_has_each_value_once_and_of_one_revision(store, reader, size):
    """W1: whichever way its pages fall, also where there are none of a kind, or none at all."""
    assert [page.kvs for page in await pages_of_stored(Reader(Store(), KEYS), 5)] == [()]
    store.change(applying(upsert("acme/a"), upsert("b")))
    for version in ("v2", "v3"):
        store.change(applying(upsert("acme/a", version)))
    store.lives("r1", says=True)
    pages = await pages_of_stored(reader, size)
    found = [kv.key for page in pages for kv in page.kvs]
    assert found == [key for prefix in KEYS.backed_up() for key in sorted(store.etcd.kvs) if key.startswith(prefix)]
    assert len(found) == 7
    assert {page.revision for page in pages} == {store.etcd.revision}
    assert {one.revision for one in store.asked[1:]} <= {store.etcd.revision}


async def test_a_page_of_a_backup_ends_where_its_values_are_large(store, reader):
    """X3 given-back: it is read in pieces, none of which holds the event loop for long, and then no further."""
    for number in range(200):
        store.etcd.put(KEYS.adapter(POOL, f"a{number:03}"), b"x" * 65_536)
    pages = await pages_of_stored(reader, 1000)
    assert [kv.key for page in pages for kv in page.kvs] == [
        key for prefix in KEYS.backed_up() for key in sorted(store.etcd.kvs) if key.startswith(prefix)
    ]
    sizes = [sum(len(kv.value) for kv in page.kvs) for page in pages]
    assert max(sizes) <= (1 << 20) + 65_536
    assert max(one.limit for one in store.asked) * 65_536 <= 1 << 20


async def test_the_audit_trail_from_an_id_on(store, reader, monkeypatch):
    for name in "abc":
        store.change(applying(upsert(name)))
    ids = sorted(last_part(key) for key in store.etcd.kvs if key.startswith(KEYS.audit(POOL, "")))

    async def shown(since: str, size: int, token: PageToken | None = None) -> list[str]:
        return [last_part(kv.key) for kv in (await reader.audit(POOL, since, size, token, soon())).kvs]

    assert await shown("", 50) == ids
    assert await shown(ids[1], 50) == ids[1:]
    first = await reader.audit(POOL, ids[1], 1, None, soon())
    assert await shown(ids[1], 1, first.token) == ids[2:3]
    monkeypatch.setattr(reader_module, "_AUDITS_AT_MOST", 2)
    assert await shown("", 50) == ids[:2]
    store.change(creating("quiet"))
    assert (await reader.audit("quiet", "z", 5, None, soon())).kvs == ()
    assert await missing(reader.audit("gone", "", 5, None, soon())) is Reason.POOL_NOT_FOUND
    store.change(DeletePool("quiet"))
    assert len((await reader.audit("quiet", "", 5, None, soon())).kvs) == 2, "W7: who deleted it stands at its end"


async def test_one_replica(store, reader):
    store.lives("r1", says=True)
    store.lives("r2", says=False)
    for name, says in (("r1", True), ("r2", False)):
        store.asked.clear()
        found = await reader.replica(POOL, name, soon())
        assert (last_part(found.presence.key), found.status is not None, found.engine_hosts) == (name, says, ())
        assert [one.revision for one in store.asked] == [0, *[store.etcd.revision] * 2]
    for pool, reason in ((POOL, Reason.REPLICA_NOT_FOUND), ("gone", Reason.POOL_NOT_FOUND)):
        store.asked.clear()
        assert await missing(reader.replica(pool, "r3", soon())) is reason
        assert [one.key for one in store.asked] == [KEYS.replica(pool, "r3"), KEYS.pool(pool)]


async def test_pages_of_replicas_with_what_each_says(store, reader, monkeypatch):
    """R9: no status of another; what the pool allows comes with each."""
    store.change(UpdatePool(POOL, ("base",), PoolLimits(engine_hosts=["e"])))
    for name in ("r1", "r2", "r3", "r30"):
        store.lives(name, says=name != "r2")
    monkeypatch.setattr(reader_module, "_REPLICAS_AT_MOST", 2)
    page, first = await reader.replicas(POOL, 50, None, soon())
    assert page.token is not None
    last, second = await reader.replicas(POOL, 50, page.token, soon())
    assert last.token is None
    assert [(last_part(one.presence.key), one.status is not None) for one in (*first, *second)] == [
        ("r1", True),
        ("r2", False),
        ("r3", True),
        ("r30", True),
    ]
    assert {one.engine_hosts for one in (*first, *second)} == {("e",)}
    told = [one.status.key for one in (*first, *second) if one.status is not None]
    assert [last_part(key) for key in told] == ["r1", "r3", "r30"]
    assert {one.revision for one in store.asked[2:]} == {store.etcd.revision}


@pytest.mark.parametrize("scan", [1, 2, 500])
async def test_who_is_expected_and_who_lives_where_there_is_no_pool(store, reader, monkeypatch, scan):
    monkeypatch.setattr(reader_module, "_SCAN_PAGE", scan)
    for name in ("r1", "r2", "r3"):
        store.lives(name, says=False)
    store.lives("r4", says=False, pool="gone")
    store.lives("r5", says=False, pool="gone")
    store.etcd.put(KEYS.members(POOL), b"{}")
    found = await reader.expected(POOL, store.etcd.revision, soon())
    assert found.members is not None
    assert found.pool is not None
    assert [last_part(kv.key) for kv in found.presences] == ["r1", "r2", "r3"]
    nobody = await reader.expected("none", store.etcd.revision, soon())
    assert (nobody.members, nobody.pool, nobody.presences, nobody.statuses) == (None, None, [], [])
    assert await reader.replicas_without_pool(store.etcd.revision, soon()) == {"gone": ["r4", "r5"]}
    assert {one.revision for one in store.asked} == {store.etcd.revision}


async def test_what_was_deleted_past_the_admin_service_is_found(store, reader):
    """W5: by the trail, which is long, so it is read only where the counter differs."""
    store.change(applying(upsert("acme/a"), upsert("acme/b"), upsert("other/c")))
    assert await reader.lost_adapters("acme", soon()) == ()
    assert await reader.lost_adapters("nobody", soon()) == ()
    assert not any(one.key == KEYS.audits() for one in store.asked)
    store.etcd.delete(KEYS.adapter(POOL, "acme/a"))
    assert [one.name for one in await reader.lost_adapters("acme", soon())] == ["acme/a"]
    assert await reader.lost_adapters("other", soon()) == ()
    store.etcd.put(KEYS.tenant("acme"), b"{")
    with pytest.raises(FailedPrecondition):
        await reader.lost_adapters("acme", soon())


async def test_no_call_returns_more_than_the_interface_says(store, reader):
    """R16 bounded: of what may be large a page has a hundred, however many are asked for."""
    for number in range(102):
        store.lives(f"r{number:03}", says=False)
        store.etcd.put(KEYS.audit(POOL, f"a{number:03}"), b"{}")
    page, found = await reader.replicas(POOL, 1000, None, soon())
    assert (len(page.kvs), len(found), page.token is None) == (100, 100, False)
    page, found = await reader.replicas(POOL, 1000, page.token, soon())
    assert ([last_part(one.presence.key) for one in found], page.token) == (["r100", "r101"], None)
    audits = await reader.audit(POOL, "", 1000, None, soon())
    assert (len(audits.kvs), audits.token is None) == (100, False)


async def test_a_filter_that_nothing_passes_ends_after_so_many_records(store, reader):
    """R16 bounded: the token says where the next call goes on; parts of 500 are read for it."""
    names = [f"n{number:04}" for number in range(5_100)]
    store.fill(*names)
    page = await reader.adapters(POOL, parse_filter("tenant=nobody"), 7, None, soon())
    assert (page.records, page.unreadable) == ((), tuple(names[:5_000]))
    assert page.token == PageToken(store.etcd.revision, KEYS.adapter(POOL, names[4_999]))
    assert [one.limit for one in store.asked[1:]] == [500] * 10
    rest = await reader.adapters(POOL, parse_filter("tenant=nobody"), 7, page.token, soon())
    assert (rest.unreadable, rest.token) == (tuple(names[5_000:]), None)


async def test_a_page_ends_at_no_record_that_its_reader_does_not_see(store, reader):
    """A2 deny-by-default: the token names the record at which it ends."""
    names = [f"n{number:04}" for number in range(5_600)]
    store.fill(*names)
    page = await reader.adapters(POOL, parse_filter(""), 7, None, soon(), lambda name: name in {"n0000", "n5499"})
    assert (page.unreadable, page.token) == (("n0000", "n5499"), None)
    page = await reader.adapters(POOL, parse_filter(""), 7, None, soon(), lambda name: name == "n0000")
    assert (page.unreadable, page.token) == (("n0000",), None)
    even = await reader.adapters(POOL, parse_filter("tenant=x"), 7, None, soon(), lambda name: name in {*names[::2]})
    assert (even.unreadable, even.token.after) == ((*names[:5000:2],), KEYS.adapter(POOL, "n4998"))


async def test_of_what_is_not_seen_keys_alone_are_read_and_not_without_end(store, reader, monkeypatch):
    """R16 bounded, A2 deny-by-default: a page ends after so many, and its token names none of them.

    Each goes on where the one before it ended; an admin service that does not know where that was reads them again.
    """
    monkeypatch.setattr(reader_module, "_SCAN_PAGE", 2)
    monkeypatch.setattr(reader_module, "_PASSED_AT_MOST", 4)
    monkeypatch.setattr(reader_module, "_PASSED_AT_ONCE", 2)
    names = [f"n{number:02}" for number in range(20)]
    store.fill(*names)
    found: list[str] = []
    tokens: list[PageToken | None] = [None]
    while len(tokens) == 1 or tokens[-1] is not None:
        page = await reader.adapters(POOL, parse_filter(""), 2, tokens[-1], soon(), lambda name: name in {"n12", "n13"})
        found += page.unreadable
        tokens.append(page.token)
    assert found == ["n12", "n13"]
    after = [one.after for one in tokens if one is not None]
    assert after == [KEYS.adapters(POOL)] * 2
    assert len({one.place for one in tokens if one is not None}) == 2
    # The pool; two records each time, and two after those that are seen.
    assert len([one for one in store.asked if not one.keys_only]) == 1 + 3 + 1
    other = Reader(store, KEYS)
    page = await other.adapters(POOL, parse_filter(""), 2, tokens[2], soon(), lambda name: name in {"n12", "n13"})
    assert (page.unreadable, page.token.after) == ((), KEYS.adapters(POOL))


async def test_a_tenant_that_is_not_seen_is_passed_by_at_once(store, reader, monkeypatch):
    """R16 bounded: however many adapters it has."""
    monkeypatch.setattr(reader_module, "_SCAN_PAGE", 2)
    monkeypatch.setattr(reader_module, "_PASSED_AT_ONCE", 2)
    names = [f"{tenant}/n{number:02}" for tenant in ("b", "c-d", "c") for number in range(20)]
    store.fill("a/x", *names, "c0", "d/x")
    listing = reader.adapters(POOL, parse_filter(""), 2, None, soon(), lambda name: name[0] == "d" or name == "c0")
    page = await listing
    assert (page.unreadable, page.token) == (("c0", "d/x"), None)
    assert len([one for one in store.asked if one.keys_only and one.limit > 1]) <= 5


def test_of_places_the_last_ones_are_kept(monkeypatch):
    """R16 bounded: whose place is forgotten goes on from what it saw."""
    monkeypatch.setattr(pages, "PLACES_AT_MOST", 2)
    places = UnseenPlaces()
    kept = [places.keep(PageToken(7, b"hidden%d" % number), b"seen", number) for number in (1, 2, 3)]
    assert kept == [PageToken(7, b"seen", number) for number in (1, 2, 3)]
    assert [places.found(one).after for one in kept] == [b"seen", b"hidden2", b"hidden3"]


@pytest.mark.parametrize(("most", "limits"), [(499, [500, 31]), (30, [500, 31, 1]), (0, [500, 31, 1])])
async def test_a_part_that_is_too_large_is_read_in_much_smaller_ones(store, reader, most, limits):
    """R16 bounded: in a few steps down to one record alone, which is then all that can be asked for."""
    store.change(applying(upsert("a")))
    store.asked.clear()
    store.most = most
    listing = reader.adapters(POOL, parse_filter(""), 5, PageToken(store.etcd.revision, KEYS.adapters(POOL)), soon())
    if most:
        assert [one.record.name for one in (await listing).records] == ["a"]
    else:
        with pytest.raises(Internal):
            await listing
    assert [one.limit for one in store.asked if not one.keys_only] == limits


@pytest.mark.parametrize("listing", ["adapters", "stored"])
async def test_a_last_page_that_was_compacted_meanwhile_is_no_end(store, reader, listing):
    """R2: it may lack keys without saying so (etcd#19179), and a backup would be without them."""
    store.change(applying(upsert("a")))
    store.change(applying(upsert("b")))
    token = PageToken(store.etcd.revision, KEYS.adapter(POOL, "a") if listing == "adapters" else KEYS.tenants())
    store.compacts = True
    calls = {
        "adapters": lambda: reader.adapters(POOL, parse_filter(""), 5, token, soon()),
        "stored": lambda: reader.stored(5, token, soon()),
    }
    with pytest.raises(FailedPrecondition) as gone:
        await calls[listing]()
    assert gone.value.reason is Reason.REVISION_COMPACTED


async def test_history_tells_of_what_it_cannot_read(store, reader, monkeypatch):
    """R14 nack: by its generation, the newest first, be it kept or present; a fault of ours is told as it is."""
    for uri in ("v1", "v2", "v3"):
        store.change(applying(upsert("a", uri)))
    kept = [key for key in sorted(store.etcd.kvs) if key.startswith(KEYS.history_of(POOL, "a"))]
    assert len(kept) == 2
    store.etcd.put(kept[0], b"{")
    found = await reader.history(POOL, "a", soon())
    assert found.present is not None
    assert ([one.generation for one in found.retired], found.unreadable) == ([2], (1,))
    store.etcd.put(KEYS.adapter(POOL, "a"), b"{")
    found = await reader.history(POOL, "a", soon())
    assert (found.present, [one.generation for one in found.retired], found.unreadable) == (None, [2], (3, 1))

    def breaks(_: bytes) -> RetiredRecord:
        raise Defect

    monkeypatch.setattr(RetiredRecord, "parse", breaks)
    with pytest.raises(Defect):
        await reader.history(POOL, "a", soon())


async def test_a_status_of_another_life_is_none_of_this_one(store, reader):
    """R9 status-truth: one that stands under another lease than the presence is of a process that has ended."""
    store.lives("r1", says=True)
    store.etcd.txn(Txn((), (Put(KEYS.replica(POOL, "r1"), presence("r1", POOL).to_bytes(), LEASE + 1),)))
    assert (await reader.replica(POOL, "r1", soon())).status is None
    _, found = await reader.replicas(POOL, 5, None, soon())
    assert [one.status for one in found] == [None]


async def test_where_only_keys_are_asked_for_no_values_are_read(store, reader):
    """R16 bounded: all adapters of all pools would be megabytes."""
    store.change(applying(upsert("acme/a")))
    store.lives("r1", says=False, pool="gone")
    store.asked.clear()
    await reader.lost_adapters("acme", soon())
    await reader.replicas_without_pool(store.etcd.revision, soon())
    assert [one.keys_only for one in store.asked] == [False, *[True] * (len(store.asked) - 1)]
    store.asked.clear()
    store.lives("r2", says=True)
    found = await reader.expected(POOL, store.etcd.revision, soon())
    assert [kv.value for kv in found.presences] == [presence("r2", POOL).to_bytes()]
    assert [(last_part(kv.key), kv.value) for kv in found.statuses] == [("r2", b"")]


@pytest.mark.parametrize("fault", [EtcdUnavailable("no connection", maybe_applied=False), Defect()])
@pytest.mark.parametrize("what", ["adapter", "adapters", "expected"])
async def test_a_failure_of_etcd_is_one_of_ours(store, reader, what, fault):
    """X2, R12: every method raises RegistryError, or a fault of ours as it is; neither is asked for less at once."""
    store.change(applying(upsert("a")))
    store.fails = fault
    store.asked.clear()
    calls = {
        "adapter": lambda: reader.adapter(POOL, "a", soon()),
        "adapters": lambda: reader.adapters(POOL, parse_filter(""), 5, PageToken(1, KEYS.adapters(POOL)), soon()),
        "expected": lambda: reader.expected(POOL, 1, soon()),
    }
    if isinstance(fault, Defect):
        with pytest.raises(Defect):
            await calls[what]()
        assert len(store.asked) == 1
    else:
        with pytest.raises(Unavailable) as told:
            await calls[what]()
        assert told.value.reason is Reason.ETCD_UNAVAILABLE


async def test_one_adapter(store, reader):
    store.change(applying(upsert("acme/A")))
    found = await reader.adapter(POOL, "ACME/a", soon())
    assert (found.record.name, found.revision) == ("acme/A", store.etcd.revision)
    assert reader.prefix == KEYS.prefix
    store.etcd.put(KEYS.adapter(POOL, "acme/a"), b"{")
    with pytest.raises(FailedPrecondition):
        await reader.adapter(POOL, "acme/a", soon())
