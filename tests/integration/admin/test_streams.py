"""WatchAdapters and WatchRollout."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest
from grpc import StatusCode

from registry.admin import server
from registry.etcd3.ops import Delete, Put, Txn
from registry.model.status import EngineStatus, Failed, Pending, Presence, ReplicaStatus, Served
from registry.rollout import members
from registry.v1 import registry_pb2 as pb
from registry.v1 import registry_pb2_grpc
from tests.support.admin import admin_inside, change_set, drop, make_pool, put, refusal, wait_ready
from tests.support.etcd import compact
from tests.support.residency_world import LEASE_SECONDS


def watch(admin, start_revision: int = 0):
    return admin.stub.WatchAdapters(pb.WatchAdaptersRequest(pool="p", start_revision=start_revision))


async def test_snapshot_and_changes(admin):
    """A watch from 0 gives the present state, then whole revisions in order."""
    first = await admin.stub.ApplyAdapters(change_set(put("a"), put("b")))
    call = watch(admin)
    snapshot = await call.read()
    assert (snapshot.snapshot, snapshot.more) == (True, False)
    assert snapshot.revision >= first.revision  # leases that others left may have ended meanwhile
    assert [event.put.name for event in snapshot.events] == ["a", "b"]
    assert snapshot.events[0].put == first.results[0].adapter
    second = await admin.stub.ApplyAdapters(change_set(put("a", "file:///a/v2"), drop("b"), put("c")))
    third = await admin.stub.ApplyAdapters(change_set(drop("c")))
    change = await call.read()
    assert (change.snapshot, change.revision) == (False, second.revision)
    assert sorted(event.put.name or f"-{event.deleted}" for event in change.events) == ["-b", "a", "c"]
    assert (await call.read()).revision == third.revision
    call.cancel()


async def test_resume(admin):
    """A watch that is resumed at a revision delivers that revision first, and nothing twice."""
    revisions = [(await admin.stub.ApplyAdapters(change_set(put("a", f"file:///a/{i}")))).revision for i in range(4)]
    for index, start in enumerate(revisions):
        call = watch(admin, start)
        seen = [(await call.read()).revision for _ in revisions[index:]]
        call.cancel()
        assert seen == revisions[index:]


async def test_an_empty_pool_is_told(admin):
    """The snapshot of an empty pool is an empty response, not silence."""
    call = watch(admin)
    snapshot = await call.read()
    call.cancel()
    assert (snapshot.snapshot, len(snapshot.events)) == (True, 0)


async def test_compacted(ledger, admin):
    """A watch from a revision that is no longer kept is FAILED_PRECONDITION."""
    old = (await admin.stub.ApplyAdapters(change_set(put("a")))).revision
    new = (await admin.stub.ApplyAdapters(change_set(drop("a")))).revision
    await compact(ledger.client, new)
    told = await refusal(watch(admin, old - 1).read())
    assert (told.code, told.reason) == (StatusCode.FAILED_PRECONDITION, "REVISION_COMPACTED")


async def test_future(ledger, admin):
    """A watch from a revision that is not there yet is refused, not silent."""
    told = await refusal(watch(admin, await ledger.revision() + 100_000).read())
    assert (told.code, told.reason) == (StatusCode.FAILED_PRECONDITION, "REVISION_COMPACTED")


async def test_wrong_requests(admin):
    """A negative revision and an unknown pool are refused."""
    assert (await refusal(watch(admin, -1).read())).field == "start_revision"
    nowhere = admin.stub.WatchAdapters(pb.WatchAdaptersRequest(pool="q"))
    assert (await refusal(nowhere.read())).reason == "POOL_NOT_FOUND"


async def test_unreadable(ledger, admin):
    """A record that cannot be read is an event of its own."""
    call = watch(admin)
    await call.read()
    await ledger.client.txn(Txn((), (Put(ledger.keys.adapter("p", "acme/a"), b"?"),)))
    assert (await call.read()).events[0].unreadable == "acme/a"
    call.cancel()


async def test_large_snapshots_come_in_parts(admin, ledger):
    """A snapshot of many adapters is split, and the parts say that they belong together."""
    await admin.stub.ApplyAdapters(change_set(put("a")))
    (kv,) = (await ledger.client.list_prefix(ledger.keys.adapters("p"))).kvs
    for start in range(0, 1100, 100):
        copies = (Put(ledger.keys.adapter("p", f"n{start + i:05}"), kv.value) for i in range(100))
        await ledger.client.txn(Txn((), tuple(copies)))
    call = watch(admin)
    parts = [await call.read() for _ in range(3)]
    call.cancel()
    assert [part.more for part in parts] == [True, True, False]
    assert sum(len(part.events) for part in parts) == 1101


class Replicas:
    """Replicas that say what they are told to."""

    def __init__(self, ledger) -> None:
        self.ledger = ledger
        self._lease = 0

    async def alive(self, *names: str) -> None:
        for name in names:
            presence = Presence(pool="p", replica=name, incarnation="i", owner="o", started_at="t")
            await self._put(self.ledger.keys.replica("p", name), presence.to_bytes())

    async def gone(self, name: str) -> None:
        await self.ledger.client.txn(Txn((), (Delete(self.ledger.keys.replica("p", name)),)))

    async def says(self, name: str, revision: int, **fields) -> None:
        engine = EngineStatus(kind="sim", version="1", url="u", base_models=["base"], incarnation="e")
        said = {"pending": [], "failed": [], "stale": False, "ready": True, "engine": engine} | fields
        status = ReplicaStatus(
            replica=name, pool="p", observed_revision=revision, served=Served(count=0, hash=""), updated_at="t", **said
        )
        await self._put(self.ledger.keys.status("p", name), status.to_bytes())

    async def _put(self, key: bytes, value: bytes) -> None:
        self._lease = self._lease or await self.ledger.client.lease_grant(LEASE_SECONDS)
        await self.ledger.client.txn(Txn((), (Put(key, value, self._lease),)))


def states(rollout: pb.Rollout) -> dict[str, str]:
    return {one.replica: pb.RolloutReplica.State.Name(one.state) for one in rollout.replicas}


async def until(call, wanted: dict[str, str]) -> pb.Rollout:
    """The first rollout with these states."""
    async with asyncio.timeout(120):
        while True:
            rollout = await call.read()
            assert isinstance(rollout, pb.Rollout), f"the stream ended before {wanted}"
            if states(rollout) == wanted:
                return rollout


async def test_rollout(ledger, admin):
    """R9 status-truth as the admin shows it: from nobody alive to all serving, each change once."""
    replicas = Replicas(ledger)
    revision = (await admin.stub.ApplyAdapters(change_set(put("acme/a")))).revision
    call = admin.stub.WatchRollout(pb.WatchRolloutRequest(pool="p", name="acme/a"))
    first = await call.read()
    assert (first.generation, first.done, first.waiting) == (1, False, "no replica of the pool is alive")
    await replicas.alive("r1", "r2")
    await until(call, {"r1": "PENDING", "r2": "PENDING"})
    await replicas.says("r1", revision - 1)
    await replicas.says("r2", revision, pending=[Pending(name="acme/a", generation=1, reason="staging")])
    rollout = await until(call, {"r1": "PENDING", "r2": "PENDING"})
    while {one.reason for one in rollout.replicas} != {"not_seen", "staging"}:
        rollout = await call.read()
    await replicas.says("r1", revision)
    await until(call, {"r1": "SERVING", "r2": "PENDING"})
    await replicas.says("r2", revision)
    last = await until(call, {"r1": "SERVING", "r2": "SERVING"})
    assert (last.done, last.failure, last.waiting) == (True, "", "")
    assert not isinstance(await call.read(), pb.Rollout)


async def test_rollout_fails(ledger, admin):
    """A refusal for good ends it, one that is tried again does not; it is done when nobody is pending."""
    replicas = Replicas(ledger)
    revision = (await admin.stub.ApplyAdapters(change_set(put("acme/a")))).revision
    await replicas.alive("r1", "r2")
    call = admin.stub.WatchRollout(pb.WatchRolloutRequest(pool="p", name="acme/a"))
    failed = Failed(name="acme/a", generation=1, reason="BAD", message="it is bad", attempts=1, retry_at="soon")
    await replicas.says("r1", revision, failed=[failed])
    await replicas.says("r2", revision, stale=True)
    rollout = await until(call, {"r1": "PENDING", "r2": "UNKNOWN"})
    assert (rollout.replicas[0].reason, rollout.replicas[0].message) == ("BAD", "it is bad")
    await replicas.says("r1", revision, failed=[failed.model_copy(update={"retry_at": None})])
    rollout = await until(call, {"r1": "FAILED", "r2": "UNKNOWN"})
    assert not rollout.done
    await replicas.says("r2", revision)
    rollout = await until(call, {"r1": "FAILED", "r2": "SERVING"})
    assert (rollout.done, rollout.failure) == (True, "replicas_failed")


@pytest.fixture
def forgetful(monkeypatch) -> None:
    """A service that remembers nobody, however long it runs. Ask for it before `admin`."""
    monkeypatch.setattr(members, "_PAUSE_SECONDS", 3600.0)


async def test_rollout_of_a_dead_replica(forgetful, ledger, admin):
    """A replica that dies before anybody remembers it is no longer waited for."""
    replicas = Replicas(ledger)
    revision = (await admin.stub.ApplyAdapters(change_set(put("acme/a")))).revision
    await replicas.alive("r1", "r2")
    await replicas.says("r1", revision)
    call = admin.stub.WatchRollout(pb.WatchRolloutRequest(pool="p", name="acme/a"))
    await until(call, {"r1": "SERVING", "r2": "PENDING"})
    await replicas.gone("r2")
    assert (await until(call, {"r1": "SERVING"})).done


async def test_rollout_is_superseded(admin):
    """A newer generation and a deletion end the rollout of the older one."""
    await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    call = admin.stub.WatchRollout(pb.WatchRolloutRequest(pool="p", name="acme/a", generation=1))
    await call.read()
    await admin.stub.ApplyAdapters(change_set(put("acme/a", "file:///a/v2")))
    rollout = await call.read()
    assert (rollout.done, rollout.failure, rollout.generation) == (True, "superseded", 1)
    call = admin.stub.WatchRollout(pb.WatchRolloutRequest(pool="p", name="acme/a"))
    assert (await call.read()).generation == 2
    await admin.stub.ApplyAdapters(change_set(drop("acme/a")))
    assert (await call.read()).failure == "deleted"
    again = await admin.stub.WatchRollout(pb.WatchRolloutRequest(pool="p", name="acme/a", generation=2)).read()
    assert (again.done, again.failure) == (True, "deleted")


async def test_rollout_of_nothing(admin):
    """What does not exist, and what no generation is named of, is NOT_FOUND."""
    call = admin.stub.WatchRollout(pb.WatchRolloutRequest(pool="p", name="acme/a"))
    assert (await refusal(call.read())).reason == "ADAPTER_NOT_FOUND"
    call = admin.stub.WatchRollout(pb.WatchRolloutRequest(pool="q", name="acme/a"))
    assert (await refusal(call.read())).reason == "POOL_NOT_FOUND"


async def test_many_rollouts_share_what_they_watch(ledger, admin):
    """Thirty rollouts at once, ended in any order, all come to their end."""
    replicas = Replicas(ledger)
    names = [f"n{i}" for i in range(30)]
    revision = (await admin.stub.ApplyAdapters(change_set(*map(put, names)))).revision
    await replicas.alive("r1")
    calls = [admin.stub.WatchRollout(pb.WatchRolloutRequest(pool="p", name=name)) for name in names]
    for call in calls:
        await until(call, {"r1": "PENDING"})
    calls.pop(3).cancel()
    await replicas.says("r1", revision)
    ends = await asyncio.gather(*(until(call, {"r1": "SERVING"}) for call in calls))
    assert all(end.done for end in ends)


async def test_streams_end_when_the_service_stops(etcd, monkeypatch):
    """Graceful stop: open streams are told to go elsewhere at once, not after the grace."""
    monkeypatch.setattr(server, "GRACE_SECONDS", 600.0)
    async with AsyncExitStack() as service:
        admin = await service.enter_async_context(admin_inside(etcd.endpoints, etcd.prefix))
        await wait_ready(admin)
        await make_pool(admin)
        async with grpc.aio.insecure_channel(admin.address) as channel:
            call = registry_pb2_grpc.AdapterRegistryStub(channel).WatchAdapters(pb.WatchAdaptersRequest(pool="p"))
            await call.read()
            waiting = asyncio.create_task(refusal(call.read()))
            await service.aclose()
            told = await waiting
    assert (told.code, told.reason) == (StatusCode.UNAVAILABLE, "ADMIN_UNAVAILABLE")
