"""Parts of admin services that scale adapters, over a played etcd."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from registry.access.principal import Credential, Principal
from registry.etcd3.informer import SharedInformerFactory
from registry.etcd3.ops import Put, Txn
from registry.model.records import Meta, PoolSpec
from registry.rollout.controller import RolloutController, Shared
from registry.rollout.scale_controller import ScaleController
from registry.runtime.clock import Deadline
from registry.store.writer import WriteGate, Writer
from registry.transactions.changes import ApplyAdapters, Upsert
from registry.transactions.context import Caller, TxnLimits
from tests.simulation.store import Lease
from tests.support.changes import spec
from tests.support.played_etcd import PlayedEtcd, now
from tests.support.records import KEYS, POOL
from tests.support.residency_world import LEASE

SOMEBODY = Principal("test", Credential.CERTIFICATE)


class Service:
    """The part of an admin service that scales adapters."""

    def __init__(self, etcd: PlayedEtcd, seed: int = 0) -> None:
        self.etcd, self.count = etcd, Counter[str]()
        rng, gate = random.Random(seed), WriteGate()
        gate.open()
        self.client = etcd.client(seed)
        informers = SharedInformerFactory(self.client, rng=rng)
        self.writer = Writer(self.client, KEYS, TxnLimits(), gate, rng=rng, now=wall)
        shared = Shared(self.client, KEYS, self.writer, informers, lambda verb: self.count.update([verb]), rng)
        self.scaling = ScaleController(shared, lambda direction: self.count.update([direction]))
        self.controller = RolloutController(shared, self.scaling)
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> Service:
        self.tasks = [asyncio.create_task(work.run()) for work in (self.controller, self.scaling)]
        return self

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)

    async def apply(self, source: str = "v1", name: str = "acme/a", **more: Any) -> None:
        change = ApplyAdapters(POOL, (Upsert(name, spec(source, **more)),))
        caller = Caller(SOMEBODY, f"q{random.random()}", request_id_given=True)
        await self.writer.change(change, caller, Deadline.of(10), validate_only=False)


def wall() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=now())


def begin(etcd: PlayedEtcd, services: int = 1) -> list[Service]:
    etcd.store.put(KEYS.meta(), Meta(epoch="e", created_at="2026-01-01T00:00:00Z").to_bytes())
    etcd.store.put(KEYS.pool(POOL), PoolSpec(name=POOL, base_models=["base"]).to_bytes())
    return [Service(etcd, seed).start() for seed in range(services)]


def stand(etcd: PlayedEtcd, key: bytes, value: bytes) -> None:
    """Writes a key of a replica, under a lease that outlives the scene."""
    etcd.store.leases.setdefault(LEASE, Lease(1_000_000, 1e9))
    etcd.store.txn(Txn((), (Put(key, value, LEASE),)))
