"""Engines that take no calls for a while."""

from __future__ import annotations

from sidecar.engines.observed import Done, EnginePaused


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
