"""Another process is another engine. The last file of the suite, since real vLLM takes its time to start."""

from __future__ import annotations

import pytest

from sidecar.engines.driver import EngineUnreachable, EngineUnusable
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.engines.simulated.server import serving
from sidecar.engines.vllm import VllmEngine
from tests.support.engines import RealVllm, VllmFlags

KEY = "canary-key"


async def test_a_simulated_restart_loses_adapters_and_changes_the_incarnation(tiny):
    """Fault 18: seen by the identity, not by polling the listing."""
    seen = []
    for _ in range(2):
        async with serving(SimulatedVllm(Options())) as url:
            engine = VllmEngine(url)
            observed = await engine.observe()
            assert dict(observed.adapters) == {}
            await engine.load("x", tiny.adapter("a"), request_id="r")
            seen.append(observed.facts.incarnation)
            await engine.aclose()
    assert seen[0] != seen[1]


@pytest.mark.engine
async def test_a_real_restart_is_another_incarnation_and_refusals_name_their_remedy(real_vllm: RealVllm, tmp_path):
    """Fault 18, and what an engine that cannot be driven says of itself: a missing key, a missing variable."""
    await real_vllm.ensure()
    before = VllmEngine(real_vllm.url)
    incarnation = await before.incarnation()
    real_vllm.stop()
    with pytest.raises(EngineUnreachable):
        await before.observe()
    await before.aclose()

    await real_vllm.ensure(VllmFlags(runtime_lora=False, api_key=KEY))
    without_key = VllmEngine(real_vllm.url)
    assert await without_key.incarnation() != incarnation
    with pytest.raises(EngineUnusable) as caught:
        await without_key.observe()
    assert caught.value.reason == "engine_unauthorized"
    await without_key.aclose()

    file = tmp_path / "key"
    file.write_text(KEY)
    with_key = VllmEngine(real_vllm.url, api_key_file=file)
    with pytest.raises(EngineUnusable) as caught:
        await with_key.observe()
    assert caught.value.reason == "runtime_lora_disabled"
    await with_key.aclose()
