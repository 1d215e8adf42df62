"""One sync of a directory for several who ask."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock, Semaphore, get_ident

import pytest

from sidecar.artifacts import files
from sidecar.artifacts.files import SharedSync
from tests.support.waiting import eventually


class Queue:
    """A lock that knows how many came to it. Each has noted before what he waits for."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self._lock = Lock()

    def __enter__(self) -> None:
        self.came.append(get_ident())
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Disk:
    """Notes who begins to sync, and lets him end when it is told to."""

    def __init__(self) -> None:
        self.begun: list[Path] = []
        self.may_end = Semaphore(0)
        self.fails = False

    def sync(self, directory: Path) -> None:
        self.begun.append(directory)
        self.may_end.acquire()
        if self.fails:
            raise OSError("the disk is lost")


@pytest.fixture
def disk(monkeypatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(files, "sync_directory", disk.sync)
    yield disk
    disk.may_end.release(100)


async def test_who_asks_while_a_sync_runs_waits_for_the_next_which_serves_all(tmp_path, disk):
    """Fault 17: one that has begun may have missed the names that came since."""
    shared = SharedSync(tmp_path)
    shared._running = queue = Queue()
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(shared.sync)
        await eventually(lambda: len(disk.begun) == 1)
        others = [threads.submit(shared.sync) for _ in range(3)]
        await eventually(lambda: len(queue.came) == 4)
        disk.may_end.release()
        await eventually(first.done)
        await eventually(lambda: len(disk.begun) == 2)
        assert not any(one.done() for one in others)
        disk.may_end.release(10)  # and nobody needs one of them
        for one in others:
            one.result()
    assert len(disk.begun) == 2


async def test_a_sync_that_fails_serves_nobody(tmp_path, disk):
    """Fault 17: everybody hears of it, or syncs himself."""
    shared = SharedSync(tmp_path)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(shared.sync)
        await eventually(lambda: len(disk.begun) == 1)
        second = threads.submit(shared.sync)
        disk.fails = True
        disk.may_end.release(2)
        for one in (first, second):
            with pytest.raises(OSError, match="lost"):
                one.result()
    disk.fails = False
    disk.may_end.release()
    shared.sync()
    assert disk.begun == [tmp_path] * 3


async def test_whoever_waited_for_a_sync_that_failed_syncs_himself(tmp_path, disk):
    """Fault 17: that another one began for all who wait is not enough."""
    shared = SharedSync(tmp_path)
    shared._running = queue = Queue()
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(shared.sync)
        await eventually(lambda: len(disk.begun) == 1)
        others = [threads.submit(shared.sync) for _ in range(2)]
        await eventually(lambda: len(queue.came) == 3)
        disk.may_end.release()
        await eventually(lambda: len(disk.begun) == 2)
        disk.fails = True
        disk.may_end.release(2)
        first.result()
        for one in others:
            with pytest.raises(OSError, match="lost"):
                one.result()
    assert len(disk.begun) == 3
