"""How the simulated engine generates, what it keeps in memory, how it ends, and how it is started."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from unittest.mock import Mock

import pytest

from sidecar.engines.simulated import __main__ as program
from sidecar.engines.simulated import app as application
from sidecar.engines.simulated.engine import EngineDead, Rejection, SimulatedVllm
from sidecar.engines.simulated.options import DEFAULTS, Options
from sidecar.vllm_plugin.guard import Guard
from tests.simulation.loop import virtual
from tests.support.adapters import write_adapter
from tests.support.engine_in_memory import PLAIN


@pytest.fixture
def paths(tmp_path) -> dict[str, str]:
    return {name: str(write_adapter(tmp_path / name, seed=seed).directory) for seed, name in enumerate("abc")}


@virtual
async def test_steps_and_loads_take_as_long_as_they_are_told_one_at_a_time(paths):
    loop, quick = asyncio.get_running_loop(), SimulatedVllm(Options())
    await quick.load("x", paths["a"])
    await quick.generate(quick.cards["x"], "p", 20)
    assert loop.time() < 0.1, "unless it is told to it takes no time"
    engine = SimulatedVllm(replace(PLAIN, token_seconds=1.0, load_seconds=10.0))
    await engine.generate(None, "p", 3)
    assert loop.time() == pytest.approx(3.0, abs=0.1)
    await engine.load("x", paths["a"])
    assert loop.time() == pytest.approx(13.0, abs=0.1)
    began = loop.time()
    await asyncio.gather(engine.load("y", paths["b"]), engine.generate(engine.cards["x"], "p", 1))
    assert loop.time() - began == pytest.approx(11.0, abs=0.1)


async def test_the_least_recently_used_weights_leave_memory_and_come_back_from_their_files(paths):
    """R7: why files stay; a request of an adapter whose files are gone then ends the engine."""
    engine = SimulatedVllm(replace(PLAIN, max_cpu_loras=2))
    for name in ("a", "b"):
        await engine.load(name, paths[name])
    first = await engine.generate(engine.cards["a"], "p", 4)
    await engine.load("c", paths["c"])
    numbers = {name: engine.cards[name].number for name in "abc"}
    assert await engine.resident() == {numbers["a"], numbers["c"]}
    assert len(set(numbers.values())) == 3
    await engine.generate(engine.cards["b"], "p", 1)
    assert await engine.resident() == {numbers["c"], numbers["b"]}
    assert await engine.generate(engine.cards["a"], "p", 4) == first
    await engine.remove(numbers["a"])
    assert await engine.resident() == {numbers["b"]}
    shutil.rmtree(paths["a"])
    with pytest.raises(EngineDead):
        await engine.generate(engine.cards["a"], "p", 1)
    assert engine.dead.is_set()
    for work in (engine.generate(None, "p", 1), engine.load("z", paths["b"])):
        with pytest.raises(EngineDead):
            await work
    assert (engine.running, engine.waiting, engine.bound) == ([], [], [])


async def a_moment() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_it_does_one_thing_at_a_time(paths):
    """R5: as vLLM does, of a name and between two steps; what comes meanwhile waits."""
    engine, hold = SimulatedVllm(PLAIN), asyncio.Event()
    engine.pause(is_paused=True)
    begun = asyncio.create_task(engine.generate(None, "p", 4))
    await a_moment()
    loading = asyncio.create_task(engine.load("x", paths["a"], hold))
    await a_moment()
    again, ending = asyncio.create_task(engine.load("x", paths["b"])), asyncio.create_task(engine.unload("x"))
    others = [engine.resident(), engine.remove(7), engine.generate(None, "p", 1)]
    waiting = [begun, *map(asyncio.ensure_future, others)]
    engine.pause(is_paused=False)
    await a_moment()
    assert not any(one.done() for one in (again, ending, *waiting))
    assert (engine.tokens, engine.running, engine.waiting) == (0, [""], [""])
    hold.set()
    await asyncio.gather(loading, ending, *waiting)
    with pytest.raises(Rejection, match="already been loaded"):
        await again
    assert not engine.cards


async def test_who_runs_and_who_waits_is_sampled_as_it_changes(paths):
    """As vLLM writes one sample for each set that it ever saw, whose value is when it last saw it."""
    engine = SimulatedVllm(replace(PLAIN, max_loras=1))
    for name in "ab":
        await engine.load(name, paths[name])
    engine.pause(is_paused=True)
    works = [asyncio.create_task(engine.generate(engine.cards[name], "p", 1)) for name in ("a", "b", "a")]
    await a_moment()
    assert (engine.running, engine.waiting, len(engine.bound)) == (["a", "a"], ["b"], 3)
    assert ("a", "b") in engine.samples
    engine.pause(is_paused=False)
    async with asyncio.timeout(60):
        await asyncio.gather(*works)
    assert set(engine.samples) >= {("a", "b"), ("b", ""), ("", "")}
    newest = max(engine.samples.values())
    assert engine.samples["", ""] == newest
    assert all("" not in names.split(",") or names == "" for pair in engine.samples for names in pair)


@pytest.fixture
def listener() -> Mock:
    return Mock(spec=socket.socket)


@pytest.mark.parametrize("ends_by", ["death", "server", "nobody"])
@virtual
async def test_it_is_served_until_it_dies_or_its_server_ends(monkeypatch, listener, ends_by):
    """Its port stays open for a moment after its death, as vLLM's, so that whoever asks hears of it."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    closed: list[float] = []

    @asynccontextmanager
    async def played_server(_app: object, given: socket.socket) -> AsyncIterator[asyncio.Task[bool]]:
        assert given is listener
        yield asyncio.create_task(ended.wait())
        closed.append(loop.time())

    monkeypatch.setattr(application, "served", played_server)
    engine = SimulatedVllm(PLAIN)
    work = asyncio.create_task(application.serve(engine, listener))
    await asyncio.sleep(5.0)
    assert (work.done(), closed) == (False, [])
    if ends_by == "nobody":
        return
    engine.die() if ends_by == "death" else ended.set()
    async with asyncio.timeout(60):
        await work
    assert closed == [pytest.approx(5.3 if ends_by == "death" else 5.0)]
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.sleep(0)
    assert len({task for task in others if not task.done()}) <= 1, "nobody waits for a death any more"


