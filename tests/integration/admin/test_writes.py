"""Guarantees of writes, over real gRPC and a real etcd."""

from __future__ import annotations

import asyncio

import pytest
from grpc import RpcError, StatusCode

from registry.etcd3.ops import Put, Txn
from registry.model.records import TenantRecord
from registry.v1 import registry_pb2 as pb
from tests.support.admin import admin_inside, change_set, drop, make_pool, put, refusal, refused, wait_ready


async def test_a_reply_is_in_history(ledger, admin):
    """W1 acked-durable, W2 atomic-set, W7 audit-complete: each reply's revision is in H with everything it says."""
    first = await admin.stub.ApplyAdapters(change_set(put("acme/a"), put("acme/b"), put("x"), request_id="r1"))
    second = await admin.stub.ApplyAdapters(change_set(put("acme/a", "file:///a/v2"), drop("x"), request_id="r2"))
    assert [one.outcome for one in first.results] == [pb.AdapterResult.CREATED] * 3
    assert [one.outcome for one in second.results] == [pb.AdapterResult.UPDATED, pb.AdapterResult.DELETED]
    fold = await ledger.check()
    assert {first.revision, second.revision} <= set(fold.changing)
    assert second.results[0].adapter.etag == str(second.revision)
    assert second.results[0].adapter.generation == 2


async def test_replays(ledger, admin):
    """W3 idempotent: concurrent and later calls with one request_id make one revision and get one reply."""
    request = change_set(put("acme/a"), request_id="same")
    replies = await asyncio.gather(*(admin.stub.ApplyAdapters(request) for _ in range(20)))
    await admin.stub.ApplyAdapters(change_set(put("acme/a", "file:///a/v2")))
    replies.append(await admin.stub.ApplyAdapters(request))
    assert all(reply == replies[0] for reply in replies)
    fold = await ledger.check()
    made = [revision for revision, key in fold.changing.items() if revision >= replies[0].revision]
    assert len(made) == 2


async def test_replays_through_two_servers(etcd, ledger, admin):
    """W3 idempotent: it does not matter which admin service is asked."""
    request = change_set(put("acme/a"), request_id="same")
    async with admin_inside(etcd.endpoints, etcd.prefix) as other:
        await wait_ready(other)
        stubs = [admin.stub, other.stub] * 10
        replies = await asyncio.gather(*(stub.ApplyAdapters(request) for stub in stubs))
    assert all(reply == replies[0] for reply in replies)
    assert len((await ledger.check()).changing) == 2  # the pool and the adapter


async def test_request_id_with_another_payload(admin):
    """W3 idempotent: the same id with another payload is INVALID_ARGUMENT."""
    await admin.stub.ApplyAdapters(change_set(put("acme/a"), request_id="r"))
    told = await refusal(admin.stub.ApplyAdapters(change_set(put("acme/b"), request_id="r")))
    assert (told.code, told.reason, told.field) == (StatusCode.INVALID_ARGUMENT, "REQUEST_ID_REUSED", "request_id")


async def test_an_unchanged_set_is_remembered(ledger, admin):
    """W3 idempotent: also a request that changed nothing gets the same reply again, after the state has changed."""
    await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    request = change_set(put("acme/a"), request_id="again")
    first = await admin.stub.ApplyAdapters(request)
    assert first.results[0].outcome == pb.AdapterResult.UNCHANGED
    await admin.stub.ApplyAdapters(change_set(drop("acme/a")))
    assert await admin.stub.ApplyAdapters(request) == first
    await ledger.check()


async def test_unchanged_without_id_makes_no_revision(ledger, admin):
    """W6 one-digest: what is already so is not written again."""
    await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    before = await ledger.revision()
    reply = await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    assert reply.results[0].outcome == pb.AdapterResult.UNCHANGED
    assert reply.revision >= before
    assert await ledger.revision() == before


async def test_a_stale_etag(ledger, admin):
    """W4 etag: a stale etag is ABORTED, names the present one, and makes no revision."""
    made = await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    before = await ledger.revision()
    for change in (put("acme/a", "file:///a/v9", etag="1"), drop("acme/a", etag="1"), put("acme/a", etag="0")):
        told = await refusal(admin.stub.ApplyAdapters(change_set(put("acme/b"), change)))
        assert (told.code, told.reason, told.field) == (StatusCode.ABORTED, "ETAG_MISMATCH", "changes[1].etag")
        assert told.metadata == {"etag": made.results[0].adapter.etag}
    assert await ledger.revision() == before


