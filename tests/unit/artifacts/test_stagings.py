"""Stagings that hang, are cancelled or were left half-way, and others beside them."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Event
from unittest.mock import patch

import pytest

from registry.runtime.failpoints import Point, handling
from registry.sources.base import Stop
from sidecar.artifacts import obtain
from sidecar.artifacts.leases import read_leases
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef, Staged
from tests.support.adapters import WrittenAdapter, digest_of, write_adapter
from tests.support.waiting import eventually
from tests.unit.artifacts.conftest import contents, flip, pinned, refusal, unpinned


async def test_a_staging_that_takes_too_long_is_given_up_and_leaves_nothing(open_store, sources, tmp_path, monkeypatch):
    """R8, R16: every wait has an end."""
    monkeypatch.setattr(obtain, "STAGING_TIMEOUT_SECONDS", 0.05)
    hangs = Event()
    adapter = write_adapter(sources / "a")
    store = open_store()
    hanging = handling(lambda point: point is Point.RECEIVING and hangs.wait())
    try:
        with hanging:
            error = await refusal(store, pinned(adapter))
    finally:
        hangs.set()
    assert (error.reason, error.permanent) == ("staging_timeout", False)
    store.close()
    monkeypatch.undo()
    assert not contents(tmp_path / "store" / "tmp")
    assert not contents(tmp_path / "store" / "adapters")
    assert (await open_store().ensure(pinned(adapter))).digest == adapter.digest


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


SITUATIONS: dict[str, Callable[[LocalStore, WrittenAdapter], ArtifactRef]] = {
    "as it is": lambda _, adapter: pinned(adapter),
    "whatever is there": lambda _, adapter: unpinned(adapter),
    "prepared": lambda _, adapter: ArtifactRef(adapter.uri, adapter.digest, prepare='{"remap": "auto"}'),
    "there without report": lambda store, adapter: staged_and(
        store, adapter, lambda one: report_of(store, one).unlink()
    ),
    "damaged": lambda store, adapter: staged_and(store, adapter, lambda one: flip(one.path)),
}


def report_of(store: LocalStore, staged: Staged) -> Path:
    return store._layout.report(staged.id)


def staged_and(store: LocalStore, adapter: WrittenAdapter, deed: Callable[[Staged], object]) -> ArtifactRef:
    deed(asyncio.run(store.ensure(pinned(adapter))))
    return pinned(adapter)


class _Leaver:
    """Cancels a task at the n-th moment of its work, wherever that runs: a worker goes on when the task has ended."""

    def __init__(self, moment: int) -> None:
        self._left = moment
        self._has_ended = Event()
        self.points: list[Point | None] = []

    async def is_cancelled(self, work: Awaitable[Staged]) -> bool:
        """Whether it was, before its end."""
        loop = asyncio.get_running_loop()

        def pass_moment(point: Point | None = None) -> None:
            self._left -= 1
            self.points += [point] if self._left >= 0 else []
            if self._left:
                return
            if threading.current_thread() is threading.main_thread():
                task.cancel()
                return
            loop.call_soon_threadsafe(task.cancel)
            assert self._has_ended.wait(60)

        check = Stop.check

        def checked(stop: Stop, wait_seconds: float = 0.0) -> None:
            pass_moment()
            check(stop, wait_seconds)

        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._has_ended.set())
        with handling(pass_moment), patch.object(Stop, "check", checked):
            await asyncio.wait({task})
            return task.cancelled()


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
def test_a_staging_may_be_left_at_each_moment(tmp_path, situation):
    """R7, R8, R12: half of nothing is left, no lock is held, no lease is lost, and the next one has it right.

    Cancellation ends the copying, not only the waiting for it.
    """
    left_at = []
    for moment in itertools.count(1):
        folder = tmp_path / f"{moment}"
        adapter = write_adapter(folder / "sources" / "a")
        stores = [LocalStore(folder / "store", "r1", [(folder / "sources").as_uri()]) for _ in range(3)]
        ref = situation(stores[0], adapter)
        leaver, before = _Leaver(moment), set(contents(folder / "store" / "adapters"))
        was_left = asyncio.run(leaver.is_cancelled(stores[1].ensure(ref)))
        stores[1].close()
        if leaver.points[-1] is Point.RECEIVING and leaver.points.count(Point.RECEIVING) == 1:
            assert set(contents(folder / "store" / "adapters")) <= before, moment
        assert not contents(folder / "store" / "tmp"), moment
        assert stores[0].leased() <= read_leases(stores[0]._leases.file), moment
        staged = asyncio.run(stores[2].ensure(ref))
        assert digest_of(Path(staged.path)) == staged.digest == adapter.digest, moment
        assert staged.is_proven, moment
        assert staged.id in read_leases(stores[2]._leases.file), moment
        for store in stores:
            store.close()
        if not was_left:
            break
        left_at.append(moment)
    assert len(left_at) > 2