async def test_whoever_fails_while_it_is_served_leaves_no_server_behind(monkeypatch):
    """R12."""

    async def serve(_engine: SimulatedVllm, given: socket.socket) -> None:
        with given:
            await asyncio.Event().wait()

    async def failing() -> None:
        async with application.serving(SimulatedVllm(PLAIN)):
            await asyncio.sleep(0)
            raise ZeroDivisionError

    monkeypatch.setattr(application, "serve", serve)
    with pytest.raises(ZeroDivisionError):
        await failing()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture
def start(monkeypatch) -> Callable[..., tuple[Options, tuple[object, ...], int]]:
    """Has the program started with flags and variables: its options, where it listens, and its exit code."""
    for name in [name for name in os.environ if name.startswith(("LORAPLANE_", "VLLM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(program, "listen", lambda *address: address)

    def started(*flags: str, until: str = "SIGTERM", **variables: str) -> tuple[Options, tuple[object, ...], int]:
        seen: list[tuple[Options, tuple[object, ...]]] = []

        async def serve(engine: SimulatedVllm, address: tuple[object, ...]) -> None:
            seen.append((engine.options, address))
            if until == "death":
                engine.die()
                return
            signal.raise_signal(getattr(signal, until))
            await asyncio.Event().wait()

        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(program, "serve", serve)
        monkeypatch.setattr(sys, "argv", ["simulated", "--port", "8123", *flags])
        with pytest.raises(SystemExit) as ended:
            program.main()
        [(options, address)] = seen
        return options, address, int(str(ended.value.code))

    return started


VARIABLES = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_PLUGINS": "loraplane", "LORAPLANE_PLUGIN": "1"}


def test_flags_and_variables_are_those_of_vllm(start, tmp_path):
    flags = "--host ::1 --served-model-name m --model /m --max-cpu-loras 3 --vllm-version 0.31.0"
    token = tmp_path / "token"
    more = {
        "LORAPLANE_RESOLVER": "/run/r.sock",
        "LORAPLANE_STORE": "/store",
        "LORAPLANE_HIDE_SECONDS": "2.5",
        "LORAPLANE_CONTROL_TOKEN_FILE": str(token),
    }
    more |= {"VLLM_PLUGINS": "other,loraplane", "LORAPLANE_PLUGIN": "true"}
    options, address, _ = start(*flags.split(), **(VARIABLES | more))
    assert address == ("::1", 8123)
    parts = {"resolver": "/run/r.sock", "guard": Guard("/store", token), "version": "0.31.0", "max_cpu_loras": 3}
    parts["hide_seconds"] = 2.5
    assert options == Options(served_model_name="m", model="/m", runtime_lora=True, plugin=True, **parts)


@pytest.mark.parametrize(
    ("changed", "plugin"),
    [
        ({}, True),
        ({"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0"}, False),
        ({"VLLM_PLUGINS": "other"}, False),
        ({"VLLM_PLUGINS": ""}, False),
        ({"LORAPLANE_PLUGIN": "0"}, False),
    ],
    ids=str,
)
def test_the_plugin_is_there_as_in_vllm(start, changed, plugin):
    """Where vLLM is told to load it, lets adapters be loaded, and it is switched on."""
    options, _, _ = start(**(VARIABLES | changed))
    assert (options.plugin, options.resolver) == (plugin, None)


@pytest.mark.parametrize(("until", "code"), [("SIGTERM", 0), ("SIGINT", 0), ("death", 1)])
def test_without_flags_it_is_as_it_is_without_options_and_ends_as_it_is_told(start, until, code):
    assert start(until=until) == (replace(DEFAULTS, runtime_lora=False, hide_seconds=5.0), ("127.0.0.1", 8123), code)
