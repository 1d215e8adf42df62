"""The conductor of all pools, and the streams of a rollout and of adapters, on virtual time with an etcd."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from registry.etcd3.informer import SharedInformerFactory
from registry.etcd3.ops import Put, Txn
from registry.model.records import AdapterRecord, Canary, Meta, PoolSpec, Strategy
from registry.rollout.controller import RolloutController, Shared
from registry.store.writer import WriteGate, Writer
from registry.transactions.context import TxnLimits
from tests.support.played_etcd import PlayedEtcd, now, played
from tests.support.records import KEYS, POOL, record
from tests.support.residency_world import presence
from tests.unit.rollout.test_canary_rollout import MEMBERS, NAME, canaried, failed, status

SOAK_SECONDS = 60
KEY = KEYS.adapter(POOL, NAME)
SOAKING = canaried(Strategy(canary=Canary(replicas=2), soak_seconds=SOAK_SECONDS))


class Conducted:
    """A pool whose replicas serve what they are told to, an admin service's conductor, and its streams."""

    def __init__(self, etcd: PlayedEtcd) -> None:
        self.etcd = etcd
        self.done = Counter[str]()
        self._lease = etcd.store.grant(10**6, now())
        etcd.store.put(KEYS.meta(), Meta(epoch="e", created_at="2026-01-01T00:00:00Z").to_bytes())
        etcd.store.put(KEYS.pool(POOL), PoolSpec(name=POOL, base_models=["base"]).to_bytes())
        for member in MEMBERS:
            alive = presence(member.replica, labels=dict(member.labels))
            self._put(KEYS.replica(POOL, member.replica), alive.to_bytes())
        client, rng, gate = etcd.client(), random.Random(0), WriteGate()
        gate.open()
        informers = SharedInformerFactory(client, rng=rng)
        writer = Writer(client, KEYS, TxnLimits(), gate, rng=rng)
        self.controller = RolloutController(Shared(client, KEYS, writer, informers, self._count, rng))

    def _count(self, verb: str) -> None:
        self.done[verb] += 1

    def _put(self, key: bytes, value: bytes) -> int:
        return self.etcd.store.txn(Txn((), (Put(key, value, self._lease),))).revision

    def put(self, made: AdapterRecord) -> int:
        return self.etcd.store.put(KEYS.adapter(POOL, made.name), made.to_bytes())

    def say(self, *, refuse: bool = False) -> None:
        """All replicas report of what stands there now."""
        revision = self.etcd.store.revision
        told = (failed() if refuse else status()).model_copy(update={"observed_revision": revision})
        for member in MEMBERS:
            self._put(KEYS.status(POOL, member.replica), told.to_bytes())

    @property
    def record(self) -> AdapterRecord:
        return AdapterRecord.parse(self.etcd.store.kvs[KEY].value)


@pytest.mark.parametrize("is_there_first", [True, False])
@played
async def test_what_canaries_serve_is_promoted_after_its_soak(etcd: PlayedEtcd, is_there_first):
    """R3: whether the service or the rollout was there first, and however often the pool speaks meanwhile."""
    pool = Conducted(etcd)
    if is_there_first:
        pool.put(SOAKING)
    conducting = asyncio.create_task(pool.controller.run())
    await asyncio.sleep(1)
    if not is_there_first:
        pool.put(SOAKING)
    pool.put(record("other"))
    await asyncio.sleep(1)
    conducting.cancel()  # and is kept by who supervises it
    await asyncio.wait([conducting])
    conducting = asyncio.create_task(pool.controller.run())
    begun = now()
    while pool.record.rollout is not None:
        pool.say()
        await asyncio.sleep(5)
        assert now() - begun < 2 * SOAK_SECONDS
    assert now() - begun >= SOAK_SECONDS
    assert (pool.record.generation, pool.done) == (2, {"promote": 1})
    await asyncio.sleep(5)
    assert (pool.controller._pools, conducting.done()) == ({}, False), "a pool without a rollout costs nothing"
    pool.put(SOAKING)
    pool.say(refuse=True)
    await asyncio.sleep(10)
    halted = pool.record.rollout
    assert halted is not None
    assert "BAD" in halted.halted
    assert pool.done == {"promote": 1, "halt": 1}


@played
async def test_a_record_that_cannot_be_read_keeps_no_other_rollout(etcd: PlayedEtcd):
    """R8, X2: of a later release, say; it has a rollout too, as far as can be seen."""
    pool = Conducted(etcd)
    later = SOAKING.to_bytes().replace(b'"schema":1', b'"schema":99')
    assert later != SOAKING.to_bytes()
    etcd.store.put(KEYS.adapter(POOL, "acme/later"), later)
    pool.put(canaried(Strategy(canary=Canary(replicas=2), soak_seconds=0)))
    pool.say()
    conducting = asyncio.create_task(pool.controller.run())
    await asyncio.sleep(20)
    assert (pool.record.rollout, pool.done, conducting.done()) == (None, {"promote": 1}, False)
