"""Range, Txn and lists against a real etcd."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import asynccontextmanager

import pytest

from registry.dev.ports import free_ports
from registry.etcd3.client import Client
from registry.etcd3.errors import (
    Compacted,
    FutureRevision,
    InvalidArgument,
    RequestTooLarge,
    ResponseTooLarge,
    Timeout,
    Unavailable,
)
from registry.etcd3.listing import list_range
from registry.etcd3.ops import (
    Compare,
    Delete,
    DeleteResult,
    Put,
    PutResult,
    Range,
    RangeResult,
    Relation,
    SortTarget,
    Target,
    Txn,
    absent,
    mod_is,
    none_in,
    prefix_end,
    unwritten_since,
)
from tests.contract.etcd3.mirror import FirstEndpoint, delete, put
from tests.support.etcd import compact, make_cluster
from tests.support.waiting import eventually


async def _count(client: Client, key: bytes) -> int:
    return (await client.range(Range(key, count_only=True))).count


async def _is_sent(etcd, key: bytes) -> bool:
    """Whether a write has arrived, seen past the proxy."""
    client = Client(etcd.options())
    try:
        return bool(await _count(client, key))
    finally:
        await client.aclose()


@asynccontextmanager
async def _running(coroutine):
    """A task for the time of a block."""
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def fill(client: Client, etcd, count: int) -> int:
    """Writes `count` keys below the test's prefix and returns the revision."""
    revision = 0
    for start in range(0, count, 500):
        pairs = ((etcd.key(f"{i:05}"), b"%d" % i) for i in range(start, min(count, start + 500)))
        revision = (await client.txn(put(*pairs))).revision
    return revision


async def test_range_reads_what_was_put(etcd, etcd_client):
    key = etcd.key("a")
    written = await etcd_client.txn(put((key, b"one")))
    again = await etcd_client.txn(put((key, b"two")))
    found = await etcd_client.range(Range(key))
    (kv,) = found.kvs
    assert (kv.key, kv.value, kv.version, kv.lease) == (key, b"two", 2, 0)
    assert (kv.create_revision, kv.mod_revision) == (written.revision, again.revision)
    assert (found.count, found.more) == (1, False)


async def test_range_at_an_older_revision_reads_the_older_value(etcd, etcd_client):
    key = etcd.key("a")
    written = await etcd_client.txn(put((key, b"one")))
    await etcd_client.txn(put((key, b"two")))
    found = await etcd_client.range(Range(key, revision=written.revision))
    assert [kv.value for kv in found.kvs] == [b"one"]


async def test_range_limits_counts_and_sorts(etcd, etcd_client):
    await fill(etcd_client, etcd, 5)
    await etcd_client.txn(put((etcd.key("00002"), b"newest")))
    start, end = etcd.key(""), prefix_end(etcd.key(""))
    limited = await etcd_client.range(Range(start, end, limit=2))
    assert (len(limited.kvs), limited.more, limited.count) == (2, True, 5)
    counted = await etcd_client.range(Range(start, end, count_only=True))
    assert (counted.kvs, counted.count) == ((), 5)
    bare = await etcd_client.range(Range(start, end, keys_only=True))
    assert {kv.value for kv in bare.kvs} == {b""}
    newest = await etcd_client.range(Range(start, end, limit=1, descending_by=SortTarget.MOD))
    assert [kv.value for kv in newest.kvs] == [b"newest"]
    last = await etcd_client.range(Range(start, end, limit=1, descending_by=SortTarget.KEY))
    assert [kv.key for kv in last.kvs] == [etcd.key("00004")]


async def test_txn_takes_the_success_branch_or_the_failure_branch(etcd, etcd_client):
    """W2 atomic-set: one transaction is one revision; the failure branch reads why in the same round trip."""
    first, second = etcd.key("1"), etcd.key("2")
    txn = Txn((absent(first),), (Put(first, b"x"), Put(second, b"y")), (Range(first),))
    done = await etcd_client.txn(txn)
    assert (done.succeeded, done.responses) == (True, (PutResult(), PutResult()))
    refused = await etcd_client.txn(txn)
    assert not refused.succeeded
    (reason,) = refused.responses
    assert isinstance(reason, RangeResult)
    assert reason.kvs[0].value == b"x"
    both = await etcd_client.range(Range(etcd.key(""), prefix_end(etcd.key(""))))
    assert {kv.mod_revision for kv in both.kvs} == {done.revision}


