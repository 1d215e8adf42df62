"""Rollouts with canaries on real sidecars, a real etcd and a real admin service; the engines are simulated."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from registry.v1 import registry_pb2 as pb
from tests.support.adapters import write_adapter
from tests.support.admin import Admin, admin_inside, change_set, make_pool, put, wait_ready
from tests.support.fleet import BASE, POOL, SimulatedEngine, known_replicas

NAME = "acme/a"
REPLICAS = ("r1", "r2", "r3")
# So long that whoever watches sees it, also if the machine stands still for a moment.
ONE = pb.Strategy(canary_replicas="1", soak_seconds=10)


@pytest.fixture
async def admin(etcd):
    async with admin_inside(etcd.endpoints, etcd.prefix) as admin:
        await wait_ready(admin)
        await make_pool(admin, POOL, BASE)
        yield admin


@pytest.fixture
async def engines(admin, etcd, tmp_path):
    """Three replicas that the registry knows, by name."""
    async with known_replicas(admin, etcd.endpoints, etcd.prefix, tmp_path, *REPLICAS) as engines:
        yield engines


async def apply(admin: Admin, source: Path, strategy: pb.Strategy | None = ONE) -> int:
    """The generation."""
    changes = change_set(put(NAME, source.as_uri(), strategy=strategy), pool=POOL)
    return (await admin.stub.ApplyAdapters(changes)).results[0].adapter.generation


async def ended(admin: Admin, generation: int) -> list[pb.Rollout]:
    """Everything that is told of a generation until it is done."""
    request = pb.WatchRolloutRequest(pool=POOL, name=NAME, generation=generation)
    async with asyncio.timeout(60):
        return [rollout async for rollout in admin.stub.WatchRollout(request)]


async def served(engines: dict[str, SimulatedEngine]) -> dict[str, str]:
    """The prepared artifact behind the name on each engine."""
    return {name: Path((await engine.listing()).get(NAME, "")).name for name, engine in engines.items()}


async def test_the_canary_takes_it_first_and_then_all_do_or_nobody_else(admin, engines, tmp_path):
    """R3, R8, R9: nobody else has it before it is promoted; what it refuses is halted by itself, and taken back."""
    folders = [tmp_path / "sources" / name for name in ("v1", "v2", "bad")]
    first, second, bad = (write_adapter(folder, seed=seed).directory for seed, folder in enumerate(folders))
    (bad / "adapter_model.safetensors").write_bytes(b"these are no weights")
    await ended(admin, await apply(admin, first))
    before = await served(engines)
    told = await ended(admin, await apply(admin, second))
    soaking = next(one for one in told if one.waiting.startswith("its canaries serve it"))
    (canary,) = [one.replica for one in soaking.replicas if one.canary]
    assert [one.generation for one in told] == [2] * len(told)
    assert (told[-1].done, told[-1].failure) == (True, "")
    after = await served(engines)
    assert len(set(before.values())) == len(set(after.values())) == 1
    assert before[canary] != after[canary]
    told = await ended(admin, await apply(admin, bad))
    (canary,) = [one.replica for one in told[-1].replicas if one.canary]
    assert told[-1].failure == "halted"
    assert told[-1].canary.halted.startswith(f"1 of 1 canaries refuse it: {canary} ")
    assert await served(engines) == after
    back = await admin.stub.AbortRollout(pb.AbortRolloutRequest(pool=POOL, name=NAME))
    last = await ended(admin, back.results[0].adapter.generation)
    assert (last[-1].generation, last[-1].failure) == (4, "")
    assert await served(engines) == after
