"""The reflector when the store that it watches restarts, forgets, or is another one."""

from __future__ import annotations

import re
from contextlib import aclosing

from registry.etcd3.client import Client
from registry.etcd3.ops import Put, Txn
from registry.etcd3.options import ClientOptions
from registry.etcd3.reflector import (
    Connected,
    Disconnected,
    ListCause,
    Listed,
    Reflector,
    Resume,
)
from tests.contract.etcd3.mirror import NOT_REACHED, FirstEndpoint, mirroring, put, reflect
from tests.support.etcd import PATIENCE_SECONDS, make_cluster
from tests.support.proxy import Proxy
from tests.support.waiting import eventually


async def test_etcd_that_is_down_at_first_is_waited_for(tmp_path, rng):
    """A process that starts before etcd says so, and comes up when etcd does."""
    cluster = make_cluster(tmp_path, flags={"unsafe-no-fsync": "true"})
    client = Client(cluster.options())
    try:
        async with mirroring(Reflector(client, b"/a/", b"/a0", rng=rng)) as mirror:
            down = await mirror.first(Disconnected)
            cluster.start()
            await mirror.first(Connected)
        assert re.search(NOT_REACHED, down.message)
        assert not down.denied
        assert mirror.of(Listed)[0].cause is ListCause.FIRST
    finally:
        await client.aclose()
        cluster.stop()


async def test_a_server_that_restarts_is_resumed_from(own_etcd, own_client, rng):
    """Same store, new process: no list, nothing lost."""
    async with mirroring(Reflector(own_client, b"/a/", b"/a0", rng=rng)) as mirror:
        await mirror.first(Connected)
        (member,) = own_etcd.members
        member.stop()
        member.start()
        await own_etcd.ready()
        # By a client of its own: what becomes of a write on the old connection is nobody's to say.
        async with aclosing(own_etcd.patient()) as client:
            written = await client.txn(put((b"/a/1", b"x")))
        await eventually(lambda: mirror.revision >= written.revision)
    assert len(mirror.of(Listed)) == 1
    assert mirror.values() == {b"/a/1": b"x"}


async def test_a_store_that_lost_its_memory_is_told(own_etcd, own_client, rng):
    """R15 brake: the same address, the same cluster id, but revisions that were seen are gone."""
    for i in range(20):
        await own_client.txn(put((b"/a/%d" % i, b"x")))
    async with mirroring(Reflector(own_client, b"/a/", b"/a0", rng=rng)) as mirror:
        await mirror.first(Connected)
        mark = mirror.revision
        (member,) = own_etcd.members
        member.kill()
        member.wipe()
        member.start()
        await eventually(lambda: len(mirror.of(Listed)) > 1)
    assert mirror.of(Listed)[1].cause is ListCause.WENT_BACK
    assert mirror.of(Listed)[1].revision < mark
    assert mirror.of(Listed)[1].cluster_id == mirror.of(Listed)[0].cluster_id


async def test_another_cluster_behind_the_address_is_told(own_etcd, rng, tmp_path):
    """R15 brake: its revision is higher than the mark, only its identity differs."""
    other = make_cluster(tmp_path, flags={"unsafe-no-fsync": "true", "initial-cluster-token": "other"})
    other.start()
    other_client = other.patient()
    try:
        await other.ready()
        async with (
            Proxy(own_etcd.members[0].client_port) as proxy,
            aclosing(_client_of(proxy)) as client,
            mirroring(Reflector(client, b"/a/", b"/a0", rng=rng)) as mirror,
        ):
            await mirror.first(Connected)
            await _overtake(other_client, mirror.revision)
            proxy.target_port = other.members[0].client_port
            proxy.cut()
            await eventually(lambda: len(mirror.of(Listed)) > 1)
        first, second = mirror.of(Listed)[:2]
        assert second.cause is ListCause.WENT_BACK
        assert second.revision > first.revision
        assert second.cluster_id != first.cluster_id
    finally:
        await other_client.aclose()
        other.stop()


async def test_resuming_on_another_cluster_is_told(etcd, etcd_client, rng):
    """R15 brake, after a restart of ours: the snapshot names a cluster that is not there any more."""
    now = await etcd_client.list_prefix(etcd.key(""))
    reflector = reflect(etcd_client, etcd, rng, resume=Resume(now.revision, now.cluster_id + 1))
    async with mirroring(reflector) as mirror:
        listed = await mirror.first(Listed)
    assert listed.cause is ListCause.WENT_BACK


async def test_a_store_that_is_replaced_before_a_due_list_is_told(etcd, etcd_client, rng):
    """R15 brake: the list that makes good a compaction must not pass for one if it comes from another store."""
    now = await etcd_client.list_prefix(etcd.key(""))
    reflector = reflect(etcd_client, etcd, rng, resume=Resume(now.revision, now.cluster_id + 1))
    reflector._due = ListCause.COMPACTED
    async with mirroring(reflector) as mirror:
        listed = await mirror.first(Listed)
    assert listed.cause is ListCause.WENT_BACK


async def test_a_suspicion_that_the_list_refutes_is_not_told(etcd, etcd_client, rng):
    """R15 brake: what is held for nothing is an outage of our own making."""
    now = await etcd_client.list_prefix(etcd.key(""))
    reflector = reflect(etcd_client, etcd, rng, resume=Resume(now.revision, now.cluster_id, now.raft_term))
    reflector._due = ListCause.WENT_BACK
    async with mirroring(reflector) as mirror:
        listed = await mirror.first(Listed)
    assert listed.cause is ListCause.COMPARISON


async def test_resuming_before_the_present_term_is_told(etcd, etcd_client, rng):
    """R15 brake: a restored store of the same identity that has passed the mark again has a lower term."""
    now = await etcd_client.list_prefix(etcd.key(""))
    resume = Resume(now.revision, now.cluster_id, now.raft_term + 1)
    async with mirroring(reflect(etcd_client, etcd, rng, resume=resume)) as mirror:
        listed = await mirror.first(Listed)
    assert listed.cause is ListCause.WENT_BACK


async def test_a_member_of_another_cluster_among_the_endpoints_is_left(etcd, etcd_client, rng, tmp_path):
    """One wrong endpoint must not look like a store that went back."""
    other = make_cluster(tmp_path, flags={"unsafe-no-fsync": "true", "initial-cluster-token": "other"})
    other.start()
    try:
        await other.ready()
        now = await etcd_client.txn(put((etcd.key("a"), b"1")))
        cluster_id = (await etcd_client.list_prefix(etcd.key(""))).cluster_id
        client = Client(etcd.options(endpoints=(*other.endpoints, *etcd.endpoints)), rng=FirstEndpoint())
        resume = Resume(now.revision, cluster_id)
        async with mirroring(reflect(client, etcd, FirstEndpoint(), resume=resume)) as mirror:
            connected = await mirror.first(Connected)
        await client.aclose()
        assert connected.endpoint == etcd.endpoints[0]
        assert "another cluster" in mirror.of(Disconnected)[0].message
        assert mirror.of(Listed) == []
    finally:
        other.stop()


def _client_of(proxy: Proxy) -> Client:
    return Client(ClientOptions((proxy.endpoint,), call_timeout_seconds=PATIENCE_SECONDS))


async def _overtake(client: Client, revision: int) -> None:
    while (await client.txn(Txn((), tuple(Put(b"/x/%d" % i, b"") for i in range(2))))).revision <= revision:
        pass
