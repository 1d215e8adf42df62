"""Versions swapped under load on real vLLM: what the plugin promises, and beside it what there is without."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator

import pytest

from tests.support.engines import RealVllm, VllmFlags
from tests.support.swap_load import SwapLoad, Swapper, by_driver, by_hand, versions_of
from tests.support.swap_verdict import Verdict
from tests.support.tiny import Tiny, make_tiny

SWAPS = 24
REQUESTS_PER_SECOND = 8.0
SWAPS_PER_SECOND = 1.5
# Fewer than there are versions, and more.
FEW_SLOTS, MANY_SLOTS = 3, 8


@pytest.fixture
def tiny(tmp_path) -> Tiny:
    """The model and its adapters."""
    return make_tiny(tmp_path)


@pytest.fixture
async def vllm(tiny, tmp_path) -> AsyncIterator[RealVllm]:
    """Real vLLM, not yet started."""
    vllm = RealVllm(tiny.model, tmp_path / "vllm")
    yield vllm
    vllm.stop()


async def swapped(load: SwapLoad, swapper: Swapper) -> Verdict:
    """What came of requests while three names of two versions each were swapped in turn."""
    return await load.run(
        swapper, swaps=SWAPS, requests_per_second=REQUESTS_PER_SECOND, swaps_per_second=SWAPS_PER_SECOND
    )


@pytest.mark.engine
@pytest.mark.parametrize("max_loras", [FEW_SLOTS, MANY_SLOTS])
async def test_with_the_plugin_no_request_fails_and_none_is_of_two_versions(vllm, tiny, max_loras):
    """R5, R7, fault 23: also for streams that run across a swap, and after each rollback; with few slots and many."""
    await vllm.ensure(VllmFlags(plugin=True, max_loras=max_loras))
    load = SwapLoad([vllm.url], versions_of(tiny), aimed=3)
    async with by_driver(vllm.url) as driver:
        verdict = await swapped(load, driver)
    print(f"plugin: {verdict.line()}, swap p50 {statistics.median(load.swap_seconds) * 1000:.0f} ms")
    assert load.ended_by is None
    assert (verdict.failed, verdict.mixed, verdict.stale) == (0, 0, 0), [one.failure for one in load.answers]
    assert verdict.spanning >= 3
    assert verdict.streams >= 3


@pytest.mark.engine
async def test_without_the_plugin_failures_are_counted_and_nothing_is_mixed(vllm, tiny):
    """Fault 23: a request may find no such name, and the engine may end; no answer is of two versions.

    Beside it what an unload and a load by hand come to.
    """
    for kind, swapping in (("pipelined", by_driver), ("by hand", by_hand)):
        vllm.stop()
        await vllm.ensure(VllmFlags(max_loras=MANY_SLOTS))
        load = SwapLoad([vllm.url], versions_of(tiny))
        async with swapping(vllm.url) as swapper:
            verdict = await swapped(load, swapper)
        ended = "the engine ended" if load.ended_by is not None else "the engine lives"
        print(f"{kind}: {verdict.line()}, {len(load.swap_seconds)} of {SWAPS} swaps, {ended}")
        assert (verdict.mixed, verdict.stale) == (0, 0)
        assert load.ended_by is None or "KeyError" in vllm.log()
