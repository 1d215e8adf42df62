"""A driver that does not wait for long, as the tests of this folder use it."""

from __future__ import annotations

from sidecar.engines.driver import Deadlines
from sidecar.engines.vllm.driver import VllmEngine

SHORT = Deadlines(
    probe_seconds=0.5, list_seconds=0.5, load_seconds=0.5, unload_seconds=0.5, turn_seconds=0.5, pulse_seconds=0.5
)


async def listing_of(engine: VllmEngine) -> dict[str, str]:
    return dict((await engine.observe()).adapters)
