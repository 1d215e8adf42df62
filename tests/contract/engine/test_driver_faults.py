"""What the driver says when the engine does not do as it should. On the simulated engine, which can be told to fail."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from registry.dev.ports import free_ports
from sidecar.engines.deadlines import Deadlines
from sidecar.engines.driver import EngineUnreachable, EngineUnusable
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.faults import Answer, Cut, Die, Hang
from sidecar.engines.simulated.options import Options
from sidecar.engines.simulated.server import serving
from sidecar.engines.vllm import VllmEngine, check_name
from sidecar.observed import AlreadyThere, Done, Gone, Refused, Transient, Unknown
from tests.support.engines import Asker
from tests.support.waiting import eventually
from tests.support.wire import wire_to

SHORT = Deadlines(probe_seconds=0.5, list_seconds=0.5, load_seconds=0.5, unload_seconds=0.5, turn_seconds=0.5)


@pytest.fixture
async def url(simulated) -> AsyncIterator[str]:
    async with serving(simulated) as url:
        yield url


@pytest.fixture
async def hasty(url) -> AsyncIterator[VllmEngine]:
    """A driver that does not wait long."""
    engine = VllmEngine(url, deadlines=SHORT)
    yield engine
    await engine.aclose()


async def test_a_load_that_times_out_is_unknown_and_may_complete(hasty, simulated, tiny):
    """Fault 20: settled by listing; the repeated load finds it there."""
    release = asyncio.Event()
    simulated.faults.order("load", Hang(release))
    assert isinstance(await hasty.load("x", tiny.adapter("a"), request_id="r"), Unknown)
    assert dict((await hasty.observe()).adapters) == {}
    release.set()
    listed = await eventually(lambda: listing_of(hasty))
    assert listed == {"x": tiny.adapter("a")}
    assert await hasty.load("x", tiny.adapter("a"), request_id="r") == AlreadyThere()


async def listing_of(engine: VllmEngine) -> dict[str, str]:
    return dict((await engine.observe()).adapters)


async def test_an_engine_that_hangs_in_a_load_is_seen_not_to_turn(hasty, simulated, asker, tiny):
    """Fault 19: /health and the listing still answer; generation does not."""
    assert await hasty.turns()
    release = asyncio.Event()
    simulated.faults.order("load", Hang(release))
    assert isinstance(await hasty.load("x", tiny.adapter("a"), request_id="r"), Unknown)
    assert (await asker.client.get("/health")).status_code == 200
    await hasty.observe()
    assert not await hasty.turns()
    assert await eventually(hasty.is_busy)
    release.set()
    assert await eventually(hasty.turns)


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_connection_that_breaks_in_a_reply_is_unknown(hasty, simulated, tiny, is_done):
    """Fault 21: the listing alone tells whether it was done."""
    simulated.faults.order("load", Cut(is_done))
    assert isinstance(await hasty.load("x", tiny.adapter("a"), request_id="r"), Unknown)
    assert ("x" in await listing_of(hasty)) == is_done
    simulated.faults.order("unload", Cut(is_done))
    assert isinstance(await hasty.unload("x", request_id="r"), Unknown)


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
async def test_replies_are_classified_by_status(hasty, simulated, tiny, status, kind):
    """Fault 21: by a table, never by searching text."""
    text = "" if status == 204 else "has already been loaded; cannot be found; No adapter found for"
    simulated.faults.order("load", Answer(status, text))
    simulated.faults.order("unload", Answer(status, text))
    assert isinstance(await hasty.load("x", tiny.adapter("a"), request_id="r"), kind)
    assert isinstance(await hasty.unload("x", request_id="r"), kind)
    assert await listing_of(hasty) == {}


@pytest.mark.parametrize("garbage", [b"\x00\x01\x02\x03" * 9, b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nSu"])
async def test_bytes_that_are_no_reply_are_unknown(url, simulated, tiny, garbage):
    """Fault 21: garbage in place of a reply says nothing of what was done."""
    async with wire_to(url) as wire:
        wire.reply = lambda _: garbage
        engine = VllmEngine(wire.url, deadlines=SHORT)
        assert isinstance(await engine.load("x", tiny.adapter("a"), request_id="r"), Unknown)
        assert set(simulated.cards) == {"x"}
        with pytest.raises(EngineUnreachable):
            await engine.observe()
        await engine.aclose()


async def test_an_endless_reply_is_unknown(url, tiny):
    """R16 bounded: a reply is not read without end."""
    async with wire_to(url) as wire:
        wire.reply = lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n" + b"x" * 1_000_000
        engine = VllmEngine(wire.url)
        outcome = await engine.load("x", tiny.adapter("a"), request_id="r")
        assert isinstance(outcome, Unknown)
        assert "more than" in outcome.message
        await engine.aclose()


async def test_an_endless_page_is_unreachable(hasty, monkeypatch):
    """R16 bounded: nor is a listing."""
    await hasty.observe()
    monkeypatch.setattr("sidecar.engines.vllm_http.MAX_ANSWER_BYTES", 100)
    with pytest.raises(EngineUnreachable, match="more than 100 bytes"):
        await hasty.incarnation()


async def test_a_reset_in_mid_flight_is_unknown(url, simulated, tiny):
    async with wire_to(url) as wire:
        wire.reply = lambda _: None
        engine = VllmEngine(wire.url)
        assert isinstance(await engine.load("x", tiny.adapter("a"), request_id="r"), Unknown)
        assert set(simulated.cards) == {"x"}
        await engine.aclose()


async def test_a_refused_connection_is_gone(tiny):
    (port,) = free_ports(1)
    engine = VllmEngine(f"http://127.0.0.1:{port}")
    assert isinstance(await engine.load("x", tiny.adapter("a"), request_id="r"), Gone)
    assert isinstance(await engine.swap("x", "/a", "/b", request_id="r"), Gone)
    assert isinstance(await engine.unload("x", request_id="r"), Gone)
    with pytest.raises(EngineUnreachable):
        await engine.observe()
    with pytest.raises(EngineUnreachable):
        await engine.incarnation()
    assert not await engine.is_busy()
    assert not await engine.turns()
    await engine.aclose()


async def test_a_swap_whose_load_fails_puts_the_old_version_back(hasty, simulated, asker, tiny):
    """R8 isolation: the old version serves on though the engine took the new one only at the first try."""
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await hasty.load("x", a, request_id="r")
    before = await asker.text("x", "Hello")
    simulated.faults.order("load", Answer(500, "no room"), spare=1)
    assert isinstance(await hasty.swap("x", a, b, request_id="r"), Refused)
    assert await asker.adapters() == {"x": a}
    assert await asker.text("x", "Hello") == before


async def test_a_swap_that_cannot_put_back_is_unknown(hasty, simulated, asker, tiny):
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await hasty.load("x", a, request_id="r")
    simulated.faults.order("load", Answer(500, "no room"), Answer(500, "no room"), spare=1)
    assert isinstance(await hasty.swap("x", a, b, request_id="r"), Unknown)
    assert "x" not in await asker.adapters()


@pytest.mark.parametrize("fault", [Cut(is_done=True), Cut(is_done=False), Answer(503, "")])
async def test_a_swap_with_an_unclear_unload_is_settled_by_listing(hasty, simulated, tiny, fault):
    """Fault 21: a swap says Done only if the engine said so."""
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await hasty.load("x", a, request_id="r")
    simulated.faults.order("unload", fault)
    outcome = await hasty.swap("x", a, b, request_id="r")
    assert isinstance(outcome, Unknown)
    assert (await listing_of(hasty)).get("x") in {a, b, None}


async def test_a_swap_whose_unload_is_refused_leaves_the_old_version(hasty, simulated, tiny):
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await hasty.load("x", a, request_id="r")
    simulated.faults.order("unload", Answer(429, "later"))
    assert isinstance(await hasty.swap("x", a, b, request_id="r"), Transient)
    assert await listing_of(hasty) == {"x": a}


async def test_a_swap_that_times_out_is_unknown(hasty, simulated, tiny):
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await hasty.load("x", a, request_id="r")
    release = asyncio.Event()
    simulated.faults.order("load", Hang(release), spare=1)
    assert isinstance(await hasty.swap("x", a, b, request_id="r"), Unknown)
    release.set()
    assert await eventually(lambda: has(hasty, "x", b))


async def has(engine: VllmEngine, name: str, path: str) -> bool:
    return (await listing_of(engine)).get(name) == path


async def test_a_swap_that_is_not_proven_touches_nothing(hasty, simulated, tiny):
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await hasty.load("x", a, request_id="r")
    simulated.faults.order("load", Cut(is_done=True))
    assert isinstance(await hasty.swap("x", a, b, request_id="r"), Unknown)
    assert await listing_of(hasty) == {"x": a, check_name(b): b}
    # The name that was left over proves the same at the next try, and goes with it.
    assert await hasty.swap("x", a, b, request_id="r") == Done()
    assert await listing_of(hasty) == {"x": b}


async def test_a_swap_of_a_name_that_went_meanwhile_loads_it(hasty, tiny):
    assert await hasty.swap("x", tiny.adapter("a"), tiny.adapter("b"), request_id="r") == Done()
    assert await listing_of(hasty) == {"x": tiny.adapter("b")}


BASE_CARD = '{"id": "t", "parent": null, "root": "/m"}'


def listing(*cards: str) -> str:
    """The body of /v1/models with these cards."""
    return f'{{"data": [{", ".join(cards)}]}}'


async def test_a_listing_of_the_right_form_is_read(hasty, simulated):
    simulated.faults.order("models", Answer(200, listing(BASE_CARD, '{"id": "x", "parent": "t", "root": "/a"}')))
    assert await listing_of(hasty) == {"x": "/a"}


@pytest.mark.parametrize(
    "body",
    [
        "<html>",
        "[]",
        "{}",
        '{"data": []}',
        listing('{"id": "x", "parent": "t", "root": "/a"}'),
        listing('{"id": "t"}'),
        listing(BASE_CARD, '{"id": "x", "parent": "t"}'),
        listing(BASE_CARD, '{"id": "x", "parent": "t", "root": null}'),
        listing(BASE_CARD, '{"id": "x", "parent": "t", "root": ""}'),
        listing(BASE_CARD, '{"id": 3, "parent": "t", "root": "/a"}'),
        listing(BASE_CARD, '{"id": "t", "parent": "t", "root": "/a"}'),
        listing(BASE_CARD, '{"id": "x", "parent": "t", "root": "/a"}', '{"id": "x", "parent": "t", "root": "/b"}'),
        '{"data": [' * 100_000,
    ],
)
async def test_a_listing_that_cannot_be_read_in_full_is_no_listing(hasty, simulated, tiny, body):
    """R3 converge: no plan is made from a guess; unknown is not empty."""
    await hasty.load("x", tiny.adapter("a"), request_id="r")
    simulated.faults.order("models", Answer(200, body))
    with pytest.raises(EngineUnreachable):
        await hasty.observe()


async def test_a_restart_within_a_look_is_noticed(hasty, simulated):
    """R9 status-truth: a listing belongs to one process."""
    release = asyncio.Event()
    simulated.faults.order("models", Hang(release))
    look = asyncio.create_task(hasty.observe())
    await eventually(lambda: not simulated.faults._waiting["models"])  # the look hangs in its listing now
    simulated.started_at += 1
    release.set()
    with pytest.raises(EngineUnreachable, match="restarted"):
        await look


@pytest.mark.parametrize("page", ["metrics", "version", "models"])
async def test_a_page_that_hangs_is_unreachable(hasty, simulated, page):
    release = asyncio.Event()
    simulated.faults.order(page, Hang(release))
    with pytest.raises(EngineUnreachable, match="no answer within"):
        await hasty.observe()
    release.set()


@pytest.mark.parametrize("status", [500, 502, 503, 429])
@pytest.mark.parametrize("page", ["metrics", "version", "models"])
async def test_a_page_that_fails_is_unreachable(hasty, simulated, page, status):
    simulated.faults.order(page, Answer(status, "no"))
    with pytest.raises(EngineUnreachable, match=str(status)):
        await hasty.observe()


async def test_runtime_lora_disabled_says_what_to_set(tiny):
    async with serving(SimulatedVllm(Options(runtime_lora=False))) as url:
        engine = VllmEngine(url)
        with pytest.raises(EngineUnusable) as caught:
            await engine.observe()
        assert caught.value.reason == "runtime_lora_disabled"
        assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in caught.value.message
        assert "--enable-lora" in caught.value.message
        assert isinstance(await engine.load("x", tiny.adapter("a"), request_id="r"), Transient)
        await engine.aclose()


async def test_lora_disabled_is_seen_in_the_metrics(hasty, simulated):
    metrics = "process_start_time_seconds 1.5\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{} 0\n"
    simulated.faults.order("metrics", Answer(200, metrics))
    with pytest.raises(EngineUnusable) as caught:
        await hasty.observe()
    assert caught.value.reason == "lora_disabled"


@pytest.mark.parametrize(
    ("version", "fits"), [("0.9.2", False), ("0.10.0", True), ("0.31.0rc1", True), ("0.33.0+cpu", True), ("dev", False)]
)
async def test_old_versions_are_refused(version, fits):
    async with serving(SimulatedVllm(Options(version=version))) as url:
        engine = VllmEngine(url)
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
        ("metrics", Answer(404, "404 page not found")),
        ("metrics", Answer(200, "<html>")),
        ("version", Answer(404, "404 page not found")),
        ("version", Answer(200, '{"etcdserver": "3.5.1"}')),
    ],
)
async def test_what_is_no_engine_is_named(hasty, simulated, page, answer):
    simulated.faults.order(page, answer)
    with pytest.raises(EngineUnusable, match=hasty.url) as caught:
        await hasty.observe()
    assert caught.value.reason == "not_an_engine"


async def test_the_key_is_read_from_its_file_at_each_use(tiny, tmp_path):
    """X1 secret-free: and it is in no message, right or wrong."""
    file = tmp_path / "key"
    async with serving(SimulatedVllm(Options(api_key="canary-right"))) as url:
        engine = VllmEngine(url, api_key_file=file)
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
        engine = VllmEngine(url)
        with pytest.raises(EngineUnusable, match="--engine-api-key-file") as caught:
            await engine.observe()
        assert caught.value.reason == "engine_unauthorized"
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
        assert (await asker.complete("b", "x")).status_code == 500
        driver = VllmEngine(url)
        await eventually(lambda: is_gone(driver))
        await driver.aclose()
        await asker.client.aclose()


async def is_gone(engine: VllmEngine) -> bool:
    return isinstance(await engine.unload("x", request_id="r"), Gone)


async def test_an_engine_that_dies_in_a_load_is_gone_and_another_after_its_restart(simulated, tiny):
    """Fault 18: all adapters are gone after a restart, and the incarnation says so."""
    async with serving(simulated) as url:
        driver = VllmEngine(url)
        before = await driver.observe()
        simulated.faults.order("load", Die())
        assert isinstance(await driver.load("x", tiny.adapter("a"), request_id="r"), Refused)
        await eventually(lambda: is_gone(driver))
    port = httpx.URL(url).port
    async with serving(SimulatedVllm(simulated.options), port=port or 0):
        after = await driver.observe()
        assert after.facts.incarnation != before.facts.incarnation
        assert dict(after.adapters) == {}
    await driver.aclose()


async def test_calls_are_remembered_with_their_request_ids(hasty, simulated, tiny):
    await hasty.load("x", tiny.adapter("a"), request_id="r1")
    await hasty.unload("x", request_id="r2")
    assert [(call.kind, call.name, call.request_id) for call in simulated.calls] == [
        ("load", "x", "r1"),
        ("unload", "x", "r2"),
    ]


def test_nothing_ever_asks_for_a_load_in_place():
    """Loading in place mixes weights within a sequence: no source of ours may ask for it."""
    sources = Path(__file__).parents[3].joinpath("sidecar").rglob("*.py")
    assert not [path for path in sources if "load_inplace" in path.read_text()]


async def test_names_and_paths_of_any_kind_reach_the_engine_whole(hasty, simulated, tmp_path, tiny):
    path = shutil.copytree(tiny.adapter("a"), tmp_path / 'ünicode "quoted" \\ name')
    assert await hasty.load("a/b.c-d_e", str(path), request_id="r") == Done()
    assert {card.path for card in simulated.cards.values()} == {str(path)}
    assert json.loads(json.dumps(await listing_of(hasty))) == {"a/b.c-d_e": str(path)}
