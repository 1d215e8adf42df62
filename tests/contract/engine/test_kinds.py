"""One suite for every kind of engine: what holds for all of them, and what each says that it cannot do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest

from registry.tools.devstack.processes import free_ports
from sidecar.engines.driver import Engine, EngineUnreachable, EngineUnusable
from sidecar.engines.observed import AlreadyThere, Done, EngineGone, NotThere, PathMissing, Refused
from sidecar.engines.simulated.app import serving as serving_vllm
from sidecar.engines.simulated.engine import Card, SimulatedVllm
from sidecar.engines.simulated.options import Options
from tests.support.engines import BASE_MODEL
from tests.support.kinds import KINDS, LISTING_PATHS, OTHER_KINDS, SWAPS, Played, Simulated, drive
from tests.support.other_engines.axolotl import SimulatedAxolotl
from tests.support.other_engines.server import serving
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


async def test_a_swap_changes_the_weights_or_is_refused_and_changes_nothing(played, tiny, tmp_path):
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await played.engine.observe()
    await played.engine.load("y", b, request_id="r")
    new = await played.text("y")
    await played.engine.unload("y", request_id="r")
    await played.engine.load("x", a, request_id="r")
    old = await played.text("x")
    assert old != new
    # R8 isolation: a bad new version costs its own name nothing. What axolotl does not read is not sent to it.
    missing, worse = str(tmp_path / "missing"), tiny.changed("worse", rank=32)
    for bad in (missing,) if played.kind == "axolotl" else (missing, worse):
        assert isinstance(await played.engine.swap("x", a, bad, request_id="r"), PathMissing | Refused)
    assert played.listed() == {"x": a}
    outcome = await played.engine.swap("x", a, b, request_id="r")
    if played.kind in SWAPS:
        assert (outcome, played.listed(), await played.text("x")) == (Done(), {"x": b}, new)
    else:
        assert isinstance(outcome, Refused)
        assert (played.listed(), await played.text("x")) == ({"x": a}, old)


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


async def test_what_each_says_of_its_requests(played):
    """R7 files-pinned: without evidence files stay; nothing is concluded from silence."""
    await played.engine.observe()
    assert await played.engine.turns()
    assert not await played.engine.is_busy()
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
