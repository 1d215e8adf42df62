"""Versions behind three names swapped 100 times under 50 requests a second on real vLLM, with the plugin and without.

The ratio is that of a swap by the plugin to the engine's own load call of the same files, alternately, without load.
Under load answers are counted, and judged by the logprobs that each version gives alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from bench.figures import Figure, check, of_times
from registry.tools.devstack.engine_environment import find_engine_python
from sidecar.engines.observed import Done
from sidecar.engines.vllm.driver import VllmEngine
from tests.support.engines import Asker, RealVllm, VllmFlags
from tests.support.swap_load import SwapLoad, Swapper, by_driver, by_hand, versions_of
from tests.support.swap_verdict import Verdict
from tests.support.tiny import Tiny, make_tiny

SWAPS = 100
REQUESTS_PER_SECOND = 50.0
SWAPS_PER_SECOND = 3.0
ROUNDS = 20
MAX_LORAS = 8

Swapping = Callable[[str], contextlib.AbstractAsyncContextManager[Swapper]]


async def swap(folder: Path) -> list[Figure]:
    """One figure: the plugin's swap; what happened under load stands beside it."""
    find_engine_python()  # else nothing of this can be measured here
    tiny = make_tiny(folder)
    async with _started(tiny, folder / "with", VllmFlags(plugin=True, max_loras=MAX_LORAS)) as url:
        floor, ours = await _alternately(url, tiny)
        by_plugin, _ = await _under_load(url, tiny, by_driver)
    async with _started(tiny, folder / "without", VllmFlags(max_loras=MAX_LORAS)) as url:
        pipelined, swaps = await _under_load(url, tiny, by_driver)
    async with _started(tiny, folder / "by-hand", VllmFlags(max_loras=MAX_LORAS)) as url:
        plain, reloads = await _under_load(url, tiny, by_hand)
    check(by_plugin.failed + by_plugin.mixed + by_plugin.stale == 0, f"by the plugin: {by_plugin.line()}")
    told = f"by the plugin {by_plugin.line()}; pipelined {pipelined.line()}, the engine lived for {swaps} swaps; "
    told += f"unload and load {plain.line()}, the engine lived for {reloads}"
    return [of_times("swap", floor, ours, target="<= 1.5", note=told)]


@contextlib.asynccontextmanager
async def _started(tiny: Tiny, folder: Path, flags: VllmFlags) -> AsyncIterator[str]:
    vllm = RealVllm(tiny.model, folder)
    try:
        await vllm.ensure(flags)
        yield vllm.url
    finally:
        vllm.stop()


async def _alternately(url: str, tiny: Tiny) -> tuple[list[float], list[float]]:
    """Seconds of the engine's own loads, and of swaps."""
    asker, driver = Asker(url), VllmEngine(url)
    old, new = tiny.adapter("a"), tiny.adapter("b")
    await driver.observe()
    await asker.load("x", old)
    floor, ours = list[float](), list[float]()
    for number in range(ROUNDS):
        started = time.perf_counter()
        check((await asker.load(f"n{number}", new)).status_code == 200, "a load failed")
        loaded = time.perf_counter()
        check(await driver.swap("x", old, new, request_id="bench") == Done(), "a swap failed")
        ended = time.perf_counter()
        floor.append(loaded - started)
        ours.append(ended - loaded)
        old, new = new, old
    await asker.clear()
    await asker.client.aclose()
    await driver.aclose()
    return floor, ours


async def _under_load(url: str, tiny: Tiny, swapping: Swapping) -> tuple[Verdict, int]:
    """What came of the requests, and how many swaps were done until the engine ended, if it did."""
    load = SwapLoad([url], versions_of(tiny))
    async with swapping(url) as swapper:
        verdict = await load.run(
            swapper, swaps=SWAPS, requests_per_second=REQUESTS_PER_SECOND, swaps_per_second=SWAPS_PER_SECOND
        )
    return verdict, len(load.swap_seconds)
