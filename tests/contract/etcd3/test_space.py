"""A store whose quota is used up."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from registry.etcd3.errors import NoSpace
from registry.etcd3.ops import Delete, Put, Range, Txn
from tests.contract.etcd3.mirror import put
from tests.support.etcd import etcdctl, make_cluster, running_etcd


async def _fill(client):
    for i in range(1000):
        await client.txn(put((b"fill%d" % i, b"x" * 100_000)))


@pytest.fixture
async def full(tmp_path):
    """A client of a store that is full, a lease from before that, and the members."""
    own = running_etcd(make_cluster(tmp_path, flags={"quota-backend-bytes": "1000000"}))
    async with own as cluster, aclosing(cluster.patient()) as client:
        lease = await client.lease_grant(600)
        await client.txn(put((b"first", b"x")))
        with pytest.raises(NoSpace) as caught:
            await _fill(client)
        assert caught.value.certainly_not_applied
        yield client, lease, cluster


async def test_what_frees_space_goes_on_and_what_takes_some_is_refused_whole(full):
    """W2 atomic-set: refused means that a deletion beside it did not happen either; leases are renewed, not granted."""
    client, lease, cluster = full
    with pytest.raises(NoSpace):
        await client.txn(Txn((), (Delete(b"first"), Put(b"second", b"x"))))
    assert (await client.range(Range(b"first"))).count == 1
    assert await client.lease_keepalive(lease) > 0
    with pytest.raises(NoSpace):
        await client.lease_grant(10)
    assert await etcdctl(cluster, "del", "first") == "1\n"
    assert (await client.range(Range(b"first"))).count == 0
