"""Admin services' parts that end adapters, over a played etcd and on virtual time."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from registry.access.principal import Credential, Principal
from registry.etcd3.informer import SharedInformerFactory
from registry.model.records import Meta, PoolSpec
from registry.rollout.controller import RolloutController, Shared
from registry.rollout.expiry import ExpiryController
from registry.runtime.clock import Deadline
from registry.store.writer import WriteGate, Writer
from registry.transactions.changes import ApplyAdapters, Upsert
from registry.transactions.context import Caller, TxnLimits
from tests.support.changes import spec
from tests.support.played_etcd import PlayedEtcd, now
from tests.support.records import KEYS, POOL

NAME = "acme/a"
SOMEBODY = Principal("test", Credential.CERTIFICATE)


class Service:
    """The part of an admin service that ends adapters; `wall_ahead`: its wall clock."""

    def __init__(self, etcd: PlayedEtcd, seed: int = 0, wall_ahead: timedelta = timedelta()) -> None:
        self.etcd, self.wall_ahead, self.count = etcd, wall_ahead, Counter[str]()
        rng, gate = random.Random(seed), WriteGate()
        gate.open()
        self.client = etcd.client(seed)
        informers = SharedInformerFactory(self.client, rng=rng)
        self.writer = Writer(self.client, KEYS, TxnLimits(), gate, rng=rng, now=self.wall)
        shared = Shared(self.client, KEYS, self.writer, informers, lambda verb: self.count.update([verb]), rng)
        self.expiry = ExpiryController(shared, lambda: self.count.update(["expired"]))
        self.controller = RolloutController(shared, self.expiry)
        self.tasks: list[asyncio.Task[None]] = []

    def wall(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=now()) + self.wall_ahead

    def start(self) -> Service:
        self.tasks = [asyncio.create_task(work.run()) for work in (self.controller, self.expiry)]
        return self

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)

    async def apply(self, source: str = "v1", name: str = NAME, **more: Any) -> None:
        change = ApplyAdapters(POOL, (Upsert(name, spec(source, **more)),))
        caller = Caller(SOMEBODY, f"q{random.random()}", request_id_given=True)
        await self.writer.change(change, caller, Deadline.of(10), validate_only=False)


def begin(etcd: PlayedEtcd, services: int = 1, **more: Any) -> list[Service]:
    etcd.store.put(KEYS.meta(), Meta(epoch="e", created_at="2026-01-01T00:00:00Z").to_bytes())
    etcd.store.put(KEYS.pool(POOL), PoolSpec(name=POOL, base_models=["base"]).to_bytes())
    return [Service(etcd, seed, **more).start() for seed in range(services)]


def audits(etcd: PlayedEtcd) -> list[dict[str, Any]]:
    found = [json.loads(kv.value) for key, kv in etcd.store.kvs.items() if key.startswith(KEYS.audits())]
    return [one for one in found if one["method"] == "ExpireAdapter"]
