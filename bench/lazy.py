"""First requests of lazy adapters on real vLLM, beside the engine's own load call and a request; and misses.

Half of the names stand for files that are not in the store yet, half for files that are. A miss is asked for on the
socket itself, as the plugin does it for a name that nobody has; what counts is the CPU time of the sidecar.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Figure, check, of_times
from bench.usage import cpu_seconds
from registry.tools.devstack.engine_environment import find_engine_python
from sidecar.vllm_plugin.resolver import MAX_ASKING, ResolverClient
from tests.support.engines import RealVllm, VllmFlags
from tests.support.lazy_fleet import ARTIFACTS, LazyFleet, lazy_fleet
from tests.support.tiny import make_tiny

RECORDS = 20_000
MISSES = 5000
AT_ONCE = MAX_ASKING // 2
LIMIT_SECONDS = 0.001
# An engine that is asked again for room has time to make it, so that only the request itself is measured.
PAUSE_SECONDS = 0.25


async def lazy(folder: Path) -> list[Figure]:
    """Three figures: first requests, of files that are staged and of those that are not, and misses."""
    find_engine_python()  # else nothing of this can be measured here
    tiny = make_tiny(folder)
    async with AsyncExitStack() as stack:
        socket = f"{stack.enter_context(TemporaryDirectory(prefix='lp-'))}/r"  # a socket's path must be short
        vllm = RealVllm(tiny.model, folder / "vllm")
        stack.callback(vllm.stop)
        flags = VllmFlags(plugin=True, resolver=socket, store=str(folder / "store"))
        fleet = await stack.enter_async_context(lazy_fleet(vllm, flags, folder, tiny, RECORDS))
        floor, fresh = await _alternately(fleet, 0)
        more, staged = await _alternately(fleet, ARTIFACTS)
        each = await _miss_seconds(fleet)
    note = f"floor: the engine's own load and a request; {RECORDS} records"
    return [
        of_times("lazy_staged", floor + more, staged, target="<= 1.5", note=note),
        of_times("lazy_fresh", floor + more, fresh, target="<= 2", note=note),
        Figure("lazy_miss_cpu", each / LIMIT_SECONDS, "< 1 of 1 ms", f"{each * 1e6:.0f} us each, n {MISSES}"),
    ]


async def _alternately(fleet: LazyFleet, first: int) -> tuple[list[float], list[float]]:
    """Seconds of loads by hand with a request each, and of first requests of so many names from `first` on."""
    floor, ours = list[float](), list[float]()
    for number in range(first, first + ARTIFACTS):
        started = time.perf_counter()
        check((await fleet.asker.load("by-hand", fleet.paths[number % ARTIFACTS])).status_code == 200, "a load failed")
        await fleet.answer("by-hand")
        loaded = time.perf_counter()
        floor.append(loaded - started)
        check((await fleet.asker.unload("by-hand")).status_code == 200, "an unload failed")
        await asyncio.sleep(PAUSE_SECONDS)
        started = time.perf_counter()
        answer = await fleet.answer(fleet.names[number])
        ours.append(time.perf_counter() - started)
        check(answer.is_like(fleet.expected[number % ARTIFACTS]), "an answer is not that of the adapter")
        await asyncio.sleep(PAUSE_SECONDS)
    return floor, ours


async def _miss_seconds(fleet: LazyFleet) -> float:
    """CPU seconds of the sidecar for each name that nobody has; what it does beside counts as well."""
    resolver, numbers = ResolverClient(fleet.socket), iter(range(MISSES))

    async def client() -> None:
        for number in numbers:
            check(await resolver.find(f"nobody/{number:x}", "/base") is None, "a name that nobody has was resolved")

    before = cpu_seconds(fleet.sidecar.program.pid)
    await asyncio.gather(*[client() for _ in range(AT_ONCE)])
    return (cpu_seconds(fleet.sidecar.program.pid) - before) / MISSES
