"""The list of models of an engine with our plugin, beside vLLM's own code, and beside what it may cost."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.figures import Figure, check
from tests.support.vllm_listing import both

ADAPTERS = 2000
LIMIT_MILLISECONDS = 0.5


async def listing_2000(_: Path) -> list[Figure]:
    """One poll of it, as it holds the event loop of vLLM's API server."""
    [found] = await asyncio.to_thread(both, ADAPTERS)
    check(found["same"], "the list is not vLLM's own")
    own, ours = found["own_ms"], found["ours_ms"]
    told = f"limit {LIMIT_MILLISECONDS} ms, ours {ours:.4f} ms, vLLM's own {own:.1f} ms at {ADAPTERS} adapters"
    return [Figure("listing_2000", ours / LIMIT_MILLISECONDS, "<= 1", told)]
