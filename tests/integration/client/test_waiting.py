"""When waiting for a generation ends: whoever should serve it must, nobody else, and who does not is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from loraplane import AsyncRegistry, Canaries, Published
from registry.client.adapters import published_of
from registry.model.errors import FailedPrecondition, Reason, Unavailable
from registry.model.keys import Keys
from registry.v1 import registry_pb2 as pb
from tests.support.admin import Admin, change_set, put
from tests.support.made_up_replicas import POOL, SaidReplicas
from tests.support.waiting import eventually

NAMES = ("r1", "r2", "r3")
Apply = Callable[..., Awaitable[Published]]


@pytest.fixture
async def replicas(admin, etcd, etcd_client) -> SaidReplicas:
    said = SaidReplicas(etcd_client, Keys(etcd.prefix))
    await said.live(*NAMES)
    return said


@pytest.fixture
def apply(admin: Admin) -> Apply:
    async def carry_out(uri: str = "s3://acme/v1/", **spec: object) -> Published:
        (published,) = published_of(await admin.stub.ApplyAdapters(change_set(put("acme/a", uri, **spec))))
        return published

    return carry_out


async def told(registry: AsyncRegistry, published: Published, words: str) -> Unavailable:
    """The error of waiting in vain. It tells what was heard last, and on a slow machine nothing may have been."""

    async def waited() -> Unavailable | None:
        with pytest.raises(Unavailable) as late:
            await registry.wait(published, timeout_seconds=1)
        return late.value if words in late.value.message else None

    return await eventually(waited)


async def test_not_before_the_last_of_all(registry, replicas, apply):
    """R9: READY(generation) of each."""
    published = await apply()
    waiting = asyncio.create_task(registry.wait(published, timeout_seconds=60))
    for name in NAMES[:2]:
        await replicas.say(name, published.revision)
    late = await told(registry, published, "not served in time: r3: pending - not_seen")
    assert (late.reason, set(late.metadata)) == (Reason.DEADLINE_EXCEEDED, {"r3", "request_id"})
    assert not waiting.done()
    await replicas.say("r3", published.revision)
    await waiting


async def test_a_refusal_is_an_error_and_so_is_what_is_no_longer_meant(registry, replicas, apply):
    """R9: who refuses is named; a newer generation and a deletion end the wait for an older one."""
    published = await apply()
    await replicas.all_serve(published.revision)
    await replicas.refuse("r2", "acme/a", 1, published.revision)
    with pytest.raises(FailedPrecondition) as refused:
        await registry.wait(published, timeout_seconds=60)
    assert (refused.value.reason, dict(refused.value.metadata)) == (
        *(Reason.ROLLOUT_FAILED, {"r2": "failed - digest_mismatch - m"}),
    )
    second = await apply("s3://acme/v2/")
    with pytest.raises(FailedPrecondition, match="superseded"):
        await registry.wait(published, timeout_seconds=60)
    await registry.withdraw("acme/a", POOL)
    with pytest.raises(FailedPrecondition, match="deleted"):
        await registry.wait(second, timeout_seconds=60)


async def test_with_canaries_by_hand_it_is_over_once_they_serve_it_or_refuse_it(registry, admin, replicas):
    """R9: not before, though all others serve what they served."""
    by_hand, waits = Canaries(1, promote="manual"), []
    for version in (1, 2):
        uri = f"s3://acme/policy/{version}/"
        waits.append(await registry.publish(uri, "acme/a", POOL, canaries=by_hand, wait=False))
    waiting = asyncio.create_task(registry.wait(waits[1], timeout_seconds=60))
    first = await admin.stub.WatchRollout(pb.WatchRolloutRequest(pool=POOL, name="acme/a")).read()
    (canary,) = [one.replica for one in first.replicas if one.canary]
    for name in {*NAMES} - {canary}:
        await replicas.say(name, waits[1].revision)
    assert not waiting.done()
    await replicas.say(canary, waits[1].revision)
    await waiting
    await replicas.refuse(canary, "acme/a", 2, waits[1].revision)
    with pytest.raises(FailedPrecondition, match="halted - 1 of 1 canaries refuse it") as told:
        await registry.wait(waits[1], timeout_seconds=60)
    assert set(told.value.metadata) == {canary}