@pytest.mark.parametrize(
    ("target", "relation", "offset", "holds"),
    [
        (Target.VERSION, Relation.EQUAL, 0, True),
        (Target.VERSION, Relation.NOT_EQUAL, 0, False),
        (Target.CREATE, Relation.EQUAL, 0, True),
        (Target.CREATE, Relation.LESS, 1, True),
        (Target.MOD, Relation.EQUAL, 0, True),
        (Target.MOD, Relation.EQUAL, 1, False),
        (Target.MOD, Relation.GREATER, -1, True),
        (Target.MOD, Relation.GREATER, 0, False),
        (Target.LEASE, Relation.EQUAL, 0, True),
        (Target.LEASE, Relation.GREATER, 0, False),
    ],
)
async def test_each_kind_of_compare_looks_at_its_field(etcd, etcd_client, target, relation, offset, holds):
    key = etcd.key("a")
    lease = await etcd_client.lease_grant(60)
    await etcd_client.txn(put((key, b"one"), lease=lease))
    await etcd_client.txn(put((key, b"two"), lease=lease))
    (kv,) = (await etcd_client.range(Range(key))).kvs
    fields = {
        Target.VERSION: kv.version,
        Target.CREATE: kv.create_revision,
        Target.MOD: kv.mod_revision,
        Target.LEASE: kv.lease,
    }
    assert len(set(fields.values())) == 4
    result = await etcd_client.txn(Txn((Compare(key, target, relation, fields[target] + offset),), ()))
    assert result.succeeded is holds
    await etcd_client.lease_revoke(lease)


async def test_compare_by_value_and_by_revision(etcd, etcd_client):
    """W4 etag: a compare on the last change refuses a stale writer, and nothing is written."""
    key = etcd.key("a")
    old = await etcd_client.txn(put((key, b"one")))
    new = await etcd_client.txn(put((key, b"two")))
    assert (await etcd_client.txn(Txn((Compare(key, Target.VALUE, Relation.EQUAL, b"two"),), ()))).succeeded
    stale = await etcd_client.txn(Txn((mod_is(key, old.revision),), (Put(key, b"stale"),), (Range(key),)))
    assert not stale.succeeded
    assert stale.revision == new.revision
    assert (await etcd_client.txn(Txn((mod_is(key, new.revision),), (Delete(key),)))).responses == (DeleteResult(1),)
    assert (await etcd_client.txn(Txn((mod_is(key, 0), absent(key)), ()))).succeeded


async def test_compare_over_a_range_holds_for_each_key_of_it(etcd, etcd_client):
    prefix = etcd.key("")
    assert (await etcd_client.txn(Txn((none_in(prefix),), ()))).succeeded
    first = await etcd_client.txn(put((etcd.key("a"), b"")))
    second = await etcd_client.txn(put((etcd.key("b"), b"")))
    assert not (await etcd_client.txn(Txn((none_in(prefix),), ()))).succeeded
    assert (await etcd_client.txn(Txn((unwritten_since(prefix, second.revision),), ()))).succeeded
    assert not (await etcd_client.txn(Txn((unwritten_since(prefix, first.revision),), ()))).succeeded


async def test_delete_of_a_range_says_how_many(etcd, etcd_client):
    await fill(etcd_client, etcd, 7)
    result = await etcd_client.txn(delete(etcd.key(""), prefix_end(etcd.key(""))))
    assert result.responses == (DeleteResult(7),)


async def test_a_pinned_range_inside_a_transaction_is_refused_before_it_is_sent(etcd, etcd_client):
    """Members could diverge over a pinned read inside a transaction."""
    with pytest.raises(ValueError, match="revision"):
        await etcd_client.txn(Txn((), (Range(etcd.key("a"), revision=1),)))


async def test_more_operations_than_the_server_takes(tmp_path):
    """etcd's default of 128 operations; nothing is written."""
    cluster = make_cluster(tmp_path, flags={"unsafe-no-fsync": "true", "max-txn-ops": "128"})
    cluster.start()
    client = Client(cluster.options())
    try:
        await cluster.ready()
        assert (await client.txn(put(*((b"k%d" % i, b"") for i in range(128))))).succeeded
        with pytest.raises(RequestTooLarge) as caught:
            await client.txn(put(*((b"n%d" % i, b"") for i in range(129))))
        assert caught.value.certainly_not_applied
        assert (await client.range(Range(b"n", b"o", count_only=True))).count == 0
    finally:
        await client.aclose()
        cluster.stop()


@pytest.mark.parametrize("size", [1_600_000, 3_000_000])
async def test_a_request_of_too_many_bytes(etcd, etcd_client, size):
    """Above etcd's own limit, and above that of its gRPC server, which says it in other words."""
    with pytest.raises(RequestTooLarge):
        await etcd_client.txn(put((etcd.key("a"), b"x" * size)))


