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


def sources(folder: Path) -> list[Path]:
    made = [folder / "sources" / f"v{number}" for number in (1, 2)]
    for seed, source in enumerate(made):
        write_adapter(source, seed=seed)
    return made


async def test_the_canary_takes_it_first_and_then_all_do(admin, engines, tmp_path):
    """R3, R9: nobody else has it before it is promoted; afterwards all have, under the same generation."""
    first, second = sources(tmp_path)
    await ended(admin, await apply(admin, first))
    before = await served(engines)
    generation = await apply(admin, second)
    told = await ended(admin, generation)
    soaking = next(one for one in told if one.waiting.startswith("its canaries serve it"))
    (canary,) = [one.replica for one in soaking.replicas if one.canary]
    assert [one.generation for one in told] == [2] * len(told)
    assert (told[-1].done, told[-1].failure) == (True, "")
    after = await served(engines)
    assert len(set(before.values())) == len(set(after.values())) == 1
    assert before[canary] != after[canary]


async def test_what_the_canary_refuses_stays_with_it(admin, engines, tmp_path):
    """R8 isolation: halted by itself, the others keep what they serve and hear of nothing; then it is taken back."""
    first, _ = sources(tmp_path)
    bad = tmp_path / "sources" / "bad"
    write_adapter(bad, seed=9)
    (bad / "adapter_model.safetensors").write_bytes(b"these are no weights")
    await ended(admin, await apply(admin, first))
    before = await served(engines)
    told = await ended(admin, await apply(admin, bad))
    assert told[-1].failure == "halted"
    (canary,) = [one.replica for one in told[-1].replicas if one.canary]
    assert told[-1].canary.halted.startswith(f"1 of 1 canaries refuse it: {canary} ")
    assert await served(engines) == before
    back = await admin.stub.AbortRollout(pb.AbortRolloutRequest(pool=POOL, name=NAME))
    last = await ended(admin, back.results[0].adapter.generation)
    assert (last[-1].generation, last[-1].failure) == (3, "")
    assert await served(engines) == before


async def test_by_hand(admin, engines, tmp_path):
    """One engine has the new weights and two the old ones, for as long as nobody says otherwise."""
    first, second = sources(tmp_path)
    by_hand = pb.Strategy(canary_replicas="34%", promote="manual")
    await ended(admin, await apply(admin, first, by_hand))
    before = await served(engines)
    told = (await ended(admin, await apply(admin, second, by_hand)))[-1]
    canaries = {one.replica for one in told.replicas if one.canary}
    assert len(canaries) == 2, "34 % of three, rounded up"
    now = await served(engines)
    assert {name for name in REPLICAS if now[name] != before[name]} == canaries
    await admin.stub.PromoteRollout(pb.PromoteRolloutRequest(pool=POOL, name=NAME))
    assert (await ended(admin, 2))[-1].failure == ""
    assert len(set((await served(engines)).values())) == 1


async def test_canaries_of_what_is_placed_by_number(admin, engines, tmp_path):
    """R9: admin service and sidecars mean the same two replicas, and the same one of them as its canary."""
    first, second = sources(tmp_path)

    async def put_on_two(source: Path) -> pb.Rollout:
        by_hand = pb.Strategy(canary_replicas="1", promote="manual")
        change = put(NAME, source.as_uri(), strategy=by_hand, placement=pb.Placement(replicas=2))
        response = await admin.stub.ApplyAdapters(change_set(change, pool=POOL))
        return (await ended(admin, response.results[0].adapter.generation))[-1]

    placed = {one.replica for one in (await put_on_two(first)).replicas}
    before = await served(engines)
    assert {name for name in REPLICAS if before[name]} == placed
    assert len(placed) == 2
    (canary,) = [one.replica for one in (await put_on_two(second)).replicas if one.canary]
    after = await served(engines)
    assert {name for name in REPLICAS if after[name] != before[name]} == {canary}
