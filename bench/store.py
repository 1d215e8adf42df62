"""What the store adds: to an adapter that is there already, and to one thousand small ones that arrive.

`ensure` of what is present opens its lock file, takes the lock and looks whether the directory is there; the floor does
just that. Staging is compared with copying the same two files, as anybody would who wants to keep them: written,
synced, and put in their place by a rename that is synced too, as many at once as the store takes. Nothing is hashed
there, nothing looked at. Where other programs share the processors, waiting for them is a part of both; what each of
the two took of a processor is told beside.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

from bench.figures import Figure, check, of_times, percentile
from bench.weights import write_large_adapter
from registry.lora.digest import FILES
from registry.runtime.local_files import sync_directory
from registry.sources.base import Stop
from sidecar.artifacts.staging import QUICK_SLOTS
from sidecar.artifacts.store import LocalStore, StoreLimits
from sidecar.artifacts.types import ArtifactRef
from tests.support.adapters import WrittenAdapter, write_adapter

PRESENT, LOOKS = 50, 40
STAGED, TURN = 1000, 100
LARGE, LARGE_BYTES, SIGHTS = 16, 32 << 20, 7
LIMIT_SECONDS = 0.001


def _time(work: Callable[[], object]) -> float:
    started = perf_counter()
    work()
    return perf_counter() - started


def _ref(adapter: WrittenAdapter) -> ArtifactRef:
    return ArtifactRef(adapter.uri, adapter.digest)


def _look(lock: Path, directory: Path) -> None:
    descriptor = os.open(lock, os.O_RDONLY | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    check(directory.is_dir(), "what was staged is gone")
    os.close(descriptor)


async def store_present(folder: Path) -> list[Figure]:
    """`ensure` of adapters that another replica of the host staged: leased, locked, seen; then from memory."""
    adapters = [write_adapter(folder / "sources" / f"a{seed}", seed=seed) for seed in range(PRESENT)]
    first = LocalStore(folder / "store", "r1", [folder.as_uri()])
    staged = [await first.ensure(_ref(adapter)) for adapter in adapters]
    floor, ours, known, spent = list[float](), list[float](), list[float](), list[float]()
    for number in range(LOOKS):
        second = LocalStore(folder / "store", f"r2-{number}", [folder.as_uri()])
        for adapter, one in zip(adapters, staged, strict=True):
            lock, directory = folder / "store" / "locks" / one.id, Path(one.path)
            floor.append(_time(partial(_look, lock, directory)))
            before = process_time()
            ours.append(await _ensure(second, adapter))
            spent.append(process_time() - before)
            known.append(await _ensure(second, adapter))
        second.close()
    first.close()
    worst, busiest = percentile(ours, 0.99), percentile(spent, 0.99)
    told = f"p99 {worst * 1000:.2f} ms; of processor time {busiest * 1000:.2f} ms"
    return [
        of_times("store_ensure_first", floor, ours, target="", note=f"target: {LIMIT_SECONDS * 1000:g} ms"),
        Figure("store_ensure_first_p99", worst / LIMIT_SECONDS, "< 1 of 1 ms", told),
        of_times("store_ensure_again", floor, known, target="<= 1", note="from memory, while the lease stands"),
    ]


async def store_first_sight(folder: Path) -> list[Figure]:
    """Large adapters that another process staged: hashed by this one, beside reading their files; both from the disk.

    What is looked up after a restart, as where the engine serves it, is not read.
    """
    adapters = [write_large_adapter(folder / "sources" / f"a{seed}", LARGE_BYTES, seed) for seed in range(LARGE)]
    first = LocalStore(folder / "store", "r1", [folder.as_uri()])
    paths = {adapter: Path((await first.ensure(_ref(adapter))).path) for adapter in adapters}
    floor, ours, looks, processor = list[float](), list[float](), list[float](), [0.0, 0.0]
    for number in range(SIGHTS):
        _leave_memory(paths.values())
        begun = process_time()
        floor.append(await _all_at_once(adapters, lambda adapter: asyncio.to_thread(_read, paths[adapter])))
        processor[0] += process_time() - begun
        _leave_memory(paths.values())
        second, begun = LocalStore(folder / "store", f"r2-{number}", [folder.as_uri()]), process_time()
        ours.append(await _all_at_once(adapters, partial(_ensure, second)))
        processor[1] += process_time() - begun
        second.close()
        restarted = LocalStore(folder / "store", f"r2-{number}", [folder.as_uri()])
        started = perf_counter()
        await restarted.recall([_ref(adapter) for adapter in adapters])
        check(all(restarted.lookup(_ref(adapter)) for adapter in adapters), "what was staged is not known")
        looks.append((perf_counter() - started) / LARGE)
        restarted.close()
    first.close()
    spent = "floor {:.0f} ms, ours {:.0f} ms".format(*(one * 1000 / SIGHTS for one in processor))
    note = (
        f"{LARGE} of {LARGE_BYTES >> 20} MB; processor time {spent}; a look after a restart {min(looks) * 1000:.2f} ms"
    )
    return [of_times("store_first_sight", floor, ours, target="<= 1.1", note=note)]


def _leave_memory(directories: Iterable[Path]) -> None:
    for path in (directory / name for directory in directories for name in FILES):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(directory: Path) -> None:
    buffer = bytearray(1 << 20)
    for name in FILES:
        with (directory / name).open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


async def _ensure(store: LocalStore, adapter: WrittenAdapter) -> float:
    started = perf_counter()
    await store.ensure(_ref(adapter))
    return perf_counter() - started


def _copy(source: Path, folder: Path) -> None:
    """Copies an adapter so that it survives a power cut, and is there whole or not at all."""
    temporary = folder / f".{uuid.uuid4().hex}"
    temporary.mkdir()
    for name in FILES:
        shutil.copyfile(source / name, temporary / name)
        with (temporary / name).open("rb") as file:
            os.fsync(file.fileno())
    sync_directory(temporary)
    temporary.rename(folder / source.name)
    sync_directory(folder)


async def store_1000(folder: Path) -> list[Figure]:
    """One thousand small adapters in turns of a hundred; then what a round of maintenance over them costs."""
    adapters = [write_adapter(folder / "sources" / f"a{seed}", seed=seed) for seed in range(STAGED)]
    (folder / "copies").mkdir()
    store = LocalStore(folder / "store", "r1", [folder.as_uri()], limits=StoreLimits(1 << 40))
    floor, ours, processor = list[float](), list[float](), [0.0, 0.0]
    for begin in range(0, STAGED, TURN):
        turn = adapters[begin : begin + TURN]
        begun = process_time()
        floor.append(await _all_at_once(turn, partial(_copy_in_thread, folder / "copies")))
        between = process_time()
        ours.append(await _all_at_once(turn, partial(_ensure, store)))
        processor = [processor[0] + between - begun, processor[1] + process_time() - between]
    maintenance = [_time(lambda: store.maintenance.round(Stop())) for _ in range(5)]
    store.close()
    each = "floor {:.2f} ms, ours {:.2f} ms".format(*(one * 1000 / STAGED for one in processor))
    note = (
        f"{TURN} adapters a turn; processor time of each: {each}; "
        f"a round of maintenance over {STAGED}: {min(maintenance) * 1000:.1f} ms"
    )
    return [of_times("store_1000", floor, ours, target="", note=note)]


async def _copy_in_thread(folder: Path, adapter: WrittenAdapter) -> None:
    await asyncio.to_thread(_copy, adapter.directory, folder)


async def _all_at_once(
    adapters: list[WrittenAdapter], work: Callable[[WrittenAdapter], Coroutine[None, None, object]]
) -> float:
    """Seconds for all of them, as many at once as the store takes."""
    slots = asyncio.Semaphore(QUICK_SLOTS)

    async def one(adapter: WrittenAdapter) -> None:
        async with slots:
            await work(adapter)

    started = perf_counter()
    await asyncio.gather(*map(one, adapters))
    return perf_counter() - started
