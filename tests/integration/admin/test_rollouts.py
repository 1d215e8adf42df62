"""Rollouts with canaries that an admin service conducts by itself, on a real etcd over real gRPC."""

from __future__ import annotations

import asyncio

import pytest
from grpc import StatusCode

from registry.v1 import registry_pb2 as pb
from tests.support.admin import change_set, put, refusal
from tests.support.made_up_replicas import SaidReplicas

NAME = "acme/a"


@pytest.fixture
async def replicas(ledger, admin) -> SaidReplicas:
    """Three that live."""
    said = SaidReplicas(ledger.client, ledger.keys)
    await said.live("r1", "r2", "r3")
    return said


async def stands(admin) -> pb.Adapter:
    return await admin.stub.GetAdapter(pb.GetAdapterRequest(pool="p", name=NAME))


async def test_what_canaries_refuse_is_halted_until_somebody_ends_it(ledger, admin, replicas):
    """R8 isolation, W9: it goes no further by itself, even if they serve it later."""
    asked = {"pool": "p", "name": NAME}
    how = pb.Strategy(canary_replicas="34%", soak_seconds=0)
    for uri in ("file:///a/v1", "file:///a/v2"):
        changed = await admin.stub.ApplyAdapters(change_set(put(NAME, uri, strategy=how)))
    revision = changed.revision
    call = admin.stub.WatchRollout(pb.WatchRolloutRequest(**asked))
    rollout = await call.read()
    canaries = [one.replica for one in rollout.replicas if one.canary]
    for canary in canaries:
        await replicas.refuse(canary, NAME, 2, revision)
    async with asyncio.timeout(120):
        while not rollout.done:
            rollout = await call.read()
    assert (rollout.failure, rollout.canary.halted.startswith("2 of 2 canaries refuse it: ")) == ("halted", True)
    now = await stands(admin)
    where = await admin.stub.WatchResidency(pb.WatchResidencyRequest(**asked)).read()
    assert where.adapters[0].halted == rollout.canary.halted
    await replicas.all_serve(int(now.etag))
    again = await admin.stub.WatchRollout(pb.WatchRolloutRequest(**asked)).read()
    assert (again.done, again.failure, (await stands(admin)).etag) == (True, "halted", now.etag)
    wrong = await refusal(admin.stub.AbortRollout(pb.AbortRolloutRequest(**asked, generation=1)))
    assert (wrong.code, wrong.reason) == (StatusCode.ABORTED, "GENERATION_MISMATCH")
    dry = await admin.stub.AbortRollout(pb.AbortRolloutRequest(**asked, validate_only=True))
    done = await admin.stub.AbortRollout(pb.AbortRolloutRequest(**asked, generation=2, etag=now.etag))
    back = done.results[0].adapter
    assert (back.generation, back.spec.source.uri, back.HasField("rollout")) == (3, "file:///a/v1", False)
    assert dry.results[0].adapter.spec == back.spec
    await ledger.check()
