"""Artifacts that another replica of the host staged: leased and seen at once, without a worker."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from registry.runtime.failpoints import Point, handling
from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts.files import locked
from sidecar.artifacts.leases import read_leases
from tests.support.adapters import digest_of, write_adapter
from tests.support.waiting import eventually
from tests.unit.artifacts.conftest import pinned, release, unpinned


@pytest.mark.parametrize("make_ref", [pinned, unpinned])
async def test_what_is_there_needs_no_worker(open_store, sources, monkeypatch, make_ref):
    """R7: leased first, then seen under its lock, in one step of the event loop."""
    adapter = write_adapter(sources / "a")
    staged = await open_store("r1").ensure(make_ref(adapter))
    seen: list[tuple[Point, set[str]]] = []
    second = open_store("r2")
    monkeypatch.setattr(second, "_workers", None)
    with handling(lambda point: seen.append((point, read_leases(second._lease_file)))):
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
        await eventually(lambda: read_leases(second._lease_file) == {staged.id})
        await asyncio.sleep(0)
        assert not waiting.done()
    assert await waiting == staged
    assert second.leased() == {staged.id}


async def test_what_may_not_be_served_here_is_refused_although_it_is_there(open_store, sources, tmp_path):
    """R4: another replica of the host may be allowed more."""
    adapter = write_adapter(sources / "a")
    await open_store("r1").ensure(pinned(adapter))
    second = open_store("r2")
    with pytest.raises(ArtifactError) as refused:
        await second.ensure(pinned(write_adapter(tmp_path / "elsewhere")))
    assert refused.value.reason == "source_not_allowed"
    assert not second.leased()


async def test_what_is_there_and_can_be_neither_proven_nor_read_is_fetched(open_store, sources):
    """R4, R21: a worker looks at it, and has it replaced; nobody is refused for it."""
    adapter = write_adapter(sources / "a")
    first = open_store("r1")
    staged = await first.ensure(pinned(adapter))
    release(first, staged)
    first._layout.report(staged.id).unlink()
    spoil(Path(staged.path) / "adapter_config.json")
    assert await open_store("r2").ensure(pinned(adapter)) == staged
    assert digest_of(Path(staged.path)) == adapter.digest


def spoil(file: Path) -> None:
    """Makes a file that is part of no adapter of it."""
    file.chmod(0o644)
    file.write_bytes(b"x" * 99)


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


async def test_a_header_that_takes_long_to_read_is_not_read_in_the_event_loop(open_store, sources):
    """R19, X2: a worker reads it, once; without the source, and without a report that would spare it."""
    adapter = write_adapter(sources / "a", rank=1, hidden=2, layers=1500)
    staged = await open_store().ensure(pinned(adapter))
    shutil.rmtree(adapter.directory)
    (Path(staged.path).parents[1] / "reports" / f"{staged.id}.json").unlink()
    again = open_store()
    assert again.lookup(pinned(adapter)) is None
    assert await again.ensure(pinned(adapter)) == staged
    assert again.lookup(pinned(adapter)) == staged
