"""Residency in the simulation: at no answer an adapter lacks a place that an engine serves, and none is invented."""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile

import pytest

from registry.etcd3.client import Client
from registry.etcd3.informer import SharedInformerFactory
from registry.etcd3.options import ClientOptions
from registry.model.errors import RegistryError
from registry.model.names import name_key
from registry.model.records import AdapterRecord, AdapterSpec, Canary, Placement, PoolLimits, SourceSpec, Strategy
from registry.model.replica_state import ReplicaState
from registry.residency.derive import DerivedResidency, residency
from registry.residency.hub import ResidencyHub
from registry.residency.view import PoolView
from registry.transactions.changes import (
    AbortRollout,
    ApplyAdapters,
    Change,
    CreatePool,
    DrainReplica,
    PromoteRollout,
    Remove,
    Upsert,
)
from sidecar.report.writer import TAKE_OVER_SECONDS
from tests.simulation.artifacts import GOOD, MISSING, ROOT, source_of
from tests.simulation.engines import BASE
from tests.simulation.history import POOL
from tests.simulation.places import Places
from tests.simulation.simulation import expire_leases, play_by_hand
from tests.simulation.world import KEYS, ReplicaHost, World

REPLICAS = 4
NAMES = ("a", "b", "c", "d")
# What an engine did all this time, residency has heard of; what it did not do at any time of it, is not told any more.
LAG_SECONDS = 1.0
# So long after its sidecar was killed nobody can tell what an engine does.
RESTART_SECONDS = 20.0
POLL_SECONDS = 0.02
RUN_SECONDS = 40.0


@dataclass(frozen=True)
class Silence:
    """A time in which what a killed sidecar said stands, although it may have called its engine after it said so."""

    since: float
    until: float = math.inf


@dataclass
class Watcher:
    """Compares each answer of residency with what the engines list."""

    world: World
    listings: deque[tuple[float, dict[str, dict[str, str]]]] = field(default_factory=deque)
    answers: int = 0
    faults: list[str] = field(default_factory=list)
    sources: dict[tuple[str, int], str] = field(default_factory=dict)
    silences: dict[str, Silence] = field(default_factory=dict)
    _seen: int = 0

    def kill(self, host: ReplicaHost) -> None:
        """Kills a sidecar."""
        self.silences[host.name] = Silence(asyncio.get_running_loop().time())
        self.world.kill(host)

    def start(self, host: ReplicaHost) -> None:
        """Starts a sidecar, unless it runs; it has a while to say what its engine serves."""
        silence = self.silences.get(host.name)
        if silence is not None and silence.until == math.inf:
            until = asyncio.get_running_loop().time() + TAKE_OVER_SECONDS + LAG_SECONDS
            self.silences[host.name] = Silence(silence.since, until)
        self.world.start(host)

    def note(self) -> None:
        """Notes what each engine lists now, by the sources of its paths, and what each generation is made of."""
        now = asyncio.get_running_loop().time()
        found = {
            host.name: {name: source_of(path) for name, path in host.engine.listing.items()}
            for host in self.world.replicas
        }
        self.listings.append((now, found))
        first = min(self._told_since(host.name) for host in self.world.replicas)
        while self.listings[0][0] < first:
            self.listings.popleft()
        for _, events in self.world.store.history[self._seen :]:
            for event in events:
                if event.key.startswith(KEYS.adapters(POOL)) and event.kv is not None:
                    self._note_record(AdapterRecord.parse(event.kv.value))
        self._seen = len(self.world.store.history)

    def _told_since(self, replica: str) -> float:
        """The earliest time that an answer may speak of."""
        now, silence = asyncio.get_running_loop().time(), self.silences.get(replica)
        return (now if silence is None or now > silence.until else silence.since) - LAG_SECONDS

    def _listed(self, name: str, replica: str, since: float) -> list[str]:
        newest_first = takewhile(lambda one: one[0] >= since, reversed(self.listings))
        return [listing[replica].get(name, "") for _, listing in newest_first]

    def _note_record(self, record: AdapterRecord) -> None:
        self.sources[name_key(record.name), record.generation] = source_of(record.spec.source.uri)

    def compare(self, view: PoolView, who: str) -> None:
        """Looks at one answer."""
        self.note()
        self.answers += 1
        for key in view.records:
            found = residency(view, key)
            if found is not None:
                self.faults += [f"{asyncio.get_running_loop().time():.2f} {who}: {one}" for one in self._wrong(found)]

    def _wrong(self, found: DerivedResidency) -> Iterator[str]:
        served = {one.replica: one for one in found.replicas if one.state is ReplicaState.SERVING}
        now = self.listings[-1][0]
        if now - self.listings[0][0] < LAG_SECONDS / 2:
            return
        for host in self.world.replicas:
            lists = self._listed(found.name, host.name, now - LAG_SECONDS)
            silence = self.silences.get(host.name)
            is_told = silence is None or now > silence.since + RESTART_SECONDS
            if all(lists) and not served and is_told:
                yield f"R24 {found.name} has no place, and {host.name} lists {lists[0]}: {_standing(found)}"
            one = served.get(host.name)
            if one is None or not one.loaded or not one.generation:
                continue
            meant = self.sources[name_key(found.name), one.generation]
            if meant not in lists and meant not in self._listed(found.name, host.name, self._told_since(host.name)):
                yield f"R9 {host.name} is to serve {found.name}@{one.generation} of {meant}, and lists {lists[0]}"


