"""Whether a vLLM generates, how much it has to do, and what it still reads, as its driver asks it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from unittest.mock import Mock

import pytest

from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.observed import Done
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from sidecar.engines.transport import Lost, Reply
from sidecar.engines.vllm.driver import VllmEngine
from tests.simulation.loop import virtual
from tests.support.adapters import write_adapter
from tests.support.engine_in_memory import DEADLINES, PLAIN, WITH_PLUGIN, InMemory, driver_of

COMPLETIONS, STATE = "/v1/completions", "/v1/loraplane/state"
NO, LOST = Reply(500, b"no"), Lost("it broke")


async def looked_at(options: Options = PLAIN) -> tuple[SimulatedVllm, VllmEngine, InMemory]:
    """An engine whose driver has looked at it, and has probed its identity five seconds ago."""
    engine = SimulatedVllm(options)
    driver, way = driver_of(engine, DEADLINES)
    await driver.observe()
    await driver.incarnation()
    await asyncio.sleep(5.0)
    way.asked.clear()
    way.seconds.clear()
    return engine, driver, way


def paths(way: InMemory) -> list[str]:
    return [path for _, path, _ in way.asked]


@virtual
async def test_an_engine_that_makes_progress_is_asked_for_nothing():
    """R18: a full one may let a request of ours wait for long, and generates all the same."""
    engine, driver, way = await looked_at()
    for number in ("tokens", "prompt_tokens"):
        setattr(engine, number, 7)
        await driver.incarnation()
        way.asked.clear()
        await asyncio.sleep(4.9)
        assert (await driver.pulse(), paths(way)) == (True, [])
        await driver.incarnation()
        way.asked.clear()
        await asyncio.sleep(0.1)
        assert (await driver.pulse(), paths(way)) == (True, [COMPLETIONS]), "the same page is no progress"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Reply(200, b""), True),
        *((Reply(status, b""), None) for status in (400, 404, 429, 499, 501)),
        *((answer, False) for answer in (NO, LOST, Reply(503, b""), Reply(302, b""))),
    ],
    ids=str,
)
@virtual
async def test_without_progress_one_token_is_asked_for(answer, says):
    """R18 readiness-follows: an engine that answers and generates nothing is found out."""
    _, driver, way = await looked_at()
    way.instead[COMPLETIONS].append(answer)
    assert await driver.pulse() is says
    assert paths(way) == [COMPLETIONS, *(["/metrics"] if says is False else [])]
    assert way.asked[0][2] == {"model": "base", "prompt": ".", "max_tokens": 1, "temperature": 0}


@pytest.mark.parametrize(("options", "seconds"), [(PLAIN, 32.0), (WITH_PLUGIN, 8.0)], ids=["plain", "plugin"])
@virtual
async def test_an_engine_that_stands_still_is_waited_for_no_longer_than_it_may_take(options, seconds):
    """R18: nothing of it goes on, though its pages answer. A plugin itself says sooner that its core does not."""
    engine, driver, _ = await looked_at(options)
    async with engine._turn:
        began = asyncio.get_running_loop().time()
        assert await driver.pulse() is False
        assert asyncio.get_running_loop().time() - began == pytest.approx(seconds)
        assert await driver.turns() is False
        assert asyncio.get_running_loop().time() - began == pytest.approx(seconds + 16.0)
    assert (await driver.pulse(), await driver.turns()) == (True, True)


@virtual
async def test_with_the_plugin_its_core_is_asked_and_no_request_is_made():
    """R18: of an engine that keeps no statistics too."""
    engine, driver, way = await looked_at(WITH_PLUGIN)
    assert (await driver.pulse(), paths(way), way.seconds) == (True, [STATE], [32])
    way.instead[STATE].extend([NO, LOST])
    assert [await driver.pulse() for _ in range(3)] == [False, False, True]
    assert engine.tokens == 0


@virtual
async def test_what_does_not_answer_is_not_said_to_stand_still_where_it_is_another_matter():
    """R18: out of reach, restarted, or it made progress meanwhile."""
    engine, driver, way = await looked_at()
    way.instead[COMPLETIONS].extend([NO] * 4)
    way.instead["/metrics"].append(LOST)
    assert await driver.pulse() is None
    assert await driver.pulse() is False
    engine.started_at += 1
    assert await driver.pulse() is None
    engine.started_at -= 1
    engine.tokens += 1
    assert await driver.pulse() is True
    way.is_there = False
    await asyncio.sleep(5.0)
    assert await driver.pulse() is None


@pytest.mark.parametrize("options", [PLAIN, WITH_PLUGIN], ids=["plain", "plugin"])
@virtual
async def test_of_what_nobody_looked_at_or_counts_nothing_there_is_no_pulse(options):
    """R18: nobody could say of a full engine without statistics that it goes on, but a plugin asks its core."""
    engine = SimulatedVllm(options)
    driver, way = driver_of(engine)
    assert (await driver.pulse(), way.asked) == (None, [])
    page = f"process_start_time_seconds {engine.started_at!r}\n".encode()
    way.instead["/metrics"].extend([Reply(200, page)] * 3)
    await driver.observe()
    await asyncio.sleep(5.0)
    way.asked.clear()
    assert (await driver.pulse(), paths(way)) == ((None, []) if options is PLAIN else (True, [STATE]))


@virtual
async def test_one_that_is_paused_has_no_pulse_also_while_its_page_still_changes():
    """R18: it is asked whether it goes on, before progress of an earlier moment counts."""
    engine = SimulatedVllm(replace(PLAIN, development=True))
    driver, way = driver_of(engine)
    await driver.observe()
    engine.pause(is_paused=True)
    await driver.observe()
    engine.tokens += 1
    await driver.incarnation()
    way.asked.clear()
    assert (await driver.pulse(), set(paths(way))) == (None, {"/is_sleeping", "/is_paused"})
    engine.pause(is_paused=False)
    assert (await driver.pulse(), set(paths(way))) == (True, {"/is_sleeping", "/is_paused", COMPLETIONS})


async def test_whether_it_is_busy_is_counted():
    driver, way = driver_of(engine := SimulatedVllm(PLAIN), DEADLINES)
    assert await driver.is_busy() is False
    for waiting in (engine.running, engine.waiting):
        waiting.append("x")
        assert await driver.is_busy() is True
        waiting.clear()
    engine.running.append("x")
    way.instead["/metrics"].extend([NO, Reply(404, b"")])
    assert [await driver.is_busy() for _ in range(3)] == [False, False, True]
    assert set(way.seconds) == {1}


async def test_whether_it_turns_is_told_by_one_token_of_the_base_model():
    """R18: one that nobody looked at yet is looked at, for its name."""
    driver, way = driver_of(SimulatedVllm(PLAIN), DEADLINES)
    way.instead["/metrics"].append(NO)
    assert await driver.turns() is False
    assert COMPLETIONS not in paths(way)
    assert await driver.turns() is True
    way.asked.clear()
    way.instead[COMPLETIONS].extend([Reply(501, b""), NO, LOST])
    assert [await driver.turns() for _ in range(4)] == [None, False, False, True]
    assert {str(body["model"]) for _, _, body in way.asked} == {"base"}
    assert paths(way) == [COMPLETIONS] * 4, "its name is known"
    way.is_there = False
    assert await driver.turns() is False


@pytest.mark.parametrize("options", [PLAIN, WITH_PLUGIN], ids=["plain", "plugin"])
async def test_what_was_asked_of_an_engine_is_counted(options, tmp_path):
    """Requests and tokens since its process began; each adapter's where its plugin tells them."""
    engine = SimulatedVllm(options)
    driver, way = driver_of(engine, DEADLINES)
    await driver.observe()
    await engine.load("x", str(write_adapter(tmp_path / "a").directory))
    body = {"model": "x", "prompt": "pqr", "max_tokens": 5}
    for _ in range(2):
        assert isinstance(await way.ask("POST", COMPLETIONS, body), Reply)
    engine.running.append("x")
    engine.waiting += ["x", "x"]
    way.seconds.clear()
    way.together.clear()
    found = await driver.activity()
    assert (found.running, found.waiting) == (1, 2)
    assert (found.requests, found.prompt_tokens, found.generation_tokens) == (2, 6, 10)
    if options is PLAIN:
        assert (found.last_used, found.adapter_requests, way.together) == (None, None, [("/metrics",)])
        return
    assert (set(found.last_used or ()), found.adapter_requests) == ({"x"}, {"x": 2})
    assert (way.together, way.seconds) == ([("/metrics", "/v1/loraplane/uses")], [1])
    way.instead["/v1/loraplane/uses"].append(Reply(404, b""))
    again = await driver.activity()
    assert (again.requests, again.last_used, again.adapter_requests) == (2, None, None)


