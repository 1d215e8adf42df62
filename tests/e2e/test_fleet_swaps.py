"""Versions behind names replaced through the registry, on two real vLLM replicas under one load; then one is stopped.

SWAPS and RATE say how many and how many requests a second; the full numbers are 100 and 50.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from loraplane import AsyncRegistry
from registry.client.adapters import published_of
from registry.model.keys import Keys
from registry.tools.devstack.engine_environment import MAX_LORAS
from registry.v1 import registry_pb2 as pb
from sidecar.engines.observed import Done, Outcome
from tests.conftest import EtcdForTest
from tests.support.admin import Admin, admin_inside, wait_ready
from tests.support.engines import BASE_MODEL, RealVllm, VllmFlags
from tests.support.fleet import POOL, Sidecar
from tests.support.stopped_engine import is_told_and_served, serving_one
from tests.support.swap_load import SwapLoad, versions_of
from tests.support.tiny import Tiny
from tests.support.waiting import eventually

# How many adapters of a batch each has room for: fewer than there are versions, and more.
SLOTS = {"r1": MAX_LORAS, "r2": 8}
SWAPS = int(os.environ.get("SWAPS", "12"))
RATE = float(os.environ.get("RATE", "5"))
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
            (published,) = published_of(reply)
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
async def fleet(
    engines: Mapping[str, RealVllm], flags: VllmFlags, folder: Path, tiny: Tiny, etcd: EtcdForTest
) -> AsyncIterator[None]:
    """Two replicas, each with its sidecar; both are ready."""
    async with AsyncExitStack() as stack:
        sources = tiny.folder / "adapters"
        for name, vllm in engines.items():
            await vllm.ensure(replace(flags, max_loras=SLOTS[name]))
            await vllm.clear()
            sidecar = Sidecar(
                *(folder / name, etcd.endpoints, etcd.prefix, vllm.url),
                replica=name,
                sources=sources,
                extra=vllm.flags_of_sidecar(),
            )
            stack.callback(sidecar.program.kill)
            sidecar.program.start()
            await eventually(sidecar.is_ready)
        yield


@pytest.mark.engine
@pytest.mark.timeout(1800)
async def test_no_request_to_either_replica_fails_or_mixes_versions(
    real_vllm, second_vllm, plugin_flags, tiny, etcd, tmp_path
):
    """R5, R7, R3, R4, fault 23: also for streams in flight and after each rollback, with few slots and with many.

    `publish` returns when both replicas serve it.
    """
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(admin_inside(etcd.endpoints, etcd.prefix))
        await wait_ready(admin)
        pool = pb.Pool(
            name=POOL, base_models=[BASE_MODEL], limits=pb.PoolLimits(prove="off")
        )  # else it is seen in answers
        await admin.stub.CreatePool(pb.CreatePoolRequest(pool=pool))
        registry = await stack.enter_async_context(AsyncRegistry(admin.address))
        engines = {"r1": real_vllm, "r2": second_vllm}
        await stack.enter_async_context(fleet(engines, plugin_flags, tmp_path, tiny, etcd))
        load = SwapLoad([vllm.url for vllm in engines.values()], versions_of(tiny), aimed=3)
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


@pytest.mark.engine
@pytest.mark.timeout(1800)
async def test_a_stopped_engine_is_told_of_and_served_again_when_it_goes_on(
    real_vllm, plugin_flags, tiny, etcd, etcd_client, tmp_path
):
    """R18 readiness-follows, R3, with the plugin; without it: test_plain_engine.py."""
    await real_vllm.ensure(plugin_flags)
    async with serving_one(tmp_path, etcd_client, Keys(etcd.prefix), tiny, real_vllm) as (hand, sidecar):
        await is_told_and_served(hand, real_vllm, sidecar)
