"""Parts of a process that fail are told of and run again; the others never hear of it."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import pytest
import structlog.testing

from registry.runtime.supervisor import WELL_SECONDS, Supervisor, keep_once
from tests.simulation.loop import VirtualLoop


class Fatal(Exception):
    """Ends the process."""


class Scene:
    """A supervisor, and what it told."""

    def __init__(self) -> None:
        self.counted: list[str] = []
        self.changes = 0
        self.supervisor = Supervisor(self.counted.append, random.Random(7), fatal=(Fatal,), on_change=self._note)

    def _note(self) -> None:
        self.changes += 1

    @property
    def failures(self) -> dict[str, int]:
        return {part: one.failures for part, one in self.supervisor.troubles.items()}


@pytest.fixture
def scene() -> Scene:
    return Scene()


def play(work) -> None:
    """Runs it on virtual time."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(work())
    finally:
        loop.close()


def test_a_part_that_fails_is_run_again_until_it_ends(scene):
    """X2 unbreakable: with a pause that grows up to a cap, so that a value which stays costs next to nothing."""
    started: list[float] = []

    async def work() -> None:
        started.append(asyncio.get_running_loop().time())
        if len(started) <= 40:
            raise OverflowError("int too large to convert to float")

    play(lambda: scene.supervisor.keep("feed", work))
    assert len(started) == 41
    assert scene.counted == ["feed"] * 40
    assert max(after - before for before, after in pairwise(started)) <= 15.0
    assert started[-1] > 60.0
    assert scene.failures == {"feed": 40}
    assert scene.changes == 40


def test_a_part_that_runs_for_a_while_is_well(scene):
    async def main() -> None:
        fails = True

        async def work() -> None:
            nonlocal fails
            if fails:
                fails = False
                raise KeyError("pool")
            await asyncio.sleep(10 * WELL_SECONDS)

        kept = asyncio.create_task(scene.supervisor.keep("feed", work))
        await asyncio.sleep(WELL_SECONDS / 2)
        assert scene.failures == {"feed": 1}
        assert scene.supervisor.troubles["feed"].error == "KeyError"
        await asyncio.sleep(WELL_SECONDS)
        assert scene.failures == {}
        assert scene.changes == 2
        kept.cancel()
        with pytest.raises(asyncio.CancelledError):
            await kept

    play(main)


def test_what_is_fatal_ends_the_process(scene):
    """R10: the race for a replica id that is lost twice, say."""

    async def work() -> None:
        raise Fatal

    async def round_() -> float:
        raise Fatal

    for kept in (lambda: scene.supervisor.keep("feed", work), lambda: scene.supervisor.paced("loop", round_)):
        with pytest.raises(Fatal):
            play(kept)
    assert not scene.counted


def test_a_round_that_fails_comes_again_after_a_while(scene):
    async def main() -> None:
        async def fails() -> float:
            raise RecursionError

        async def succeeds() -> float:
            return 3600.0

        pauses = [await scene.supervisor.paced("loop", fails) for _ in range(20)]
        assert max(pauses) <= 15.0 < sum(pauses)
        assert scene.failures == {"loop": 20}
        assert await scene.supervisor.paced("loop", succeeds) == 3600.0
        assert scene.failures == {}

    play(main)


def test_what_is_done_without(scene):
    async def main() -> None:
        assert scene.supervisor.survives("snapshot", lambda: None)
        with structlog.testing.capture_logs() as logged:
            assert not scene.supervisor.survives("snapshot", {}.popitem)
        assert [(line["event"], line["part"], type(line["exc_info"])) for line in logged] == [
            ("part_failed", "snapshot", KeyError)
        ]

    play(main)


async def test_nobody_has_to_supervise():
    async def work() -> None:
        raise Fatal

    with pytest.raises(Fatal):
        await keep_once("feed", work)
