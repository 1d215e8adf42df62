"""Lists in pages, each of one revision, against a real etcd."""

from __future__ import annotations

import pytest

from registry.etcd3.client import list_range
from registry.etcd3.errors import (
    Compacted,
    FutureRevision,
)
from registry.etcd3.ops import (
    Range,
    prefix_end,
)
from tests.contract.etcd3.mirror import delete, fill, put
from tests.support.etcd import compact


async def test_a_list_takes_pages_at_one_revision(etcd, etcd_client):
    """Changes between the pages are not seen: neither new keys nor deletions."""
    filled_at = await fill(etcd_client, etcd, 25)
    pages = []

    async def read(op):
        if pages:
            await etcd_client.txn(put((etcd.key(f"{len(pages):05}"), b"changed"), (etcd.key(f"zzz{len(pages)}"), b"")))
            await etcd_client.txn(delete(etcd.key(f"{24 - len(pages):05}")))
        pages.append(op)
        return await etcd_client._page(op)

    listing = await list_range(read, etcd.key(""), prefix_end(etcd.key("")), 10)
    revision = listing.revision
    assert revision >= filled_at  # leases that others left may have ended meanwhile
    assert [kv.value for kv in listing.kvs] == [b"%d" % i for i in range(25)]
    assert [op.revision for op in pages] == [0, revision, revision, revision]


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
