"""Engines that cannot be driven, and what is said of each."""

from __future__ import annotations

import pytest

from sidecar.engines.driver import EngineUnusable
from sidecar.engines.observed import Done, Transient
from sidecar.engines.simulated.app import serving
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options, OrderedAnswer
from sidecar.engines.vllm.driver import VllmEngine
from tests.support.engines import PATIENT


async def test_runtime_lora_disabled_says_what_to_set(tiny):
    async with serving(SimulatedVllm(Options(runtime_lora=False))) as url:
        engine = VllmEngine(url, deadlines=PATIENT)
        with pytest.raises(EngineUnusable) as caught:
            await engine.observe()
        assert caught.value.reason == "runtime_lora_disabled"
        assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in caught.value.message
        assert "--enable-lora" in caught.value.message
        assert isinstance(await engine.load("x", tiny.adapter("a"), request_id="r"), Transient)
        await engine.aclose()


async def test_lora_disabled_is_seen_in_the_metrics(engine, simulated):
    metrics = "process_start_time_seconds 1.5\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{} 0\n"
    simulated.faults.order("metrics", OrderedAnswer(200, metrics))
    with pytest.raises(EngineUnusable) as caught:
        await engine.observe()
    assert caught.value.reason == "lora_disabled"


@pytest.mark.parametrize(
    ("version", "fits"), [("0.9.2", False), ("0.10.0", True), ("0.31.0rc1", True), ("0.33.0+cpu", True), ("dev", False)]
)
async def test_old_versions_are_refused(version, fits):
    async with serving(SimulatedVllm(Options(version=version))) as url:
        engine = VllmEngine(url, deadlines=PATIENT)
        if fits:
            assert (await engine.observe()).facts.version == version
        else:
            with pytest.raises(EngineUnusable, match=version) as caught:
                await engine.observe()
            assert caught.value.reason == "engine_unsupported"
        await engine.aclose()


@pytest.mark.parametrize(
    ("page", "answer"),
    [
        ("metrics", OrderedAnswer(404, "404 page not found")),
        ("metrics", OrderedAnswer(200, "<html>")),
        ("version", OrderedAnswer(404, "404 page not found")),
        ("version", OrderedAnswer(200, '{"etcdserver": "3.5.1"}')),
    ],
)
async def test_what_is_no_engine_is_named(engine, simulated, page, answer):
    simulated.faults.order(page, answer)
    with pytest.raises(EngineUnusable, match=engine.url) as caught:
        await engine.observe()
    assert caught.value.reason == "not_an_engine"


async def test_the_key_is_read_from_its_file_at_each_use(tiny, tmp_path):
    """X1 secret-free: and it is in no message, right or wrong."""
    file = tmp_path / "key"
    async with serving(SimulatedVllm(Options(api_key="canary-right"))) as url:
        engine = VllmEngine(url, api_key_file=file, deadlines=PATIENT)
        for content in (None, "", "canary-\x01", "canary-wrong", "canary-é"):
            if content is not None:
                file.write_text(content)
            with pytest.raises(EngineUnusable) as caught:
                await engine.observe()
            assert caught.value.reason == "engine_unauthorized"
            assert "--engine-api-key-file" in caught.value.message
            assert content is not None or str(file) in caught.value.message
            assert "canary" not in f"{caught.value!r} {caught.value.__cause__!r}"
            assert not isinstance(await engine.load("x", tiny.adapter("a"), request_id="r"), Done)
            assert not await engine.turns()
        file.write_text("canary-right\n")
        await engine.observe()
        assert await engine.load("x", tiny.adapter("a"), request_id="r") == Done()
        assert await engine.turns()
        await engine.aclose()


async def test_without_a_key_a_guarded_engine_names_the_flag():
    async with serving(SimulatedVllm(Options(api_key="canary"))) as url:
        engine = VllmEngine(url, deadlines=PATIENT)
        with pytest.raises(EngineUnusable, match="--engine-api-key-file") as caught:
            await engine.observe()
        assert caught.value.reason == "engine_unauthorized"
        await engine.aclose()