async def test_racers_with_one_etag(ledger, admin):
    """W4 etag: of many who read the same etag, one wins."""
    made = await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    etag = made.results[0].adapter.etag
    calls = [admin.stub.ApplyAdapters(change_set(put("acme/a", f"file:///a/{i}", etag=etag))) for i in range(20)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(not isinstance(one, Exception) for one in outcomes) == 1
    await ledger.check()


async def test_fifty_racers_for_ten_places(etcd, ledger, admin):
    """W5 quota-never: 50 racers for 10 places, through two servers, give exactly 10."""
    await admin.stub.SetTenant(pb.SetTenantRequest(tenant=pb.Tenant(name="acme", max_adapters=10)))
    async with admin_inside(etcd.endpoints, etcd.prefix) as other:
        await wait_ready(other)
        calls = [(admin, other)[i % 2].stub.ApplyAdapters(change_set(put(f"acme/n{i}"))) for i in range(50)]
        outcomes = await asyncio.gather(*(_outcome(call) for call in calls))
    assert outcomes.count("OK") == 10, outcomes
    assert outcomes.count("QUOTA_EXCEEDED") == 40, outcomes
    tenants = (await admin.stub.ListTenants(pb.ListTenantsRequest())).tenants
    assert [(one.name, one.adapters, one.max_adapters) for one in tenants] == [("acme", 10, 10)]
    await ledger.check()


async def _outcome(call) -> str:
    try:
        return "OK" if await call else ""
    except RpcError as error:
        return refused(error).reason


async def test_of_many_who_want_the_only_place_one_gets_it(etcd, ledger, admin):
    """20 racers in a pool whose engines have one adapter at a time, through two servers; all others are told why."""
    pool = pb.Pool(name="one", base_models=["base"], engine="axolotl")
    await admin.stub.CreatePool(pb.CreatePoolRequest(pool=pool))
    async with admin_inside(etcd.endpoints, etcd.prefix) as other:
        await wait_ready(other)
        sets = [change_set(put(f"acme/n{i}"), pool="one") for i in range(20)]
        calls = [(admin, other)[i % 2].stub.ApplyAdapters(one) for i, one in enumerate(sets)]
        told = await asyncio.gather(*calls, return_exceptions=True)
    (won,) = [one for one in told if isinstance(one, pb.ApplyAdaptersResponse)]
    name = won.results[0].adapter.name
    lost = await refusal(admin.stub.ApplyAdapters(change_set(put("b"), pool="one", validate_only=True)))
    assert (lost.code, lost.reason) == (StatusCode.FAILED_PRECONDITION, "POOL_FULL")
    assert {refused(one).reason for one in told if isinstance(one, RpcError)} == {"POOL_FULL"}
    await admin.stub.ApplyAdapters(change_set(drop(name), put("b"), pool="one"))
    await ledger.check()


async def test_quota_counts_over_all_pools(ledger, admin):
    """W5 quota-never: a tenant's adapters of all pools count, and deleting makes room."""
    await make_pool(admin, "q")
    await admin.stub.SetTenant(pb.SetTenantRequest(tenant=pb.Tenant(name="Acme", max_adapters=2)))
    await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    await admin.stub.ApplyAdapters(change_set(put("acme/a"), pool="q"))
    told = await refusal(admin.stub.ApplyAdapters(change_set(put("ACME/b"))))
    assert (told.code, told.reason) == (StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
    assert told.metadata == {"tenant": "acme", "max_adapters": "2", "adapters": "2", "added": "1"}
    await admin.stub.ApplyAdapters(change_set(put("ACME/b"), drop("acme/a")))
    told = await refusal(admin.stub.SetTenant(pb.SetTenantRequest(tenant=pb.Tenant(name="acme", max_adapters=1))))
    assert (told.code, told.reason) == (StatusCode.FAILED_PRECONDITION, "QUOTA_BELOW_USE")
    await ledger.check()


async def test_generations_go_on(ledger, admin):
    """W6 one-digest: +1 if and only if the spec changed, across deletion too; history keeps the last ten."""
    for version in range(13):
        reply = await admin.stub.ApplyAdapters(change_set(put("acme/a", f"file:///a/{version}")))
    assert reply.results[0].adapter.generation == 13
    await admin.stub.ApplyAdapters(change_set(drop("acme/a")))
    reply = await admin.stub.ApplyAdapters(change_set(put("acme/a", "file:///a/12")))
    assert reply.results[0].adapter.generation == 14
    history = await admin.stub.ListAdapterHistory(pb.ListAdapterHistoryRequest(pool="p", name="acme/a"))
    assert [one.generation for one in history.generations] == list(range(14, 3, -1))
    gone = pb.RollbackAdapterRequest(pool="p", name="acme/a", to_generation=3)
    told = await refusal(admin.stub.RollbackAdapter(gone))
    assert (told.code, told.reason, told.field) == (StatusCode.NOT_FOUND, "GENERATION_NOT_FOUND", "to_generation")
    assert "history holds no generation 3" in told.message
    await ledger.check()


async def test_rollback(ledger, admin):
    """W6 one-digest: a rollback is a new generation with an old spec; W3: it can be repeated."""
    for version in (1, 2, 3):
        await admin.stub.ApplyAdapters(change_set(put("acme/a", f"file:///a/{version}")))
    back = await admin.stub.RollbackAdapter(pb.RollbackAdapterRequest(pool="p", name="acme/a", request_id="r"))
    assert (back.results[0].adapter.generation, back.results[0].adapter.spec.source.uri) == (4, "file:///a/2")
    first = await admin.stub.RollbackAdapter(pb.RollbackAdapterRequest(pool="p", name="acme/a", to_generation=1))
    assert (first.results[0].adapter.generation, first.results[0].adapter.spec.source.uri) == (5, "file:///a/1")
    assert back == await admin.stub.RollbackAdapter(pb.RollbackAdapterRequest(pool="p", name="acme/a", request_id="r"))
    told = await refusal(
        admin.stub.RollbackAdapter(pb.RollbackAdapterRequest(pool="p", name="acme/a", to_generation=99))
    )
    assert (told.code, told.reason, told.field) == (StatusCode.NOT_FOUND, "GENERATION_NOT_FOUND", "to_generation")
    await admin.stub.ApplyAdapters(change_set(drop("acme/a")))
    again = await admin.stub.RollbackAdapter(pb.RollbackAdapterRequest(pool="p", name="acme/a"))
    assert (again.results[0].outcome, again.results[0].adapter.generation) == (pb.AdapterResult.CREATED, 6)
    await ledger.check()


DRY_RUNS = {
    "apply": ("ApplyAdapters", change_set(put("acme/new"), drop("acme/a"))),
    "stale etag": ("ApplyAdapters", change_set(put("acme/a", etag="1"))),
    "over quota": ("ApplyAdapters", change_set(put("full/b"))),
    "bad name": ("ApplyAdapters", change_set(put("text"))),
    "unknown pool": ("ApplyAdapters", change_set(put("a"), pool="nowhere")),
    "too many": ("ApplyAdapters", change_set(*(put(f"acme/n{i}") for i in range(100)))),
    "rollback": ("RollbackAdapter", pb.RollbackAdapterRequest(pool="p", name="acme/a")),
    "rollback too far": ("RollbackAdapter", pb.RollbackAdapterRequest(pool="p", name="acme/a", to_generation=7)),
    "pool": ("CreatePool", pb.CreatePoolRequest(pool=pb.Pool(name="q", base_models=["base"]))),
    "pool exists": ("CreatePool", pb.CreatePoolRequest(pool=pb.Pool(name="p", base_models=["base"]))),
    "base is an adapter": ("UpdatePool", pb.UpdatePoolRequest(pool=pb.Pool(name="p", base_models=["ACME/a"]))),
    "confirmation": ("ConfirmRemovals", pb.ConfirmRemovalsRequest(name="p", revision=1)),
    "confirmation of what is to come": ("ConfirmRemovals", pb.ConfirmRemovalsRequest(name="p", revision=1 << 60)),
    "drain of nobody": ("DrainReplica", pb.DrainReplicaRequest(pool="p", name="gone")),
    "pool not empty": ("DeletePool", pb.DeletePoolRequest(name="p")),
    "quota": ("SetTenant", pb.SetTenantRequest(tenant=pb.Tenant(name="acme", max_adapters=5))),
    "repair of what is right": ("RepairTenant", pb.RepairTenantRequest(name="acme")),
    "repair": ("RepairTenant", pb.RepairTenantRequest(name="miscounted")),
    "repair of no name": ("RepairTenant", pb.RepairTenantRequest(name="a/b")),
    "quota below use": ("SetTenant", pb.SetTenantRequest(tenant=pb.Tenant(name="full", max_adapters=1))),
}


@pytest.mark.parametrize("name", DRY_RUNS)
async def test_dry_run(ledger, admin, name):
    """W9 dry-run: the same reply or the same error as the real thing, and no revision."""
    await admin.stub.SetTenant(pb.SetTenantRequest(tenant=pb.Tenant(name="full", max_adapters=2)))
    await admin.stub.ApplyAdapters(change_set(put("acme/a"), put("full/a"), put("full/c")))
    await admin.stub.ApplyAdapters(change_set(put("acme/a", "file:///a/v2")))
    miscounted = TenantRecord(name="miscounted", adapters=2).to_bytes()
    await ledger.client.txn(Txn((), (Put(ledger.keys.tenant("miscounted"), miscounted),)))
    method, request = DRY_RUNS[name]
    dry = type(request).FromString(request.SerializeToString())
    dry.validate_only = True
    before = await ledger.revision()
    foretold = await _told(getattr(admin.stub, method)(dry))
    assert await ledger.revision() == before
    assert _comparable(foretold) == _comparable(await _told(getattr(admin.stub, method)(request)))


async def _told(call) -> object:
    try:
        return await call
    except RpcError as error:
        return refused(error)


def _comparable(told: object) -> object:
    """Without what only the real thing can know: its revision, time and made-up request id."""
    if isinstance(told, pb.ApplyAdaptersResponse):
        return [
            (one.outcome, one.adapter.name, one.adapter.generation, one.adapter.spec.source.uri) for one in told.results
        ]
    if isinstance(told, pb.Pool | pb.Tenant):
        told.ClearField("etag")
    if isinstance(told, pb.RepairTenantResponse):
        return told.changed, told.tenant.adapters, list(told.retired)
    return told
