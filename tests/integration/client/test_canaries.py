"""Publishing with canaries: when `publish` returns, and what it raises where they refuse it."""

from __future__ import annotations

import asyncio

import pytest

from loraplane import Canaries
from registry.etcd3.ops import Range
from registry.model.errors import FailedPrecondition, Reason
from registry.model.keys import Keys
from registry.v1 import registry_pb2 as pb
from tests.support.made_up_replicas import POOL, SaidReplicas
from tests.support.waiting import eventually

NAME = "acme/policy"
BY_HAND = Canaries(1, promote="manual")


@pytest.fixture
async def replicas(admin, etcd, etcd_client) -> SaidReplicas:
    """Three that live."""
    said = SaidReplicas(etcd_client, Keys(etcd.prefix))
    await said.alive("r1", "r2", "r3")
    return said


async def publish(registry, version: int, canaries: Canaries, wait: bool = False):
    return await registry.publish(f"s3://acme/policy/{version}/", NAME, POOL, canaries=canaries, wait=wait)


async def canary_of(admin) -> str:
    first = await admin.stub.WatchRollout(pb.WatchRolloutRequest(pool=POOL, name=NAME)).read()
    (canary,) = [one.replica for one in first.replicas if one.canary]
    return canary


async def revision(etcd, etcd_client) -> int:
    found = await etcd_client.range(Range(Keys(etcd.prefix).adapter(POOL, NAME)))
    return found.kvs[0].mod_revision


async def test_by_hand_it_returns_once_the_canaries_serve_it(registry, admin, replicas, etcd, etcd_client):
    """R9: not before, though all others serve what they served."""
    await publish(registry, 1, BY_HAND)
    second = await publish(registry, 2, BY_HAND)
    waiting = asyncio.create_task(registry.wait(second, timeout_seconds=60))
    canary = await canary_of(admin)
    for name in replicas.members:
        if name != canary:
            await replicas.say(name, second.revision)
    assert not waiting.done()
    await replicas.say(canary, second.revision)
    await waiting
    assert await revision(etcd, etcd_client) == second.revision, "it was not promoted"


async def test_of_itself_it_returns_once_all_serve_it(registry, admin, replicas, etcd, etcd_client):
    at_once = Canaries("25%", soak_seconds=0)
    await publish(registry, 1, at_once)
    second = await publish(registry, 2, at_once)
    waiting = asyncio.create_task(registry.wait(second, timeout_seconds=60))
    await replicas.all_serve(second.revision)

    async def is_promoted() -> bool:
        return await revision(etcd, etcd_client) > second.revision

    await eventually(is_promoted)
    assert not waiting.done(), "nobody has seen yet that it is for all"
    await replicas.all_serve(await revision(etcd, etcd_client))
    await waiting


async def test_a_halted_rollout_is_an_error(registry, admin, replicas):
    await publish(registry, 1, BY_HAND)
    second = await publish(registry, 2, BY_HAND)
    canary = await canary_of(admin)
    await replicas.refuse(canary, NAME, 2, second.revision)
    with pytest.raises(FailedPrecondition, match="halted - 1 of 1 canaries refuse it") as told:
        await registry.wait(second, timeout_seconds=60)
    assert (told.value.reason, set(told.value.metadata)) == (Reason.ROLLOUT_FAILED, {canary})
