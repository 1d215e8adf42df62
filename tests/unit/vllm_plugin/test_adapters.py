"""Swaps inside the API server, step by step."""

from __future__ import annotations

import asyncio
import gc

import pytest

from sidecar.vllm_plugin import adapters as module
from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.errors import Busy, Conflict, DeadlinePassed, NotLoaded, PathMissing, Refused
from sidecar.vllm_plugin.server import Adapter
from tests.support.waiting import eventually
from tests.unit.vllm_plugin.played import PlayedServer

NEVER = 3600.0


@pytest.fixture
def server() -> PlayedServer:
    server = PlayedServer()
    server.load("x", "/old")
    return server


@pytest.fixture
def new(tmp_path) -> str:
    """A directory with something that may be an adapter."""
    (tmp_path / "adapter_config.json").write_text("{}")
    return str(tmp_path)


async def test_the_new_version_is_in_the_engine_before_the_old_one_is_touched(server, new):
    """Each request sees one version or the other, and no request sees neither."""
    server.gate = asyncio.Event()
    swap = asyncio.create_task(Adapters(server, sweep_seconds=NEVER).swap("x", new, "/old"))
    await eventually(lambda: server.calls)
    assert server.paths() == {"x": "/old"}
    server.gate.set()
    await swap
    assert server.paths() == {"x": new}
    assert server.calls == [("add", 2)]


@pytest.mark.parametrize(
    ("name", "path", "expected", "error"),
    [("y", "", "/old", NotLoaded), ("x", "", "/other", Conflict), ("x", "/nowhere", "/old", PathMissing)],
)
async def test_what_is_not_as_the_caller_believes_changes_nothing(server, new, name, path, expected, error):
    with pytest.raises(error):
        await Adapters(server).swap(name, path or new, expected)
    assert (server.paths(), server.calls, dict(server.locks)) == ({"x": "/old"}, [], {})


async def test_a_refusal_leaves_the_old_version_and_removes_what_may_have_been_loaded(server, new):
    """R8 isolation."""
    server.fails = RuntimeError("rank")
    adapters = Adapters(server, sweep_seconds=0)
    with pytest.raises(Refused, match="rank"):
        await adapters.swap("x", new, "/old")
    assert server.paths() == {"x": "/old"}
    server.fails = None  # which refers to the frames that it went through
    await eventually(lambda: ("remove", 2) in server.calls)


async def test_a_refusal_that_refers_to_itself_holds_nothing(server, new):
    """vLLM's future and the frame that awaits it hold each other; nothing may depend on when that is collected."""

    async def add(adapter: Adapter) -> None:
        future = asyncio.get_running_loop().create_future()
        future.set_exception(RuntimeError("rank"))
        await future

    server.add = add
    adapters = Adapters(server, sweep_seconds=0)
    gc.disable()
    try:
        with pytest.raises(Refused):
            await adapters.swap("x", new, "/old")
        await eventually(lambda: ("remove", 2) in server.calls)
    finally:
        gc.enable()


async def test_a_load_that_does_not_end_leaves_the_old_version(server, new):
    server.gate = asyncio.Event()
    with pytest.raises(DeadlinePassed):
        await Adapters(server, load_seconds=0, sweep_seconds=NEVER).swap("x", new, "/old")
    assert server.paths() == {"x": "/old"}


@pytest.mark.parametrize("changed", ["unloaded", "replaced"])
async def test_a_name_that_changes_during_the_load_is_left_alone(server, new, changed):
    server.gate = asyncio.Event()
    swap = asyncio.create_task(Adapters(server, sweep_seconds=NEVER).swap("x", new, "/old"))
    await eventually(lambda: server.calls)
    server.registered.pop("x")
    if changed == "replaced":
        server.load("x", "/old")
    left = server.paths()
    server.gate.set()
    with pytest.raises(NotLoaded if changed == "unloaded" else Conflict):
        await swap
    assert server.paths() == left


async def test_a_cancelled_swap_leaves_the_old_version(server, new):
    server.gate = asyncio.Event()
    swap = asyncio.create_task(Adapters(server, sweep_seconds=NEVER).swap("x", new, "/old"))
    await eventually(lambda: server.calls)
    swap.cancel()
    with pytest.raises(asyncio.CancelledError):
        await swap
    assert server.paths() == {"x": "/old"}


async def test_a_name_that_somebody_else_holds_is_busy(server, new, monkeypatch):
    monkeypatch.setattr(module, "LOCK_SECONDS", 0)
    async with server.lock("x"):
        with pytest.raises(Busy):
            await Adapters(server, sweep_seconds=NEVER).swap("x", new, "/old")
        with pytest.raises(Busy):
            await Adapters(server, sweep_seconds=NEVER).unload("x")
    assert server.paths() == {"x": "/old"}


async def test_too_much_that_drains_refuses_more(server, new, monkeypatch):
    """R16 bounded."""
    monkeypatch.setattr(module, "MAX_RETIRED", 1)
    adapters = Adapters(server, sweep_seconds=NEVER)
    await adapters.swap("x", new, "/old")
    with pytest.raises(Busy):
        await adapters.swap("x", "/newer", new)


async def test_state_tells_of_registered_draining_and_foreign_adapters(server, new):
    """R7 files-pinned: everything that a request may still read is there."""
    adapters = Adapters(server, sweep_seconds=NEVER)
    old = server.registered["x"]
    server.load("gone", "/foreign")
    server.flying = [old, old, server.registered.pop("gone")]
    await adapters.swap("x", new, "/old")
    del old
    state = await adapters.state()
    rows = {row["path"]: row for row in state["adapters"]}
    assert state["resident"] == [1, 2, 3]
    assert set(rows) == {"/old", "/foreign", new}
    told = {path: (row["registered"], row["requests"]) for path, row in rows.items()}
    assert told == {"/old": (False, 2), "/foreign": (False, 1), new: (True, 0)}
    assert (rows["/old"]["references"], rows[new]["references"]) == (2, 0)


async def test_an_engine_that_lists_nothing_in_time_is_no_answer(server, monkeypatch):
    async def stuck() -> set[int]:
        await asyncio.Event().wait()
        return set()

    monkeypatch.setattr(module, "LIST_SECONDS", 0)
    monkeypatch.setattr(server, "resident", stuck)
    with pytest.raises(DeadlinePassed):
        await Adapters(server).state()
