"""Replicas that are expected, on a real etcd over real gRPC."""

from __future__ import annotations

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from registry.etcd3.ops import Range
from registry.model.status import RememberedReplicas
from registry.rollout import members
from registry.v1 import registry_pb2 as pb
from tests.support.admin import admin_inside, refusal
from tests.support.made_up_replicas import SaidReplicas
from tests.support.metrics import read_metrics
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(members, "_PAUSE_SECONDS", 0.05)


async def remembered(ledger) -> tuple[dict[str, bool], int]:
    """Who is remembered, and whether as living; the revision of that."""
    found = await ledger.client.range(Range(ledger.keys.members("p")))
    if not found.kvs:
        return {}, 0
    told = RememberedReplicas.parse(found.kvs[0].value).members
    return {name: not one.last_seen for name, one in told.items()}, found.kvs[0].mod_revision


async def test_who_dies_is_missed_until_it_is_forgotten_and_who_ends_in_order_is_not(ledger, admin, etcd):
    """R9, R20: by several admin services at once; nobody writes while nobody comes or goes."""
    said = SaidReplicas(ledger.client, ledger.keys)

    async def comes_to(**wanted: bool) -> int:
        async def is_so() -> int:
            found, revision = await remembered(ledger)
            assert found == wanted
            return revision

        return await eventually(is_so)

    async def listed() -> tuple[list[str], list[str]]:
        reply = await admin.stub.ListReplicas(pb.ListReplicasRequest(pool="p"))
        return [one.name for one in reply.replicas], [one.name for one in reply.missing]

    async with admin_inside(etcd.endpoints, etcd.prefix):
        await said.live("r1", "r2", "r3", zone="a")
        await comes_to(r1=True, r2=True, r3=True)
        await said.gone("r2")
        assert await listed() == (["r1", "r3"], ["r2"]), "before anybody has written that it is gone"
        await comes_to(r1=True, r2=False, r3=True)
        await said.left("r3")
        revision = await comes_to(r1=True, r2=False)
        await said.live("r1", zone="a")
        lives = await refusal(admin.stub.ForgetReplica(pb.ForgetReplicaRequest(pool="p", name="r1")))
        assert lives.reason == "REPLICA_LIVES"
        await admin.stub.ForgetReplica(pb.ForgetReplicaRequest(pool="p", name="r2", validate_only=True))
        assert await comes_to(r1=True, r2=False) == revision
        await admin.stub.ForgetReplica(pb.ForgetReplicaRequest(pool="p", name="r2"))
        assert await listed() == (["r1"], [])
    zone = pb.ReplicaGroup(labels={"zone": "a"}, replicas=3)
    pool = pb.Pool(name="p", limits=pb.PoolLimits(expected_groups=[zone]))
    mask = FieldMask(paths=["limits.expected_groups"])
    await admin.stub.UpdatePool(pb.UpdatePoolRequest(pool=pool, update_mask=mask))
    reply = await admin.stub.ListReplicas(pb.ListReplicasRequest(pool="p"))
    assert (reply.lacking, [(one.live, one.expected) for one in reply.groups]) == (2, [(1, zone)])

    async def is_counted() -> bool:
        return (await read_metrics(admin.http)).get('loraplane_admin_missing_replicas{pool="p"}') == 2

    await eventually(is_counted)
