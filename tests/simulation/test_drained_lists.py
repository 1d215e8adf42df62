"""Engines' lists while replicas drain: a router that polls them always finds who serves an adapter."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial

import pytest

from registry.model.errors import RegistryError
from registry.model.records import AdapterSpec, Placement, PoolSpec, SourceSpec
from registry.transactions.changes import ApplyAdapters, Change, DrainReplica, Upsert
from tests.simulation.artifacts import ROOT
from tests.simulation.engines import BASE
from tests.simulation.history import POOL
from tests.simulation.simulation import play_by_hand
from tests.simulation.world import KEYS, ReplicaHost, World

EVERYWHERE, ON_ONE, ON_TWO = "acme/all", "acme/one", "acme/two"
NAMES = {EVERYWHERE, ON_ONE, ON_TWO}
POLL_SECONDS, DRAIN_SECONDS, START_SECONDS = 0.4, 30.0, 120.0


@dataclass
class PolledRule:
    """R20: at each poll some engine lists each name that was ever listed, whoever drains.

    Attributes:
        seen: names that were ever listed.
        taken_out: how often a replica listed less than its engine has.
        broken: what was found.
    """

    world: World
    seen: set[str] = field(default_factory=set)
    taken_out: int = 0
    broken: set[str] = field(default_factory=set)

    async def listed(self, host: ReplicaHost) -> set[str]:
        """The names that everybody finds in an engine's list."""
        engine = host.engine.engine
        return set() if engine is None or engine.plugin is None else set(await engine.plugin.strangers())

    async def look(self) -> set[str]:
        """Polls every engine; the names that some list."""
        found = set[str]()
        for host in self.world.replicas:
            listed = await self.listed(host)
            self.taken_out += listed < set(host.engine.listing)
            found |= listed
        if lacking := self.seen - found:
            self.broken.add(f"nobody lists {sorted(lacking)} at {self.world.monotonic():.1f}")
        self.seen |= found
        return found

    async def watch(self) -> None:
        """Polls until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(POLL_SECONDS)


async def changed(world: World, change: Change, request_id: str) -> None:
    """A change that is made, whoever is killed meanwhile."""
    for attempt in range(30):
        try:
            await world.change(change, f"{request_id}-{attempt}")
        except RegistryError:
            await asyncio.sleep(1.0)
        else:
            return
    raise AssertionError(f"{request_id} is not made")


async def started(world: World) -> PolledRule:
    """The rule of a fleet whose engines list all adapters."""
    assert world.has_plugin, "this seed has no plugin: take another"
    world.store.put(KEYS.pool(POOL), PoolSpec(name=POOL, base_models=[BASE]).to_bytes())
    for host in world.replicas:
        host.engine.start()
        world.start(host)
    for admin in world.admins:
        admin.start()
    await asyncio.sleep(3.0)
    for number, (name, count) in enumerate(((EVERYWHERE, "all"), (ON_ONE, 1), (ON_TWO, 2))):
        placement = Placement.model_validate({"replicas": count})
        spec = AdapterSpec(source=SourceSpec(uri=f"{ROOT}good-{number}"), placement=placement)
        await changed(world, ApplyAdapters(POOL, (Upsert(name, spec),)), f"put-{number}")
    rule = PolledRule(world)
    for _ in range(int(START_SECONDS / POLL_SECONDS)):
        if await rule.look() == NAMES:
            return rule
        await asyncio.sleep(POLL_SECONDS)
    raise AssertionError(f"only {rule.seen} are listed")


async def drains(world: World, fault: str) -> None:
    rule = await started(world)
    watching = asyncio.create_task(rule.watch())
    for host in world.replicas:  # the last one drains while nobody else is there
        await changed(world, DrainReplica(POOL, host.name, drain=True), f"drain-{host.name}")
        if fault == "sidecar":
            world.kill(host)
            await asyncio.sleep(1.0)
            world.start(host)
        await asyncio.sleep(DRAIN_SECONDS)
    for host in world.replicas:
        await changed(world, DrainReplica(POOL, host.name, drain=False), f"undrain-{host.name}")
        await asyncio.sleep(DRAIN_SECONDS)
    watching.cancel()
    assert rule.broken == set()
    assert rule.taken_out, "nobody ever drained"


@pytest.mark.parametrize(("fault", "seed"), [("", 2), ("sidecar", 1)])
def test_a_poller_always_finds_who_serves_an_adapter(fault: str, seed: int):
    """R20 drain: also while each of them drains, one after the other, until all do."""
    play_by_hand(seed, partial(drains, fault=fault))
