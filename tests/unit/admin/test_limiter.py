"""Who may run where many callers come at once, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from typing import Any

import pytest

from registry.admin.rpc.limiter import FIRST_LIMIT, LAG_SECONDS, FairLimiter
from registry.model.errors import Reason, Unavailable
from tests.simulation.loop import VirtualLoop

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture
def run() -> Iterator[Run]:
    with closing(VirtualLoop()) as loop:
        yield loop.run_until_complete


async def _call(limiter: FairLimiter, caller: str, begun: list[str], seconds: float = 1.0) -> None:
    async with limiter.held(caller, timeout_seconds=1000):
        begun.append(caller)
        await asyncio.sleep(seconds)


def test_one_caller_leaves_room_for_others(run):
    """X2 unbreakable: calls that hang take at most half of the places, so another one waits for nothing."""

    async def scenario() -> None:
        limiter, begun = FairLimiter(FIRST_LIMIT), list[str]()
        hanging = [asyncio.create_task(_call(limiter, "bad", begun, 1000)) for _ in range(100)]
        await asyncio.sleep(1)
        assert begun == ["bad"] * (FIRST_LIMIT // 2)
        await _call(limiter, "good", begun)
        for task in hanging:
            task.cancel()
        await asyncio.wait(hanging)
        begun.clear()
        await asyncio.gather(*(_call(limiter, f"c{number}", begun) for number in range(FIRST_LIMIT)))
        assert len(begun) == FIRST_LIMIT

    run(scenario())


def test_who_ran_least_goes_first(run):
    """X2 unbreakable: whatever others have waiting, the next place is of who used least."""

    async def scenario() -> None:
        limiter, begun = FairLimiter(1), list[str]()
        bad = [asyncio.create_task(_call(limiter, f"bad{number % 5}", begun)) for number in range(50)]
        await asyncio.sleep(7.5)
        begun.clear()
        await _call(limiter, "good", begun)
        assert begun[:2] == ["good"], "after the one that was running"
        await _call(limiter, "good", begun)
        assert len(begun) < 6, "who used as much as the others takes turns with them"
        await asyncio.gather(*bad)

    run(scenario())


def test_an_old_use_is_forgotten(run):
    async def scenario() -> None:
        limiter, begun = FairLimiter(1), list[str]()
        await _call(limiter, "old", begun, 100)
        await asyncio.sleep(1000)
        await _call(limiter, "new", begun, 1)
        running = asyncio.create_task(_call(limiter, "x", begun))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(_call(limiter, caller, begun)) for caller in ("new", "old")]
        await asyncio.gather(running, *waiting)
        assert begun == ["old", "new", "x", "old", "new"]

    run(scenario())


def test_whoever_is_next_can_be_told_after_months(run):
    """R12 crash-only: uses are weighed by their age, in numbers that never grow with the age of the process."""

    async def scenario() -> None:
        limiter, begun = FairLimiter(1), list[str]()
        await asyncio.sleep(100 * 86_400.0)
        await asyncio.gather(*(_call(limiter, caller, begun) for caller in "aab"))
        await _call(limiter, "a", begun)
        assert begun == ["a", "b", "a", "a"]

    run(scenario())


def test_a_loop_that_lags_runs_one_call_after_another(run):
    """X2 unbreakable: what takes the processor is never many at once."""

    async def scenario() -> None:
        limiter, loop = FairLimiter(64, narrows=True), asyncio.get_running_loop()
        now, most, running = loop.time, 0, 0
        late = 0.0
        loop.time = lambda: now() + late  # type: ignore[method-assign]

        async def heavy(caller: str) -> None:
            nonlocal most, running, late
            async with limiter.held(caller, timeout_seconds=10_000):
                running += 1
                most = max(most, running)
                late += 2 * LAG_SECONDS  # of the processor's time
                await asyncio.sleep(1)
                running -= 1

        await asyncio.gather(*(heavy(f"c{number}") for number in range(20)))
        assert most <= FIRST_LIMIT
        most = 0
        await asyncio.gather(*(heavy(f"c{number}") for number in range(20)))
        assert most <= 2
        for number in range(200):
            await _call(limiter, f"c{number}", [], 0)
        begun: list[str] = []
        await asyncio.gather(*(_call(limiter, f"c{number}", begun) for number in range(64)))
        assert len(begun) == 64, "and it grows again"

    run(scenario())


def test_no_place_in_time(run):
    async def scenario() -> None:
        limiter, begun = FairLimiter(1), list[str]()
        running = asyncio.create_task(_call(limiter, "a", begun, 10))
        await asyncio.sleep(1)
        with pytest.raises(Unavailable) as told:
            async with limiter.held("b", timeout_seconds=5):
                pytest.fail("it has no place")
        assert told.value.reason is Reason.DEADLINE_EXCEEDED
        cancelled = asyncio.create_task(_call(limiter, "c", begun))
        await asyncio.sleep(1)
        cancelled.cancel()
        await running
        await _call(limiter, "d", begun)
        assert begun == ["a", "d"], "who left takes no place"

    run(scenario())


def test_who_leaves_when_its_turn_comes_gives_the_place_back(run):
    async def scenario() -> None:
        limiter, begun = FairLimiter(1), list[str]()
        running = asyncio.create_task(_call(limiter, "a", begun, 1))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(_call(limiter, "b", begun))
        asyncio.get_running_loop().call_later(1, waiting.cancel)
        await running
        waiting.cancel()
        await asyncio.wait([waiting])
        await _call(limiter, "c", begun)
        assert begun[-1] == "c"

    run(scenario())
