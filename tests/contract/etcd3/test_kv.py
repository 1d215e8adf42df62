"""Range and Txn against a real etcd."""

from __future__ import annotations

import pytest

from registry.etcd3.errors import EtcdInvalidArgument, RequestTooLarge, ResponseTooLarge
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
from tests.contract.etcd3.mirror import delete, fill, put
from tests.support.etcd import make_cluster


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
    await etcd_client.txn(put((etcd.key("b"), b"")))  # so that no revision below is the number of a version
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


async def test_compare_by_value_and_by_revision(own_client):
    """W4 etag: a compare on the last change refuses a stale writer, and nothing is written."""
    key = b"a"
    old = await own_client.txn(put((key, b"one")))
    new = await own_client.txn(put((key, b"two")))
    assert (await own_client.txn(Txn((Compare(key, Target.VALUE, Relation.EQUAL, b"two"),), ()))).succeeded
    stale = await own_client.txn(Txn((mod_is(key, old.revision),), (Put(key, b"stale"),), (Range(key),)))
    assert not stale.succeeded
    assert stale.revision == new.revision
    assert (await own_client.txn(Txn((mod_is(key, new.revision),), (Delete(key),)))).responses == (DeleteResult(1),)
    assert (await own_client.txn(Txn((mod_is(key, 0), absent(key)), ()))).succeeded


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


async def test_reads_at_one_revision_of_as_many_keys_as_a_transaction_may_have(etcd, etcd_client):
    """Whichever branch is taken; the members of the tests take 1,024 operations."""
    written = await etcd_client.txn(put((etcd.key("a"), b"1"), (etcd.key("1023"), b"2")))
    reads = tuple(Range(etcd.key(str(i))) for i in range(1, 1024))
    every = await etcd_client.txn(Txn((), (Range(etcd.key("a")), *reads)))
    assert [kv.value for one in every.responses for kv in one.kvs] == [b"1", b"2"]
    assert len(every.responses) == 1024
    other = await etcd_client.txn(Txn((absent(etcd.key("a")),), (), (Range(etcd.key("a")),)))
    assert not other.succeeded
    (found,) = other.responses
    assert (found.count, found.revision >= written.revision) == (1, True)
    assert (await etcd_client.txn(Txn((absent(etcd.key("a")),), ()))).responses == ()


async def test_a_pinned_range_inside_a_transaction_is_refused_before_it_is_sent(etcd, etcd_client):
    """Members could diverge over a pinned read inside a transaction."""
    with pytest.raises(ValueError, match="revision"):
        await etcd_client.txn(Txn((), (Range(etcd.key("a"), revision=1),)))


async def test_more_operations_than_the_server_takes(tmp_path):
    """etcd's default of 128 operations; nothing is written."""
    cluster = make_cluster(tmp_path, flags={"unsafe-no-fsync": "true", "max-txn-ops": "128"})
    cluster.start()
    client = cluster.patient()
    try:
        await cluster.ready()
        assert (await client.txn(put(*((b"k%d" % i, b"") for i in range(128))))).succeeded
        assert (await client.txn(Txn((), tuple(Range(b"k%d" % i) for i in range(128))))).succeeded
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
        await own_client.range(Range(b"big", prefix_end(b"big")), timeout_seconds=120)
    assert len((await own_client.list_prefix(b"big", page_size=10)).kvs) == 66


async def test_one_key_written_twice_in_a_transaction_is_refused(etcd, etcd_client):
    with pytest.raises(EtcdInvalidArgument, match="duplicate key"):
        await etcd_client.txn(put((etcd.key("a"), b"1"), (etcd.key("a"), b"2")))
