"""The simulation's own clock: it always goes on, and what goes round without it is a failure, not a hang."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncGenerator
from contextlib import closing
from itertools import product

import pytest

from tests.simulation.loop import Livelock, VirtualLoop


def test_time_comes_to_a_timer_that_is_as_near_as_can_be():
    """Seed 1606 once went round for ever: a retry was due one bit later than the clock could come."""

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0.9441432383713657)
        due = math.nextafter(loop.time(), math.inf)
        while loop.time() < due:  # noqa: ASYNC110 - as the reconciler does
            await asyncio.sleep(due - loop.time())

    with closing(VirtualLoop()) as loop:
        loop.run_until_complete(wait())


def test_what_goes_round_without_time_is_a_failure():
    async def spin() -> None:
        while True:  # noqa: ASYNC110 - that is what is wrong with it
            await asyncio.sleep(0)

    with closing(VirtualLoop()) as loop:
        task = loop.create_task(spin())
        with pytest.raises(Livelock):
            loop.run_until_complete(task)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)


def steps(seed: int | None) -> list[str]:
    """In which order things happen that all become ready at one moment."""
    done: list[str] = []

    async def step(name: str, future: asyncio.Future[None]) -> None:
        await future
        done.append(name)

    async def play() -> None:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(2)]
        futures[0].add_done_callback(lambda _: done.append("first of 0"))
        tasks = []
        for name, at in product("abc", (0, 1)):
            tasks.append(asyncio.create_task(step(f"{name} of {at}", futures[at])))
            await asyncio.sleep(1.0)  # it waits now
        for future in futures:
            future.set_result(None)
        for number in range(3):
            loop.call_soon(done.append, f"soon {number}")
        await asyncio.gather(*tasks)

    with closing(VirtualLoop(None if seed is None else random.Random(seed))) as loop:
        loop.run_until_complete(play())
    return done


def test_what_is_ready_at_one_moment_runs_in_an_order_that_the_seed_draws():
    """What asyncio promises stays: callbacks in their order, and whoever waits for one future in theirs."""
    orders = [steps(seed) for seed in range(20)]
    assert orders == [steps(seed) for seed in range(20)]
    assert len({tuple(order) for order in orders}) > 10
    for order in orders:
        assert len(order) == 10
        for kept in (["first of 0", "a of 0", "b of 0", "c of 0"], ["a of 1", "b of 1", "c of 1"]):
            assert [one for one in order if one in kept] == kept
        assert [one for one in order if one.startswith("soon")] == ["soon 0", "soon 1", "soon 2"]
    assert steps(None)[:7] == ["first of 0", "a of 0", "b of 0", "c of 0", "a of 1", "b of 1", "c of 1"]


def test_what_a_thread_does_and_what_it_tells_take_their_time():
    """The world may change between the two."""
    done: list[float] = []

    async def play() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(lambda: done.append(loop.time()))
        done.append(loop.time())

    with closing(VirtualLoop()) as loop:
        loop.thread_seconds = lambda: (3.0, 4.0)
        loop.run_until_complete(play())
    assert done == pytest.approx([3.0, 7.0])


@pytest.mark.parametrize("rng", [None, random.Random(1)])
def test_a_generator_that_nobody_reads_on_is_closed(rng):
    """X3: as by the loop of asyncio, by whoever finds it. Seed 1083 found streams that were never given back."""
    done: list[str] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            done.append("closed")

    async def play() -> None:
        await anext(numbers())
        await asyncio.sleep(1.0)

    with closing(VirtualLoop(rng)) as loop:
        loop.run_until_complete(play())
    assert done == ["closed"]
