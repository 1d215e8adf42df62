"""From `Registry.publish` of a version until both of two real vLLM serve it, beside the engines' own load calls.

The floor is one bare load of the same files on each engine, both at once; it is no swap, and nobody reports it. Ours
has the client, the transaction, the files that each replica hashes and checks, the swap, and the report of it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

from bench.admin_service import admin
from bench.etcd import Store, etcd
from bench.figures import Figure, check, of_times
from loraplane import AsyncRegistry
from registry.model.keys import DEFAULT_PREFIX
from registry.tools.devstack.engine_environment import find_engine_python
from tests.support.engines import BASE_MODEL, Asker, RealVllm, VllmFlags
from tests.support.fleet import POOL, Sidecar
from tests.support.tiny import Tiny, make_tiny
from tests.support.waiting import eventually

TURNS = 20
WARM_UP = 2
READY_SECONDS = 240
MAX_LORAS = 8
NAME = "policy"


async def publish(folder: Path) -> list[Figure]:
    """One figure: a publication that is waited for, of two versions in turn."""
    find_engine_python()  # else nothing of this can be measured here
    tiny = make_tiny(folder)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(etcd(folder, fsync=True))
        calls = await stack.enter_async_context(admin(store, BASE_MODEL))
        urls = [await _replica(stack, store, tiny, name) for name in ("r1", "r2")]
        askers = [Asker(url) for url in urls]
        for one in askers:
            stack.push_async_callback(one.client.aclose)
        registry = await stack.enter_async_context(AsyncRegistry(calls.address))
        floor, ours = await _alternately(registry, askers, tiny)
    note = "floor: a bare load of the same files on each engine, both at once"
    return [of_times("publish", floor[WARM_UP:], ours[WARM_UP:], target="", note=note)]


async def _replica(stack: AsyncExitStack, store: Store, tiny: Tiny, name: str) -> str:
    """URL of an engine whose sidecar is ready."""
    vllm = RealVllm(tiny.model, store.folder / f"vllm-{name}")
    stack.callback(vllm.stop)
    files = store.folder / f"store-{name}"
    await vllm.ensure(VllmFlags(plugin=True, max_loras=MAX_LORAS, store=str(files)))
    sidecar = Sidecar(
        *(store.folder / name, (store.endpoint,), DEFAULT_PREFIX, vllm.url),
        replica=name,
        sources=tiny.folder / "adapters",
        store=files,
        extra=vllm.flags_of_sidecar(),
    )
    sidecar.program.start()
    stack.callback(sidecar.program.kill)
    await eventually(sidecar.is_ready, timeout_seconds=READY_SECONDS)
    return vllm.url


async def _alternately(registry: AsyncRegistry, askers: list[Asker], tiny: Tiny) -> tuple[list[float], list[float]]:
    """Seconds of the engines' own loads, and of publications."""
    floor, ours = list[float](), list[float]()
    for number in range(WARM_UP + TURNS):
        version = tiny.adapter("ab"[number % 2])
        started = time.perf_counter()
        replies = await asyncio.gather(*(one.load(f"floor-{number}", version) for one in askers))
        floor.append(time.perf_counter() - started)
        check(all(reply.status_code == 200 for reply in replies), "a load failed")
        await asyncio.gather(*(one.unload(f"floor-{number}") for one in askers))
        started = time.perf_counter()
        published = await registry.publish(version, NAME, POOL, timeout_seconds=READY_SECONDS)
        ours.append(time.perf_counter() - started)
        check(published.generation == number + 1, "a version was not published")
    return floor, ours
