"""Three members of which some hang, are cut off, or die."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace

from registry.admin.etcd_members import look_at_members
from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdError, NoLeader
from registry.etcd3.ops import Range
from registry.etcd3.reflector import Reflector
from registry.etcd3.stream import Changed, Connected, Disconnected, Listed
from tests.contract.etcd3.mirror import FirstEndpoint, mirroring, put
from tests.support.etcd import PATIENCE_SECONDS, Cluster, Member
from tests.support.waiting import eventually

PREFIX, END = b"/a/", b"/a0"
# What the member says itself comes long before a silence of forty seconds.
PATIENCE = 8.0


def member_at(cluster: Cluster, endpoint: str) -> Member:
    return next(member for member in cluster.members if member.endpoint == endpoint)


async def test_a_hung_member_is_noticed_and_left(etcd_cluster, cluster_client):
    """The process is stopped, its connections stand. The watch goes on with another member, and nothing is lost."""
    async with mirroring(Reflector(cluster_client, PREFIX, END, rng=FirstEndpoint())) as mirror:
        first = await mirror.first(Connected)
        told = len(mirror.told)
        member_at(etcd_cluster, first.endpoint).freeze()
        others = Client(etcd_cluster.options(endpoints=etcd_cluster.endpoints[1:]))
        written = await eventually(lambda: _try_put(others, b"/a/1"))
        second = await mirror.first(Connected, told)
        await eventually(lambda: mirror.revision >= written)
        await others.aclose()
    lost = next(one for one in mirror.told[told:] if isinstance(one, Disconnected))
    assert "no sign of life" in lost.message
    assert second.endpoint != first.endpoint
    assert len(mirror.of(Listed)) == 1


async def test_a_reflector_leaves_an_isolated_member_and_comes_back(etcd_cluster, cluster_client):
    """Without a quorum nobody can be followed, and a write is certainly not applied; then the watch goes on."""
    async with mirroring(Reflector(cluster_client, PREFIX, END, rng=FirstEndpoint())) as mirror:
        await mirror.first(Connected)
        alone, *others = etcd_cluster.members
        for member in others:
            member.freeze()
        client = Client(etcd_cluster.options(endpoints=(alone.endpoint,), call_timeout_seconds=1))
        await eventually(lambda: _is_refused_for_want_of_a_leader(client))
        await client.aclose()
        await mirror.first(Disconnected)
        told = len(mirror.told)
        for member in others:
            member.thaw()
        await mirror.first(Connected, told)
        written = await eventually(lambda: _try_put(cluster_client, b"/a/1"))
        await eventually(lambda: mirror.revision >= written)
    assert len(mirror.of(Listed)) == 1


async def test_writes_through_the_death_of_the_leader(etcd_cluster, rng):
    """W1 acked-durable, W8 no-false-fail: what was acknowledged is there, what was denied is not, nothing is twice."""
    outcomes: dict[bytes, int | EtcdError] = {}
    clients = [Client(etcd_cluster.options(), rng=random.Random(i)) for i in range(3)]
    async with mirroring(Reflector(clients[0], PREFIX, END, rng=rng)) as mirror:
        await mirror.first(Connected)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for i in range(12):
                tasks.create_task(_write(clients[i % 3], i, outcomes, stop))
            deaths = 0
            while deaths < 3 or not _ambiguous(outcomes):  # a death may find nothing in mid-flight
                before = len(outcomes)
                await eventually(lambda before=before: len(outcomes) > before + 100)
                leader = await etcd_cluster.leader()
                leader.kill()
                leader.start()
                await etcd_cluster.ready()
                deaths += 1
            stop.set()
        whole = Range(PREFIX, END)
        last = (await clients[0].range(whole, timeout_seconds=PATIENCE_SECONDS)).revision
        await eventually(lambda: mirror.revision >= last)
    # As of then: what was in mid-flight may still come.
    kvs = (await clients[0].range(replace(whole, revision=last), timeout_seconds=PATIENCE_SECONDS)).kvs
    found = {kv.key: kv for kv in kvs}
    for key, outcome in outcomes.items():
        if isinstance(outcome, int):
            assert found[key].mod_revision == outcome, "acknowledged, so it is there"
        elif outcome.certainly_not_applied:
            assert key not in found, "called not applied, so it is not there"
    assert {kv.version for kv in found.values()} == {1}, "sent once, applied once"
    revisions = [changed.revision for changed in mirror.of(Changed) if changed.revision <= last]
    assert revisions == sorted({kv.mod_revision for kv in found.values()})
    for client in clients:
        await client.aclose()


def _ambiguous(outcomes: dict[bytes, int | EtcdError]) -> list[EtcdError]:
    """Those of which nobody was told whether they were done."""
    return [one for one in outcomes.values() if isinstance(one, EtcdError) and not one.certainly_not_applied]


async def _write(client: Client, writer: int, outcomes: dict[bytes, int | EtcdError], stop: asyncio.Event) -> None:
    for i in itertools.count():
        if stop.is_set():
            return
        key = PREFIX + b"%d-%d" % (writer, i)
        try:
            outcomes[key] = (await client.txn(put((key, b"x")))).revision
        except EtcdError as error:
            outcomes[key] = error


async def _try_put(client: Client, key: bytes) -> int | None:
    try:
        return (await client.txn(put((key, b"x")))).revision
    except EtcdError:
        return None


async def _is_refused_for_want_of_a_leader(client: Client) -> bool:
    try:
        await client.txn(put((b"n", b"x")))
    except EtcdError as error:
        return isinstance(error, NoLeader) and error.certainly_not_applied
    raise AssertionError("written without a quorum")


async def test_a_lost_member_is_known_by_any_that_is_left(etcd_cluster):
    """Whether it is one of those that we were told of, or etcd alone lists it."""
    lost, near, _ = etcd_cluster.members
    lost.kill()
    for endpoints, state in ((etcd_cluster.endpoints, "down"), ((near.endpoint,), "unseen")):
        client = Client(etcd_cluster.options(endpoints=endpoints))
        wanted = dict.fromkeys(etcd_cluster.endpoints, "up") | {lost.endpoint: state}
        await eventually(lambda: _is_seen(client, wanted), timeout_seconds=PATIENCE_SECONDS)  # noqa: B023 - awaited here
        await client.aclose()


async def _is_seen(client: Client, wanted: dict[str, str]) -> bool:
    return {one.endpoint: one.state for one in await look_at_members(client)} == wanted
