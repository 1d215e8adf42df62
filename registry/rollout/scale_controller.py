"""Controller of numbers of replicas that follow requests, one step at a time.

Each admin service has one, and any of them may act: a step is one transaction with the etag of the record that was
looked at, and whoever takes it has seen the number stand for a minute since. Sidecars only follow the record. While no
admin service runs, or its view of a pool is lost, numbers stay as they are. `registry.rollout.scaling` decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

import structlog

from registry.etcd3.ops import Event, KeyValue
from registry.model.errors import Reason
from registry.rollout.controller import RETRY, Shared, now, woken
from registry.rollout.policy import scaling_request_id
from registry.rollout.pool import PoolSnapshot
from registry.rollout.pool_reader import PoolReader, follow_pool
from registry.rollout.scaling import ScaledAdapters, ScaledRecord, ScaleStep, again_at, demand_of, look
from registry.transactions.changes import ScaleAdapter

# Between two looks at a pool, however fast its replicas report, give or take a half.
_PAUSE_SECONDS = 1.0
_log = structlog.get_logger()


class ScaleController:
    """Scales what is to follow requests in all pools. Whoever follows the adapters tells it of them.

    Args:
        count: is called with ``up`` or ``down`` for each step that this service took, or found taken so.
    """

    def __init__(self, shared: Shared, count: Callable[[str], None]) -> None:
        self._shared = shared
        self._count = count
        self._wake = asyncio.Event()
        self._wakes: dict[str, asyncio.Event] = {}
        self._scaled = ScaledAdapters(shared.keys.all_adapters())
        self._attempts: dict[bytes, int] = {}
        self._failures = 0

    def listed(self, kvs: Iterable[KeyValue]) -> None:
        """Takes a whole list of adapters."""
        self._woken(self._scaled.listed(kvs, now()))

    def changed(self, events: Iterable[Event]) -> None:
        """Takes all changes of one revision."""
        self._woken(self._scaled.changed(events, now()))

    def _woken(self, pools: Iterable[str]) -> None:
        for pool in pools:
            self._wake.set()
            if pool in self._wakes:
                self._wakes[pool].set()

    async def run(self) -> None:
        """Scales until it is cancelled."""
        self._wakes.clear()  # of a run that failed
        self._wake.set()
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._wake.wait()
                self._wake.clear()
                for pool in self._scaled.pools - self._wakes.keys():
                    self._wakes[pool] = asyncio.Event()
                    follow = self._shared.keep(f"scaling of {pool}", partial(self._follow, pool))
                    tasks.create_task(follow, name=f"scale {pool}")

    async def _follow(self, pool: str) -> None:
        """Scales one pool for as long as it has anything that follows requests."""
        wake = self._wakes[pool]
        async with follow_pool(self._shared.informers, self._shared.keys, pool, wake) as reader:
            while self._scaled.of(pool):
                wake.clear()
                at = await self._look(pool, reader)
                await asyncio.sleep(self._shared.rng.uniform(0.5, 1.5) * _PAUSE_SECONDS)
                await woken(wake, at)
            # From here on such an adapter gets a new task, so nothing may be awaited in between.
            del self._wakes[pool]

    async def _look(self, pool: str, reader: PoolReader) -> float | None:
        """Looks at each adapter once and takes the steps that are due; returns when to look again."""
        snapshot = reader.snapshot()
        if snapshot is None or reader.losses is None:
            return None
        found = self._scaled.of(pool)
        self._attempts = {key: count for key, count in self._attempts.items() if not self._is_gone(key, pool)}
        looked = [(one, self._step(one, snapshot, pool)) for one in list(found.values())]
        due = [(one.record.name, partial(self._take, one, step)) for one, step in looked if step is not None]
        done = await self._shared.do_each(due, failed="adapter_not_scaled")
        self._failures = 0 if done else self._failures + 1
        later = [at for one in self._scaled.of(pool).values() if (at := again_at(one.seen)) > now()]
        if not done:
            later.append(now() + RETRY.delay(self._failures, self._shared.rng.uniform))
        return min(later, default=None)

    def _is_gone(self, key: bytes, pool: str) -> bool:
        return key.startswith(self._shared.keys.adapters(pool)) and key not in self._scaled.of(pool)

    def _step(self, one: ScaledRecord, snapshot: PoolSnapshot, pool: str) -> ScaleStep | None:
        seen, step = look(one.seen, one.within, demand_of(one.record, snapshot), now())
        self._scaled.saw(pool, one.kv.key, seen)
        return step

    async def _take(self, one: ScaledRecord, step: ScaleStep) -> bool:
        """Takes one step; False: it was refused. Raises Unavailable: outcome unknown."""
        record, etag, attempt = one.record, one.kv.mod_revision, self._attempts.get(one.kv.key, 0)
        request_id = scaling_request_id(record.pool, record.name, etag, f"{step.replicas}", attempt)
        about = {"pool": record.pool, "name": record.name, "generation": record.generation, "request_id": request_id}
        change = ScaleAdapter(record.pool, record.name, etag, step.replicas, step.why)
        settled = await self._shared.change(change, request_id, about, refused="scaling_refused")
        if isinstance(settled, Reason):
            self._attempts[one.kv.key] = attempt + (settled is Reason.REQUEST_ID_REUSED)
            return False
        self._count("up" if step.replicas > one.seen.number else "down")
        _log.info("adapter_scaled", **about, replicas=step.replicas, why=step.why, revision=settled.revision)
        return True
