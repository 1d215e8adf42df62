"""Pages of a list, read from a store that changes under it."""

from __future__ import annotations

import pytest

from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.client import list_range
from registry.etcd3.errors import Compacted, EtcdUnavailable, FutureRevision, OtherCluster, ResponseTooLarge
from registry.etcd3.ops import Range


class Store:
    """Serves keys page by page; `troubles` are raised, or served as another cluster's id, in turn."""

    def __init__(self, count: int, troubles: list[Exception | int | None] | None = None) -> None:
        self.keys = [b"%04d" % i for i in range(count)]
        self.asked: list[Range] = []
        self._troubles = list(troubles or [])

    async def read(self, op: Range) -> rpc.RangeResponse:
        self.asked.append(op)
        trouble = self._troubles.pop(0) if self._troubles else None
        if isinstance(trouble, Exception):
            raise trouble
        found = [key for key in self.keys if op.key <= key]
        page = [rpc.KeyValue(key=key, mod_revision=1) for key in found[: op.limit]]
        header = rpc.ResponseHeader(revision=50 + len(self.asked), cluster_id=trouble or 7, raft_term=3)
        return rpc.RangeResponse(header=header, kvs=page, more=len(found) > op.limit, count=len(found))


def compacted() -> Compacted:
    return Compacted("", compact_revision=0)


async def test_later_pages_are_pinned_to_the_first_one():
    store = Store(5)
    listing = await list_range(store.read, b"", b"\xff", 2)
    assert [kv.key for kv in listing.kvs] == store.keys
    assert (listing.revision, listing.cluster_id, listing.raft_term) == (51, 7, 3)
    assert [(op.key, op.revision) for op in store.asked] == [(b"", 0), (b"0001\0", 51), (b"0003\0", 51), (b"", 51)]


@pytest.mark.parametrize("trouble", [compacted(), FutureRevision(""), 8])
async def test_a_revision_lost_on_the_way_means_to_start_over(trouble):
    store = Store(5, [None, trouble])
    listing = await list_range(store.read, b"", b"\xff", 2)
    assert [kv.key for kv in listing.kvs] == store.keys
    assert listing.revision == 53
    assert len(store.asked) == 2 + 4


async def test_a_page_that_is_too_large_is_read_in_smaller_ones():
    """R14 nack: a few values that somebody wrote by hand do not keep all others from being read."""
    store = Store(5, [ResponseTooLarge("", maybe_applied=False)] * 2)
    listing = await list_range(store.read, b"", b"\xff", 1000)
    assert [kv.key for kv in listing.kvs] == store.keys
    assert [op.limit for op in store.asked[:3]] == [1000, 62, 3]


async def test_a_compaction_that_overtakes_the_last_page_means_to_start_over():
    """R2: pages that were read meanwhile may lack keys without saying so (etcd#19179)."""
    store = Store(5, [None, None, None, compacted()])
    listing = await list_range(store.read, b"", b"\xff", 2)
    assert (listing.revision, len(store.asked)) == (55, 4 + 4)


async def test_of_a_revision_that_is_asked_for_one_page_may_lack_keys_too():
    """R2, R9: it was not read as it stands, so what is compacted meanwhile may be missing without an error."""
    store = Store(2)
    listing = await list_range(store.read, b"", b"\xff", 2, 40)
    assert ([kv.key for kv in listing.kvs], listing.revision) == (store.keys, 40)
    asked = [(op.key, op.revision, op.limit, op.keys_only) for op in store.asked]
    assert asked == [(b"", 40, 2, False), (b"", 40, 1, True)]


@pytest.mark.parametrize("trouble", [compacted(), FutureRevision("")])
async def test_a_revision_that_is_asked_for_is_lost_for_good(trouble):
    store = Store(5, [None, None, None, trouble])
    with pytest.raises(type(trouble)):
        await list_range(store.read, b"", b"\xff", 2, 40)
    assert len(store.asked) == 4


@pytest.mark.parametrize(("trouble", "told"), [(compacted(), Compacted), (8, OtherCluster)])
async def test_starting_over_has_an_end(trouble, told):
    """R13: it is told as any other failure of etcd."""
    store = Store(5, [None, trouble] * 5)
    with pytest.raises(told):
        await list_range(store.read, b"", b"\xff", 2)
    assert len(store.asked) == 10


async def test_other_errors_pass():
    store = Store(5, [None, EtcdUnavailable("", maybe_applied=False)])
    with pytest.raises(EtcdUnavailable):
        await list_range(store.read, b"", b"\xff", 2)
