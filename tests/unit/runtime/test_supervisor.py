"""Parts of a process that fail are told of and run again; the others never hear of it."""

from __future__ import annotations

import asyncio
import random
from contextlib import closing
from itertools import pairwise
from unittest.mock import AsyncMock, Mock

import pytest
import structlog.testing

from registry.runtime.process import Supervisor, keep_once
from tests.simulation.loop import VirtualLoop
from tests.support.flaky_etcd import Longest


class Fatal(Exception):
    """Ends the process."""


class Scene:
    """A supervisor, and what it told."""

    def __init__(self) -> None:
        self.counted: list[str] = []
        self.supervisor = Supervisor(self.counted.append, random.Random(7), fatal=(Fatal,))

    @property
    def failures(self) -> dict[str, int]:
        return {part: one.failures for part, one in self.supervisor.troubles.items()}


@pytest.fixture
def scene() -> Scene:
    return Scene()


def play(work) -> None:
    """Runs it on virtual time. What is logged is shown to nobody: to draw a traceback takes longer than all else."""
    with structlog.testing.capture_logs(), closing(VirtualLoop()) as loop:
        loop.run_until_complete(work())


def test_what_is_fatal_ends_the_process(scene):
    """R10: the race for a replica id that is lost twice, say."""

    async def work() -> None:
        raise Fatal

    async def round_() -> float:
        raise Fatal

    for kept in (lambda: scene.supervisor.keep("feed", work), lambda: scene.supervisor.paced("loop", round_)):
        with pytest.raises(Fatal):
            play(kept)
    with pytest.raises(Fatal):
        scene.supervisor.survives("snapshot", Mock(side_effect=Fatal))
    assert not scene.counted


def test_a_part_that_fails_is_run_again_with_pauses_that_double_and_half_a_minute_is_well():
    """R8, X2: a part that fails at each start costs next to nothing; one that has run for so long begins anew."""
    changes, started, counted = list[tuple[float, int]](), list[float](), list[str]()

    def now() -> float:
        return asyncio.get_running_loop().time()

    async def work() -> None:
        started.append(now())
        if len(started) <= 7:
            raise KeyError
        await asyncio.sleep(3600)

    async def main() -> None:
        supervisor = Supervisor(counted.append, Longest())
        supervisor.heed(lambda: changes.append((now(), len(supervisor.troubles))))
        kept = asyncio.create_task(supervisor.keep("feed", work))
        await asyncio.sleep(2.0)
        trouble = supervisor.troubles["feed"]
        assert (trouble.error, trouble.since, trouble.failures) == ("KeyError", 0.0, 2)
        await asyncio.sleep(1800)
        assert [after - before for before, after in pairwise(started)] == [1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]
        assert (changes[-1], [count for _, count in changes]) == ((started[-1] + 30.0, 0), [1] * 7 + [0])
        assert counted == ["feed"] * 7
        kept.cancel()
        with pytest.raises(asyncio.CancelledError):
            await kept

    play(main)


@pytest.mark.parametrize("form", ["part", "round"])
def test_what_is_cancelled_just_as_it_fails_is_not_run_again(scene, form):
    """X3 given-back: a group of tasks raises the failure alone then; who is told to stop would go on for ever."""
    runs: list[None] = []

    async def fails_at_its_end() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise OSError

    async def work() -> float:
        runs.append(None)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fails_at_its_end())
        return 0.0

    async def main() -> None:
        kept = asyncio.create_task(getattr(scene.supervisor, "keep" if form == "part" else "paced")("feed", work))
        await asyncio.sleep(1)
        kept.cancel()
        done, _ = await asyncio.wait({kept}, timeout=600)
        assert [one.cancelled() for one in done] == [True]
        assert (len(runs), scene.failures) == (1, {"feed": 1})

    play(main)


def test_a_part_that_is_run_again_bears_no_trace_of_a_cancellation_that_never_was(scene):
    """X2 unbreakable: a call that its server ended would end the part, as if somebody had told it to stop."""
    traces: list[int] = []

    async def fails(after_seconds: float) -> None:
        await asyncio.sleep(after_seconds)
        raise OSError

    async def work() -> None:
        traces.append(asyncio.current_task().cancelling())
        if len(traces) < 3:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(2):
                    tasks.create_task(fails(1.0))

    play(lambda: scene.supervisor.keep("feed", work))
    assert traces == [0, 0, 0]


def test_a_round_that_fails_comes_again_after_a_while_and_what_is_done_without_is_told(scene):
    async def main() -> None:
        async def fails() -> float:
            raise RecursionError

        async def succeeds() -> float:
            return 3600.0

        pauses = [await scene.supervisor.paced("loop", fails) for _ in range(20)]
        assert max(pauses) <= 15.0 < sum(pauses)
        assert scene.failures == {"loop": 20}
        assert (await scene.supervisor.paced("loop", succeeds), scene.failures) == (3600.0, {})

        assert scene.supervisor.survives("snapshot", lambda: None)
        with structlog.testing.capture_logs() as logged:
            assert not scene.supervisor.survives("snapshot", {}.popitem)
        assert [(line["event"], line["part"], type(line["exc_info"])) for line in logged] == [
            ("part_failed", "snapshot", KeyError)
        ]

    play(main)


async def test_what_ends_for_another_reason_is_not_run_again(scene):
    """R12: the end of its task is none of its failures. Nobody has to supervise, either."""
    entered = asyncio.Event()

    async def work() -> None:
        entered.set()
        await asyncio.Event().wait()

    kept = asyncio.create_task(scene.supervisor.keep("feed", work))
    await entered.wait()
    kept.cancel()
    with pytest.raises(asyncio.CancelledError):
        await kept
    assert (scene.failures, scene.counted) == ({}, [])
    once = AsyncMock(side_effect=[None, Fatal])
    await keep_once("feed", once)
    with pytest.raises(Fatal):
        await keep_once("feed", once)
    assert once.await_count == 2
