"""What the driver says when a call does not end as it should. On the simulated engine, which can be told to fail."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import httpx
import pytest

from registry.tools.devstack.processes import free_ports
from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.observed import AlreadyThere, Done, EngineGone, Refused, Transient, Unknown
from sidecar.engines.simulated.app import serving
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Cut, Die, Hang, Options, OrderedAnswer
from sidecar.engines.vllm.driver import VllmEngine
from tests.contract.engine.faults.hasty import HASTY, SHORT, listing_of
from tests.support.engines import BASE_MODEL, PATIENT, Asker
from tests.support.waiting import eventually
from tests.support.wire import wire_to


async def test_a_load_that_times_out_is_unknown_and_may_complete(engine, hasty, simulated, tiny):
    """Fault 20: settled by listing; the repeated load finds it there."""
    release = asyncio.Event()
    simulated.faults.order("load", Hang(release))
    assert isinstance(await hasty.load("x", tiny.adapter("a"), request_id="r"), Unknown)
    assert dict((await engine.observe()).adapters) == {}
    release.set()
    listed = await eventually(lambda: listing_of(engine))
    assert listed == {"x": tiny.adapter("a")}
    assert await engine.load("x", tiny.adapter("a"), request_id="r") == AlreadyThere()


async def test_an_engine_that_hangs_in_a_load_is_seen_not_to_turn(engine, hasty, simulated, asker, tiny):
    """Fault 19: /health and the listing still answer; generation does not."""
    assert await engine.turns()
    await hasty.observe()  # so that it has no page to read before it asks for a token
    release = asyncio.Event()
    simulated.faults.order("load", Hang(release))
    assert isinstance(await hasty.load("x", tiny.adapter("a"), request_id="r"), Unknown)
    assert (await asker.client.get("/health")).status_code == 200
    await engine.observe()

    async def stands_still() -> bool:  # once the load, for which nobody waits any more, has come as far
        return not await hasty.turns()

    assert await eventually(stands_still)
    assert await eventually(engine.is_busy)
    release.set()
    assert await eventually(engine.turns)


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_of_an_engine_that_completes_nothing_it_cannot_be_told_whether_it_turns(engine, simulated, status):
    """R18: as one that embeds, or whose completions a proxy hides."""
    simulated.faults.order("completions", OrderedAnswer(status, '{"detail":"Not Found"}'))
    assert await engine.turns() is None
    assert await engine.turns() is True


async def pulse_of(engine: VllmEngine) -> bool | None:
    """The pulse, after the probe that runs beside it all the time."""
    await engine.incarnation()
    return await engine.pulse()


async def test_a_pulse_is_progress_or_a_sign_of_life(engine, hasty, simulated, asker, monkeypatch, tiny):
    """R18 readiness-follows: an engine that answers and generates nothing is found out, also while nobody asks it."""
    monkeypatch.setattr("sidecar.engines.vllm.driver.PROGRESS_SECONDS", 0.0)
    assert await pulse_of(hasty) is None, "not looked at yet"
    await hasty.observe()
    assert await eventually(lambda: pulse_of(hasty))
    release = asyncio.Event()
    simulated.faults.order("load", Hang(release))
    assert isinstance(await hasty.load("x", tiny.adapter("a"), request_id="r"), Unknown)
    assert (await asker.client.get("/health")).status_code == 200
    assert await pulse_of(hasty) is False
    release.set()
    assert await eventually(lambda: pulse_of(hasty))


async def test_an_engine_that_makes_progress_is_asked_for_nothing(engine, simulated, asker):
    """R18: a full one may let a request of ours wait for long, and generates all the same."""
    await engine.observe()
    await engine.incarnation()
    assert await asker.text(BASE_MODEL, "x")
    simulated.faults.order("completions", OrderedAnswer(500, "no"))
    assert await pulse_of(engine) is True
    assert simulated.faults.take("completions") is not None


@pytest.mark.parametrize("status", [404, 405, 501, 429, 401])
async def test_an_engine_without_completions_has_no_pulse(engine, simulated, monkeypatch, status):
    """R18: that it generates nothing cannot be told of it, so it is not."""
    monkeypatch.setattr("sidecar.engines.vllm.driver.PROGRESS_SECONDS", 0.0)
    await engine.observe()
    simulated.faults.order("completions", OrderedAnswer(status, "no"))
    assert await pulse_of(engine) is None


async def test_an_engine_without_statistics_has_no_pulse(engine, simulated, monkeypatch):
    """R18: a full one might let a request of ours wait for long, and nothing would tell that it goes on."""
    monkeypatch.setattr("sidecar.engines.vllm.driver.PROGRESS_SECONDS", 0.0)
    await engine.observe()
    simulated.faults.order("metrics", OrderedAnswer(200, f"process_start_time_seconds {simulated.started_at!r}"))
    simulated.faults.order("completions", OrderedAnswer(500, "no"))
    assert await pulse_of(engine) is None
    assert simulated.faults.take("completions") is not None


async def test_a_pulse_by_the_plugin_comes_from_the_engines_core(monkeypatch, tiny):
    """R18 readiness-follows: no request is made for it."""
    monkeypatch.setattr("sidecar.engines.vllm.driver.PROGRESS_SECONDS", 0.0)
    simulated = SimulatedVllm(Options(served_model_name=BASE_MODEL, model=str(tiny.model), plugin=True))
    async with serving(simulated) as url:
        engine = VllmEngine(url, deadlines=HASTY)
        await engine.observe()
        assert await eventually(lambda: pulse_of(engine))
        assert simulated.tokens == 0
        release = asyncio.Event()
        simulated.faults.order("load", Hang(release))
        assert isinstance(await engine.load("x", tiny.adapter("a"), request_id="r"), Unknown)
        assert await pulse_of(engine) is False
        release.set()
        assert await eventually(lambda: pulse_of(engine))
        await engine.aclose()


async def test_what_is_out_of_reach_is_not_said_to_stand_still(monkeypatch, tiny):
    """R18: that is another matter, which other probes tell; after its restart nothing would be left of it."""
    monkeypatch.setattr("sidecar.engines.vllm.driver.PROGRESS_SECONDS", 0.0)
    async with serving(SimulatedVllm(Options(served_model_name=BASE_MODEL, model=str(tiny.model)))) as url:
        engine = VllmEngine(url, deadlines=PATIENT)
        await engine.observe()
    assert await engine.pulse() is None
    await engine.aclose()


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_connection_that_breaks_in_a_reply_is_unknown(engine, simulated, tiny, is_done):
    """Fault 21: the listing alone tells whether it was done."""
    simulated.faults.order("load", Cut(is_done))
    assert isinstance(await engine.load("x", tiny.adapter("a"), request_id="r"), Unknown)
    assert ("x" in await listing_of(engine)) == is_done
    simulated.faults.order("unload", Cut(is_done))
    assert isinstance(await engine.unload("x", request_id="r"), Unknown)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, Transient),
        (401, Transient),
        (404, Transient),  # not vLLM's form of an error: the route is missing
        (400, Refused),  # nor is this
        (422, Refused),
        (500, Refused),
        (502, Unknown),
        (503, Unknown),
        (204, Unknown),
        (302, Unknown),
    ],
)
async def test_replies_are_classified_by_status(engine, simulated, tiny, status, kind):
    """Fault 21: by a table, never by searching text."""
    text = "" if status == 204 else "has already been loaded; cannot be found; No adapter found for"
    simulated.faults.order("load", OrderedAnswer(status, text))
    simulated.faults.order("unload", OrderedAnswer(status, text))
    assert isinstance(await engine.load("x", tiny.adapter("a"), request_id="r"), kind)
    assert isinstance(await engine.unload("x", request_id="r"), kind)
    assert await listing_of(engine) == {}


@pytest.mark.parametrize("garbage", [b"\x00\x01\x02\x03" * 9, b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nSu"])
async def test_bytes_that_are_no_reply_are_unknown(url, simulated, tiny, garbage):
    """Fault 21: garbage in place of a reply says nothing of what was done."""
    async with wire_to(url) as wire:
        wire.reply = lambda _: garbage
        engine = VllmEngine(wire.url, deadlines=SHORT)
        assert isinstance(await engine.load("x", tiny.adapter("a"), request_id="r"), Unknown)
        await eventually(lambda: set(simulated.cards) == {"x"})
        with pytest.raises(EngineUnreachable):
            await engine.observe()
        await engine.aclose()


async def test_an_endless_reply_is_unknown(url, tiny):
    """R16 bounded: a reply is not read without end."""
    async with wire_to(url) as wire:
        wire.reply = lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n" + b"x" * 1_000_000
        engine = VllmEngine(wire.url, deadlines=PATIENT)
        outcome = await engine.load("x", tiny.adapter("a"), request_id="r")
        assert isinstance(outcome, Unknown)
        assert "more than" in outcome.message
        await engine.aclose()


async def test_a_reset_in_mid_flight_is_unknown(url, simulated, tiny):
    async with wire_to(url) as wire:
        wire.reply = lambda _: None
        engine = VllmEngine(wire.url, deadlines=PATIENT)
        assert isinstance(await engine.load("x", tiny.adapter("a"), request_id="r"), Unknown)
        assert set(simulated.cards) == {"x"}
        await engine.aclose()


async def test_a_refused_connection_is_gone(tiny):
    (port,) = free_ports(1)
    engine = VllmEngine(f"http://127.0.0.1:{port}", deadlines=PATIENT)
    assert isinstance(await engine.load("x", tiny.adapter("a"), request_id="r"), EngineGone)
    assert isinstance(await engine.swap("x", "/a", "/b", request_id="r"), EngineGone)
    assert isinstance(await engine.unload("x", request_id="r"), EngineGone)
    with pytest.raises(EngineUnreachable):
        await engine.observe()
    with pytest.raises(EngineUnreachable):
        await engine.incarnation()
    assert not await engine.is_busy()
    assert not await engine.turns()
    await engine.aclose()


async def test_files_that_vanish_after_eviction_kill_the_engine(tiny, tmp_path):
    """Why files stay (R7): the worker reads them again within a step, and its end is the engine's."""
    engine = SimulatedVllm(Options(max_cpu_loras=1))
    async with serving(engine) as url:
        asker = Asker(url)
        path = shutil.copytree(tiny.adapter("a"), tmp_path / "a")
        await asker.load("a", str(path))
        await asker.load("b", tiny.adapter("b"))  # evicts a
        assert (await asker.complete("a", "x")).status_code == 200  # read again
        await asker.text("b", "x")  # evicts a again
        shutil.rmtree(path)
        assert (await asker.complete("a", "x")).status_code == 500
        assert await fails(asker, "b")
        driver = VllmEngine(url, deadlines=PATIENT)
        await eventually(lambda: is_gone(driver))
        await driver.aclose()
        await asker.client.aclose()