@asynccontextmanager
async def hub_of(world: World, name: str) -> AsyncIterator[ResidencyHub]:
    """A hub with nothing in its memory."""
    client = Client(ClientOptions(world._endpoints(name)), rng=random.Random(name))
    informers = SharedInformerFactory(client, rng=random.Random(name))
    hub = ResidencyHub(client, KEYS, informers)
    try:
        yield hub
    finally:
        await hub.aclose()
        await informers.aclose()
        await client.aclose()


def _standing(found: DerivedResidency) -> dict[str, tuple[int, str, str]]:
    return {one.replica: (one.generation, one.state.name, one.reason) for one in found.replicas}


class Publisher:
    """Publishes with every kind of placement, often several times in a row."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"publisher {world.seed}")
        self._made = 0

    async def change(self, change: Change) -> None:
        """Makes one change, unless it is refused."""
        self._made += 1
        with suppress(RegistryError):
            await self._world.change(change, f"req-{self._made}")

    async def work(self, seconds: float) -> None:
        """Makes changes for so long."""
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            for _ in range(self._rng.choice((1, 1, 2, 4))):
                await self.change(self._next())
            await asyncio.sleep(self._rng.choice((0.0, 0.03, 0.3, 1.0, 3.0)))

    def _next(self) -> Change:
        rng, name = self._rng, self._rng.choice(NAMES)
        kind = rng.choices(("put", "remove", "promote", "abort", "drain"), (12, 1, 1, 1, 2))[0]
        if kind == "remove":
            return ApplyAdapters(POOL, (Remove(name),))
        if kind in {"promote", "abort"}:
            return (PromoteRollout if kind == "promote" else AbortRollout)(POOL, name)
        if kind == "drain":
            replica = rng.choice(self._world.replicas).name
            return DrainReplica(POOL, replica, drain=rng.random() < 0.4)
        return ApplyAdapters(POOL, (Upsert(name, self._spec()),))

    def _spec(self) -> AdapterSpec:
        rng = self._rng
        source = SourceSpec(uri=f"{ROOT}{GOOD if rng.random() < 0.9 else MISSING}{rng.randint(1, 999)}")
        if self._world.has_plugin and rng.random() < 0.2:
            return AdapterSpec(source=source, load="lazy")
        canary = Canary(replicas=rng.choice((1, "50%")))
        strategy = Strategy(canary=canary, promote="manual" if rng.random() < 0.5 else "auto", soak_seconds=1)
        return AdapterSpec(
            source=source,
            placement=Placement(replicas=rng.choice(("all", 1, 2, 2))),
            strategy=rng.choice((None, None, strategy)),
        )


async def _poll(watcher: Watcher, hub: ResidencyHub) -> None:
    async with hub.look(POOL) as subscription:
        await subscription.look()
        while True:
            watcher.compare(subscription.view, "poller")
            await asyncio.sleep(POLL_SECONDS)


async def _follow(hub: ResidencyHub, kept: dict[str, DerivedResidency]) -> None:
    """A reader that stays connected and keeps what it is told."""
    async with hub.look(POOL) as subscription:
        async for update in subscription.follow():
            if update.snapshot:
                kept.clear()
            for key in update.keys:
                found = residency(update.view, key)
                kept.pop(key, None)
                if found is not None:
                    kept[key] = found


async def _restart(watcher: Watcher) -> None:
    """Sidecars that are killed, and come back with what is on their disks."""
    rng, world = random.Random(f"restarts {watcher.world.seed}"), watcher.world
    while True:
        await asyncio.sleep(rng.uniform(10, 20))
        host = rng.choice(world.replicas)
        watcher.kill(host)
        await asyncio.sleep(rng.choice((0.1, 1.0, 12.0)))
        watcher.start(host)


async def _look_afresh(watcher: Watcher) -> None:
    """Admin services that have just started, one after another."""
    number = 0
    while True:
        await asyncio.sleep(0.7)
        number += 1
        async with hub_of(watcher.world, f"fresh{number}") as hub, hub.look(POOL) as subscription:
            await subscription.look()
            watcher.compare(subscription.view, "fresh")


async def publish_all_kinds(world: World) -> None:
    """A fleet through publishes, canaries, drains, restarts, and admin services that start anew."""
    while len(world.replicas) < REPLICAS:
        world.replicas.append(world._replica(f"s{len(world.replicas)}"))
        world.engines[world.replicas[-1].engine.url] = world.replicas[-1].engine
    world.checks.replicas = {replica.name for replica in world.replicas}
    tasks = [asyncio.create_task(expire_leases(world))]
    for admin in world.admins:
        admin.start()
    publisher, watcher, kept = Publisher(world), Watcher(world), dict[str, DerivedResidency]()
    await publisher.change(CreatePool(POOL, (BASE,), PoolLimits()))
    for replica in world.replicas:
        replica.engine.start()
        world.start(replica)
    await asyncio.sleep(5)
    async with hub_of(world, "hub") as hub:
        readers = _poll(watcher, hub), _follow(hub, kept), _look_afresh(watcher)
        tasks += [asyncio.create_task(one) for one in readers]
        restarts = asyncio.create_task(_restart(watcher))
        await publisher.work(RUN_SECONDS)
        restarts.cancel()
        for replica in world.replicas:
            watcher.start(replica)
        for replica in world.replicas:
            await publisher.change(DrainReplica(POOL, replica.name, drain=False))
        await asyncio.sleep(20)
        async with hub_of(world, "last") as last, last.look(POOL) as subscription:
            view = (await subscription.look()).view
            assert kept == {key: found for key in view.records if (found := residency(view, key)) is not None}
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [one for one in done if not isinstance(one, asyncio.CancelledError)] == []
    assert watcher.answers > RUN_SECONDS / POLL_SECONDS / 2
    assert not watcher.faults, f"{len(watcher.faults)} of {watcher.answers}:\n" + "\n".join(watcher.faults[:20])


async def restart_sidecars(world: World) -> None:
    """Sidecars that are killed and come back within their leases, while their engines serve on."""
    places, expiring = Places(world), asyncio.create_task(expire_leases(world))
    world.store.on_commit.append(places.on_commit)
    world.admins[0].start()
    publisher = Publisher(world)
    await publisher.change(CreatePool(POOL, (BASE,), PoolLimits()))
    for host in world.replicas:
        host.engine.start()
        world.start(host)
    for name, replicas in (("a", "all"), ("b", 1), ("c", 2)):
        source = SourceSpec(uri=f"{ROOT}{GOOD}{name}")
        spec = AdapterSpec(source=source, placement=Placement.model_validate({"replicas": replicas}))
        await publisher.change(ApplyAdapters(POOL, (Upsert(name, spec),)))
    await asyncio.sleep(10)
    for away_seconds in (0.1, 1.0, 4.0):
        for host in world.replicas:
            before = world.store.kvs[KEYS.status(POOL, host.name)].lease
            world.kill(host)
            await asyncio.sleep(away_seconds)
            world.start(host)
            await asyncio.sleep(5)
            assert world.store.kvs[KEYS.status(POOL, host.name)].lease != before
    assert places.held > 0
    expiring.cancel()
    assert world.checks.violations == []


@pytest.mark.parametrize("seed", range(2))
def test_a_sidecar_that_begins_anew_leaves_no_gap(seed: int) -> None:
    """R24 always-placed: what it said before it was killed stands until it can say it itself."""
    play_by_hand(seed, restart_sidecars)


@pytest.mark.parametrize("seed", [0, 1, 4])  # 4: one is killed between a swap and the status that would tell of it
def test_no_adapter_lacks_a_place_that_an_engine_serves(seed: int) -> None:
    """R24 always-placed, R9 status-truth: for one who polls, one who follows, and each who has just started."""
    play_by_hand(seed, publish_all_kinds)
