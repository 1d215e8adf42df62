"""Ends rollouts that canaries began: promotes what they serve, halts what they refuse. Each admin service has one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing

from registry.admin.pool_conductor import PoolConductor, Shared
from registry.etcd3.ops import prefix_end
from registry.etcd3.reflections import Changed, Listed
from registry.etcd3.reflector import Reflector
from registry.store.pool_sight import watched
from registry.store.running import Running


class Conductor:
    """Watches the adapters of all pools; those of which one is rolled out are looked at, the others cost nothing."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._prefix = shared.keys.all_adapters()
        self._running = Running(self._prefix)
        self._pools: dict[str, PoolConductor] = {}

    async def run(self) -> None:
        """Conducts until it is cancelled."""
        reflector = Reflector(self._shared.client, self._prefix, prefix_end(self._prefix), rng=self._shared.rng)
        async with asyncio.TaskGroup() as tasks, aclosing(reflector.stream()) as reflections:
            async for reflection in reflections:
                match reflection:
                    case Listed():
                        self._wake(self._running.listed(reflection.kvs), tasks)
                    case Changed():
                        self._wake(self._running.changed(reflection.events), tasks)
                    case _:
                        pass

    def _wake(self, pools: Iterable[str], tasks: asyncio.TaskGroup) -> None:
        for pool in pools:
            if pool in self._pools:
                self._pools[pool].wake.set()
            elif pool in self._running.pools:
                self._pools[pool] = PoolConductor(pool, self._running, self._shared)
                tasks.create_task(self._conduct(self._pools[pool]), name=f"conduct {pool}")

    async def _conduct(self, pool: PoolConductor) -> None:
        async with watched(self._shared.mirrors, self._shared.keys, pool.name, pool.wake) as sight:
            await pool.run(sight)
            # From here on a new rollout gets a new task, so nothing may be awaited in between.
            del self._pools[pool.name]
