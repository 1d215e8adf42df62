"""When waiting for a generation ends: whoever should serve it must, nobody else, and who does not is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from loraplane import AsyncRegistry, Published
from registry.client.adapters import published_of
from registry.model.errors import FailedPrecondition, Reason, Unavailable
from registry.model.keys import Keys
from registry.model.placement import placed, rate, weights_digest
from registry.model.records import Placement
from registry.model.status import Found, Lazy
from registry.v1 import registry_pb2 as pb
from tests.support.admin import Admin, change_set, put
from tests.support.made_up_replicas import POOL, SaidReplicas
from tests.support.waiting import eventually

NAMES = ("r1", "r2", "r3")
Apply = Callable[..., Awaitable[Published]]


@pytest.fixture
async def replicas(admin, etcd, etcd_client) -> SaidReplicas:
    said = SaidReplicas(etcd_client, Keys(etcd.prefix))
    await said.alive(*NAMES)
    return said


@pytest.fixture
def apply(admin: Admin) -> Apply:
    async def carry_out(uri: str = "s3://acme/v1/", **spec: object) -> Published:
        return published_of(await admin.stub.ApplyAdapters(change_set(put("acme/a", uri, **spec))))

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


async def test_only_those_that_it_is_placed_on(registry, replicas, apply):
    published = await apply(placement=pb.Placement(replicas=1))
    candidates = rate(replicas.members.values(), {})
    (chosen,) = placed(POOL, "acme%2Fa", Placement(replicas=1), candidates)
    for name in NAMES:
        if name != chosen:
            await replicas.say(name, published.revision, weights=weights_digest(candidates))
    await told(registry, published, f"not served in time: {chosen}: pending")
    await replicas.say(chosen, published.revision, weights=weights_digest(candidates))
    await registry.wait(published, timeout_seconds=60)


async def test_only_those_that_match(registry, replicas, apply):
    await replicas.alive("r4", zone="b")
    published = await apply(placement=pb.Placement(selector={"zone": "b"}))
    await replicas.say("r4", published.revision)
    await registry.wait(published, timeout_seconds=60)
    nobody = await apply(placement=pb.Placement(selector={"zone": "c"}))
    await told(registry, nobody, "no live replica of the pool matches its selector")


async def test_a_lazy_one_once_everybody_would_load_it(registry, replicas, apply):
    published = await apply(load="lazy")
    for name in NAMES:
        await replicas.say(name, published.revision, lazy=Lazy(servable=True))
    await registry.wait(published, timeout_seconds=60)
    await replicas.say("r2", published.revision, lazy=Lazy(servable=False, reason="no_plugin"))
    with pytest.raises(FailedPrecondition) as told:
        await registry.wait(published, timeout_seconds=60)
    assert dict(told.value.metadata) == {"r2": "failed - no_plugin - this replica cannot load at the first request"}


async def test_not_where_replicas_found_different_files(registry, replicas, apply):
    """R4: without a digest in the record nobody knows which is meant."""
    published = await apply()
    for name in NAMES:
        digest = "sha256:" + ("b" if name == "r2" else "a") * 64
        found = Found(name="acme/a", generation=1, digest=digest)
        await replicas.say(name, published.revision, found=[found])
    with pytest.raises(FailedPrecondition, match="digests_differ") as told:
        await registry.wait(published, timeout_seconds=60)
    assert set(told.value.metadata) == set(NAMES)


async def test_one_refusal_is_enough(registry, replicas, apply):
    published = await apply()
    await replicas.all_serve(published.revision)
    await replicas.refuse("r2", "acme/a", 1, published.revision)
    with pytest.raises(FailedPrecondition) as told:
        await registry.wait(published, timeout_seconds=60)
    assert (told.value.reason, dict(told.value.metadata)) == (
        Reason.ROLLOUT_FAILED,
        {"r2": "failed - digest_mismatch - m"},
    )


@pytest.mark.parametrize("gone", [True, False])
async def test_what_is_no_longer_meant(registry, replicas, apply, gone):
    published = await apply()
    await (registry.withdraw("acme/a", POOL) if gone else apply("s3://acme/v2/"))
    with pytest.raises(FailedPrecondition, match="deleted" if gone else "superseded"):
        await registry.wait(published, timeout_seconds=60)
