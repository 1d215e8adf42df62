"""Versions swapped under load on real vLLM without the plugin; with it: test_fleet_swaps.py."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.engines import RealVllm, VllmFlags
from tests.support.swap_load import SwapLoad, by_driver, versions_of

SWAPS = 18
REQUESTS_PER_SECOND = 8.0
SWAPS_PER_SECOND = 1.5
SLOTS = 8  # more than there are versions


@pytest.fixture
async def vllm(tiny, tmp_path) -> AsyncIterator[RealVllm]:
    """Real vLLM, not yet started."""
    vllm = RealVllm(tiny.model, tmp_path / "vllm")
    yield vllm
    vllm.stop()


@pytest.mark.engine
async def test_without_the_plugin_failures_are_counted_and_nothing_is_mixed(vllm, tiny):
    """Fault 23: a request may find no such name, and the engine may end; no answer is of two versions.

    Three names of two versions each are swapped in turn. bench/swap.py has what an unload and a load by hand come to.
    """
    await vllm.ensure(VllmFlags(max_loras=SLOTS))
    load = SwapLoad([vllm.url], versions_of(tiny))
    async with by_driver(vllm.url) as swapper:
        verdict = await load.run(
            swapper, swaps=SWAPS, requests_per_second=REQUESTS_PER_SECOND, swaps_per_second=SWAPS_PER_SECOND
        )
    ended = "the engine ended" if load.ended_by is not None else "the engine lives"
    print(f"{verdict.line()}, {len(load.swap_seconds)} of {SWAPS} swaps, {ended}")
    assert (verdict.mixed, verdict.stale) == (0, 0)
    assert load.ended_by is None or "KeyError" in vllm.log()