async def test_a_reply_of_too_many_bytes(own_client):
    """A read beyond the receive limit is an error of its own, and the connection lives on."""
    for i in range(66):
        await own_client.txn(put((b"big%02d" % i, b"x" * 1_040_000)))
    with pytest.raises(ResponseTooLarge):
        await own_client.range(Range(b"big", prefix_end(b"big")), timeout_seconds=30)
    assert len((await own_client.list_prefix(b"big", page_size=10)).kvs) == 66


async def test_one_key_written_twice_in_a_transaction_is_refused(etcd, etcd_client):
    with pytest.raises(InvalidArgument, match="duplicate key"):
        await etcd_client.txn(put((etcd.key("a"), b"1"), (etcd.key("a"), b"2")))


async def test_a_list_takes_pages_at_one_revision(etcd, etcd_client):
    """Changes between the pages are not seen: neither new keys nor deletions."""
    revision = await fill(etcd_client, etcd, 25)
    pages = []

    async def read(op):
        if pages:
            await etcd_client.txn(put((etcd.key(f"{len(pages):05}"), b"changed"), (etcd.key(f"zzz{len(pages)}"), b"")))
            await etcd_client.txn(delete(etcd.key(f"{24 - len(pages):05}")))
        pages.append(op)
        return await etcd_client._page(op)

    listing = await list_range(read, etcd.key(""), prefix_end(etcd.key("")), 10)
    assert listing.revision == revision
    assert [kv.value for kv in listing.kvs] == [b"%d" % i for i in range(25)]
    assert [op.revision for op in pages] == [0, revision, revision, revision]


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20])
async def test_a_list_has_every_key_once_at_page_borders(etcd, etcd_client, count):
    await fill(etcd_client, etcd, count)
    listing = await etcd_client.list_prefix(etcd.key(""), page_size=10)
    assert [kv.value for kv in listing.kvs] == [b"%d" % i for i in range(count)]
    assert listing.cluster_id


async def test_a_list_overtaken_by_a_compaction_starts_over(etcd, etcd_client):
    """A deletion between the pages must be found, not papered over with the second half of another state."""
    await fill(etcd_client, etcd, 25)
    pages = []

    async def read(op):
        pages.append(op)
        if len(pages) == 2:
            gone = await etcd_client.txn(delete(etcd.key("00003")))
            await compact(etcd_client, gone.revision)
        return await etcd_client._page(op)

    listing = await list_range(read, etcd.key(""), prefix_end(etcd.key("")), 10)
    assert [kv.value for kv in listing.kvs] == [b"%d" % i for i in range(25) if i != 3]
    assert [op.revision == 0 for op in pages] == [True, False, True, False, False, False]


async def test_compacted_and_future_revisions_are_told_apart(etcd, etcd_client):
    key = etcd.key("a")
    await etcd_client.txn(put((key, b"1")))
    now = (await etcd_client.txn(put((key, b"2")))).revision
    await compact(etcd_client, now)
    with pytest.raises(Compacted):
        await etcd_client.range(Range(key, revision=now - 1))
    with pytest.raises(FutureRevision):
        await etcd_client.range(Range(key, revision=now + 1_000_000))
    with pytest.raises(FutureRevision):
        await compact(etcd_client, now + 1_000_000)


async def test_another_member_is_found_when_one_is_not_there(etcd):
    """A write is sent again only because "failed to connect" is certain: exactly one version results."""
    (dead,) = free_ports(1)
    client = Client(etcd.options(endpoints=(f"127.0.0.1:{dead}", *etcd.endpoints)), rng=FirstEndpoint())
    try:
        await client.txn(put((etcd.key("a"), b"1")))
        assert (await client.range(Range(etcd.key("a")))).kvs[0].version == 1
    finally:
        await client.aclose()


async def test_nobody_there_is_certainly_not_applied(etcd):
    (dead,) = free_ports(1)
    client = Client(etcd.options(endpoints=(f"127.0.0.1:{dead}",), call_timeout_seconds=0.5))
    try:
        with pytest.raises(Unavailable, match="Connection refused") as caught:
            await client.txn(put((etcd.key("a"), b"1")))
        assert caught.value.certainly_not_applied
    finally:
        await client.aclose()


async def test_a_connection_that_breaks_after_the_commit_is_ambiguous_and_never_repeated(etcd, etcd_client, proxy):
    """W8 no-false-fail: the write happened, its reply did not; sent again it would make a second version."""
    client = Client(etcd.options(endpoints=(proxy.endpoint, *etcd.endpoints)), rng=FirstEndpoint())
    try:
        await client.range(Range(etcd.key("a")))
        proxy.hold_replies()
        async with _running(client.txn(put((etcd.key("a"), b"1")))) as write:
            await eventually(lambda: _count(etcd_client, etcd.key("a")))
            proxy.cut()
            with pytest.raises(Unavailable) as caught:
                await write
        assert caught.value.maybe_applied
        assert not caught.value.certainly_not_applied
        assert (await etcd_client.range(Range(etcd.key("a")))).kvs[0].version == 1
        assert (await client.range(Range(etcd.key("a")))).count == 1, "the client goes on with another member"
    finally:
        await client.aclose()


