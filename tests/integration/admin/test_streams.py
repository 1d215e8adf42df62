"""WatchAdapters and WatchRollout on a real etcd."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import grpc
from grpc import StatusCode

from registry.admin import app
from registry.etcd3.ops import Put, Txn
from registry.v1 import registry_pb2 as pb
from registry.v1 import registry_pb2_grpc
from tests.support.admin import admin_with_pool, change_set, drop, put, refusal
from tests.support.etcd import compact


def watch(admin, start_revision: int = 0):
    return admin.stub.WatchAdapters(pb.WatchAdaptersRequest(pool="p", start_revision=start_revision))


async def test_the_present_state_and_then_whole_revisions_in_order(ledger, admin):
    """R2 replay-equal, seen from outside: resumed at any revision, nothing comes twice; what is not kept is refused."""
    first = await admin.stub.ApplyAdapters(change_set(put("a"), put("b")))
    call = watch(admin)
    snapshot = await call.read()
    assert (snapshot.snapshot, snapshot.more) == (True, False)
    assert snapshot.revision >= first.revision  # leases that others left may have ended meanwhile
    assert [event.put for event in snapshot.events] == [one.adapter for one in first.results]
    second = await admin.stub.ApplyAdapters(change_set(put("a", "file:///a/v2"), drop("b"), put("c")))
    third = await ledger.client.txn(Txn((), (Put(ledger.keys.adapter("p", "acme/a"), b"?"),)))
    seen = [await call.read() for _ in range(2)]
    call.cancel()
    assert sorted(event.put.name or f"-{event.deleted}" for event in seen[0].events) == ["-b", "a", "c"]
    assert [event.unreadable for event in seen[1].events] == ["acme/a"]
    revisions = [first.revision, second.revision, third.revision]
    assert [one.revision for one in seen] == revisions[1:]
    for number, start in enumerate(revisions):
        call = watch(admin, start)
        assert [(await call.read()).revision for _ in revisions[number:]] == revisions[number:]
        call.cancel()
    await compact(ledger.client, third.revision)
    for start in (first.revision, third.revision + 100_000):
        told = await refusal(watch(admin, start).read())
        assert (told.code, told.reason) == (StatusCode.FAILED_PRECONDITION, "REVISION_COMPACTED")


async def test_streams_end_when_the_service_stops(etcd, monkeypatch):
    """Graceful stop: open streams are told to go elsewhere at once, not after the grace."""
    monkeypatch.setattr(app, "GRACE_SECONDS", 600.0)
    async with AsyncExitStack() as service:
        admin = await service.enter_async_context(admin_with_pool(etcd.endpoints, etcd.prefix))
        async with grpc.aio.insecure_channel(admin.address) as channel:
            call = registry_pb2_grpc.AdapterRegistryStub(channel).WatchAdapters(pb.WatchAdaptersRequest(pool="p"))
            await call.read()
            waiting = asyncio.create_task(refusal(call.read()))
            await service.aclose()
            told = await waiting
    assert (told.code, told.reason) == (StatusCode.UNAVAILABLE, "ADMIN_UNAVAILABLE")
