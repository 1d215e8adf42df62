"""When an adapter that is retired is really gone."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.vllm_plugin.adapters import Adapters
from sidecar.vllm_plugin.draining import SWEEP_SECONDS, Drain
from tests.simulation.loop import virtual
from tests.support.waiting import eventually
from tests.unit.vllm_plugin.played import PlayedServer

NEVER = 3600.0


@pytest.fixture
def server() -> PlayedServer:
    return PlayedServer()


@pytest.fixture
async def drain(server) -> Drain:
    """One that was just given the only adapter of `server`."""
    server.load("x", "/old")
    drain = Drain(server, NEVER)
    drain.add(server.registered.pop("x"))
    return drain


async def swept(drain: Drain, times: int = 2) -> int:
    """How many are left after so many looks."""
    for _ in range(times):
        await drain.sweep()
    return len(drain)


async def test_a_request_that_is_bound_to_the_same_number_keeps_it(server, drain):
    """The engine may hold another object of the same adapter."""
    twin = server.make("x", "/old", None)
    twin.lora_int_id = 1
    server.flying = [twin]
    assert (await swept(drain, 3), server.calls) == (1, [])


async def test_one_that_comes_back_into_memory_stays(server, drain):
    """A request that ended in the API server may run for one more step."""

    async def brought_back(number: int) -> None:
        server.memory.add(number)

    await drain.sweep()
    server.remove = brought_back
    await drain.sweep()
    assert len(drain) == 1
    del server.remove
    await drain.sweep()
    assert len(drain) == 0


async def test_one_that_gets_a_request_while_the_engine_is_asked_stays(server, drain):
    """R7: it was idle when the sweep began; what it waits for takes as long as a step of the engine."""
    resident = server.resident

    async def bound_meanwhile() -> set[int]:
        server.flying = [drain.retired[0].adapter]
        return await resident()

    await drain.sweep()
    server.resident = bound_meanwhile
    await drain.sweep()
    assert len(drain) == 1
    server.flying, server.resident = [], resident
    assert await swept(drain) == 0


async def test_one_that_comes_to_be_registered_drains_no_more_and_stays_in_the_engine():
    """What was resolved drains until then: only its request refers to it, and its files must stay."""
    server = PlayedServer()
    drain = Drain(server, NEVER)
    resolved = server.make("x", "/new", None)
    drain.add(resolved)
    assert (await swept(drain), server.calls) == (1, [])
    server.registered["x"] = resolved
    await drain.sweep()
    assert (server.calls, len(drain)) == ([], 0)


async def test_the_sweeper_goes_on_after_a_failure_and_ends_when_nothing_is_left(caplog):
    server = PlayedServer()
    server.load("x", "/old")
    drain = Drain(server, 0)
    fails = iter([RuntimeError("engine dead")])

    async def resident() -> set[int]:
        for failure in fails:
            raise failure
        return set()

    server.resident = resident
    drain.add(server.registered.pop("x"))
    assert len(drain) == 1
    await eventually(lambda: not len(drain))
    assert "could not be removed from the engine, trying again: engine dead" in caplog.text
    assert "never retrieved" not in caplog.text


def test_a_swap_that_is_cancelled_as_the_server_ends_leaves_no_task_behind(tmp_path):
    """What the event loop still runs at its end was asked to end; what comes after that would be destroyed pending."""
    server = PlayedServer(gate=asyncio.Event())
    server.load("x", "/old")
    (tmp_path / "adapter_config.json").write_text("{}")

    async def ended_within_a_swap() -> asyncio.AbstractEventLoop:
        swap = asyncio.create_task(Adapters(server).swap("x", str(tmp_path), "/old"))
        await eventually(lambda: server.calls)
        assert not swap.done()
        return asyncio.get_running_loop()

    assert not asyncio.all_tasks(asyncio.run(ended_within_a_swap()))


@virtual
async def test_what_drains_is_looked_at_every_second_and_leaves_after_two_idle_looks():
    """R7, R16: whatever comes beside it; an engine in which all of it is in use is asked for nothing."""
    loop = asyncio.get_running_loop()
    server, asked = PlayedServer(), list[float]()
    resident = server.resident

    async def asked_for() -> set[int]:
        asked.append(loop.time())
        return await resident()

    server.resident = asked_for  # type: ignore[method-assign]
    for name in "xyz":
        server.load(name, f"/{name}")
    drain = Drain(server, SWEEP_SECONDS)
    kept = server.registered.pop("x")
    drain.add(kept)
    await asyncio.sleep(10.5)
    assert (len(drain), server.calls, asked) == (1, [], [])
    for name in "yz":
        drain.add(server.registered.pop(name))
    await asyncio.sleep(2.0)
    assert (len(drain), server.calls) == (1, [("remove", 2), ("remove", 3)])
    assert len(asked) == 1
    del kept
    await asyncio.sleep(3.0)
    assert len(drain) == 0
    assert len(asked) == 2
    await asyncio.sleep(10.0)
    assert len(asked) == 2, "nothing is left to be looked at"


@virtual
async def test_an_engine_that_hangs_is_asked_again_half_a_minute_later():
    """R19: one call that is lost does not keep weights in memory for ever; nor is a second one made beside it."""
    loop = asyncio.get_running_loop()
    server, asked = PlayedServer(), list[float]()

    async def remove(_: int) -> None:
        asked.append(loop.time())
        if len(asked) == 1:
            await asyncio.Event().wait()

    server.remove = remove  # type: ignore[method-assign]
    for name in "xy":
        server.load(name, f"/{name}")
    drain = Drain(server, SWEEP_SECONDS)
    drain.add(server.registered.pop("x"))
    await asyncio.sleep(10.0)
    drain.add(server.registered.pop("y"))
    await asyncio.sleep(90.0)
    assert asked[0] <= 3.0
    assert 30.0 <= asked[1] - asked[0] <= 33.0
