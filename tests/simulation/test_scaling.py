"""Numbers of replicas that follow requests, in a fleet of 100 on virtual time, by several admin services.

The admin services' part is the real one, over a played etcd; a replica finds its share, samples its load and proves
what it serves by the real functions, and follows records late, each by another time.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from registry.model.names import name_key
from registry.model.placement import Member, spec_now
from registry.model.records import AdapterRecord, Placement
from registry.model.replica_state import Expectation, ReplicaState, evaluate, parse_status
from registry.model.status import ByLoad, Leaving, Pending, ReportedLoad, ScaledReplicas, Served
from registry.rollout.scaling import STEP_SECONDS
from registry.runtime.clock import Clock
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.engines.driver import Engine
from sidecar.engines.observed import EngineActivity
from sidecar.report.load import LoadSampler
from tests.support.played_etcd import PlayedEtcd, now, played
from tests.support.records import KEYS, POOL
from tests.support.residency_world import among, assigned, presence, replica_status
from tests.support.scale_services import begin, stand
from tests.support.worlds import desired

MINUTE = 60.0
# So long a replica follows what stood before, and a load takes.
LATE_SECONDS, LOAD_SECONDS = (0.2, 4.0), (2.0, 15.0)


@dataclass(eq=False)
class PlayedReplica:
    """One replica: what it follows and has loaded, and what it says."""

    name: str
    fleet: Fleet
    record: AdapterRecord | None = None
    revision: int = 0
    loaded: bool = False
    loading: asyncio.Task[None] | None = None
    load: ReportedLoad | None = None
    mailbox: Mailbox = field(default_factory=Mailbox)

    async def activity(self) -> EngineActivity:
        return EngineActivity(adapter_in_flight=self.fleet.in_flight(self))

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        fleet = self.fleet
        clock = Clock(fleet.rng)
        tasks.create_task(LoadSampler(self.mailbox, cast("Engine", self), clock, self._take).run())
        while True:
            kv = fleet.etcd.store.kvs.get(KEYS.adapter(POOL, fleet.name))
            if kv is not None and kv.mod_revision != self.revision:
                await asyncio.sleep(fleet.rng.uniform(*LATE_SECONDS))
                self.record, self.revision = AdapterRecord.parse(kv.value), kv.mod_revision
                self.mailbox.post(Snapshot(desired=desired(kv)))
                self.say()
            self._settle(tasks)
            await asyncio.sleep(3.0)

    def _take(self, load: ReportedLoad | None) -> None:
        self.load = load
        self.say()

    @property
    def is_ours(self) -> bool:
        return self.record is not None and self.name in self.fleet.serving(self.record, self.revision)

    def _settle(self, tasks: asyncio.TaskGroup) -> None:
        if self.is_ours and not self.loaded and self.loading is None:
            self.loading = tasks.create_task(self._load())
        if self.loaded and not self.is_ours and self._is_taken_over():
            self.loaded = False
            self.say()

    async def _load(self) -> None:
        await asyncio.sleep(self.fleet.rng.uniform(*LOAD_SECONDS))
        self.loaded, self.loading = True, None
        self.say()

    def _is_taken_over(self) -> bool:
        """As a sidecar asks: all that are to serve it by what it follows prove that they do."""
        assert self.record is not None
        fleet, record = self.fleet, self.record
        key = name_key(fleet.name)
        expected = Expectation(key, record.generation, self.revision, lazy=False, pinned=True, **among(fleet.members))
        said = [fleet.etcd.store.kvs.get(KEYS.status(POOL, one)) for one in fleet.serving(record, self.revision)]
        stands = fleet.etcd.store.kvs[KEYS.adapter(POOL, fleet.name)].mod_revision == self.revision
        return stands and all(evaluate(parse_status(kv), expected).state is ReplicaState.SERVING for kv in said)

    def say(self) -> None:
        generation = self.record.generation if self.record is not None else 1
        waits = self.is_ours and not self.loaded
        leaves = self.loaded and not self.is_ours
        status = replica_status(
            self.name,
            self.revision,
            pending=[Pending(name=self.fleet.name, generation=generation, reason="loading")] if waits else [],
            leaving=[Leaving(name=self.fleet.name, generation=generation)] if leaves else [],
            served=Served(count=int(self.loaded and not leaves), hash=""),
            load=self.load,
            **among(self.fleet.members),
        )
        stand(self.fleet.etcd, KEYS.status(POOL, self.name), status.to_bytes())


class Fleet:
    """Replicas of one pool under a load of one adapter.

    Attributes:
        load: requests at once by the time.
        least_serving: the fewest engines that had it at any look once any had.
    """

    name = "acme/hot"

    def __init__(self, etcd: PlayedEtcd, replicas: int, load: Callable[[float], float], seed: int = 0) -> None:
        self.etcd, self.load, self.rng = etcd, load, random.Random(seed)
        self.members = [Member(f"r{number}", {}) for number in range(replicas)]
        self.replicas = [PlayedReplica(one.replica, self) for one in self.members]
        self.serving_at: list[int] = []
        self.numbers: list[tuple[float, int]] = []
        self._serving: dict[int, frozenset[str]] = {}
        for one in self.members:
            told = presence(one.replica, by_reports=True)
            stand(etcd, KEYS.replica(POOL, one.replica), told.to_bytes())
        etcd.store.on_commit.append(self._on_commit)

    def _on_commit(self, *_: object) -> None:
        kv = self.etcd.store.kvs.get(KEYS.adapter(POOL, self.name))
        if kv is None:
            return
        placement = spec_now(AdapterRecord.parse(kv.value)).placement
        assert placement.replicas != "all"
        if not self.numbers or self.numbers[-1][1] != placement.replicas:
            self.numbers.append((now(), placement.replicas))

    def serving(self, record: AdapterRecord, revision: int) -> frozenset[str]:
        if revision not in self._serving:
            found = assigned(POOL, name_key(self.name), spec_now(record), self.members, {})
            self._serving[revision] = frozenset(found.serving)
        return self._serving[revision]

    @property
    def having(self) -> list[PlayedReplica]:
        return [one for one in self.replicas if one.loaded]

    def in_flight(self, replica: PlayedReplica) -> dict[str, int]:
        """Requests that come in are spread over those that have it, and over none else."""
        if not replica.loaded:
            return {}
        share = self.load(now()) / len(self.having)
        return {self.name: int(share) + (self.rng.random() < share % 1)}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for one in self.replicas:
                tasks.create_task(one.run(tasks))
            tasks.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            if self.serving_at or self.having:
                self.serving_at.append(len(self.having))

    @property
    def number(self) -> int:
        return self.numbers[-1][1]

    def check(self, least: int, most: int) -> None:
        """What holds at all times, whatever the load."""
        assert all(least <= number <= most for _, number in self.numbers), self.numbers
        pairs = list(zip(self.numbers, self.numbers[1:], strict=False))
        assert all(abs(after - before) == 1 for (_, before), (_, after) in pairs), self.numbers
        assert all(then - since >= STEP_SECONDS for (since, _), (then, _) in pairs), self.numbers
        assert min(self.serving_at) >= 1, "a request finds somebody"
        begun = next(at for at, count in enumerate(self.serving_at) if count >= least)
        assert min(self.serving_at[begun:]) >= least, "and nobody lets go before others serve"


def by_load(least: int, most: int, per_replica: int) -> Placement:
    return Placement(replicas=least, by_load=ByLoad(max=most, per_replica=per_replica))


def audited(etcd: PlayedEtcd) -> list[dict[str, Any]]:
    found = [json.loads(kv.value) for key, kv in etcd.store.kvs.items() if key.startswith(KEYS.audits())]
    return [one for one in found if one["method"] == "ScaleAdapter"]


def day(at: float) -> float:
    """Requests at once: few, then many more within a moment, and few again."""
    busy = 5 * MINUTE <= at < 20 * MINUTE
    return 190.0 if busy else 60.0


@played
async def test_in_a_fleet_of_100_the_number_follows_the_load_and_no_request_finds_nobody(etcd: PlayedEtcd):
    """R20, R24: three admin services look, of which two are away for a while; each step is audited once."""
    services = begin(etcd, 3)
    fleet = Fleet(etcd, 100, day)
    running = asyncio.create_task(fleet.run())
    await asyncio.sleep(1)
    await services[0].apply(name=fleet.name, placement=by_load(2, 40, 20))
    await asyncio.sleep(4 * MINUTE)
    assert 3 <= fleet.number <= 4, fleet.numbers
    await services[1].stop()
    await asyncio.sleep(5 * MINUTE)
    await services[2].stop()
    await asyncio.sleep(10 * MINUTE)
    assert 10 <= fleet.number <= 11, fleet.numbers
    assert len(fleet.having) == fleet.number
    services[1].start()
    await asyncio.sleep(30 * MINUTE)
    assert 3 <= fleet.number <= 6, fleet.numbers
    fleet.check(2, 40)
    assert len(audited(etcd)) == len(fleet.numbers) - 1
    running.cancel()


@played
async def test_a_load_that_swings_a_little_moves_nothing(etcd: PlayedEtcd):
    services = begin(etcd, 2)
    rng = random.Random(0)
    fleet = Fleet(etcd, 20, lambda at: 100 + 15 * rng.uniform(-1, 1))
    running = asyncio.create_task(fleet.run())
    await asyncio.sleep(1)
    await services[0].apply(name=fleet.name, placement=by_load(1, 20, 22))
    await asyncio.sleep(30 * MINUTE)
    fleet.check(1, 20)
    assert [number for _, number in fleet.numbers] == [1, 2, 3, 4, 5]
    running.cancel()


@played
async def test_while_no_admin_service_runs_the_number_stays(etcd: PlayedEtcd):
    """R13 static-stable: and whoever starts waits for a minute, since it has not seen the number stand."""
    (only,) = begin(etcd)
    fleet = Fleet(etcd, 10, lambda at: 95.0 if at < 20 * MINUTE else 0.0)
    running = asyncio.create_task(fleet.run())
    await asyncio.sleep(1)
    await only.apply(name=fleet.name, placement=by_load(1, 10, 20))
    await asyncio.sleep(10 * MINUTE)
    assert fleet.number == 5
    await only.stop()
    await asyncio.sleep(30 * MINUTE)
    assert fleet.number == 5
    began = now()
    only.start()
    await asyncio.sleep(30 * MINUTE)
    assert fleet.number == 1
    assert next(at for at, number in fleet.numbers if at > began) - began >= STEP_SECONDS
    fleet.check(1, 10)
    running.cancel()


def test_who_knows_nothing_of_load_goes_by_the_least_number():
    """An earlier release reads the same record, and finds those that stand first among those that serve it now."""
    fleet = [Member(f"r{number}", {}) for number in range(10)]
    for number in (2, 5, 8):
        now_ = ScaledReplicas(replicas=number, reason="", at="")
        made = AdapterRecord.model_validate(
            {
                "name": "acme/hot",
                "pool": POOL,
                "tenant": "acme",
                "generation": 1,
                "spec": {"source": {"uri": "file:///a"}, "placement": by_load(2, 8, 50)},
                "updated_at": "",
                "updated_by": "",
                "scaled": now_,
            }
        )
        ours = assigned(POOL, "k", spec_now(made), fleet, {}).serving
        theirs = assigned(POOL, "k", made.spec, fleet, {}).serving
        assert (len(ours), ours[:2]) == (number, theirs)
