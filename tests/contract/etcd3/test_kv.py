"""Range and Txn against a real etcd."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from registry.etcd3.errors import RequestTooLarge, ResponseTooLarge
from registry.etcd3.ops import (
    Put,
    PutResult,
    Range,
    RangeResult,
    SortTarget,
    Txn,
    absent,
    prefix_end,
)
from tests.contract.etcd3.mirror import fill, put
from tests.support.etcd import make_cluster, running_etcd


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


async def test_more_operations_than_the_server_takes(tmp_path):
    """etcd's default of 128 operations; nothing is written."""
    own = running_etcd(make_cluster(tmp_path, flags={"max-txn-ops": "128"}))
    async with own as cluster, aclosing(cluster.patient()) as client:
        assert (await client.txn(put(*((b"k%d" % i, b"") for i in range(128))))).succeeded
        assert (await client.txn(Txn((), tuple(Range(b"k%d" % i) for i in range(128))))).succeeded
        with pytest.raises(RequestTooLarge) as caught:
            await client.txn(put(*((b"n%d" % i, b"") for i in range(129))))
        assert caught.value.certainly_not_applied
        assert (await client.range(Range(b"n", b"o", count_only=True))).count == 0


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
