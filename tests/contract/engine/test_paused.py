"""Engines that take no calls for a while, and engines that break a promise by how they were started."""

from __future__ import annotations

import pytest

from sidecar.engines.driver import EngineUnusable
from sidecar.engines.observed import Done, EnginePaused, Refused
from sidecar.engines.simulated.app import serving
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options, OrderedAnswer
from sidecar.engines.vllm.driver import VllmEngine
from tests.support.engines import BASE_MODEL, PATIENT
from tests.support.http_client import http_client


async def test_a_paused_engine_gets_no_call_and_every_one_once_it_goes_on(engine, asker, tiny):
    """R18, R8: held to real vLLM in its development mode. Nor is it asked for a token, for which it would wait."""
    a, b = tiny.adapter("a"), tiny.adapter("b")
    assert await engine.load("x", a, request_id="r") == Done()
    assert (await engine.observe()).paused == ""
    assert (await asker.client.post("/pause")).status_code == 200
    try:
        for call in (
            engine.load("y", a, request_id="r"),
            engine.swap("x", a, b, request_id="r"),
            engine.unload("x", request_id="r"),
        ):
            assert isinstance(await call, EnginePaused)
        observed = await engine.observe()
        assert (dict(observed.adapters), observed.paused) == ({"x": a}, engine.paused)
        assert observed.paused
        assert (await engine.turns(), await engine.pulse()) == (False, None)
    finally:
        assert (await asker.client.post("/resume")).status_code == 200
    assert await engine.load("y", a, request_id="r") == Done()
    assert (engine.paused, (await engine.observe()).paused) == ("", "")
    assert await engine.turns()


async def test_that_it_sleeps_is_told_by_its_metrics_alone():
    """As where nobody started it in its development mode, and a program around it puts it to sleep."""
    simulated = SimulatedVllm()
    async with serving(simulated) as url:
        engine = VllmEngine(url, deadlines=PATIENT)
        await engine.observe()
        simulated.pause(is_paused=True, sleeps=True)
        await engine.incarnation()
        assert "sleeps" in engine.paused
        assert isinstance(await engine.unload("x", request_id="r"), EnginePaused)
        assert isinstance(await engine.prove("/x", request_id="r"), EnginePaused)
        assert list(simulated.calls) == []
        simulated.pause(is_paused=False, sleeps=False)
        assert (await engine.observe()).paused == ""
        await engine.aclose()


async def test_what_does_not_say_whether_it_is_paused_is_what_it_was():
    """R19: it waits for a step to end, and a call is not held up for that."""
    simulated = SimulatedVllm(Options(development=True))
    async with serving(simulated) as url:
        engine = VllmEngine(url, deadlines=PATIENT)
        simulated.pause(is_paused=True)
        assert (await engine.observe()).paused
        simulated.pause(is_paused=False)
        simulated.faults.order("paused", OrderedAnswer(500, "busy"), OrderedAnswer(500, "busy"))
        assert (await engine.observe()).paused
        assert (await engine.observe()).paused == ""
        await engine.aclose()


@pytest.mark.parametrize(("frontend", "reason"), [("rust", "rust_frontend"), ("several", "several_api_servers")])
async def test_frontends_that_cannot_be_driven_are_named(frontend, reason):
    async with serving(SimulatedVllm(Options(frontend=frontend))) as url:
        engine = VllmEngine(url, deadlines=PATIENT)
        with pytest.raises(EngineUnusable) as told:
            await engine.observe()
        assert told.value.reason == reason
        await engine.aclose()


@pytest.mark.parametrize("plugin", [True, False])
async def test_no_weights_are_replaced_where_a_connector_may_answer_from_the_old_ones(tiny, plugin):
    """R4: also not by unload and load, nor after a restart of the engine, which the connector's cache survives."""
    a, b = tiny.adapter("a"), tiny.adapter("b")
    options = Options(served_model_name=BASE_MODEL, model=str(tiny.model), plugin=plugin, kv_connectors=("Own",))
    async with serving(SimulatedVllm(options)) as url:
        engine = VllmEngine(url, deadlines=PATIENT)
        await engine.observe()
        async with http_client(base_url=url, timeout=60) as client:
            await client.post("/v1/completions", json={"model": BASE_MODEL, "prompt": "x", "max_tokens": 1})
        facts = (await engine.observe()).facts
        assert (facts.swap, [one.reason for one in facts.hazards]) == ("refused", ["kv_connector"])
        assert await engine.load("x", a, request_id="r") == Done()
        assert isinstance(await engine.swap("x", a, b, request_id="r"), Refused)
        assert not engine.is_concurrent
        assert await engine.unload("x", request_id="r") == Done()
        assert dict((await engine.observe()).past) == {"x": a}
        await engine.aclose()
