"""One suite for every kind of engine: what holds for all of them, and what each says that it cannot do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest

from registry.tools.devstack.processes import free_ports
from sidecar.engines.driver import Engine, EngineUnreachable, EngineUnusable
from sidecar.engines.observed import AlreadyThere, Done, EngineGone, NotThere, PathMissing, Refused, Unknown
from sidecar.engines.simulated.app import serving as serving_vllm
from sidecar.engines.simulated.engine import Card, SimulatedVllm, Token
from sidecar.engines.simulated.options import Options
from tests.support.engines import BASE_MODEL
from tests.support.kinds import KINDS, LISTING_PATHS, OTHER_KINDS, SWAPS, Played, Simulated, drive
from tests.support.other_engines.axolotl import SimulatedAxolotl
from tests.support.other_engines.pegainfer import SimulatedPegainfer
from tests.support.other_engines.server import serving
from tests.support.other_engines.sglang import SimulatedSglang
from tests.support.waiting import eventually


def play(kind: str, port: int = 0) -> tuple[Simulated | SimulatedVllm, AbstractAsyncContextManager[str]]:
    """A simulated engine of that kind, and how it is served."""
    if kind == "vllm":
        vllm = SimulatedVllm(Options(served_model_name=BASE_MODEL))
        return vllm, serving_vllm(vllm, port=port)
    other = OTHER_KINDS[kind](BASE_MODEL)
    return other, serving(other.app(), port=port)


@pytest.fixture(params=KINDS)
async def played(request) -> AsyncIterator[Played]:
    simulated, served = play(request.param)
    async with served as url:
        engine = drive(request.param, url)
        yield Played(request.param, simulated, url, engine)
        await engine.aclose()


async def test_observe_tells_kind_process_base_and_what_was_loaded(played, tiny):
    assert await played.engine.load("x", tiny.adapter("a"), request_id="r") == Done()
    observed = await played.engine.observe()
    assert (observed.facts.kind, observed.base_models) == (played.kind, (BASE_MODEL,))
    assert dict(observed.adapters) == played.listed() == {"x": tiny.adapter("a")}
    assert observed.facts.incarnation == await played.engine.incarnation()
    assert observed.facts.swap == SWAPS.get(played.kind, "refused")
    assert dict(observed.past) == ({} if played.kind in SWAPS else {"x": tiny.adapter("a")})


async def test_load_and_unload(played, tiny, tmp_path):
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await played.engine.observe()
    assert await played.engine.load("x", a, request_id="r") == Done()
    assert isinstance(await played.engine.load("x", b, request_id="r"), AlreadyThere | Refused)
    assert isinstance(await played.engine.load("y", str(tmp_path / "missing"), request_id="r"), PathMissing | Refused)
    assert isinstance(await played.engine.load("y", tiny.changed("big", rank=32), request_id="r"), Refused)
    assert dict((await played.engine.observe()).adapters) == played.listed() == {"x": a}
    assert await played.engine.unload("x", request_id="r") == Done()
    assert isinstance(await played.engine.unload("x", request_id="r"), NotThere | Refused)
    assert dict((await played.engine.observe()).adapters) == played.listed() == {}


async def test_a_swap_changes_the_weights_or_is_refused_and_changes_nothing(played, tiny):
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await played.engine.observe()
    await played.engine.load("y", b, request_id="r")
    new = await played.text("y")
    await played.engine.unload("y", request_id="r")
    await played.engine.load("x", a, request_id="r")
    old = await played.text("x")
    assert old != new
    outcome = await played.engine.swap("x", a, b, request_id="r")
    if played.kind in SWAPS:
        assert (outcome, played.listed(), await played.text("x")) == (Done(), {"x": b}, new)
    else:
        assert isinstance(outcome, Refused)
        assert (played.listed(), await played.text("x")) == ({"x": a}, old)


async def test_a_swap_to_bad_files_leaves_everything_as_it_was(played, tiny, tmp_path):
    """R8 isolation: a bad new version costs its own name nothing. What axolotl does not read is not sent to it."""
    a, missing, worse = tiny.adapter("a"), str(tmp_path / "missing"), tiny.changed("worse", rank=32)
    await played.engine.observe()
    await played.engine.load("x", a, request_id="r")
    for bad in (missing,) if played.kind == "axolotl" else (missing, worse):
        assert isinstance(await played.engine.swap("x", a, bad, request_id="r"), PathMissing | Refused)
    assert played.listed() == {"x": a}


async def test_what_somebody_else_loaded_is_not_taken_for_ours(played, tiny):
    """R11 foreign-safe: shown by its own path, or as a name that none of ours may have; axolotl shows nothing."""
    if isinstance(played.simulated, SimulatedAxolotl):
        played.simulated.active = Card("foreign", tiny.adapter("b"), 1)
        assert dict((await played.engine.observe()).adapters) == {}
        assert played.listed() == {"foreign": tiny.adapter("b")}
        return
    await played.core.load("foreign", tiny.adapter("b"))
    observed = await played.engine.observe()
    assert observed.adapters.get("foreign") == (tiny.adapter("b") if played.kind in LISTING_PATHS else None)
    assert {"foreign"} <= {*observed.adapters, *observed.base_models}
    outcome = await played.engine.load("foreign", tiny.adapter("a"), request_id="r")
    assert isinstance(outcome, AlreadyThere | Refused)
    assert played.listed() == {"foreign": tiny.adapter("b")}


async def test_another_process_is_another_incarnation_and_has_nothing(played, tiny, tmp_path):
    """R9: what one process had says nothing of the next, also to a sidecar that starts meanwhile."""
    (port,) = free_ports(1)
    _, first = play(played.kind, port)
    async with first as url:
        engine = drive(played.kind, url, tmp_path)
        await engine.observe()
        await engine.load("x", tiny.adapter("a"), request_id="r")
        again = drive(played.kind, url, tmp_path)
        before = await again.observe()
        assert dict(before.adapters) == {"x": tiny.adapter("a")}
    with pytest.raises(EngineUnreachable):
        await engine.observe()
    assert isinstance(await engine.load("y", tiny.adapter("a"), request_id="r"), EngineGone)
    _, second = play(played.kind, port)
    async with second:
        after = await again.observe()
        assert after.facts.incarnation != before.facts.incarnation
        assert (dict(after.adapters), dict(after.past)) == ({}, {})


async def test_turns_and_is_not_busy(played):
    assert await played.engine.turns()
    assert not await played.engine.is_busy()


async def test_what_each_says_of_its_requests(played):
    """R7 files-pinned: without evidence files stay; nothing is concluded from silence."""
    await played.engine.observe()
    if played.kind not in LISTING_PATHS:
        with pytest.raises(EngineUnreachable, match="files stay"):
            await played.engine.drain_evidence()
        return
    evidence = await eventually(lambda: idle(played.engine))
    assert evidence.incarnation == await played.engine.incarnation()
    assert evidence.is_clear_of({"x"})


async def idle(engine: Engine):
    evidence = await engine.drain_evidence()
    return evidence if not evidence.running else None


async def test_something_else_is_no_engine_of_this_kind(played):
    """A wrong --engine-kind is said, and nothing is done."""
    for kind in KINDS:
        if kind != played.kind:
            with pytest.raises(EngineUnusable):
                await drive(kind, played.url).observe()


async def test_sglang_waits_for_requests_before_it_drops_weights_and_tells_that_they_run(tiny, monkeypatch):
    """R7: its unload ends after them; which adapter they are of is not said."""
    sglang, go_on = SimulatedSglang(BASE_MODEL), asyncio.Event()
    steps = sglang.core._steps

    async def held(card: Card | None, prompt: str, tokens: int) -> list[Token]:
        if card is not None:
            await go_on.wait()
        return await steps(card, prompt, tokens)

    monkeypatch.setattr(sglang.core, "_steps", held)
    async with serving(sglang.app()) as url:
        played = Played("sglang", sglang, url, drive("sglang", url))
        await played.engine.load("x", tiny.adapter("a"), request_id="r")
        asking = asyncio.create_task(played.text("x"))
        await eventually(lambda: sglang.core.running)
        assert not (await played.engine.drain_evidence()).is_clear_of({"y"})
        assert await played.engine.is_busy()
        unloading = asyncio.create_task(played.engine.unload("x", request_id="r"))
        await eventually(lambda: "x" not in sglang.core.cards)
        assert not unloading.done()
        go_on.set()
        assert await unloading == Done()
        assert not sglang.core.bound
        await asking


async def test_sglang_loads_again_what_a_request_names_and_it_is_seen(tiny):
    """R6: the listing shows it, so that it is unloaded again."""
    sglang = SimulatedSglang(BASE_MODEL, max_loaded_loras=3)
    async with serving(sglang.app()) as url:
        played = Played("sglang", sglang, url, drive("sglang", url))
        await played.engine.load("x", tiny.adapter("a"), request_id="r")
        await played.engine.unload("x", request_id="r")
        await played.text("x")
        observed = await played.engine.observe()
        assert dict(observed.adapters) == {"x": tiny.adapter("a")}
        assert (observed.facts.limits.max_cpu_loras, observed.facts.limits.max_lora_rank) == (3, 16)
        await played.engine.load("x", tiny.adapter("b"), request_id="r")


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"enable_lora": False}, "lora_disabled"), ({"lists_adapters": False}, "engine_unsupported")],
    ids=str,
)
async def test_sglang_that_cannot_be_driven_says_why(options, reason, tiny):
    async with serving(SimulatedSglang(BASE_MODEL, **options).app()) as url:
        engine = drive("sglang", url)
        with pytest.raises(EngineUnusable) as caught:
            await engine.observe()
        assert caught.value.reason == reason
        if reason == "lora_disabled":
            assert isinstance(await engine.load("x", tiny.adapter("a"), request_id="r"), Refused)


async def test_sglang_without_metrics_gives_no_evidence():
    async with serving(SimulatedSglang(BASE_MODEL, enable_metrics=False).app()) as url:
        engine = drive("sglang", url)
        with pytest.raises(EngineUnusable):
            await engine.drain_evidence()
        assert not await engine.is_busy()


async def test_pegainfer_of_a_model_without_adapters_refuses(tiny):
    async with serving(SimulatedPegainfer(BASE_MODEL, takes_lora=False).app()) as url:
        engine = drive("pegainfer", url)
        outcome = await engine.load("x", tiny.adapter("a"), request_id="r")
        assert outcome == Refused("this engine does not support LoRA adapters")
        assert dict((await engine.observe()).adapters) == {}


async def test_an_engine_elsewhere_cannot_be_told_from_its_next_process():
    async with serving(SimulatedSglang(BASE_MODEL).app(), host="127.0.0.1") as url:
        engine = drive("sglang", url.replace("127.0.0.1", "localhost.localdomain"))
        with pytest.raises((EngineUnusable, EngineUnreachable)):
            await engine.observe()


async def test_an_answer_that_makes_no_sense_is_unknown(tiny):
    core = SimulatedVllm(Options(served_model_name=BASE_MODEL))
    async with serving_vllm(core) as url:
        assert isinstance(await drive("sglang", url).load("x", tiny.adapter("a"), request_id="r"), Unknown)
