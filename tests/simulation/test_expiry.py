"""What has a ttl ends in the simulated world: once, not a moment early, and is unloaded everywhere."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from registry.model.errors import RegistryError
from registry.model.names import name_key
from registry.model.records import AdapterSpec, PoolSpec, SourceSpec
from registry.transactions.changes import ApplyAdapters, Upsert
from tests.simulation.artifacts import ROOT
from tests.simulation.engines import BASE
from tests.simulation.history import POOL
from tests.simulation.simulation import play_by_hand
from tests.simulation.world import KEYS, World

NAME, TTL = "acme/ends", 120
# With each kill of all admin services goes what they had not written down yet.
LATE_SECONDS = 100.0


def now() -> float:
    return asyncio.get_running_loop().time()


async def applied(world: World, name: str, ttl: int | None) -> None:
    """It is applied, whoever is killed meanwhile."""
    spec = AdapterSpec(source=SourceSpec(uri=f"{ROOT}good-{name.rpartition('/')[2]}"), ttl_seconds=ttl)
    for attempt in range(20):
        try:
            await world.change(ApplyAdapters(POOL, (Upsert(name, spec),)), f"apply-{name_key(name)[-4:]}-{attempt}")
        except RegistryError:
            await asyncio.sleep(1.0)
        else:
            return
    raise AssertionError(f"{name} is not applied")


async def ends(world: World, kills: int, skew_seconds: float) -> None:
    world.store.put(KEYS.pool(POOL), PoolSpec(name=POOL, base_models=[BASE]).to_bytes())
    host, key = world.replicas[0], KEYS.adapter(POOL, NAME)
    host.engine.start()
    world.start(host)
    for admin in world.admins:
        admin.start()
    await asyncio.sleep(3.0)
    await applied(world, "stays", None)
    await applied(world, NAME, TTL)
    written = now()
    while len(host.engine.listing) < 2:
        assert now() - written < TTL / 2
        await asyncio.sleep(0.5)
    for at in range(kills):
        await asyncio.sleep(written + TTL * (at + 1) / (kills + 2) - now())
        world.skew_seconds += skew_seconds
        for admin in world.admins:
            world.kill_admin(admin)
    world.skew_seconds += skew_seconds
    while key in world.store.kvs:
        assert now() - written < TTL + LATE_SECONDS * (1 + kills), "it has not ended"
        await asyncio.sleep(0.5)
    while len(host.engine.listing) > 1:
        assert now() - written < TTL + LATE_SECONDS * (2 + kills), "it is still loaded"
        await asyncio.sleep(0.5)
    await asyncio.sleep(30.0)
    assert (list(host.engine.listing), world.conduct.ended) == (["stays"], ["acme%2Fends"])
    assert world.checks.violations == []


@pytest.mark.parametrize("skew_seconds", [0.0, 1e7, -1e7])
@pytest.mark.parametrize(("kills", "seed"), [(0, 0), (1, 2), (3, 3)])
def test_an_adapter_ends_once_and_never_early(kills: int, seed: int, skew_seconds: float):
    """R25 ends-once, R6: all admin services are killed and come back, and wall clocks jump."""
    play_by_hand(seed, partial(ends, kills=kills, skew_seconds=skew_seconds))
