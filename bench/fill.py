"""Filling an empty engine with 200 adapters that are staged, beside a bare loop of 200 load calls.

Ours twice: after the engine was started anew, when nothing runs on it; and in service, by one change, when the sidecar
asks before loads whether the engine has requests to serve. Each runs from the first load call to the last.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from bench.engines import Engines, engines
from bench.etcd import Store, etcd, put_of, record
from bench.figures import Figure, check, of_times
from bench.sidecars import sidecars, sources
from bench.weights import write_large_adapter
from registry.etcd3.ops import Put
from registry.model.keys import Keys
from registry.model.records import SourceSpec
from tests.support.fleet import Sidecar
from tests.support.waiting import eventually

ADAPTERS = 200
TURNS = 5
ADAPTER_BYTES = 16 << 10
NAMES = [f"adapter-{number}" for number in range(ADAPTERS)]


@dataclass
class Filled:
    """The parts, and the samples in seconds."""

    store: Store
    keys: Keys
    engines: Engines
    sidecar: Sidecar
    puts: Sequence[Put]
    floor: list[float] = field(default_factory=list)
    restarted: list[float] = field(default_factory=list)
    in_service: list[float] = field(default_factory=list)
    noticed: list[float] = field(default_factory=list)

    async def turn(self, number: int) -> None:
        """One sample of each; at its end the engine is empty, and the sidecar wants nothing in it."""
        self.in_service.append(await self._by_change())
        self.restarted.append(await self._by_restart())
        await self.store.delete(self.keys, NAMES)
        await self.engines.received("unload", NAMES)
        await self._settled(0)
        self.floor.append(await self._by_hand(number))
        await self.engines.empty()
        await asyncio.sleep(2)

    async def _by_change(self) -> float:
        self.engines.forget()
        await self.store.put(*self.puts)
        received = await self.engines.received("load", NAMES)
        await self._settled(ADAPTERS)
        return max(received) - min(received)

    async def _by_restart(self) -> float:
        self.engines.forget()
        emptied = await self.engines.empty()
        received = await self.engines.received("load", NAMES)
        await self._settled(ADAPTERS)
        self.noticed.append(min(received) - emptied)
        return max(received) - min(received)

    async def _by_hand(self, number: int) -> float:
        """A bare loop, under names of its own that the sidecar leaves alone."""
        paths = [str(sources(self.store) / name) for name in NAMES]
        async with httpx.AsyncClient(base_url=self.engines.urls[0], trust_env=False) as client:
            started = time.monotonic()
            for name, path in zip(NAMES, paths, strict=True):
                body = {"lora_name": f"floor-{number}-{name}", "lora_path": path}
                (await client.post("/v1/load_lora_adapter", json=body)).raise_for_status()
            return time.monotonic() - started

    async def _settled(self, count: int) -> None:
        async def is_so() -> bool:
            status = await self.sidecar.status()
            return bool(status["served"]["count"] == count and not status["pending"] and status["ready"])

        await eventually(is_so)


async def fill_200(folder: Path) -> list[Figure]:
    """The floor, a restart and a change take turns on one engine."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(etcd(folder, fsync=False))
        keys = Keys()
        await store.put_pool(keys)
        written = [write_large_adapter(sources(store) / name, ADAPTER_BYTES, n) for n, name in enumerate(NAMES)]
        wanted = [SourceSpec(uri=one.uri, digest=one.digest) for one in written]
        puts = [put_of(keys, record(name, source)) for name, source in zip(NAMES, wanted, strict=True)]
        await store.put(*puts)
        hosted = await stack.enter_async_context(engines(1))
        (sidecar,) = await stack.enter_async_context(sidecars(store, hosted))
        parts = Filled(store, keys, hosted, sidecar, puts)
        await hosted.check_listed(NAMES)
        await _emptied(parts)
        for number in range(TURNS):
            await parts.turn(number)
    check(len(parts.restarted) == TURNS, "not every turn was taken")
    noticed = f"a restart is noticed after {max(parts.noticed):.2f} s at most, beside this"
    return [
        of_times("fill_200_restarted", parts.floor, parts.restarted, target="", note=noticed),
        of_times("fill_200_in_service", parts.floor, parts.in_service, target="", note="by one change"),
    ]


async def _emptied(parts: Filled) -> None:
    await parts.store.delete(parts.keys, NAMES)
    await parts.engines.received("unload", NAMES)
