"""Page tokens, filters, hints, leases, locks, budgets."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.etcd3.ops import Delete, KeyValue, Put, Range, Txn
from registry.model.errors import InvalidArgument, Reason
from registry.store.pages import Page, PageToken, Sieve, check_page_size, decode_token, parse_filter
from registry.store.txn import ReadCache, SharedLease
from registry.store.writer import NamedLocks
from registry.transactions.decode import ReadSet, read_pool
from tests.support.flaky_etcd import FlakyEtcd
from tests.support.records import record


@given(st.integers(1, 2**63 - 1), st.binary(max_size=50), st.text(max_size=20), st.integers(0, 2**62))
def test_tokens(revision, after, listing, place):
    token = PageToken(revision, after, place)
    assert decode_token(token.encode(listing), listing) == token
    with pytest.raises(InvalidArgument):
        decode_token(token.encode(listing), listing + "x")


@given(st.text(max_size=80))
def test_no_text_breaks_the_reader_of_tokens(text):
    if text:
        with pytest.raises(InvalidArgument) as told:
            decode_token(text, "l")
        assert told.value.reason is Reason.INVALID_PAGE_TOKEN


REVISIONS = [0, -1, 2**63, True, 1.0]


@pytest.mark.parametrize(
    "document",
    [7, None, [], [1, 2, "d"], ["1", "ff", "d"], [1, "no hex", "d"], {"revision": 1}, [1, "ff", "92", 1, 1]]
    + [[1, "ff", hashlib.sha256(b"l").hexdigest()[:16], *more] for more in ([0], [1.5], ["1"], [1, 1])]
    + [[one, "ff", hashlib.sha256(b"l").hexdigest()[:16]] for one in REVISIONS],
)
def test_what_is_json_and_no_token_is_refused(document):
    """X2 unbreakable: whoever makes one up is told so."""
    with pytest.raises(InvalidArgument) as told:
        decode_token(base64.urlsafe_b64encode(json.dumps(document).encode()).decode(), "l")
    assert told.value.reason is Reason.INVALID_PAGE_TOKEN


OF_AN_EARLIER_RELEASE = "WzcsICIyZjcwIiwgImFiOTJmM2Q1MThhNTk0YjUiXQ=="


def test_a_token_of_an_earlier_release_goes_on():
    """R13: who reads pages while admin services are replaced one after the other is not sent back to the first."""
    assert decode_token(OF_AN_EARLIER_RELEASE, "pools") == PageToken(7, b"/p")
    assert PageToken(7, b"/p").encode("pools") == OF_AN_EARLIER_RELEASE


def test_page_sizes():
    """As registry.proto says: at most 1000, and 0 is 100."""
    wanted = (0, 1, 100, 101, 1000, 1001, 10**6)
    assert [check_page_size(size) for size in wanted] == [100, 1, 100, 101, 1000, 1000, 1000]
    with pytest.raises(InvalidArgument):
        check_page_size(-1)


@pytest.mark.parametrize(
    ("text", "takes"),
    [
        ("", True),
        ("  ", True),
        ("name=acme/x", True),
        ("name=ACME/X", True),
        ("name=acme/", False),
        ("name=acme/*", True),
        ("name=acme/y*", False),
        ("name=*", True),
        ("tenant=Acme", True),
        ("tenant=other", False),
        ("load=eager", True),
        ("load=lazy", False),
        ("label.team=a = b", True),
        ("label.team=a", False),
        ("label.none=", False),
        ("name=acme/x AND tenant=acme AND load=eager", True),
        ("name=acme/x AND load=lazy", False),
        (f"name={'x' * 2043}", False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_filters(text, takes):
    assert parse_filter(text).takes(record("acme/x", labels={"team": "a = b"})) is takes


@pytest.mark.parametrize(
    "text",
    ["x", "=", "color=red", "name", "label.=x", "label.?=x", "name=a AND ", " AND name=a", f"name={'x' * 2044}"],
    ids=lambda text: text[:40],
)
def test_wrong_filters(text):
    """R16 bounded: each record is looked at with all of it, so it has 2048 characters at most."""
    with pytest.raises(InvalidArgument) as told:
        parse_filter(text)
    assert (told.value.reason, told.value.field) == (Reason.INVALID_FILTER, "filter")


def test_a_sieve_leaves_out_what_cannot_be_read_and_tells_of_faults_of_ours():
    """R14 nack: by its name in the listing; R12: a defect is no unreadable record."""
    page = Page(7, (kv(b"/pools/a", b"{"), kv(b"/pools/b", b'{"name":"b","base_models":["b"]}')), None)
    found = Sieve(b"/pools/", read_pool, lambda pool: True, 4).pass_through(page)
    assert ([one.record.name for one in found.records], found.unreadable) == (["b"], ("a",))

    def breaks(_: KeyValue) -> object:
        raise KeyError("of ours")

    with pytest.raises(KeyError, match="of ours"):
        Sieve(b"/pools/", breaks, lambda _: True, 4).pass_through(page)


def kv(key: bytes, value: bytes = b"x") -> KeyValue:
    return KeyValue(key, value, 1, 1, 1)


def test_hints_know_what_was_seen_and_written():
    hints = ReadCache((b"/a/",))
    reads = (Range(b"/a/1"), Range(b"/a/2"), Range(b"/b/1"), Range(b"/a/", b"/a0"))
    hints.saw(ReadSet(5, reads, {b"/a/1": kv(b"/a/1"), b"/b/1": kv(b"/b/1"), b"/a/": kv(b"/a/1")}))
    assert hints.guess(reads) == ReadSet(0, reads, {b"/a/1": kv(b"/a/1")})
    hints.wrote(Txn((), (Put(b"/a/2", b"y"), Delete(b"/a/1"), Delete(b"/a/", b"/a0"), Range(b"/a/1"))), 9)
    guess = hints.guess(reads)
    assert [(one.key, one.value, one.mod_revision) for one in guess.found.values()] == [(b"/a/2", b"y", 9)]
    hints.saw(ReadSet(10, (Range(b"/a/2"),), {}))
    assert hints.guess(reads).found == {}


def test_hints_are_bounded():
    """R16 bounded: old ones are forgotten, large ones never kept."""
    hints = ReadCache((b"/a/",))
    for i in range(6000):
        hints.wrote(Txn((), (Put(b"/a/%d" % i, b"x"),)), i)
    assert len(hints._known) == 5000
    reads = tuple(Range(b"/a/%d" % i) for i in range(6000))
    assert [*hints.guess(reads).found] == [read.key for read in reads[1000:]]
    for size, is_kept in ((8 * 1024, True), (8 * 1024 + 1, False)):
        hints.wrote(Txn((), (Put(b"/a/large", b"x" * size),)), 1)
        assert (hints.guess((Range(b"/a/large"),)).key(b"/a/large") is not None) is is_kept


async def test_a_shared_lease_is_granted_once_and_renewed():
    etcd, clock = FlakyEtcd(), [0.0]
    lease = SharedLease(etcd.as_client(), ttl_seconds=100, renew_seconds=10, monotonic=lambda: clock[0])
    first = await asyncio.gather(*(lease.current(1) for _ in range(20)))
    assert (set(first), etcd.granted) == ({101}, 1)
    clock[0] = 9.9
    assert await lease.current(1) == 101
    clock[0] = 10
    assert await lease.current(1) == 102
    lease.forget(101)
    assert await lease.current(1) == 102
    lease.forget(102)
    assert await lease.current(1) == 103


def test_what_every_change_reads_is_not_forgotten_for_what_each_wrote():
    """A pool's record is written once and guessed for ever; adapters' records come and go."""
    hints = ReadCache([b"p/"])
    pool = Range(b"p/pool")
    hints.wrote(Txn((), (Put(b"p/pool", b"v"),)), 1)
    for number in range(12_000):
        hints.wrote(Txn((), (Put(b"p/%d" % number, b"v"),)), 2)
        hints.guess((pool,))
    assert hints.guess((pool,)).key(b"p/pool") is not None


async def test_who_gives_up_or_is_cancelled_leaves_no_lock_behind():
    """R16 bounded: and whoever comes later has it."""
    locks = NamedLocks()

    async def hold(*names: str) -> str:
        async with locks.hold(names, timeout_seconds=60):
            return "held"

    async with locks.hold(["b"], timeout_seconds=60):
        with pytest.raises(TimeoutError):
            async with locks.hold(["b", "a", "c"], timeout_seconds=0.01):
                raise AssertionError("it had the lock")
        waiting = asyncio.create_task(hold("a", "b"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await hold("a") == "held"
        last = asyncio.create_task(hold("a", "b"))
        await asyncio.sleep(0)
        assert not last.done()
    assert await last == "held"
    assert not locks._locks
