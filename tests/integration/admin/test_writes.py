"""Guarantees of writes over real gRPC and a real etcd, by many at once through two services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from grpc import RpcError, StatusCode

from registry.v1 import registry_pb2 as pb
from tests.support.admin import Admin, admin_inside, change_set, drop, make_pool, put, refusal, refused, wait_ready


@pytest.fixture
async def other(etcd, admin) -> AsyncIterator[Admin]:
    """A second service of the same store."""
    async with admin_inside(etcd.endpoints, etcd.prefix) as other:
        await wait_ready(other)
        yield other


async def told(*calls) -> list[str]:
    """What each of them came to, all at once: "OK", or the reason of its refusal."""
    done = await asyncio.gather(*calls, return_exceptions=True)
    return [refused(one).reason if isinstance(one, RpcError) else "OK" for one in done]


async def test_a_set_is_one_revision_however_often_and_of_whom_it_is_asked_for(ledger, admin, other):
    """W1 acked-durable, W2 atomic-set, W3 idempotent, W6 one-digest, W7 audit-complete."""
    request = change_set(put("acme/a"), put("acme/b"), put("x"), request_id="same")
    replies = await asyncio.gather(*(one.stub.ApplyAdapters(request) for one in (admin, other) * 10))
    second = await admin.stub.ApplyAdapters(change_set(put("acme/a", "file:///a/v2"), drop("x")))
    replies.append(await other.stub.ApplyAdapters(request))
    assert all(reply == replies[0] for reply in replies)
    assert [one.outcome for one in replies[0].results] == [pb.AdapterResult.CREATED] * 3
    assert [one.outcome for one in second.results] == [pb.AdapterResult.UPDATED, pb.AdapterResult.DELETED]
    assert (second.results[0].adapter.etag, second.results[0].adapter.generation) == (str(second.revision), 2)
    reused = await refusal(other.stub.ApplyAdapters(change_set(put("acme/b"), request_id="same")))
    assert (reused.code, reused.reason, reused.field) == (
        *(StatusCode.INVALID_ARGUMENT, "REQUEST_ID_REUSED", "request_id"),
    )
    same = await other.stub.ApplyAdapters(change_set(put("acme/a", "file:///a/v2")))
    assert same.results[0].outcome == pb.AdapterResult.UNCHANGED
    assert await ledger.revision() == second.revision
    made = (await ledger.check()).changing
    assert (len(made), {replies[0].revision, second.revision} <= set(made)) == (3, True), "the pool, and these two"


async def test_of_many_who_race_as_many_win_as_may(ledger, admin, other):
    """W4 etag, W5 quota-never: ten places of a tenant, one etag, one place in the engines of a pool."""
    await admin.stub.SetTenant(pb.SetTenantRequest(tenant=pb.Tenant(name="acme", max_adapters=10)))
    await admin.stub.CreatePool(pb.CreatePoolRequest(pool=pb.Pool(name="one", base_models=["b"], engine="axolotl")))
    etag = (await admin.stub.ApplyAdapters(change_set(put("x")))).results[0].adapter.etag
    services = [admin, other] * 25
    races = {
        "QUOTA_EXCEEDED": (10, [change_set(put(f"acme/n{number}")) for number in range(50)]),
        "ETAG_MISMATCH": (1, [change_set(put("x", f"file:///{number}", etag=etag)) for number in range(20)]),
        "POOL_FULL": (1, [change_set(put(f"n{number}"), pool="one") for number in range(20)]),
    }
    for reason, (most, sets) in races.items():
        calls = [one.stub.ApplyAdapters(each) for one, each in zip(services, sets, strict=False)]
        came = await told(*calls)
        assert (came.count("OK"), came.count(reason)) == (most, len(sets) - most), came
    tenants = {one.name: one.adapters for one in (await admin.stub.ListTenants(pb.ListTenantsRequest())).tenants}
    assert tenants["acme"] == 10
    await ledger.check()


async def test_a_pool_that_is_deleted_against_those_who_fill_it(ledger, admin, other):
    """W2 atomic-set: a pool is never deleted under an adapter, and no adapter is left without a pool."""
    for pool in (f"q{number}" for number in range(10)):
        await make_pool(admin, pool)
        fill = [admin.stub.ApplyAdapters(change_set(put(f"a{number}"), pool=pool)) for number in range(3)]
        await told(*fill, other.stub.DeletePool(pb.DeletePoolRequest(name=pool)))
    keys = ledger.keys
    found = {kv.key for kv in (await ledger.client.list_prefix(f"{keys.prefix}/".encode())).kvs}
    adapters = [key.decode() for key in found if b"/adapters/" in key]
    assert {keys.pool(key.split("/")[-2]) for key in adapters} <= found
    await ledger.check()
