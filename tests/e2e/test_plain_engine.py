"""Real vLLM without the plugin: its versions swapped under load, then killed; and one that cannot be driven."""

from __future__ import annotations

import os
import signal

import pytest

from registry.model.keys import Keys
from sidecar.engines.driver import EngineUnusable
from sidecar.engines.vllm.driver import VllmEngine
from sidecar.vllm_plugin.guard import CONTROL_HEADER
from tests.support.engines import PATIENT, VllmFlags
from tests.support.http_client import http_client
from tests.support.stopped_engine import is_told_and_served, seconds_until_told, serves, serving_one
from tests.support.swap_load import SwapLoad, by_driver, versions_of
from tests.support.waiting import eventually

SWAPS = 10
REQUESTS_PER_SECOND = 5.0
SWAPS_PER_SECOND = 1.5
NAMES = ("x", "y")  # whose versions are not more than the engine's slots
KEY = "canary-key"
pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


async def test_without_the_plugin_failures_are_counted_and_nothing_is_mixed(real_vllm, tiny):
    """Fault 23: a request may find no such name, and the engine may end; no answer is of two versions.

    Names of two versions each are swapped in turn. bench/swap.py has what an unload and a load by hand come to.
    """
    await real_vllm.ensure()
    await real_vllm.clear()
    load = SwapLoad([real_vllm.url], {name: versions_of(tiny)[name] for name in NAMES})
    try:
        async with by_driver(real_vllm.url) as swapper:
            verdict = await load.run(
                swapper, swaps=SWAPS, requests_per_second=REQUESTS_PER_SECOND, swaps_per_second=SWAPS_PER_SECOND
            )
    finally:
        if load.ended_by is not None:
            real_vllm.stop()
    ended = "the engine ended" if load.ended_by is not None else "the engine lives"
    print(f"{verdict.line()}, {len(load.swap_seconds)} of {SWAPS} swaps, {ended}")
    assert (verdict.mixed, verdict.stale) == (0, 0)
    assert load.ended_by is None or "KeyError" in real_vllm.log()


async def test_an_engine_that_is_killed_amid_a_load_is_another_that_gets_all(
    real_vllm, tiny, etcd, etcd_client, tmp_path
):
    """R12, R3, fault 18: kill -9 as soon as a load is planned; the next process is told apart, and gets all of them.

    Each night it is stopped before (R18), which with the plugin it always is: test_fleet_swaps.py.
    """
    await real_vllm.ensure()
    async with serving_one(tmp_path, etcd_client, Keys(etcd.prefix), tiny, real_vllm) as (hand, sidecar):
        count = 1
        if os.environ.get("NIGHTLY"):
            await is_told_and_served(hand, real_vllm, sidecar)
            count = 2
        driver = real_vllm.driver()
        incarnation = await driver.incarnation()
        await hand.put(hand.record("d", "d"))
        await eventually(lambda: any("Load d" in line.get("calls", ()) for line in sidecar.program.logged()))
        real_vllm.signal(signal.SIGKILL)
        await seconds_until_told(sidecar, 10.0)
        await real_vllm.again()
        await eventually(lambda: serves(sidecar, count + 1), timeout_seconds=240)
        assert await driver.incarnation() != incarnation
        await driver.aclose()


@pytest.mark.skipif(not os.environ.get("NIGHTLY"), reason="it takes an engine of its own: make engines")
async def test_refusals_of_one_that_cannot_be_driven_name_their_remedy(real_vllm, tmp_path):
    """A missing key, a missing variable."""
    await real_vllm.ensure(VllmFlags(runtime_lora=False, api_key=KEY, plugin=True))
    file = tmp_path / "key"
    file.write_text(KEY)
    # With the key it is 404: the plugin declined, as there are no other routes either.
    for key_file, status, reason in ((None, 401, "engine_unauthorized"), (file, 404, "runtime_lora_disabled")):
        headers = {CONTROL_HEADER: "test"} | ({"Authorization": f"Bearer {KEY}"} if key_file else {})
        async with http_client(timeout=60) as client:
            reply = await client.get(f"{real_vllm.url}/v1/loraplane/plugin", headers=headers)
        assert reply.status_code == status
        engine = VllmEngine(real_vllm.url, api_key_file=key_file, deadlines=PATIENT)
        with pytest.raises(EngineUnusable) as caught:
            await engine.observe()
        assert caught.value.reason == reason
        await engine.aclose()
    assert "loraplane: the plugin declines: VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 is not set" in real_vllm.log()
