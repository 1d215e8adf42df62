"""A ttl from the last use, in a fleet on virtual time: nothing ends before it was unused for its ttl, whatever fails.

Admin services and what asks the engines are the real ones, over a played etcd. Engines and sidecars restart, replicas
go without a word, links to etcd break, and services are killed; the test alone knows when requests came.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import cast

import pytest

from registry.etcd3.client import Client
from registry.etcd3.ops import KeyValue, Put, Txn
from registry.model.names import name_key
from registry.model.status import ReportedUses
from registry.rollout.members import MembersKeeper
from registry.runtime.clock import Clock
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.engines.driver import Engine, EngineUnreachable
from sidecar.engines.observed import EngineActivity
from sidecar.report.uses import UseTeller
from sidecar.vllm_plugin.usage import Usage
from tests.support.ending_services import Service, audits, begin
from tests.support.played_etcd import PlayedEtcd, now, played
from tests.support.records import KEYS, POOL
from tests.support.residency_world import presence, replica_status
from tests.support.worlds import desired

# Two are used to the end, two for half of the time, two never; of each two one is lazy.
NAMES = ("acme/a", "acme/b", "acme/c", "acme/lazy-a", "acme/lazy-b", "acme/lazy-c")
TTL = 240
# After the last fault and the last use: what looks and readings of the clock may miss.
LATE_SECONDS, SHORT_LATE_SECONDS = 150.0, 70.0


@dataclass(eq=False)
class UsedReplica:
    """An engine with the plugin, and the part of a sidecar that tells its uses."""

    name: str
    fleet: UsedFleet
    incarnation_now: int = 1
    registered: Usage[str] = field(default_factory=lambda: Usage(now=now))
    asked: set[str] = field(default_factory=set)
    is_away: bool = False
    uses: ReportedUses | None = None
    mailbox: Mailbox = field(default_factory=Mailbox)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    client: Client | None = None
    lease: int = 0
    is_ready: bool = True

    async def activity(self) -> EngineActivity:
        await asyncio.sleep(self.fleet.rng.uniform(0.0, 1.0))
        if self.is_away:
            raise EngineUnreachable("away")
        return EngineActivity(last_used=self.registered.ages(), adapter_in_flight={})

    async def incarnation(self) -> str:
        return f"{self.incarnation_now}"

    def restart_engine(self) -> None:
        self.incarnation_now += 1
        self.registered = Usage(now=now)

    def use(self, name: str, *, is_unloaded: bool = False) -> None:
        """A request; for a lazy adapter that is not loaded the engine asks first, and what is idle it unloads soon."""
        if name not in self.registered:
            self.registered[name] = name
            if "lazy" in name:
                self.asked.add(name_key(name))
                is_unloaded = True
        assert self.registered[name] == name
        if is_unloaded:
            asyncio.get_running_loop().call_later(self.fleet.rng.uniform(0.5, 5.0), self.unload, name)

    def unload(self, name: str) -> None:
        if name in self.registered:
            del self.registered[name]

    async def start(self) -> None:
        """A sidecar takes the id up, also after one that was killed."""
        self.client, self.uses, self.mailbox = self.fleet.etcd.client(self.fleet.rng.randrange(99)), None, Mailbox()
        self.asked.clear()
        self.lease = await self.client.lease_grant(3600)
        self.tasks = [asyncio.create_task(self._follow())]
        key = KEYS.status(POOL, self.name)
        parts = cast("Engine", self), (self.client, key), Clock(self.fleet.rng)
        self.tasks.append(asyncio.create_task(UseTeller(self.mailbox, *parts, self._take, self.asked).run()))

    def kill(self) -> None:
        for task in self.tasks:
            task.cancel()
        self.tasks = []

    def go(self) -> None:
        """It is gone, without a word."""
        self.kill()
        for key in (KEYS.replica(POOL, self.name), KEYS.status(POOL, self.name)):
            self.fleet.etcd.store.delete(key)

    def _take(self, uses: ReportedUses | None) -> None:
        self.uses = uses
        self._say()

    async def _follow(self) -> None:
        while True:
            self.mailbox.post(Snapshot(desired=desired(*self.fleet.records(), revision=self.fleet.etcd.store.revision)))
            self._say()
            await asyncio.sleep(self.fleet.rng.uniform(1.0, self.fleet.most_behind_seconds))

    def _say(self) -> None:
        state = self.mailbox.snapshot.desired
        status = replica_status(self.name, state.revision if state else 0, uses=self.uses, ready=self.is_ready)
        store, key = self.fleet.etcd.store, KEYS.replica(POOL, self.name)
        puts = [Put(KEYS.status(POOL, self.name), status.to_bytes(), self.lease)]
        if key not in store.kvs or store.kvs[key].lease != self.lease:
            puts.append(Put(key, presence(self.name, incarnation=f"{self.lease}").to_bytes(), self.lease))
        store.txn(Txn((), tuple(puts)))


class UsedFleet:
    """Replicas, admin services, and when each adapter was written and used."""

    def __init__(self, etcd: PlayedEtcd, seed: int, ttl: int = TTL, most_behind_seconds: float = 60.0) -> None:
        self.etcd, self.rng, self.ttl = etcd, random.Random(seed), ttl
        self.most_behind_seconds = most_behind_seconds
        self.replicas = [UsedReplica(f"r{number}", self) for number in range(3)]
        self.last: dict[str, float] = {}
        self.unused: set[str] = set()

    def records(self) -> list[KeyValue]:
        return [kv for key, kv in self.etcd.store.kvs.items() if key.startswith(KEYS.adapters(POOL))]

    def stands(self, name: str) -> bool:
        return KEYS.adapter(POOL, name) in self.etcd.store.kvs

    def use(self, name: str, *, is_unloaded: bool = False) -> None:
        """A request, by any replica: after a whole ttl without one it comes too late to keep it."""
        self.look()
        if self.stands(name):
            self.rng.choice(self.replicas).use(name, is_unloaded=is_unloaded)
            self.last[name] = now()

    def look(self) -> None:
        """R25: what is gone was unused for its ttl at some time."""
        for name, at in self.last.items():
            if now() - at >= self.ttl:
                self.unused.add(name)
            assert self.stands(name) or name in self.unused, f"{name} ended {now() - at:.1f} s after its last use"


async def watch(fleet: UsedFleet) -> None:
    while True:
        fleet.look()
        await asyncio.sleep(0.25)


def keep_members(service: Service) -> asyncio.Task[None]:
    informers = service.expiry._shared.informers
    keeper = MembersKeeper(
        service.client,
        KEYS,
        informers,
        lambda _: None,
        rng=random.Random(service.etcd.store.revision),
        wall=service.wall,
    )
    return asyncio.create_task(keeper.run())


async def disturb(fleet: UsedFleet, services: list[Service], keepers: list[asyncio.Task[None]]) -> None:
    """One fault, which ends by itself."""
    replica, which = fleet.rng.choice(fleet.replicas), fleet.rng.randrange(6)
    if which == 0:
        replica.restart_engine()
    elif which == 1:
        replica.kill()
        await asyncio.sleep(fleet.rng.uniform(0.0, 30.0))
        await replica.start()
    elif which == 2:
        replica.go()
        await asyncio.sleep(fleet.rng.uniform(0.0, 90.0))
        await replica.start()
    elif which == 3:
        replica.is_away = True
        await asyncio.sleep(fleet.rng.uniform(0.0, 90.0))
        replica.is_away = False
    elif which == 4:
        for link in fleet.etcd.links.values():
            link.cut()
    else:
        at = fleet.rng.randrange(len(services))
        keepers[at].cancel()
        await services[at].stop()
        await asyncio.sleep(fleet.rng.uniform(0.0, 60.0))
        services[at] = Service(fleet.etcd, fleet.rng.randrange(99)).start()
        keepers[at] = keep_members(services[at])


@pytest.mark.parametrize("seed", range(4))
@played
async def test_what_is_used_stays_and_what_is_not_ends_once_whatever_fails(etcd: PlayedEtcd, seed: int):
    """R25 ends-once: with a ttl from its last use, by requests that the test alone knows of."""
    fleet, services = UsedFleet(etcd, seed), begin(etcd, 2)
    fleet.replicas[-1].is_ready = seed % 2 == 0  # otherwise nobody remembers it
    keepers = [keep_members(one) for one in services]
    watching = asyncio.create_task(watch(fleet))
    for replica in fleet.replicas:
        await replica.start()
    await asyncio.sleep(3.0)
    for name in NAMES:
        load = "lazy" if "lazy" in name else "eager"
        await services[0].apply(name=name, ttl_seconds=TTL, ttl_from="use", load=load)
        fleet.last[name] = now()
    until, fault_at = now() + 3000, now() + 600
    while now() < until:
        await asyncio.sleep(fleet.rng.uniform(1.0, 60.0))
        for name in NAMES[0::3] + (NAMES[1::3] if now() < until / 2 else ()):
            fleet.use(name)
        if now() > fault_at:
            fault_at = now() + fleet.rng.uniform(30.0, 400.0)
            await disturb(fleet, services, keepers)
    assert all(map(fleet.stands, NAMES[0::3]))
    await asyncio.sleep(TTL + LATE_SECONDS)
    assert not any(map(fleet.stands, NAMES))
    assert sorted(one["changes"][0]["name"] for one in audits(etcd)) == sorted(NAMES)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching


@pytest.mark.parametrize("seed", range(3))
@played
async def test_a_short_ttl_ends_about_a_minute_late(etcd: PlayedEtcd, seed: int):
    """R25: where every replica is heard; and not while it is used."""
    fleet, (service,) = UsedFleet(etcd, seed, ttl=30, most_behind_seconds=1.0), begin(etcd)
    keeper = keep_members(service)
    for replica in fleet.replicas:
        await replica.start()
    await asyncio.sleep(60.0)
    for name in NAMES:
        await service.apply(name=name, ttl_seconds=30, ttl_from="use", load="lazy" if "lazy" in name else "eager")
        fleet.last[name] = now()
    for _ in range(30):
        await asyncio.sleep(5.0)
        fleet.use("acme/a")
    begun = now()
    assert [name for name in NAMES if fleet.stands(name)] == ["acme/a"]
    while fleet.stands("acme/a"):
        await asyncio.sleep(1.0)
        assert now() - begun < 30 + SHORT_LATE_SECONDS
    await service.stop()
    keeper.cancel()


@pytest.mark.parametrize("seed", range(3))
@played
async def test_what_was_used_just_before_it_was_unloaded_was_used(etcd: PlayedEtcd, seed: int):
    """R25: as where others serve it from then on, or there is no room for it any more."""
    fleet, (service,) = UsedFleet(etcd, seed), begin(etcd)
    keeper = keep_members(service)
    for replica in fleet.replicas:
        await replica.start()
    await asyncio.sleep(60.0)
    await service.apply(name="acme/a", ttl_seconds=TTL, ttl_from="use")
    for _ in range(6):
        fleet.last["acme/a"] = begun = now()
        while now() - begun < 0.9 * TTL:
            await asyncio.sleep(fleet.rng.uniform(1.0, 10.0))
            fleet.look()
        fleet.use("acme/a", is_unloaded=True)
    assert fleet.stands("acme/a")
    await asyncio.sleep(TTL + LATE_SECONDS)
    assert not fleet.stands("acme/a")
    await service.stop()
    keeper.cancel()
