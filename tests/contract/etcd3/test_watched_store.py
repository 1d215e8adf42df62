"""The reflector when the store that it watches restarts, forgets, or is another one."""

from __future__ import annotations

from contextlib import aclosing

from registry.etcd3 import channel
from registry.etcd3.client import Client
from registry.etcd3.ops import Put, Txn
from registry.etcd3.options import ClientOptions
from registry.etcd3.reflector import Reflector
from registry.etcd3.stream import Changed, Connected, ListCause, Listed, Resume
from tests.contract.etcd3.mirror import mirroring, put
from tests.support.etcd import PATIENCE_SECONDS, make_cluster, running_etcd
from tests.support.proxy import Proxy
from tests.support.waiting import eventually


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


async def test_what_was_missed_may_be_more_than_a_message_holds(own_etcd, own_client, rng, monkeypatch):
    """R3 converge, R2: after an outage with a large import etcd sends up to 1,000 revisions at once, however large."""
    limited = dict(channel._OPTIONS) | {"grpc.max_receive_message_length": 4 << 20}
    monkeypatch.setattr(channel, "_OPTIONS", tuple(limited.items()))
    begin = (await own_client.txn(put((b"/a/0", b"")))).revision
    for i in range(12):
        last = await own_client.txn(put(*((b"/a/%d" % key, b"%d" % i + bytes(9000)) for key in range(100))))
    async with mirroring(Reflector(own_client, b"/a/", b"/a0", resume=Resume(begin, 0), rng=rng)) as mirror:
        await eventually(lambda: mirror.revision >= last.revision)
        assert [len(one.events) for one in mirror.of(Changed)] == [100] * 12
        assert mirror.of(Listed) == []


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
    own = running_etcd(make_cluster(tmp_path, flags={"initial-cluster-token": "other"}))
    async with own as other, aclosing(other.patient()) as other_client:
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


def _client_of(proxy: Proxy) -> Client:
    return Client(ClientOptions((proxy.endpoint,), call_timeout_seconds=PATIENCE_SECONDS))


async def _overtake(client: Client, revision: int) -> None:
    while (await client.txn(Txn((), tuple(Put(b"/x/%d" % i, b"") for i in range(2))))).revision <= revision:
        pass
