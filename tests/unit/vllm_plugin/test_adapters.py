"""Swaps inside the API server, step by step."""

from __future__ import annotations

import asyncio
import gc
from unittest.mock import AsyncMock

import pytest

from sidecar.engines.driver import USUAL
from sidecar.resolver.resolver import ANSWER_SECONDS
from sidecar.vllm_plugin import adapters as module
from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.resolver import ASK_SECONDS
from sidecar.vllm_plugin.server import (
    Busy,
    DeadlinePassed,
    EngineAdapter,
    EngineRefused,
    FilesMissing,
    NameConflict,
    NotLoaded,
)
from tests.simulation.loop import virtual
from tests.support.cancelling import is_cancelled_at
from tests.support.waiting import eventually
from tests.unit.vllm_plugin.played import PlayedServer


async def test_the_new_version_is_in_the_engine_before_the_old_one_is_touched(server, files):
    """Each request sees one version or the other, and no request sees neither."""
    server.gate = asyncio.Event()
    swap = asyncio.create_task(Adapters(server).swap("x", files, "/old/x"))
    await eventually(lambda: server.calls)
    assert server.paths() == {"x": "/old/x"}
    server.gate.set()
    await swap
    assert server.paths() == {"x": files}
    assert server.calls == [("add", 2)]


@pytest.mark.parametrize(
    ("name", "path", "expected", "error"),
    [("y", "", "/old/x", NotLoaded), ("x", "", "/other", NameConflict), ("x", "/nowhere", "/old/x", FilesMissing)],
)
async def test_what_is_not_as_the_caller_believes_changes_nothing(server, files, name, path, expected, error):
    with pytest.raises(error):
        await Adapters(server).swap(name, path or files, expected)
    assert (server.paths(), server.calls, dict(server.locks)) == ({"x": "/old/x"}, [], {})


@pytest.mark.parametrize("expected", ["/old/x", "/another"])
async def test_a_swap_that_is_done_already_asks_the_engine_for_nothing(server, expected):
    """R3 converge: a call whose answer was lost is made again; its files, and what it expected, may be gone by then."""
    await Adapters(server).swap("x", "/old/x", expected)
    assert (server.paths(), server.calls) == ({"x": "/old/x"}, [])


@pytest.mark.parametrize("expected", ["/old/x/", "//old/x", "/./old/x"])
async def test_a_path_is_the_same_however_it_is_spelt(server, files, expected):
    """R3 converge: whoever loaded it may have written a slash more than we do."""
    await Adapters(server).swap("x", expected, "/another")
    assert server.paths() == {"x": "/old/x"}
    await Adapters(server).swap("x", files, expected)
    assert server.paths() == {"x": files}


async def test_a_refusal_leaves_the_old_version_and_removes_what_may_have_been_loaded(server, files):
    """R8 isolation.

    vLLM's future and the frame that awaits it hold each other; nothing may depend on when that is collected.
    """

    async def add(adapter: EngineAdapter) -> None:
        future = asyncio.get_running_loop().create_future()
        future.set_exception(RuntimeError("rank"))
        await future

    server.add = add
    adapters = Adapters(server, sweep_seconds=0)
    gc.disable()
    try:
        with pytest.raises(EngineRefused, match="rank"):
            await adapters.swap("x", files, "/old/x")
        assert server.paths() == {"x": "/old/x"}
        await eventually(lambda: ("remove", 2) in server.calls)
    finally:
        gc.enable()


@pytest.mark.parametrize("changed", ["unloaded", "replaced"])
async def test_a_name_that_changes_during_the_load_is_left_alone(server, files, changed):
    server.gate = asyncio.Event()
    swap = asyncio.create_task(Adapters(server).swap("x", files, "/old/x"))
    await eventually(lambda: server.calls)
    server.registered.pop("x")
    if changed == "replaced":
        server.load("x", "/old/x")
    left = server.paths()
    server.gate.set()
    with pytest.raises(NotLoaded if changed == "unloaded" else NameConflict):
        await swap
    assert (server.paths(), server.lock("x").locked()) == (left, False)


async def test_a_cancelled_swap_leaves_the_old_version_and_nothing_that_nobody_knows_of(server, files):
    """R7, R16: the engine goes on with a load that nobody waits for any more."""
    server.gate = asyncio.Event()
    adapters = Adapters(server, sweep_seconds=0)
    swap = asyncio.create_task(adapters.swap("x", files, "/old/x"))
    await eventually(lambda: server.calls)
    swap.cancel()
    with pytest.raises(asyncio.CancelledError):
        await swap
    assert server.paths() == {"x": "/old/x"}
    number = server.calls[0][1]
    server.memory.add(number)
    assert number in {row["int_id"] for row in (await adapters.state())["adapters"]}
    await eventually(lambda: number not in server.memory)
    assert ("remove", number) in server.calls


class _Distant(PlayedServer):
    """Loads take a turn of the loop before the engine has them, and another until it says so."""

    async def add(self, adapter: EngineAdapter) -> None:
        await asyncio.sleep(0)
        await super().add(adapter)
        await asyncio.sleep(0)


