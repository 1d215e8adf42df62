"""The simulation's own clock: it always goes on, and what goes round without it is a failure, not a hang."""

from __future__ import annotations

import asyncio
import math
from contextlib import closing

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