async def test_what_requests_there_are_is_told_once_a_step_has_ended():
    """R7: without the plugin a token is asked for first, and the metrics are read after it."""
    engine = SimulatedVllm(PLAIN)
    driver, way = driver_of(engine, DEADLINES)
    await driver.observe()
    engine.running.append("x")
    engine._sample()
    way.asked.clear()
    way.seconds.clear()
    found = await driver.drain_evidence()
    assert (found.incarnation, found.running, found.waiting) == (repr(engine.started_at), 1, 0)
    assert (found.adapters, found.paths) == (frozenset({"x"}), None)
    assert (paths(way), way.seconds[1:]) == ([COMPLETIONS, "/metrics"], [1])
    for answer in (NO, LOST, Reply(501, b"")):
        way.instead[COMPLETIONS].append(answer)
        with pytest.raises(EngineUnreachable, match="does not complete"):
            await driver.drain_evidence()


async def test_with_the_plugin_every_path_that_may_be_read_is_told(tmp_path):
    """R7: by its core, between two steps, and of one process."""
    engine = SimulatedVllm(WITH_PLUGIN)
    driver, way = driver_of(engine, DEADLINES)
    await driver.observe()
    path = str(write_adapter(tmp_path / "a").directory)
    assert await driver.load("x", path, request_id="r") == Done()
    way.together.clear()
    way.seconds.clear()
    assert (await driver.drain_evidence()).paths == {path}
    assert (way.together, way.seconds) == ([("/metrics", STATE, "/metrics")], [3])
    way.instead[STATE].extend([NO, Reply(404, b""), Reply(200, b"{}")])
    for _ in range(3):
        with pytest.raises(Exception, match=STATE):
            await driver.drain_evidence()
    way.before[STATE] = lambda: setattr(engine, "started_at", engine.started_at + 1)
    with pytest.raises(EngineUnreachable, match="restarted"):
        await driver.drain_evidence()


