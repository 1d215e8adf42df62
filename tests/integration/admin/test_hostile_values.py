"""The admin service over a store in which anything stands under any key."""

from __future__ import annotations

import asyncio
from itertools import islice

import grpc

from registry.etcd3.ops import Put, Range, Txn
from registry.v1 import registry_pb2 as pb
from tests.support.admin import change_set, put
from tests.support.hostile import spoiled
from tests.support.http_client import http_client
from tests.support.residency_world import Replicas
from tests.support.waiting import eventually

CANARY = pb.Strategy(canary_replicas="1", promote="manual", soak_seconds=0)
PAGE_SECONDS = 60
# One of so many values of each kind, each time others: the fuzzer plays any.
EACH = 6


async def answered(call) -> None:
    """What cannot be read may be refused, and nothing else."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
            raise


async def reads(admin) -> None:
    """Everything that `get`, `describe` and `doctor` ask for."""
    stub = admin.stub
    calls = [
        stub.ListPools(pb.ListPoolsRequest()),
        stub.ListTenants(pb.ListTenantsRequest()),
        stub.ListAdapters(pb.ListAdaptersRequest(pool="p")),
        stub.ListReplicas(pb.ListReplicasRequest(pool="p")),
        stub.GetReplica(pb.GetReplicaRequest(pool="p", name="r1")),
        stub.GetAdapter(pb.GetAdapterRequest(pool="p", name="acme/a")),
        stub.ListChanges(pb.ListChangesRequest(pool="p")),
        stub.ListAudit(pb.ListAuditRequest()),
        stub.ListAdapterHistory(pb.ListAdapterHistoryRequest(pool="p", name="acme/a")),
        stub.RepairTenant(pb.RepairTenantRequest(name="acme", validate_only=True)),
        stub.GetPool(pb.GetPoolRequest(name="q")),
    ]
    await asyncio.gather(*map(answered, calls))
    assert "q" in {one.name for one in (await stub.ListPools(pb.ListPoolsRequest())).pools}
    await stub.ListAdapters(pb.ListAdaptersRequest(pool="q"))
    rollout = stub.WatchRollout(pb.WatchRolloutRequest(pool="p", name="acme/a"))
    await answered(rollout.read())
    rollout.cancel()


async def test_one_bad_value_is_one_bad_value(ledger, admin):
    """R14 nack, X2 unbreakable: each kind of stored key with hostile values, and every read beside it."""
    keys, client = ledger.keys, ledger.client
    await admin.stub.CreatePool(pb.CreatePoolRequest(pool=pb.Pool(name="q", base_models=["base"])))
    await admin.stub.ApplyAdapters(change_set(put("acme/a")))
    revision = (await admin.stub.ApplyAdapters(change_set(put("acme/a", uri="file:///b", strategy=CANARY)))).revision
    replicas = Replicas(client, keys)
    await replicas.alive("r1", "r2", capacity=9, labels={"zone": "a"})
    await replicas.says("r1", revision)
    of = [keys.replica("p", "r1"), keys.status("p", "r1"), keys.pool("p"), keys.tenant("acme")]
    of += [keys.adapter("p", "acme/a"), keys.history("p", "acme/a", 1)]
    of.append((await client.list_prefix(keys.audits())).kvs[-1].key)
    for number, key in enumerate(of):
        (good,) = (await client.range(Range(key))).kvs
        for value in islice(spoiled(good.value, each=1), number % EACH, None, EACH):
            await client.txn(Txn((), (Put(key, value, good.lease),)))
            await reads(admin)
        await client.txn(Txn((), (Put(key, good.value, good.lease),)))

    async def is_well() -> bool:
        async with http_client(timeout=PAGE_SECONDS) as http:
            page = await http.get(f"{admin.http}/v1/residency", params={"pool": "p"})
            ready = (await http.get(f"{admin.http}/readyz")).json()
        assert ready["failing"] == []
        return page.status_code == 200 and len(page.json()["adapters"][0]["replicas"]) == 2

    await eventually(is_well)
