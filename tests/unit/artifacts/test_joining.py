"""Artifacts that another replica of the host staged: leased and seen at once, without a worker."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from registry.runtime.failpoints import Point, handling
from registry.sources import file
from registry.sources.base import ArtifactError, Stop
from sidecar.artifacts import obtain, stored
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


@pytest.fixture
def going(monkeypatch) -> Iterator[threading.Event]:
    """Whether folders of sources can be looked at; without it whoever looks at one waits, as where a mount hangs."""
    going, resolved = threading.Event(), file._resolved
    going.set()
    monkeypatch.setattr(file, "_resolved", lambda path: (going.wait(60.0), resolved(path))[1])
    yield going
    going.set()


@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize("make_ref", [pinned, unpinned])
async def test_a_folder_that_hangs_holds_up_nothing_that_is_in_the_store(
    open_store, sources, monkeypatch, going, make_ref, is_small
):
    """R13 static-stable, R19: after a restart of the sidecar, too; each look there takes a minute."""
    if not is_small:
        monkeypatch.setattr(stored, "MAX_AT_ONCE_BYTES", 0)
    ref = make_ref(write_adapter(sources / "a"))
    staged = await open_store("r1").ensure(ref)
    going.clear()
    begun, again = time.monotonic(), open_store("r1")
    assert await again.recall([ref])
    assert await again.ensure(ref) == staged
    assert time.monotonic() - begun < 30.0
    narrower = open_store("r1", allow=sources / "b")
    going.set()
    assert not await narrower.recall([ref])
    with pytest.raises(ArtifactError, match="not under a directory"):
        await narrower.ensure(ref)


async def test_the_event_loop_does_not_wait_for_a_folder_that_hangs(open_store, sources, going):
    """X2: what another replica staged has to be of a source that this one may read, which a worker may wait to hear."""
    refs = [pinned(write_adapter(sources / f"a{seed}", seed=seed)) for seed in range(4)]
    staged = [await open_store("r1").ensure(ref) for ref in refs]
    second = open_store("r2")
    going.clear()
    begun = time.monotonic()
    waiting = [asyncio.create_task(second.ensure(ref)) for ref in refs]
    for _ in range(3):
        await asyncio.sleep(0)
    assert time.monotonic() - begun < 30.0
    going.set()
    assert await asyncio.gather(*waiting) == staged


def test_what_is_asked_while_an_earlier_question_hangs_is_not_asked_later():
    """R16 bounded: nothing piles up behind a mount that hangs."""
    going, asked, looks = threading.Event(), list[str](), obtain.PromptLook()
    try:
        for ask in (going.wait, lambda: asked.append("late")):
            with pytest.raises(TimeoutError):
                looks.at_once(ask)
    finally:
        going.set()
        looks.close()
    assert asked == []


async def test_what_hangs_leaves_workers_to_others(open_store, sources, monkeypatch):
    """R19: each try of it that was given up has a worker for as long as it hangs; the next waits for that to end."""
    going, resolved = threading.Event(), file._resolved
    hangs, other = (pinned(write_adapter(sources / name, seed=seed)) for seed, name in enumerate(("hangs", "other")))
    monkeypatch.setattr(file, "_resolved", lambda path: (path.name != "hangs" or going.wait(120.0), resolved(path))[1])
    monkeypatch.setattr(obtain, "origin_of", lambda uri: uri)
    store = open_store()
    try:
        for _ in range(obtain.MAX_WORKERS):
            given_up = asyncio.create_task(store.ensure(hangs))
            await asyncio.sleep(0.01)
            given_up.cancel()
            await asyncio.wait({given_up})
        async with asyncio.timeout(60.0):
            assert (await store.ensure(other)).is_proven
        again = asyncio.create_task(store.ensure(hangs))
        await asyncio.sleep(0.2)
        assert not again.done()
    finally:
        going.set()
    assert (await again).is_proven