async def _left_at(wait: int, files: str) -> bool:
    """Swaps for a caller that leaves at its n-th wait, and looks at what that leaves; false: it had ended before."""
    server = _Distant()
    server.load("x", "/old/x")
    adapters = Adapters(server, sweep_seconds=0)
    async with server.lock("x"):  # so that the swap waits for it, too
        swap = asyncio.create_task(is_cancelled_at(wait, adapters.swap("x", files, "/old/x")))
        await eventually(lambda: swap.done() or server.memory >= {1, 2})
    was_left = await swap
    assert server.paths() == {"x": "/old/x" if was_left else files}
    await eventually(lambda: len(server.memory) == 1)
    await adapters.swap("x", files, server.paths()["x"])
    await adapters.unload("x")
    assert server.paths() == {}
    return was_left


async def test_a_caller_that_leaves_at_any_wait_of_a_swap_leaves_one_version_and_a_free_name(files):
    """R7, R16: the name has the old version or the new; what is not bound goes; the next call is not held up."""
    waits = 1
    while await _left_at(waits, files):
        waits += 1
    assert waits > 3


@pytest.mark.parametrize(("draining", "is_taken"), [(999, True), (1000, False)])
async def test_a_thousand_versions_may_drain_at_once(server, files, draining, is_taken):
    """R16 bounded: of as many adapters as an engine has, a version each."""
    adapters = Adapters(server)
    for _ in range(draining):
        adapters._drain.add(server.make("gone", "/gone", None))
    if not is_taken:
        with pytest.raises(Busy):
            await adapters.swap("x", "/nowhere", "/old/x")  # whatever it is to have
    else:
        await adapters.swap("x", files, "/old/x")
    assert server.paths() == {"x": files if is_taken else "/old/x"}


async def test_a_name_that_nobody_has_is_told_at_once_and_gets_no_lock(server):
    """R16 bounded: whatever names are sent."""
    async with server.lock("x"):
        with pytest.raises(NotLoaded):
            await Adapters(server).unload("y")
    assert set(server.locks) == {"x"}


@pytest.mark.parametrize(("seconds", "is_done"), [(4.9, True), (5.1, False)])
@pytest.mark.parametrize("is_swap", [True, False])
@virtual
async def test_a_name_that_is_being_loaded_is_waited_for_five_seconds(server, files, seconds, is_done, is_swap):
    """R17 heals: most loads end within them, and the sidecar hears of the others in time."""
    adapters = Adapters(server)
    async with server.lock("x"):
        call = asyncio.create_task(adapters.swap("x", files, "/old/x") if is_swap else adapters.unload("x"))
        await asyncio.sleep(seconds)
    await asyncio.wait([call])
    assert isinstance(call.exception(), Busy) is not is_done
    assert server.paths() == ({"x": "/old/x"} if not is_done else {"x": files} if is_swap else {})


async def test_state_tells_of_registered_draining_and_foreign_adapters(server, files):
    """R7 files-pinned: everything that a request may still read is there."""
    adapters = Adapters(server)
    old = server.registered["x"]
    server.load("gone", "/foreign")
    server.flying = [old, old, server.registered.pop("gone")]
    await adapters.swap("x", files, "/old/x")
    del old
    state = await adapters.state()
    rows = {row["path"]: row for row in state["adapters"]}
    assert state["resident"] == [1, 2, 3]
    assert set(rows) == {"/old/x", "/foreign", files}
    told = {path: (row["registered"], row["requests"]) for path, row in rows.items()}
    assert told == {"/old/x": (False, 2), "/foreign": (False, 1), files: (True, 0)}
    assert (rows["/old/x"]["references"], rows[files]["references"]) == (2, 0)


async def never(*_: object) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("call", "seconds"),
    [
        (lambda adapters, _: adapters.state(), 8.0),
        (lambda adapters, _: adapters.coverage(), 4.0),
        (lambda adapters, files: adapters.swap("x", files, "/old/x"), 55.0),
    ],
    ids=["state", "coverage", "swap"],
)
@virtual
async def test_an_engine_that_does_not_answer_is_told_before_the_sidecar_gives_up(server, files, call, seconds):
    """R9, R19: it waits ten, five and sixty seconds for these, and would not know what came of its call."""
    server.resident = server.add = never  # type: ignore[assignment, method-assign]
    server.ask_workers = never  # type: ignore[assignment]
    began = asyncio.get_running_loop().time()
    with pytest.raises(DeadlinePassed):
        await call(Adapters(server), files)
    assert asyncio.get_running_loop().time() - began == pytest.approx(seconds, abs=0.1)
    assert server.paths() == {"x": "/old/x"}


async def test_a_fault_of_our_own_is_no_lateness_of_the_engine(server, monkeypatch):
    """R12: it is told as what it is."""
    monkeypatch.setattr(server, "resident", AsyncMock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        await Adapters(server).state()


def test_who_asks_waits_longer_than_who_answers_and_not_much():
    """R9, R17: else what is known is taken for unknown; and what is given up although there is time is begun anew."""
    bounds = [(USUAL.load_seconds, module.LOAD_SECONDS), (USUAL.list_seconds, module.LIST_SECONDS)]
    for asks, answers in (*bounds, (USUAL.probe_seconds, module.COVERAGE_SECONDS)):
        assert 0.8 * asks <= answers < asks
    assert USUAL.unload_seconds > module.LOCK_SECONDS
    assert ANSWER_SECONDS < ASK_SECONDS
