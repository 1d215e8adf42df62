"""A sidecar of the simulation does what the daemon does, also where no check of a whole simulation would notice."""

from __future__ import annotations

import asyncio
import random
import shutil
from functools import partial

import pytest

from registry.model.records import PoolLimits, PoolSpec
from registry.model.status import Presence, ReplicaStatus
from sidecar.loop.observer import STALLED
from tests.simulation.engines import BASE
from tests.simulation.faults import lose_disk
from tests.simulation.history import POOL
from tests.simulation.simulation import play_by_hand
from tests.simulation.world import KEYS, World

HELD = 3
SECONDS = 5.0


def presence(world: World) -> Presence:
    return Presence.parse(world.store.kvs[KEYS.replica(POOL, world.replicas[0].name)].value)


async def restart_under_a_pool_that_cannot_be_read(world: World) -> None:
    host = world.replicas[0]
    pool = PoolSpec(name=POOL, base_models=[BASE], limits=PoolLimits(max_adapters=HELD))
    world.store.put(KEYS.pool(POOL), pool.to_bytes())
    host.engine.start()
    world.start(host)
    await asyncio.sleep(SECONDS)
    before = presence(world)
    world.kill(host)
    shutil.rmtree(host.place.state)
    world.store.put(KEYS.pool(POOL), b'{"schema": 99}')
    world.start(host)
    await asyncio.sleep(SECONDS)
    after = presence(world)
    assert after.incarnation != before.incarnation
    assert (before.capacity, after.capacity) == (HELD, HELD)


def test_until_the_pool_is_read_presence_tells_of_the_capacity_that_it_had():
    """R9: others share adapters out by it, and no plan says yet how many this replica may hold."""
    play_by_hand(0, restart_under_a_pool_that_cannot_be_read)


STALLED_SECONDS = 30.0


async def core_stands_still(world: World) -> None:
    host = world.replicas[0]
    world.store.put(KEYS.pool(POOL), PoolSpec(name=POOL, base_models=[BASE]).to_bytes())
    host.engine.start()
    world.start(host)
    await asyncio.sleep(SECONDS)
    assert status(world).ready
    event = host.engine.stall()
    await asyncio.sleep(STALLED_SECONDS)
    assert (status(world).ready, status(world).note) == (False, STALLED)
    event.set()
    await asyncio.sleep(STALLED_SECONDS)
    assert status(world).ready


def status(world: World) -> ReplicaStatus:
    return ReplicaStatus.parse(world.store.kvs[KEYS.status(POOL, world.replicas[0].name)].value)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_an_engine_that_answers_and_generates_nothing_is_told_of(seed):
    """R18 readiness-follows: with the plugin and without."""
    play_by_hand(seed, core_stands_still)


async def lose_disks(world: World, emptied: str) -> None:
    world.store.put(KEYS.pool(POOL), PoolSpec(name=POOL, base_models=[BASE]).to_bytes())
    for admin in world.admins:
        admin.start()
    for _ in range(20):  # more revisions than a store has that has just been emptied
        world.store.put(KEYS.adapter(POOL, "a"), b"{}")
    for host in world.replicas:
        host.engine.start()
        world.start(host)
    await asyncio.sleep(SECONDS)
    applied = dict(world.checks.applied)
    if emptied == "before":
        world.replace_store(0, bump=0)
        await asyncio.sleep(SECONDS)
    heal = lose_disk(world, random.Random(0))
    if emptied == "after":
        world.replace_store(0, bump=0)
    heal()
    await asyncio.sleep(SECONDS)
    back = {name for name, revision in world.checks.applied.items() if revision < applied[name]}
    assert (len(back), world.checks.violations) == (emptied != "never", [])


@pytest.mark.parametrize("emptied", ["before", "after", "never"])
def test_a_replica_that_lost_its_disk_goes_back_with_the_store_alone(emptied):
    """R1 monotonic: it knows nothing of before, so that nothing can hold the list of a store that was set back."""
    play_by_hand(0, partial(lose_disks, emptied=emptied))