async def test_a_write_without_an_answer_is_ambiguous_and_a_read_is_not(proxy, proxied_client, etcd, etcd_client):
    """W8 no-false-fail; and the next call works, since the dead connection is not used again."""
    await proxied_client.range(Range(etcd.key("a")))
    proxy.hold_replies()
    with pytest.raises(Timeout) as caught:
        await proxied_client.txn(put((etcd.key("a"), b"1")), timeout_seconds=0.5)
    assert caught.value.maybe_applied
    assert await _count(etcd_client, etcd.key("a")) == 1
    with pytest.raises((Timeout, Unavailable)) as caught:
        await proxied_client.range(Range(etcd.key("a")), timeout_seconds=0.5)
    assert caught.value.certainly_not_applied
    proxy.pass_on()
    assert (await proxied_client.range(Range(etcd.key("a")))).kvs[0].version == 1


async def test_a_dead_connection_is_not_used_again(proxy, proxied_client, etcd):
    """gRPC would send the next call over the same connection, and the next, until TCP gives up."""
    await proxied_client.range(Range(etcd.key("a")))
    proxy.strand()
    with pytest.raises(Timeout):
        await proxied_client.txn(put((etcd.key("a"), b"1")), timeout_seconds=0.5)
    assert (await proxied_client.txn(put((etcd.key("a"), b"1")), timeout_seconds=2)).succeeded


async def test_a_caller_that_is_cancelled_is_cancelled(proxy, proxied_client, etcd):
    """Our own cancellation is no failure of etcd's."""
    await proxied_client.range(Range(etcd.key("a")))
    proxy.hold_replies()
    async with _running(proxied_client.txn(put((etcd.key("a"), b"1")), timeout_seconds=60)) as write:
        await eventually(lambda: _is_sent(etcd, etcd.key("a")))
        write.cancel()
        await asyncio.wait([write])
        assert write.cancelled()


async def test_a_client_that_is_closed_ends_its_calls_as_ambiguous(proxy, etcd):
    """grpc.aio reports this as a cancellation, which would end the caller's task in silence."""
    client = Client(etcd.options(endpoints=(proxy.endpoint,)))
    await client.range(Range(etcd.key("a")))
    proxy.hold_replies()
    async with _running(client.txn(put((etcd.key("a"), b"1")), timeout_seconds=60)) as write:
        await eventually(lambda: _is_sent(etcd, etcd.key("a")))
        await client.aclose()
        with pytest.raises(Unavailable) as caught:
            await write
    assert caught.value.maybe_applied


async def test_a_client_that_is_closed_while_it_connects_has_sent_nothing(proxy, etcd):
    proxy.hold()
    client = Client(etcd.options(endpoints=(proxy.endpoint,)))
    async with _running(client.txn(put((etcd.key("a"), b"1")))) as write:
        await eventually(lambda: proxy.accepted)
        await client.aclose()
        with pytest.raises(Unavailable) as caught:
            await write
    assert caught.value.certainly_not_applied
    with pytest.raises(Unavailable, match="closed"):
        await client.range(Range(b"a"))


async def test_a_transaction_that_only_reads_is_never_ambiguous(proxy, proxied_client, etcd):
    await proxied_client.range(Range(etcd.key("a")))
    proxy.hold_replies()
    with pytest.raises((Timeout, Unavailable)) as caught:
        await proxied_client.txn(Txn((absent(etcd.key("a")),), (Range(etcd.key("a")),)), timeout_seconds=0.5)
    assert caught.value.certainly_not_applied


async def test_a_slow_network_is_no_failure(proxy, proxied_client, etcd):
    proxy.delay(0.05)
    await proxied_client.txn(put((etcd.key("a"), b"1")))
    assert (await proxied_client.range(Range(etcd.key("a")))).kvs[0].value == b"1"


async def test_status_tells_of_each_endpoint_also_of_one_that_is_down(etcd):
    (dead,) = free_ports(1)
    options = dataclasses.replace(etcd.options(), endpoints=(*etcd.endpoints, f"127.0.0.1:{dead}"))
    client = Client(options)
    try:
        up, down = await client.status(timeout_seconds=3)
        assert up.leader_id == up.member_id
        assert up.version.count(".") == 2
        assert up.revision > 0
        assert up.db_size_bytes > 0
        assert isinstance(down.error, Unavailable)
        assert down.endpoint == f"127.0.0.1:{dead}"
    finally:
        await client.aclose()
