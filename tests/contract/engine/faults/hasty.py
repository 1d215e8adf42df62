"""How long drivers wait that do not wait for long, as the tests of this folder use them."""

from __future__ import annotations

from dataclasses import replace

from sidecar.engines.driver import Deadlines
from sidecar.engines.vllm.driver import VllmEngine
from tests.support.engines import PATIENT

SHORT = Deadlines(
    probe_seconds=0.5, list_seconds=0.5, load_seconds=0.5, unload_seconds=0.5, turn_seconds=0.5, pulse_seconds=0.5
)
# The same of calls and completions alone: a page that is to be read is read, however late the machine lets it come.
HASTY = replace(PATIENT, load_seconds=0.5, unload_seconds=0.5, turn_seconds=0.5, pulse_seconds=0.5)


async def listing_of(engine: VllmEngine) -> dict[str, str]:
    return dict((await engine.observe()).adapters)
