"""Stagings that hang, are cancelled or were left half-way, and others beside them."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
from threading import Event

import pytest

from registry.runtime.failpoints import Point, handling
from registry.sources.base import ArtifactError
from sidecar.artifacts.types import ArtifactRef
from tests.support.adapters import write_adapter
from tests.support.waiting import eventually
from tests.unit.artifacts.conftest import WEIGHTS, contents, pinned, unpinned


async def test_one_staging_that_hangs_does_not_hold_up_another(open_store, sources):
    """R8 isolation."""
    hangs = Event()
    slow, fast = write_adapter(sources / "slow"), write_adapter(sources / "fast", seed=1)
    waiting: list[None] = []

    def wait(point: Point) -> None:
        if point is Point.LOCKED and not waiting:
            waiting.append(None)
            hangs.wait()

    store = open_store()
    with handling(wait):
        held = asyncio.create_task(store.ensure(pinned(slow)))
        await eventually(lambda: waiting)
        assert (await store.ensure(pinned(fast))).digest == fast.digest
        assert not held.done()
        hangs.set()
        assert (await held).digest == slow.digest


async def test_a_staging_that_takes_too_long_is_given_up_and_leaves_nothing(open_store, sources, tmp_path):
    """R8, R16: every wait has an end."""
    hangs = Event()
    adapter = write_adapter(sources / "a")
    store = open_store(timeout_seconds=0.05)
    hanging = handling(lambda point: point is Point.RECEIVING and hangs.wait())
    with hanging, pytest.raises(ArtifactError) as refused:
        await store.ensure(pinned(adapter))
    assert (refused.value.reason, refused.value.permanent) == ("staging_timeout", False)
    hangs.set()
    store.close()
    assert not contents(tmp_path / "store" / "tmp")
    assert not contents(tmp_path / "store" / "adapters")
    assert (await open_store().ensure(pinned(adapter))).digest == adapter.digest


@pytest.mark.parametrize("make_ref", [pinned, unpinned])
async def test_a_cancelled_staging_leaves_nothing_and_can_be_repeated(open_store, sources, tmp_path, make_ref):
    """R12: cancellation ends the copying, not only the waiting for it."""
    reached, go_on = Event(), Event()

    def wait(point: Point) -> None:
        if point is Point.RECEIVING:
            reached.set()
            go_on.wait()

    adapter = write_adapter(sources / "a")
    store = open_store()
    with handling(wait):
        task = asyncio.create_task(store.ensure(make_ref(adapter)))
        await eventually(reached.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    go_on.set()
    store.close()
    assert not contents(tmp_path / "store" / "tmp")
    assert not contents(tmp_path / "store" / "adapters")
    assert (await open_store().ensure(make_ref(adapter))).digest == adapter.digest


async def test_a_staging_that_waits_for_a_lock_can_be_cancelled(store, sources, tmp_path, open_store):
    """R12: also where another process of the host holds the lock."""
    adapter = write_adapter(sources / "a")
    staged = await open_store("r2").ensure(pinned(adapter))
    with (tmp_path / "store" / "locks" / staged.id).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        task = asyncio.create_task(store.ensure(pinned(adapter)))
        await eventually((tmp_path / "store" / "leases" / "r1").exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.close()


async def test_leftovers_of_the_dead_are_swept_and_only_those_of_the_lock_that_is_held(store, sources, tmp_path):
    """R12, R16: what a killed process left goes when its artifact is staged; what is another's stays."""
    adapter = write_adapter(sources / "a")
    staged = await store.ensure(pinned(adapter))
    shutil.rmtree(staged.path)
    leftovers, others = tmp_path / "store" / "tmp" / f"{staged.id}.dead", tmp_path / "store" / "tmp" / "other.live"
    leftovers.mkdir()
    (leftovers / WEIGHTS).write_bytes(b"half")
    (tmp_path / "store" / "tmp" / f"{staged.id}.report").write_bytes(b"half")
    others.mkdir()
    again = ArtifactRef(adapter.uri, adapter.digest, prepare='{"remap": "auto"}')
    assert await store.ensure(again) == staged
    assert contents(tmp_path / "store" / "tmp") == ["other.live"]
