"""Rollouts with canaries, on a real etcd over real gRPC, ended by one admin service of several."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from registry.etcd3.ops import Range, prefix_end
from registry.v1 import registry_pb2 as pb
from tests.support.admin import Admin, admin_inside, change_set, put, refusal, refused, wait_ready
from tests.support.made_up_replicas import SaidReplicas
from tests.support.waiting import eventually

NAME = "acme/a"


@pytest.fixture
async def services(etcd, ledger, admin) -> AsyncIterator[list[Admin]]:
    """Three, each with its rollout controller."""
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(admin_inside(etcd.endpoints, etcd.prefix)) for _ in range(2)]
        for one in others:
            await wait_ready(one)
        yield [admin, *others]


@pytest.fixture
async def replicas(ledger, admin) -> SaidReplicas:
    """Three that live."""
    said = SaidReplicas(ledger.client, ledger.keys)
    await said.alive("r1", "r2", "r3")
    return said


async def begun(admin, *names: str, **strategy: Any) -> int:
    """Generation 1 for all, generation 2 for canaries; the revision of that."""
    how = pb.Strategy(**{"canary_replicas": "34%", "soak_seconds": 0, **strategy})
    for uri in ("file:///a/v1", "file:///a/v2"):
        changed = await admin.stub.ApplyAdapters(change_set(*(put(name, uri, strategy=how) for name in names)))
    return changed.revision


async def adapters(admin) -> dict[str, pb.Adapter]:
    return {one.name: one for one in (await admin.stub.ListAdapters(pb.ListAdaptersRequest(pool="p"))).adapters}


async def all_over(admin) -> bool:
    return not any(one.HasField("rollout") for one in (await adapters(admin)).values())


async def audits(ledger) -> list[dict]:
    prefix = ledger.keys.audit("p", "")
    found = await ledger.client.range(Range(prefix, prefix_end(prefix)))
    return [json.loads(kv.value) for kv in found.kvs]


async def test_many_admin_services_promote_once(ledger, services, replicas):
    """W2, W3 idempotent, W6, W7: three conductors see the same at the same time, and it is done once."""
    names = [f"acme/n{number}" for number in range(8)]
    revision = await begun(services[0], *names)
    before = await adapters(services[0])
    assert {one.rollout.stable_spec.source.uri for one in before.values()} == {"file:///a/v1"}
    await replicas.all_serve(revision)
    await eventually(lambda: all_over(services[1]))
    after = await adapters(services[0])
    assert {(one.generation, one.spec.source.uri) for one in after.values()} == {(2, "file:///a/v2")}
    told = [one for one in await audits(ledger) if one["method"] == "PromoteRollout"]
    assert sorted(one["changes"][0]["name"] for one in told) == names
    assert {(one["principal"], one["role"]) for one in told} == {("loraplane-admin", "conductor")}
    await ledger.check()


async def test_abortions_against_conductors(ledger, services, replicas):
    """W4, W6, W7: of promotion and abortion one wins, whole, and the other is told so."""
    names = [f"acme/n{number}" for number in range(6)]
    revision = await begun(services[0], *names)
    asked = [pb.AbortRolloutRequest(pool="p", name=name) for name in names]
    abort = [one.stub.AbortRollout(request) for one in services[:2] for request in asked]
    _, *ended = await asyncio.gather(replicas.all_serve(revision), *abort, return_exceptions=True)
    await eventually(lambda: all_over(services[0]))
    aborted = {reply.results[0].adapter.name for reply in ended if not isinstance(reply, BaseException)}
    found = await adapters(services[0])
    assert aborted == {name for name, one in found.items() if one.spec.source.uri == "file:///a/v1"}
    assert {refused(error).reason for error in ended if isinstance(error, grpc.RpcError)} <= {"NO_ROLLOUT", "LOST_RACE"}
    await ledger.check()


async def test_what_canaries_refuse_is_halted_until_somebody_ends_it(ledger, services, replicas):
    """R8 isolation, W9: it goes no further by itself, even if they serve it later."""
    (admin, *_), asked = services, {"pool": "p", "name": NAME}
    revision = await begun(admin, NAME)
    call = admin.stub.WatchRollout(pb.WatchRolloutRequest(**asked))
    rollout = await call.read()
    canaries = [one.replica for one in rollout.replicas if one.canary]
    for canary in canaries:
        await replicas.refuse(canary, NAME, 2, revision)
    async with asyncio.timeout(120):
        while not rollout.done:
            rollout = await call.read()
    assert (rollout.failure, rollout.canary.halted.startswith("2 of 2 canaries refuse it: ")) == ("halted", True)
    now = (await adapters(admin))[NAME]
    where = await admin.stub.WatchResidency(pb.WatchResidencyRequest(**asked)).read()
    assert where.adapters[0].halted == rollout.canary.halted
    await replicas.all_serve(int(now.etag))
    again = await admin.stub.WatchRollout(pb.WatchRolloutRequest(**asked)).read()
    assert (again.done, again.failure, (await adapters(admin))[NAME].etag) == (True, "halted", now.etag)
    wrong = await refusal(admin.stub.AbortRollout(pb.AbortRolloutRequest(**asked, generation=1)))
    assert (wrong.code, wrong.reason) == (StatusCode.ABORTED, "GENERATION_MISMATCH")
    dry = await admin.stub.AbortRollout(pb.AbortRolloutRequest(**asked, validate_only=True))
    done = await admin.stub.AbortRollout(pb.AbortRolloutRequest(**asked, generation=2, etag=now.etag))
    back = done.results[0].adapter
    assert (back.generation, back.spec.source.uri, back.HasField("rollout")) == (3, "file:///a/v1", False)
    assert dry.results[0].adapter.spec == back.spec
    await ledger.check()