@pytest.mark.parametrize("options", [PLAIN, WITH_PLUGIN], ids=["plain", "plugin"])
@virtual
async def test_a_fault_of_our_own_is_never_taken_for_a_state_of_the_engine(options, monkeypatch):
    """R12: what is not foreseen ends the part in which it happens, and is told; nothing is concluded from it."""
    engine, driver, way = await looked_at(replace(options, development=True))
    fault = Mock(side_effect=ZeroDivisionError)
    engine.running.append("x")
    engine._sample()
    way.before = dict.fromkeys(("/metrics", COMPLETIONS, STATE, "/v1/models"), fault)
    calls = [driver.is_busy, driver.turns, driver.pulse, driver.observe, driver.activity, driver.drain_evidence]
    for call in calls:
        with pytest.raises(ZeroDivisionError):
            await call()
    way.before = {"/is_paused": fault}
    for call in (driver.observe, driver.pulse):
        with pytest.raises(ZeroDivisionError):
            await call()
    way.before = {"/metrics": fault}
    way.instead[COMPLETIONS].append(NO)
    way.instead[STATE].append(NO)
    with pytest.raises(ZeroDivisionError):
        await driver.pulse()
    if options is PLAIN:
        with pytest.raises(ZeroDivisionError):
            await driver.swap("x", "/a", "/b", request_id="r")
        way.before = {}
        with monkeypatch.context() as patch:
            patch.setattr(VllmEngine, "_read_drain", fault)
            with pytest.raises(ZeroDivisionError):
                await driver.swap("x", "/a", "/b", request_id="r")
    engine.started_at += 1
    for path in ("/is_sleeping", "/v1/loraplane/plugin"):
        way.before = {path: fault}
        with pytest.raises(ZeroDivisionError):
            await driver.observe()
