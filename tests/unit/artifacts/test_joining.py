"""Artifacts that another replica of the host staged: leased and seen at once, without a worker."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from registry.runtime.failpoints import Point, handling
from tests.support.adapters import digest_of, write_adapter
from tests.unit.artifacts.conftest import pinned


async def test_what_is_removed_between_the_guess_and_the_lease_is_fetched(open_store, sources):
    """R7: that it is there counts only once it is leased and its lock is held."""
    adapter = write_adapter(sources / "a")
    staged = await open_store("r1").ensure(pinned(adapter))
    passed: list[Point] = []

    def remove_at_first(point: Point) -> None:
        if not passed:
            shutil.rmtree(staged.path)
        passed.append(point)

    with handling(remove_at_first):
        assert await open_store("r2").ensure(pinned(adapter)) == staged
    assert passed[:3] == [Point.LEASED, Point.LEASED, Point.LOCKED]
    assert Point.PLACED in passed
    assert digest_of(Path(staged.path)) == adapter.digest


async def test_hundreds_that_are_there_leave_the_event_loop_to_others(open_store, sources):
    """R8: between two of them everybody else has a turn."""
    refs = [pinned(write_adapter(sources / f"a{seed}", seed=seed)) for seed in range(3)]
    first, second = open_store("r1"), open_store("r2")
    for ref in refs:
        await first.ensure(ref)
    turns: list[str] = []

    async def others() -> None:
        for _ in refs:
            turns.append("other")
            await asyncio.sleep(0)

    async def ours() -> None:
        for ref in refs:
            await second.ensure(ref)
            turns.append("ours")

    await asyncio.gather(ours(), others())
    assert turns == ["other", "ours"] * len(refs)
