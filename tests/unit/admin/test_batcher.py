"""Who waits for whom where many calls run at once, on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from registry.admin.rpc.limiter import FEW, TURN_SECONDS, Batcher
from tests.support.played_etcd import virtual

LONG = 10.0


def now() -> float:
    return asyncio.get_running_loop().time()


async def _call(turns: Batcher, begun: list[float], seconds: float = LONG) -> None:
    async with turns.taken():
        begun.append(now())
        await asyncio.sleep(seconds)


@virtual
async def test_a_few_calls_wait_for_nothing():
    turns, begun, start = Batcher(), list[float](), now()
    await asyncio.gather(*(_call(turns, begun) for _ in range(FEW)))
    await asyncio.gather(*(_call(turns, begun) for _ in range(FEW)))
    assert begun == [start] * FEW + [start + LONG] * FEW


@virtual
async def test_who_comes_to_many_goes_on_with_those_who_come_next():
    turns, begun, start = Batcher(), list[float](), now()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(FEW + 2):
            tasks.create_task(_call(turns, begun))
        await asyncio.sleep(TURN_SECONDS / 2)
        tasks.create_task(_call(turns, begun))
        await asyncio.sleep(TURN_SECONDS)
        tasks.create_task(_call(turns, begun))
    first, second = start + TURN_SECONDS, start + 2.5 * TURN_SECONDS
    assert begun == pytest.approx([start] * FEW + [first] * 3 + [second])


@virtual
async def test_a_turn_waits_for_no_call_that_hangs():
    """A call that etcd does not answer keeps nobody: not those of its group, not those after it."""
    turns, begun, start = Batcher(), list[float](), now()
    async with asyncio.TaskGroup() as tasks:
        hanging = [tasks.create_task(_call(turns, begun, 1e6)) for _ in range(2 * FEW)]
        await asyncio.sleep(1)
        await _call(turns, begun)
        for one in hanging:
            one.cancel()
    assert begun[-1] == pytest.approx(start + 1 + TURN_SECONDS)


@virtual
async def test_who_is_cancelled_while_it_waits_takes_nobody_along():
    turns, begun = Batcher(), list[float]()
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(_call(turns, begun)) for _ in range(2 * FEW + 2)]
        await asyncio.sleep(TURN_SECONDS / 2)
        for one in calls[FEW:-1]:
            one.cancel()
    assert len(begun) == FEW + 1
    begun.clear()
    free = now()
    await _call(turns, begun)
    assert begun == [free], "nobody is thought to run still"