async def fails(asker: Asker, name: str) -> bool:
    """True also if whoever served the engine has ended before it could say so."""
    try:
        return (await asker.complete(name, "x")).status_code == 500
    except httpx.TransportError:
        return True


async def is_gone(engine: VllmEngine) -> bool:
    return isinstance(await engine.unload("x", request_id="r"), EngineGone)


async def test_an_engine_that_dies_in_a_load_is_gone_and_another_after_its_restart(simulated, tiny):
    """Fault 18: all adapters are gone after a restart, and the incarnation says so."""
    (port,) = free_ports(1)
    async with serving(simulated, port=port) as url:
        driver = VllmEngine(url, deadlines=PATIENT)
        before = await driver.observe()
        simulated.faults.order("load", Die())
        assert isinstance(await driver.load("x", tiny.adapter("a"), request_id="r"), Refused)
        await eventually(lambda: is_gone(driver))
    async with serving(SimulatedVllm(simulated.options), port=port):
        after = await driver.observe()
        assert after.facts.incarnation != before.facts.incarnation
        assert dict(after.adapters) == {}
    await driver.aclose()


async def test_calls_are_remembered_with_their_request_ids(engine, simulated, tiny):
    await engine.load("x", tiny.adapter("a"), request_id="r1")
    await engine.unload("x", request_id="r2")
    assert [(call.kind, call.name, call.request_id) for call in simulated.calls] == [
        ("load", "x", "r1"),
        ("unload", "x", "r2"),
    ]


def test_nothing_ever_asks_for_a_load_in_place():
    """Loading in place mixes weights within a sequence: no source of ours may ask for it."""
    sources = Path(__file__).parents[3].joinpath("sidecar").rglob("*.py")
    assert not [path for path in sources if "load_inplace" in path.read_text()]


async def test_names_and_paths_of_any_kind_reach_the_engine_whole(engine, simulated, tmp_path, tiny):
    path = shutil.copytree(tiny.adapter("a"), tmp_path / 'ünicode "quoted" \\ name')
    assert await engine.load("a/b.c-d_e", str(path), request_id="r") == Done()
    assert {card.path for card in simulated.cards.values()} == {str(path)}
    assert json.loads(json.dumps(await listing_of(engine))) == {"a/b.c-d_e": str(path)}
