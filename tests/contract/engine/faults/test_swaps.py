"""What a swap comes to when the engine does not do as it should."""

from __future__ import annotations

import asyncio

import pytest

from registry.runtime.failpoints import Point, handling
from sidecar.engines.observed import Done, DrainEvidence, Refused, Transient, Unknown
from sidecar.engines.simulated.options import Cut, Hang, OrderedAnswer
from sidecar.engines.vllm.driver import VllmEngine, check_name
from tests.contract.engine.faults.hasty import SHORT, listing_of
from tests.support.engines import PATIENT
from tests.support.waiting import eventually


async def test_a_swap_whose_load_fails_puts_the_old_version_back(engine, simulated, asker, tiny):
    """R8 isolation: the old version serves on though the engine took the new one only at the first try."""
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await engine.load("x", a, request_id="r")
    before = await asker.text("x", "Hello")
    simulated.faults.order("load", OrderedAnswer(500, "no room"), spare=1)
    assert isinstance(await engine.swap("x", a, b, request_id="r"), Refused)
    assert await asker.adapters() == {"x": a}
    assert await asker.text("x", "Hello") == before


async def test_a_swap_that_cannot_put_back_is_unknown(engine, simulated, asker, tiny):
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await engine.load("x", a, request_id="r")
    simulated.faults.order("load", OrderedAnswer(500, "no room"), OrderedAnswer(500, "no room"), spare=1)
    assert isinstance(await engine.swap("x", a, b, request_id="r"), Unknown)
    assert "x" not in await asker.adapters()


@pytest.mark.parametrize("fault", [Cut(is_done=True), Cut(is_done=False), OrderedAnswer(503, "")])
async def test_a_swap_with_an_unclear_unload_is_settled_by_listing(engine, simulated, tiny, fault):
    """Fault 21: a swap says Done only if the engine said so."""
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await engine.load("x", a, request_id="r")
    simulated.faults.order("unload", fault)
    outcome = await engine.swap("x", a, b, request_id="r")
    assert isinstance(outcome, Unknown)
    assert (await listing_of(engine)).get("x") in {a, b, None}


async def test_a_swap_whose_unload_is_refused_leaves_the_old_version(engine, simulated, tiny):
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await engine.load("x", a, request_id="r")
    simulated.faults.order("unload", OrderedAnswer(429, "later"))
    assert isinstance(await engine.swap("x", a, b, request_id="r"), Transient)
    assert await listing_of(engine) == {"x": a}


async def test_a_swap_that_times_out_is_unknown(url, engine, simulated, tiny):
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await engine.load("x", a, request_id="r")
    release = asyncio.Event()
    simulated.faults.order("load", Hang(release), spare=1)

    def lose_patience(point: Point) -> None:
        if point is Point.PROVEN:
            swapping._deadlines = SHORT

    swapping = VllmEngine(url, deadlines=PATIENT)
    with handling(lose_patience):
        assert isinstance(await swapping.swap("x", a, b, request_id="r"), Unknown)
    release.set()
    assert await eventually(lambda: has(engine, "x", b))


async def has(engine: VllmEngine, name: str, path: str) -> bool:
    return (await listing_of(engine)).get(name) == path


async def test_a_swap_that_is_not_proven_touches_nothing(engine, simulated, tiny):
    a, b = tiny.adapter("a"), tiny.adapter("b")
    await engine.load("x", a, request_id="r")
    simulated.faults.order("load", Cut(is_done=True))
    assert isinstance(await engine.swap("x", a, b, request_id="r"), Unknown)
    assert await listing_of(engine) == {"x": a, check_name(b): b}
    # The name that was left over proves the same at the next try, and goes with it.
    assert await engine.swap("x", a, b, request_id="r") == Done()
    assert await listing_of(engine) == {"x": b}


async def test_a_swap_of_a_name_that_went_meanwhile_loads_it(engine, tiny):
    assert await engine.swap("x", tiny.adapter("a"), tiny.adapter("b"), request_id="r") == Done()
    assert await listing_of(engine) == {"x": tiny.adapter("b")}


async def test_what_might_end_the_engine_is_decided_while_no_other_adapter_comes(
    engine, simulated, asker, tiny, monkeypatch
):
    """R7: a load that is under way counts as listed, and none begins before the swap has ended; nor another swap."""
    asked: list[int] = []

    def note(_name: str, _evidence: DrainEvidence, *, listed: int, max_loras: int | None) -> str:
        asked.append(listed)
        return ""

    monkeypatch.setattr("sidecar.engines.vllm.driver.swap_risk", note)
    a, b, c = tiny.adapter("a"), tiny.adapter("b"), tiny.adapter("c")
    await engine.load("x", a, request_id="r")
    release = asyncio.Event()
    simulated.faults.order("load", Hang(release))
    hanging = asyncio.create_task(engine.load("y", c, request_id="r"))
    await eventually(lambda: [call.name for call in simulated.calls] == ["x", "y"])
    swapping = asyncio.create_task(engine.swap("x", a, b, request_id="r"))
    await eventually(lambda: [call.name for call in simulated.calls][2:] == [check_name(b)])
    assert asked == [2]
    assert isinstance(await engine.load("z", c, request_id="r"), Transient)
    assert isinstance(await engine.swap("z", a, c, request_id="r"), Transient)
    release.set()
    assert await asyncio.gather(hanging, swapping) == [Done()] * 2
    assert await engine.load("z", c, request_id="r") == Done()
    assert await asker.adapters() == {"x": b, "y": c, "z": c}
