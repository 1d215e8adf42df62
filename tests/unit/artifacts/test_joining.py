"""Artifacts that another replica of the host staged: leased and seen at once, without a worker."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from registry.runtime.failpoints import Point, handling
from registry.sources.base import Stop
from sidecar.artifacts.files import locked
from sidecar.artifacts.leases import read_leases
from tests.support.adapters import digest_of, write_adapter
from tests.support.waiting import eventually
from tests.unit.artifacts.conftest import pinned, unpinned


@pytest.mark.parametrize("make_ref", [pinned, unpinned])
async def test_what_is_there_needs_no_worker(open_store, sources, make_ref):
    """R7 files-pinned: leased first, then seen under its lock, in one step of the event loop, without the source.

    What is in the store, but not leased to this replica, may be removed at any time.
    """
    adapter = write_adapter(sources / "a")
    staged = await open_store("r1").ensure(make_ref(adapter))
    shutil.rmtree(sources / "a")
    seen: list[tuple[Point, set[str]]] = []
    second = open_store("r2")
    assert second.lookup(make_ref(adapter)) is None
    second._obtainer = replace(second._obtainer, workers=Mock(**{"submit.side_effect": AssertionError("a worker")}))
    with handling(lambda point: seen.append((point, read_leases(second._leases.file)))):
        assert await second.ensure(make_ref(adapter)) == staged
    assert seen == [(Point.LEASED, {staged.id})]
    assert second.leased() == {staged.id}
    assert second.lookup(make_ref(adapter)) == staged


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


async def test_where_its_lock_is_held_a_worker_waits_and_the_event_loop_does_not(open_store, sources):
    """R7, R8: somebody may be about to remove it."""
    adapter = write_adapter(sources / "a")
    first, second = open_store("r1"), open_store("r2")
    staged = await first.ensure(pinned(adapter))
    with locked(first._layout.lock(staged.id), Stop()):
        waiting = asyncio.create_task(second.ensure(pinned(adapter)))
        await eventually(lambda: read_leases(second._leases.file) == {staged.id})
        await asyncio.sleep(0)
        assert not waiting.done()
    assert await waiting == staged
    assert second.leased() == {staged.id}


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
