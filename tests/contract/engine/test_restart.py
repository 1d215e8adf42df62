"""Another process is another engine. The last file of the suite, since real vLLM takes its time to start."""

from __future__ import annotations

import pytest

from registry.tools.devstack.processes import free_ports
from sidecar.engines.driver import EngineUnreachable, EngineUnusable
from sidecar.engines.simulated.app import serving
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.engines.vllm.driver import VllmEngine
from sidecar.vllm_plugin.guard import CONTROL_HEADER
from tests.support.engines import PATIENT, RealVllm, VllmFlags
from tests.support.http_client import http_client

KEY = "canary-key"


async def test_a_simulated_restart_loses_adapters_and_changes_the_incarnation(tiny):
    """Fault 18: seen by the identity, not by polling the listing."""
    seen = []
    for _ in range(2):
        async with serving(SimulatedVllm(Options())) as url:
            engine = VllmEngine(url, deadlines=PATIENT)
            observed = await engine.observe()
            assert dict(observed.adapters) == {}
            await engine.load("x", tiny.adapter("a"), request_id="r")
            seen.append(observed.facts.incarnation)
            await engine.aclose()
    assert seen[0] != seen[1]


async def test_a_plugin_comes_and_goes_with_its_process(tiny):
    """What a process was asked for is not expected of the next one, which may be without it."""
    (port,) = free_ports(1)
    engine = VllmEngine(f"http://127.0.0.1:{port}", deadlines=PATIENT)
    for has_plugin in (True, False, True):
        simulated = SimulatedVllm(Options(plugin=has_plugin))
        async with serving(simulated, port=port):
            for _ in range(2):
                facts = (await engine.observe()).facts
                assert facts.swap == ("plugin" if has_plugin else "pipelined")
                assert facts.limits.max_cpu_loras == (16 if has_plugin else None)
            await engine.load("x", tiny.adapter("a"), request_id="r")
            await simulated.card_of("x")
            assert set((await engine.observe()).last_used) == ({"x"} if has_plugin else set())
    await engine.aclose()


@pytest.mark.engine
async def test_a_real_restart_is_another_incarnation_and_refusals_name_their_remedy(real_vllm: RealVllm, tmp_path):
    """Fault 18, and what an engine that cannot be driven says of itself: a missing key, a missing variable."""
    await real_vllm.ensure()
    before = VllmEngine(real_vllm.url, deadlines=PATIENT)
    incarnation = await before.incarnation()
    real_vllm.stop()
    with pytest.raises(EngineUnreachable):
        await before.observe()
    await before.aclose()

    await real_vllm.ensure(VllmFlags(runtime_lora=False, api_key=KEY, plugin=True))
    assert await plugin_status(real_vllm.url, None) == 401
    assert await plugin_status(real_vllm.url, KEY) == 404  # it declined, as there are no other routes either
    assert "loraplane: the plugin declines: VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 is not set" in real_vllm.log()
    without_key = VllmEngine(real_vllm.url, deadlines=PATIENT)
    assert await without_key.incarnation() != incarnation
    with pytest.raises(EngineUnusable) as caught:
        await without_key.observe()
    assert caught.value.reason == "engine_unauthorized"
    await without_key.aclose()

    file = tmp_path / "key"
    file.write_text(KEY)
    with_key = VllmEngine(real_vllm.url, api_key_file=file, deadlines=PATIENT)
    with pytest.raises(EngineUnusable) as caught:
        await with_key.observe()
    assert caught.value.reason == "runtime_lora_disabled"
    await with_key.aclose()
    real_vllm.stop()  # nobody else can use this one, and it keeps 1 GB


async def test_the_key_guards_the_plugin(tmp_path):
    """No route of the plugin answers without it."""
    async with serving(SimulatedVllm(Options(api_key=KEY, plugin=True))) as url:
        assert await plugin_status(url, None) == await plugin_status(url, "wrong") == 401
        assert await plugin_status(url, KEY) == 200
        async with http_client(base_url=url, timeout=60) as client:
            for path in ("swap", "unload"):
                assert (await client.post(f"/v1/loraplane/{path}", json={"lora_name": "x"})).status_code == 401


async def plugin_status(url: str, key: str | None) -> int:
    headers = {CONTROL_HEADER: "test"} | ({"Authorization": f"Bearer {key}"} if key else {})
    async with http_client(timeout=60) as client:
        return (await client.get(f"{url}/v1/loraplane/plugin", headers=headers)).status_code
