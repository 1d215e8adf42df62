"""Versions behind names replaced through the registry, on two real vLLM replicas under one load.

SWAPS and RATE say how many and how many requests a second; the full numbers are 100 and 50.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from loraplane import AsyncRegistry
from registry.client.adapters import published_of
from registry.v1 import registry_pb2 as pb
from sidecar.engines.observed import Done, Outcome
from tests.support.admin import Admin, admin_inside, make_pool, wait_ready
from tests.support.engines import BASE_MODEL, RealVllm, VllmFlags
from tests.support.fleet import POOL, Sidecar
from tests.support.swap_load import SwapLoad, versions_of
from tests.support.tiny import Tiny, make_tiny
from tests.support.waiting import eventually

# How many adapters of a batch each has room for: fewer than there are versions, and more.
SLOTS = {"r1": 3, "r2": 8}
SWAPS = int(os.environ.get("SWAPS", "18"))
RATE = float(os.environ.get("RATE", "8"))
SWAPS_PER_SECOND = 2.0
SERVED_SECONDS = 120
# Each so-many-th time a version comes back, it is by a rollback.
ROLLBACK_EACH = 3


@dataclass
class ByRegistry:
    """Versions are published, or rolled back to, and waited for on every replica."""

    admin: Admin
    registry: AsyncRegistry
    generations: list[int] = field(default_factory=list)
    rollbacks: int = 0

    async def begin(self, name: str, version: str) -> None:
        """See `Swapper.begin`."""
        published = await self.registry.publish(version, name, POOL, timeout_seconds=SERVED_SECONDS)
        assert published.generation == 1

    async def swap(self, name: str, old: str, new: str) -> Outcome:
        """See `Swapper.swap`. Of two versions, the one before the present one is the other one."""
        if len(self.generations) % ROLLBACK_EACH == ROLLBACK_EACH - 1 and await self._has_past(name):
            reply = await self.admin.stub.RollbackAdapter(pb.RollbackAdapterRequest(pool=POOL, name=name))
            published = published_of(reply)
            assert published.uri == Path(new).as_uri() != Path(old).as_uri()
            await self.registry.wait(published, timeout_seconds=SERVED_SECONDS)
            self.rollbacks += 1
        else:
            published = await self.registry.publish(new, name, POOL, timeout_seconds=SERVED_SECONDS)
        self.generations.append(published.generation)
        return Done()

    async def _has_past(self, name: str) -> bool:
        request = pb.ListAdapterHistoryRequest(pool=POOL, name=name)
        return len((await self.admin.stub.ListAdapterHistory(request)).generations) > 1


@asynccontextmanager
async def fleet(folder: Path, tiny: Tiny, etcd: tuple[str, ...], prefix: str) -> AsyncIterator[list[RealVllm]]:
    """Two replicas with the plugin, each with its sidecar; both are ready."""
    async with AsyncExitStack() as stack:
        engines = [RealVllm(tiny.model, folder / name / "vllm") for name in SLOTS]
        for name, vllm in zip(SLOTS, engines, strict=True):
            stack.callback(vllm.stop)
            await vllm.ensure(VllmFlags(plugin=True, max_loras=SLOTS[name]))
            sidecar = Sidecar(folder / name, etcd, prefix, vllm.url, replica=name, sources=tiny.folder / "adapters")
            stack.callback(sidecar.program.kill)
            sidecar.program.start()
            await eventually(sidecar.is_ready, timeout_seconds=120)
        yield engines


@pytest.mark.engine
@pytest.mark.timeout(900)
async def test_no_request_to_either_replica_fails_or_mixes_versions(etcd, tmp_path):
    """R5, R7, R3, R4, fault 23: also for streams in flight and after each rollback, with few slots and with many.

    `publish` returns when both replicas serve it.
    """
    tiny = make_tiny(tmp_path)
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(admin_inside(etcd.endpoints, etcd.prefix))
        await wait_ready(admin)
        await make_pool(admin, POOL, BASE_MODEL)
        registry = await stack.enter_async_context(AsyncRegistry(admin.address))
        engines = await stack.enter_async_context(fleet(tmp_path, tiny, etcd.endpoints, etcd.prefix))
        load = SwapLoad([vllm.url for vllm in engines], versions_of(tiny), aimed=3)
        swapper = ByRegistry(admin, registry)
        verdict = await load.run(swapper, swaps=SWAPS, requests_per_second=RATE, swaps_per_second=SWAPS_PER_SECOND)
    p50 = statistics.median(load.swap_seconds)
    print(
        f"two replicas: {verdict.line()}; {SWAPS} swaps, {swapper.rollbacks} by rollback, until served p50 {p50:.2f} s"
    )
    assert (verdict.failed, verdict.mixed, verdict.stale) == (0, 0, 0), {one.failure for one in load.answers}
    assert len(load.swap_seconds) == SWAPS
    assert swapper.rollbacks >= SWAPS // ROLLBACK_EACH - len(load.versions)
    assert verdict.spanning >= 3
    assert verdict.streams >= 3
