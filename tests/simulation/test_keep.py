"""Generations that are kept in the simulated world: each that was served is served until it is out of keep."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial

import pytest

from registry.model.errors import RegistryError
from registry.model.records import AdapterRecord, AdapterSpec, PoolSpec, SourceSpec
from registry.transactions.changes import ApplyAdapters, Upsert
from tests.simulation.artifacts import ROOT
from tests.simulation.engines import BASE
from tests.simulation.history import POOL
from tests.simulation.simulation import play_by_hand
from tests.simulation.world import KEYS, ReplicaHost, World

NAME, KEEP, VERSIONS = "acme/policy", 3, 9
# Between two publications; a generation that a new engine lost is there again within as much.
PERIOD_SECONDS, LOOK_SECONDS, BACK_SECONDS = 40.0, 0.1, 60.0
# What is pushed out is unloaded within so long.
OUT_SECONDS = 60.0


@dataclass
class KeepRule:
    """R25: what is served once is served until it is out of keep, but for so long after a fault of its engine.

    Attributes:
        served: names that were served and are in keep, by replica.
        excused: until when a replica may lack them.
        broken: what was found.
    """

    world: World
    served: dict[str, set[str]] = field(default_factory=dict)
    excused: dict[str, float] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)

    def kept(self) -> set[str]:
        """Names that are in keep, the newest included."""
        kv = self.world.store.kvs.get(KEYS.adapter(POOL, NAME))
        if kv is None:
            return set()
        record = AdapterRecord.parse(kv.value)
        lowest = record.generation - (record.spec.keep or 1)
        return {f"{NAME}@{one}" for one in range(max(0, lowest) + 1, record.generation + 1)}

    def excuse(self, host: ReplicaHost) -> None:
        """Its engine begins anew."""
        self.excused[host.name] = self.world.monotonic() + BACK_SECONDS

    def look(self) -> None:
        """Looks at every engine."""
        kept = self.kept()
        for host in self.world.replicas:
            listed = set(host.engine.listing)
            known = self.served.setdefault(host.name, set())
            known &= kept
            known |= listed & kept
            lacking = known - listed
            if lacking and self.excused.get(host.name, -1.0) < self.world.monotonic():
                self.broken.add(f"{host.name} lacks {sorted(lacking)} at {self.world.monotonic():.1f}")

    async def watch(self) -> None:
        """Looks until it is cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)


async def published(world: World, number: int, *, enabled: bool = True) -> None:
    """A version is published, whoever is killed meanwhile."""
    spec = AdapterSpec(source=SourceSpec(uri=f"{ROOT}good-{number}"), keep=KEEP, enabled=enabled)
    for attempt in range(30):
        try:
            await world.change(ApplyAdapters(POOL, (Upsert(NAME, spec),)), f"publish-{number}-{enabled}-{attempt}")
        except RegistryError:
            await asyncio.sleep(1.0)
        else:
            return
    raise AssertionError(f"version {number} is not published")


async def comes_to(host: ReplicaHost, names: set[str], seconds: float) -> None:
    for _ in range(int(seconds / LOOK_SECONDS)):
        if set(host.engine.listing) == names:
            return
        await asyncio.sleep(LOOK_SECONDS)
    assert set(host.engine.listing) == names


def hurt(world: World, rule: KeepRule, fault: str) -> None:
    host = world.replicas[0]
    if fault == "engine":
        rule.excuse(host)
        host.engine.kill()
        host.engine.start()
    elif fault == "sidecar":
        world.kill(host)
        world.start(host)
    elif fault == "admin":
        for admin in world.admins:
            world.kill_admin(admin)


async def keeps(world: World, fault: str) -> None:
    pool = PoolSpec(name=POOL, base_models=[BASE], engine_names="versioned")
    world.store.put(KEYS.pool(POOL), pool.to_bytes())
    host, rule = world.replicas[0], KeepRule(world)
    host.engine.start()
    world.start(host)
    for admin in world.admins:
        admin.start()
    await asyncio.sleep(3.0)
    watching = asyncio.create_task(rule.watch())
    for number in range(1, VERSIONS + 1):
        await published(world, number)
        await asyncio.sleep(PERIOD_SECONDS / 2)
        hurt(world, rule, fault)
        await asyncio.sleep(PERIOD_SECONDS / 2)
    await comes_to(host, {f"{NAME}@{VERSIONS - one}" for one in range(KEEP)}, OUT_SECONDS)
    assert (rule.broken, rule.served[host.name]) == (set(), set(host.engine.listing))
    watching.cancel()
    await published(world, VERSIONS, enabled=False)
    await comes_to(host, set(), OUT_SECONDS)


@pytest.mark.parametrize(("fault", "seed"), [("", 0), ("engine", 2), ("sidecar", 3), ("admin", 4)])
def test_what_is_kept_is_served_until_it_is_out_of_keep(fault: str, seed: int):
    """R25 ends-once, R24: through swaps and kills; and what is out of keep goes."""
    play_by_hand(seed, partial(keeps, fault=fault))
