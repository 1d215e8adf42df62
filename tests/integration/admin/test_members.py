"""Replicas that are expected, on a real etcd over real gRPC."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from registry.etcd3.ops import Put, Range, Txn
from registry.model.status import RememberedReplicas
from registry.rollout import members
from registry.v1 import registry_pb2 as pb
from tests.support.admin import admin_inside, change_set, put, refusal
from tests.support.made_up_replicas import SaidReplicas
from tests.support.metrics import read_metrics
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(members, "_PAUSE_SECONDS", 0.05)


async def remembered(ledger) -> dict[str, bool]:
    """Who is remembered, and whether as living."""
    found = await ledger.client.range(Range(ledger.keys.members("p")))
    members = RememberedReplicas.parse(found.kvs[0].value).members if found.kvs else {}
    return {name: not one.last_seen for name, one in members.items()}


async def listed(admin) -> tuple[list[str], list[str]]:
    reply = await admin.stub.ListReplicas(pb.ListReplicasRequest(pool="p"))
    return [one.name for one in reply.replicas], [one.name for one in reply.missing]


def forget(admin, name: str, **fields):
    return admin.stub.ForgetReplica(pb.ForgetReplicaRequest(pool="p", name=name, **fields))


async def test_a_replica_that_dies_is_missed_until_it_is_forgotten(ledger, admin, etcd):
    """By several admin services at once; nobody writes while nobody comes or goes."""
    said = SaidReplicas(ledger.client, ledger.keys)
    async with admin_inside(etcd.endpoints, etcd.prefix):
        await said.alive("r1", "r2")

        async def all_known() -> bool:
            return await remembered(ledger) == {"r1": True, "r2": True}

        await eventually(all_known)
        await said.gone("r2")
        assert await listed(admin) == (["r1"], ["r2"]), "before anybody has written that it is gone"

        async def gone_known() -> bool:
            return await remembered(ledger) == {"r1": True, "r2": False}

        await eventually(gone_known)
        revision = (await ledger.client.range(Range(ledger.keys.members("p")))).kvs[0].mod_revision
        await said.alive("r1")
        applied = await admin.stub.ApplyAdapters(change_set(put("acme/a", "file:///a/v1")))
        await said.say("r1", applied.revision)
        call = admin.stub.WatchRollout(pb.WatchRolloutRequest(pool="p", name="acme/a"))
        first = await call.read()
        assert {one.replica: one.reason for one in first.replicas} == {"r1": "", "r2": "not_alive"}
        assert (await ledger.client.range(Range(ledger.keys.members("p")))).kvs[0].mod_revision == revision
        await forget(admin, "r2", validate_only=True)
        await forget(admin, "r2")
        last = first
        while not last.done:
            last = await call.read()
        assert (last.done, last.failure, [one.replica for one in last.replicas]) == (True, "", ["r1"])
        assert await listed(admin) == (["r1"], [])


async def test_a_replica_that_ended_in_order_is_not_missed(ledger, admin):
    """Only the process that said so: who comes back under its name and dies is."""
    said = SaidReplicas(ledger.client, ledger.keys)
    await said.alive("r1", "r2")

    async def comes_to(wanted: dict[str, bool]) -> None:
        async def is_so() -> bool:
            return await remembered(ledger) == wanted

        await eventually(is_so)

    await comes_to({"r1": True, "r2": True})
    await ledger.client.txn(Txn((), (Put(ledger.keys.left("p", "r1"), b"?"),)))
    await said.left("r2")
    await comes_to({"r1": True})
    assert await listed(admin) == (["r1"], [])
    await said.alive("r2", incarnation="i2")
    await comes_to({"r1": True, "r2": True})
    await said.gone("r2")
    await comes_to({"r1": True, "r2": False})


async def test_replicas_whose_pool_does_not_exist_are_listed_where_they_are_asked_for(ledger, admin):
    said = SaidReplicas(ledger.client, ledger.keys)
    await said.alive("r1")
    stray = ledger.keys.replica("nowhere", "r9")
    await ledger.client.txn(Txn((), (Put(stray, b"?"),)))
    told = await admin.stub.ListPools(pb.ListPoolsRequest(show_unknown=True))
    assert [(one.name, one.replicas, list(one.names)) for one in told.unknown] == [("nowhere", 1, ["r9"])]
    assert not (await admin.stub.ListPools(pb.ListPoolsRequest())).unknown


async def test_a_group_that_lacks_members_is_told_and_counted(ledger, admin):
    said = SaidReplicas(ledger.client, ledger.keys)
    await said.alive("a1", "a2", "a3", zone="a")
    await said.alive("b1", zone="b")
    zones = [pb.ReplicaGroup(labels={"zone": zone}, replicas=3) for zone in "ab"]
    pool = pb.Pool(name="p", limits=pb.PoolLimits(expected_groups=zones))
    mask = FieldMask(paths=["limits.expected_groups"])
    made = await admin.stub.UpdatePool(pb.UpdatePoolRequest(pool=pool, update_mask=mask))
    assert list(made.limits.expected_groups) == zones
    reply = await admin.stub.ListReplicas(pb.ListReplicasRequest(pool="p"))
    assert (reply.lacking, [one.live for one in reply.groups]) == (2, [3, 1])
    assert [one.expected for one in reply.groups] == zones

    async def is_counted() -> bool:
        return (await read_metrics(admin.http)).get('loraplane_admin_missing_replicas{pool="p"}') == 2

    await eventually(is_counted)
    twice = pb.PoolLimits(expected_groups=[*zones, pb.ReplicaGroup(labels={"gpu": "a10"}, replicas=1)])
    call = admin.stub.UpdatePool(pb.UpdatePoolRequest(pool=pb.Pool(name="p", limits=twice), update_mask=mask))
    told = await refusal(call)
    assert (told.reason, told.field) == ("INVALID_FIELD", "pool.limits.expected_groups")
    assert "other values of a label" in told.message


async def test_what_cannot_be_forgotten(ledger, admin):
    said = SaidReplicas(ledger.client, ledger.keys)
    await said.alive("r1")
    for name, code, reason in (
        ("r1", grpc.StatusCode.FAILED_PRECONDITION, "REPLICA_LIVES"),
        ("r9", grpc.StatusCode.NOT_FOUND, "REPLICA_NOT_FOUND"),
    ):
        told = await refusal(forget(admin, name))
        assert (told.code, told.reason) == (code, reason)
