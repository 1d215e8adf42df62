"""From the reply to ApplyAdapters until every engine has received the load call.

The floor: a bare put, a bare watch in a process beside each engine, for fresh artifacts a bare copy with sha256 and
fsync, and a bare load call. It runs from the sending of the put until every engine has received that call. What the
figure would be from the put's own reply on is told beside it. Floor and ours take turns on the same engines. The skew
is how much later the last engine receives it than the first.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.admin_service import Admin, admin
from bench.engines import Engines, engines
from bench.etcd import Store, etcd
from bench.figures import Figure, of_times, percentile
from bench.raw_replica import Order
from bench.raw_replicas import RawPut, raw_replicas
from bench.sidecars import sidecars, sources
from bench.weights import write_large_adapter
from tests.support.adapters import WrittenAdapter

SMALL_BYTES = 16 << 10
LARGE_BYTES = 16 << 20
WARM_UP = 3


@dataclass
class World:
    """All parts of one fleet, floor and ours."""

    store: Store
    engines: Engines
    admin: Admin
    raw_put: RawPut
    floor: list[float] = field(default_factory=list)
    floor_from_reply: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    floor_skew: list[float] = field(default_factory=list)
    skew: list[float] = field(default_factory=list)

    async def turn(self, number: int, adapter: WrittenAdapter, *, fresh: bool) -> None:
        """One sample of each. The pauses let both sides finish what they do afterwards."""
        await self.rest()
        place = str(adapter.directory)
        order = Order(f"floor-{number}", **({"source": place} if fresh else {"path": place}))
        sent, answered = await self.raw_put(order)
        received = await self.engines.received("load", [order.name])
        self.floor.append(max(received) - sent)
        self.floor_from_reply.append(max(received) - answered)
        self.floor_skew.append(max(received) - min(received))
        await self.rest()
        name = f"ours-{number}"
        await self.admin.upsert(name, adapter.uri, adapter.digest)
        answered = time.monotonic()
        received = await self.engines.received("load", [name])
        self.ours.append(max(received) - answered)
        self.skew.append(max(received) - min(received))

    async def rest(self) -> None:
        """Until all is quiet again."""
        await asyncio.sleep(0.1 + 0.02 * len(self.engines.urls))

    def figure(self, name: str, note: str) -> Figure:
        """What the turns after the first few came to."""
        floor, ours = self.floor[WARM_UP:], self.ours[WARM_UP:]
        strict = statistics.median(ours) / statistics.median(self.floor_from_reply[WARM_UP:])
        note = f"{note}; ratio {strict:.2f} if the floor too is counted from its put's reply"
        return of_times(name, floor, ours, target="<= 2", note=note)

    def skew_figure(self, name: str) -> Figure:
        """How far apart engines are after one change, in the worst of the turns."""
        floor, ours = percentile(self.floor_skew[WARM_UP:], 0.99), percentile(self.skew[WARM_UP:], 0.99)
        count = len(self.skew[WARM_UP:])
        told = f"p99 floor {floor * 1000:.2f} ms, ours {ours * 1000:.2f} ms; n {count}/{count}"
        return Figure(name, ours / floor, "<= 3", told)


@asynccontextmanager
async def world(folder: Path, replicas: int) -> AsyncIterator[World]:
    """Everything is a process of its own, but for the engines, which share one."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        store = await enter(etcd(folder, fsync=False))
        hosted = await enter(engines(replicas))
        calls = await enter(admin(store))
        raw_put = await enter(raw_replicas(store, hosted))
        await enter(sidecars(store, hosted))
        yield World(store, hosted, calls, raw_put)


async def _staged(folder: Path, replicas: int, turns: int) -> list[Figure]:
    async with world(folder, replicas) as fleet:
        adapter = write_large_adapter(sources(fleet.store) / "staged", SMALL_BYTES, 0)
        for number in range(WARM_UP + turns):  # the first of ours stages it
            await fleet.turn(number, adapter, fresh=False)
        await _check(fleet)
        told = fleet.figure(f"propagation_staged_{replicas}", f"{replicas} sidecar processes")
        return [told, fleet.skew_figure(f"skew_staged_{replicas}")]


async def _fresh(folder: Path, name: str, size_bytes: int, turns: int) -> Figure:
    async with world(folder, 2) as fleet:
        adapters = _write(fleet, size_bytes, WARM_UP + turns)
        for number, adapter in enumerate(adapters):
            await fleet.turn(number, adapter, fresh=True)
        await _check(fleet)
        return fleet.figure(name, f"2 sidecar processes, artifacts of {size_bytes >> 10} KiB")


def _write(fleet: World, size_bytes: int, count: int) -> Sequence[WrittenAdapter]:
    return [write_large_adapter(sources(fleet.store) / f"{n}", size_bytes, n) for n in range(count)]


async def _check(fleet: World) -> None:
    count = len(fleet.ours)
    await fleet.rest()
    await fleet.engines.check_listed(f"{side}-{n}" for side in ("floor", "ours") for n in range(count))


async def propagation_staged_2(folder: Path) -> list[Figure]:
    """Two replicas that have the artifact already."""
    return await _staged(folder, 2, turns=60)


async def propagation_staged_50(folder: Path) -> list[Figure]:
    """Fifty of them."""
    return await _staged(folder, 50, turns=15)


async def propagation_fresh_2(folder: Path) -> list[Figure]:
    """Two replicas that have to fetch the artifact, of a usual size and of next to none."""
    large = await _fresh(folder / "large", "propagation_fresh_2", LARGE_BYTES, turns=15)
    small = await _fresh(folder / "small", "propagation_fresh_small_2", SMALL_BYTES, turns=30)
    return [large, small]
